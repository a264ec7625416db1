"""Let the servers meet on a new link: where each stands, and what either has forgotten.

Three parts: the servers compare positions and histories (``meet``); both charge
attempts that they have forgotten (``charge_unknown``); and a server takes back what
owners bring to it (``remember``, ``give_back``).
"""

import secrets
from collections.abc import Sequence
from typing import TypeVar

from precad.aggregator import (
    SETUP_ATTEMPT,
    Evidence,
    Fact,
    PeerLink,
    Position,
    exchange,
)
from precad.aggregator import server_messages as messages
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.start_attempt import draw
from precad.aggregator.store import (
    BOUND,
    AttemptState,
    Permission,
    history_after,
    history_start,
)
from precad.aggregator.training import (
    Recovery,
    Session,
    adoptable,
    compare,
    confirm,
    require_word,
    settled,
)
from precad.common import (
    ClientId,
    ModelVector,
    PeerUnavailable,
    PeerViolation,
    Role,
    digest_of,
    digest_of_model,
    log,
)
from precad.common.identity import SignedKind
from precad.common.wire import Opening, Statement


def meet(session: Session, link: PeerLink) -> Recovery:
    """Compare positions and histories; learn what this server has forgotten.

    Return what to do about an attempt that a break interrupted.

    Raises PeerUnavailable; PeerViolation: the servers' trainings or ledgers differ in
    a way that nothing mends.
    """
    link.begin_attempt(SETUP_ATTEMPT)
    # At most twice: the second time after both servers have shown what they hold.
    for evidence_seen in (False, True):
        own = position_of(session)
        theirs = _greet(session, link, own)
        same_history = _same_history(session, link, own=own, theirs=theirs)
        versions_apart = abs(own.version - theirs.version)
        far_apart = versions_apart > 1 or _stale(own) or _stale(theirs)
        if same_history and (evidence_seen or not far_apart):
            recovery = compare(own, theirs)
            if own.version == theirs.version:
                confirm(session)
            return recovery
        if not evidence_seen:
            _learn(session, link)
            pending = session.store.attempts.pending()
            if pending is not None and pending.version < session.version:
                # The other server hasn't voided it: it is charged, and over.
                session.store.attempts.end(pending.attempt, AttemptState.LEARNED)
    raise PeerViolation(
        "the servers' ledgers hold different charges, and neither holds the other's"
        " signature over what it lacks. Restore both servers' newest state, or start a"
        " new task"
    )


def position_of(session: Session) -> Position:
    """Return where this server stands, from its durable state, with a fresh nonce."""
    store = session.store
    current = session.model_store.current
    pending = store.attempts.pending()
    head = store.ledger.head()
    prepared = None
    if pending is not None:
        prepared = messages.PreparedView(
            version=pending.version,
            attempt=pending.attempt,
            valid_set=pending.valid_set.value,
            bound=pending.state in BOUND,
        )
    return Position(
        role="server-a" if session.role is Role.SERVER_A else "server-b",
        version=current.version,
        model=current.digest.value,
        next_attempt=max(store.attempts.next_number(), session.progress.next_attempt),
        opened=store.versions.opened(current.version),
        prepared=prepared,
        frozen=session.register.frozen,
        ledger_length=head.length,
        ledger_head=head.head.value,
        nonce=secrets.token_bytes(32),
    )


def _greet(session: Session, link: PeerLink, own: Position) -> Position:
    """Exchange positions, for ``meet``, and return the other server's.

    Of the next attempt's number, and of the count of opened attempts, the larger of
    both servers' counts from here on. Raises PeerUnavailable; PeerViolation: the other
    server claims this server's role, or a count that can't be.
    """
    theirs = exchange(link, "position", own)
    progress = session.progress
    if theirs.role == own.role:
        raise PeerViolation(f"the other server claims to be {own.role} too")
    next_attempt = max(own.next_attempt, theirs.next_attempt)
    # Attempts are numbered from 0, and each is opened once: a larger count would stay
    # for ever.
    if theirs.opened > next_attempt:
        raise PeerViolation(
            f"the other server has counted {theirs.opened} opened attempts of a"
            f" version, and there were at most {next_attempt}"
        )
    progress.frozen_there = theirs.frozen
    progress.next_attempt = next_attempt
    if theirs.version == own.version:
        session.store.versions.raise_opened(theirs.version, theirs.opened)
    return theirs


def _stale(position: Position) -> bool:
    """Return whether an attempt is said to be pending although its version is over."""
    prepared = position.prepared
    return prepared is not None and prepared.version < position.version


def _same_history(
    session: Session,
    link: PeerLink,
    *,
    own: Position,
    theirs: Position,
) -> bool:
    """Return whether both ledgers hold alike what is settled, for ``meet``.

    Each server sends the digest of it, salted with both nonces of this greeting.
    """
    version = min(own.version, theirs.version)
    facts = settled(
        session.store.ledger.facts(version),
        None if own.prepared is None else own.prepared.attempt,
        None if theirs.prepared is None else theirs.prepared.attempt,
    )
    digest = history_after(session.store.ledger.history(version), facts)
    of_a, of_b = (own, theirs) if session.role is Role.SERVER_A else (theirs, own)
    salted = digest_of("greeting-history", of_a.nonce, of_b.nonce, digest.value).value
    return link.exchange("history", salted) == salted


def _learn(session: Session, link: PeerLink) -> None:
    """Show what this server's ledger holds, and learn what it has forgotten.

    For ``meet``, where the two histories differ. A server takes what it had signed
    itself. Raises PeerUnavailable; PeerViolation: the other server shows an impossible
    number of versions, or a head that this server hasn't signed for this task.
    """
    store = session.store
    signatures = session.signatures
    for evidence in _evidence(session):
        link.send("evidence", evidence.to_bytes())
    first = Evidence.from_bytes(link.receive("evidence"))
    if not 0 < first.versions <= session.task.mechanism.releases + 1:
        raise PeerViolation(
            f"the other server shows a ledger of {first.versions} versions"
        )
    their_evidence = [first]
    their_evidence += [
        Evidence.from_bytes(link.receive("evidence")) for _ in range(first.versions - 1)
    ]
    signed_head = None
    if first.signed is not None:
        signed_head = signatures.check(
            signatures.role, SignedKind.HEAD, first.signed, messages.HeadBody
        )
        if signed_head.task != session.task.digest.value:
            raise PeerViolation("the other server shows a head of another task")
    # Attempts that this server has heard of and doesn't know: there were such attempts,
    # and they may have left.
    heard = range(store.attempts.unused_here(), store.attempts.next_number())
    adopted = adoptable(
        history_start(session.task.digest), their_evidence, signed_head, heard
    )
    believed = [
        fact
        for fact in adopted
        if fact != first.pending or _believed(session, fact, adopted)
    ]
    learned = store.attempts.learn(believed)
    if learned:
        log.warning(
            "this server had forgotten %d charges that it signed: they are in its"
            " ledger again. Its database was put back from an old copy, or changed",
            learned,
        )


def _believed(session: Session, pending: Fact, adopted: Sequence[Fact]) -> bool:
    """Return whether an attempt that the other server alone has pending is charged.

    One attempt of each version is. A second one of a version is charged only where this
    server has heard of it too: from the dealer, from an owner, or by its own signature
    (then ``adopted`` has it twice).
    """
    store = session.store
    if adopted.count(pending) > 1 or pending.attempt < store.attempts.next_number():
        return True
    states = store.attempts.states(pending.version)
    return not any(
        states.get(fact.attempt) is AttemptState.LEARNED and not fact.voided
        for fact in store.ledger.facts(pending.version)
        if fact.attempt != pending.attempt
    )


def _evidence(session: Session) -> list[Evidence]:
    """Return what this server's ledger holds, for ``_learn``: a message a version.

    The first message also has the newest head that the other server signed, and the
    attempt that the other server may have forgotten.
    """
    store = session.store
    newest_version = session.version
    pending = store.attempts.pending()
    shown = None
    if pending is None or pending.version < newest_version:
        # A charge that the journal gave back after a restore: the other server may have
        # lost it too.
        charges = (
            fact for fact in store.ledger.facts(newest_version) if not fact.voided
        )
        shown = max(charges, key=lambda fact: fact.attempt, default=None)
    elif pending.state in BOUND:
        shown = pending.fact()
    unfinished = None if pending is None else pending.attempt
    versions = newest_version + 1
    facts = [
        settled(store.ledger.facts(version), unfinished) for version in range(versions)
    ]
    first = Evidence(
        versions=versions,
        facts=facts[0],
        signed=store.attempts.their_head(),
        pending=shown,
    )
    later = [Evidence(versions=versions, facts=of_version) for of_version in facts[1:]]
    return [first, *later]


# Attempts that only an owner or the dealer still knows: they are charged, whether or
# not they are counted again later.
#
# Both servers' databases were put back from old copies, and their journal files don't
# name what the dealer has dealt for, or what an owner has their signature on. Such an
# attempt may have left. So each attempt that both servers have heard of, or that their
# operators let pass, becomes an entry in both ledgers, and charges everybody whom its
# version's coin draws. Nobody remembers its version either: versions that are over
# without a charge come first, and the attempts that are left over count as attempts of
# the newest version. The servers write entry after entry in step. So after a break one
# of them is ahead by one entry at most. The other one takes that entry over
# (``adoptable``), since it has heard of the attempt itself.

MOST_FORGOTTEN = 100_000
"""How many attempts both servers may have forgotten at once.

No training has lost more; another server that says so is broken.
"""


def charge_unknown(session: Session, aggregator: Aggregator) -> None:
    """Charge attempts that both ledgers lack and somebody else remembers.

    It comes before any attempt opens. Both servers stand at the same version with the
    same history by now (``meet``).

    Raises PeerUnavailable; PeerViolation: the other server charges something else, or
    has heard of too many attempts; NeedsOperators: one server alone has heard of them,
    or a version's coin can't be known without taking new coins.
    """
    aggregator.link.begin_attempt(SETUP_ATTEMPT)
    for attempt, version in _unknown(session, aggregator):
        drawn = draw(aggregator, version)
        fact = Fact(
            version=version,
            attempt=attempt,
            clients=tuple(client.name for client in drawn),
        )
        if exchange(aggregator.link, "unknown", fact) != fact:
            raise PeerViolation(
                "the other server charges a forgotten attempt in another way"
            )
        session.store.attempts.charge_unknown(fact)
        log.warning(
            "attempt %d was forgotten by both servers, and may have left: %s",
            attempt,
            f"whoever it may have held is charged for version {version}",
            extra={"version": version, "attempt": attempt},
        )


def _unknown(session: Session, aggregator: Aggregator) -> list[tuple[int, int]]:
    """Agree with the other server on the forgotten attempts, for ``charge_unknown``.

    Return each attempt's number with the version that it is charged for. That there
    were such attempts is durable by then.
    """
    attempts = session.store.attempts
    link = aggregator.link
    own = messages.Remembered(
        unused=attempts.unused_here(), unheard=attempts.next_number()
    )
    theirs = exchange(link, "remembered", own)
    unused = max(own.unused, theirs.unused)
    unheard = max(own.unheard, theirs.unheard)
    current_version = session.version
    if unheard > unused and own.unheard != theirs.unheard:
        # The dealer tells its number to both servers, and owners show each server its
        # own signature: so the other server hears of it too, or the operators know
        # better.
        heard_by_both = min(own.unheard, theirs.unheard)
        require_word(
            session,
            link,
            Permission.CLAIMED,
            version=current_version,
            attempt=unheard - 1,
            reason=(
                "one server alone has heard of attempts"
                f" {max(unused, heard_by_both)} to {unheard - 1}, which would be"
                " charged; an owner of theirs that comes to both servers says so too"
            ),
        )
    if unheard - unused > MOST_FORGOTTEN:
        raise PeerViolation(f"{unheard - unused} attempts are said to be forgotten")
    versions = list(session.store.ledger.uncharged_versions(current_version))
    forgotten = max(unheard - unused, len(versions))
    newest_released = min(current_version, session.task.mechanism.releases - 1)
    versions += [newest_released] * (forgotten - len(versions))
    if forgotten:
        # It is durable on both servers, so that a server that breaks off knows that
        # these attempts existed.
        attempts.hear(unused + forgotten - 1)
    progress = session.progress
    progress.next_attempt = max(progress.next_attempt, unused + forgotten)
    return list(zip(range(unused, unused + forgotten), versions, strict=True))


# What owners bring back to a server that has lost its memory: the server's own
# statements, and models.
#
# A statement carries this server's own signature, so nobody can make one up. A version
# that one of them says is over is never released again: its model comes back from an
# owner, or from the operators' backup.

Body = TypeVar("Body", Opening, Statement)
"""What a server signs for an owner."""


def _own(
    session: Session,
    client: ClientId,
    shown: bytes,
    form: type[Body],
) -> Body | None:
    """Return what this server once signed for ``client``, or None.

    None where the certificate that signed it was revoked since: whoever has that key
    can sign anything, and the owner must still get on.

    Raises PeerViolation: this server hasn't signed it, or not for this client and task.
    """
    try:
        body = form.checked(session.verifier, session.role, shown, kept=True)
    except PeerUnavailable as error:
        log.warning("%s shows a signature that isn't believed: %s", client, error)
        return None
    if (body.task_digest, body.client) != (session.task.digest.value, client.name):
        raise PeerViolation("what was shown is another client's or task's")
    return body


def remember(session: Session, client: ClientId, shown: bytes) -> Statement | None:
    """Keep, durably, a statement that this server may have forgotten, and return it.

    Return None where it isn't believed, because its certificate was revoked.

    Raises PeerViolation: this server hasn't signed it, or not for this client and task.
    """
    statement = _own(session, client, shown, Statement)
    if statement is not None and session.store.statements.keep(statement):
        log.warning(
            "%s shows a statement of this server on version %d that its ledger doesn't"
            " hold: %s",
            client,
            statement.version,
            "its database was put back from an old copy. What it states counts again",
            extra={"owner": client.name, "version": statement.version},
        )
    return statement


def hear_of(session: Session, client: ClientId, opening: bytes) -> None:
    """Keep, durably, that this server has opened an attempt for ``client``.

    ``opening`` is what this server has signed of it, as the client shows it. Raises as
    ``remember`` does.
    """
    body = _own(session, client, opening, Opening)
    if body is not None:
        session.store.attempts.hear(body.attempt)


def lost_model(session: Session, client: ClientId, shown: bytes) -> Statement | None:
    """Return the statement that a client shows where its model is lost on this server.

    Return None where this server has that model, or a newer one.

    Raises PeerViolation: as ``remember``, and where the certificate that signed the
    statement was revoked.
    """
    statement = remember(session, client, shown)
    if statement is None:
        raise PeerViolation(
            f"the statement that {client} brings is of a revoked certificate"
        )
    newest_here = session.version
    if session.progress.given_back is not None:
        given_version, _ = session.progress.given_back
        newest_here = max(newest_here, given_version)
    return statement if statement.version > newest_here else None


def give_back(
    session: Session,
    client: ClientId,
    lost: Statement,
    theta: ModelVector,
) -> None:
    """Take the lost model θ, ``[d]``, of a statement; the training goes on from it.

    Raises PeerViolation: it isn't the model that the statement names.
    """
    if digest_of_model(session.task, lost.version, theta).value != lost.model_digest:
        raise PeerViolation(
            f"the model that {client} gives back isn't the one that was signed"
        )
    log.warning("%s gives model %d back", client, lost.version)
    session.progress.given_back = (lost.version, theta)


def take_back(session: Session) -> None:
    """Go on from a model that an owner has given back; asked at a link's beginning.

    Raises StorageFailure: the disk fails.
    """
    given_back = session.progress.given_back
    session.progress.given_back = None
    if given_back is not None:
        version, theta = given_back
        if version > session.version:
            session.model_store.put(version, theta)


def require_nothing_lost(session: Session) -> None:
    """Check that no version is released again whose end owners may have heard of.

    It is asked before an attempt opens, and before it is prepared.

    Raises PeerUnavailable: such a version would be released again, or its model has
    just come back.
    """
    version = session.version
    promised = session.store.statements.promised_version()
    if session.progress.given_back is not None:
        raise PeerUnavailable("a lost model has come back; going on from it")
    if promised > version:
        raise PeerUnavailable(
            f"owners may have heard from this server that version {promised - 1} is"
            f" over, and it has model {version}: it was put back from an old copy. It"
            f" waits for an owner to give model {promised} back, or for you to put this"
            " server's newest model file in place. Where no owner has fetched that"
            " model and no copy of the file is left, nothing brings it back: start a"
            " new task"
        )
