"""The servers meet on a new link: where each stands, and what either has forgotten."""

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import TypeVar

from precad.aggregator import server_messages as messages
from precad.aggregator.peer_link import SETUP_ATTEMPT, PeerLink
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.start_attempt import draw
from precad.aggregator.server_messages import Evidence, Fact, Position, exchange
from precad.aggregator.store.ledger import history_after, history_start
from precad.aggregator.store.schema import BOUND, AttemptState, Permission
from precad.aggregator.training.recovery import (
    Recovery,
    adoptable,
    compare,
    require_word,
    settled,
)
from precad.aggregator.training.round_end import confirm
from precad.aggregator.training.session import Session
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.signatures import SignedKind
from precad.common.model import ModelVector, model_digest
from precad.common.ring import encode_context
from precad.common.wire.messages import (
    Opening,
    Statement,
    check_opening,
    check_statement,
)

log = logging.getLogger("precad")


def meet(session: Session, link: PeerLink) -> Recovery:
    """Compare positions and histories; learn what this server has forgotten.

    What to do about an attempt that a break interrupted. Raises PeerViolation: the
    servers' trainings or ledgers differ in a way that nothing mends.
    """
    link.begin_attempt(SETUP_ATTEMPT)
    for learned in (False, True):
        own = position_of(session)
        theirs = _greet(session, link, own)
        alike = _same_history(session, link, own=own, theirs=theirs)
        far = abs(own.version - theirs.version) > 1 or _stale(own) or _stale(theirs)
        if alike and (learned or not far):
            recovery = compare(own, theirs)
            if own.version == theirs.version:
                confirm(session)
            return recovery
        if not learned:
            _learn(session, link)
            pending = session.store.attempts.pending()
            if pending is not None and pending.version < session.version:
                # The other server hasn't voided it: it is charged, and over.
                session.store.attempts.settle(pending.attempt)
    raise PeerViolation(
        "the servers' ledgers hold different charges, and neither holds the other's"
        " signature over what it lacks. Restore both servers' newest state, or start a"
        " new task"
    )


def position_of(session: Session) -> Position:
    """Return where this server stands, from its durable state."""
    store = session.store
    current = session.model_store.current
    pending = store.attempts.pending()
    head = store.ledger.head()
    prepared = pending and messages.PreparedView(
        version=pending.version,
        attempt=pending.attempt,
        valid_set=str(pending.valid_set),
        bound=pending.state in BOUND,
    )
    return Position(
        role="server-a" if session.role is Role.SERVER_A else "server-b",
        version=current.version,
        model=str(current.digest),
        next_attempt=max(store.attempts.next_number(), session.progress.next_attempt),
        opened=store.versions.opened(current.version),
        prepared=prepared,
        frozen=session.register.frozen,
        ledger_length=head.length,
        ledger_head=str(head.head),
        nonce=secrets.token_hex(32),
    )


def _greet(session: Session, link: PeerLink, own: Position) -> Position:
    """Take the larger of both servers' attempts, and of their counts of opened ones."""
    theirs = exchange(link, "position", own)
    progress = session.progress
    if theirs.role == own.role:
        raise PeerViolation(f"the other server claims to be {own.role} too")
    # Attempts are numbered from 0, and each is opened once: a larger count would stay
    # for ever.
    if theirs.opened > (most := max(own.next_attempt, theirs.next_attempt)):
        raise PeerViolation(
            f"the other server has counted {theirs.opened} opened attempts of a"
            f" version, and there were at most {most}"
        )
    progress.frozen_there = theirs.frozen
    progress.next_attempt = most
    if theirs.version == own.version:
        session.store.versions.raise_opened(theirs.version, theirs.opened)
    return theirs


def _stale(position: Position) -> bool:
    """Return whether a database says that an attempt is pending whose version is over."""
    return (
        position.prepared is not None and position.prepared.version < position.version
    )


def _same_history(
    session: Session,
    link: PeerLink,
    *,
    own: Position,
    theirs: Position,
) -> bool:
    """Return whether both ledgers hold alike what is settled, under a salt of this greeting."""
    version = min(own.version, theirs.version)
    pending = [
        None if p.prepared is None else p.prepared.attempt for p in (own, theirs)
    ]
    facts = settled(session.store.ledger.facts(version), *pending)
    digest = history_after(session.store.ledger.history(version), facts)
    a, b = (own, theirs) if session.role is Role.SERVER_A else (theirs, own)
    parts = (bytes.fromhex(a.nonce), bytes.fromhex(b.nonce), digest.value)
    salted = Digest.of(encode_context("greeting-history", *parts))
    return link.exchange("history", salted.value) == salted.value


def _learn(session: Session, link: PeerLink) -> None:
    """Show what this server's ledger holds, and take what this server had signed itself."""
    store = session.store
    signatures = session.signatures
    shown = _evidence(session)
    link.send("evidence", shown[0].to_bytes())
    first = Evidence.from_bytes(link.receive("evidence"))
    if not 0 < first.versions <= session.task.training.rounds + 1:
        raise PeerViolation(
            f"the other server shows a ledger of {first.versions} versions"
        )
    for each in shown[1:]:
        link.send("evidence", each.to_bytes())
    theirs = [first]
    theirs += [
        Evidence.from_bytes(link.receive("evidence")) for _ in range(first.versions - 1)
    ]
    signed = None
    if first.signed is not None:
        signed = signatures.check(
            signatures.role, SignedKind.HEAD, first.signed, messages.HeadBody
        )
        if signed.task != str(session.task.digest):
            raise PeerViolation("the other server shows a head of another task")
    # What this server has heard of and doesn't know was, and may have left.
    heard = range(store.attempts.unused_here(), store.attempts.next_number())
    found = adoptable(history_start(session.task.digest), theirs, signed, heard)
    known = [
        fact
        for fact in found
        if fact != first.pending or _believed(session, fact, found)
    ]
    learned = store.attempts.learn(known)
    if learned:
        log.warning(
            "this server had forgotten %d charges that it signed: they are in its"
            " ledger again. Its database was put back from an old copy, or changed",
            learned,
        )


def _believed(session: Session, pending: Fact, found: Sequence[Fact]) -> bool:
    """Return whether an attempt that the other server alone shows is charged: one a version.

    A second one of a version is only where this server has heard of it too: from the
    dealer, an owner, or its own signature (``found`` has it twice then).
    """
    store = session.store
    if found.count(pending) > 1 or pending.attempt < store.attempts.next_number():
        return True
    states = store.attempts.states()
    return not any(
        states.get(fact.attempt) is AttemptState.LEARNED and not fact.voided
        for fact in store.ledger.facts(pending.version)
        if fact.attempt != pending.attempt
    )


def _evidence(session: Session) -> list[Evidence]:
    store = session.store
    version = session.version
    pending = store.attempts.pending()
    shown: Fact | None = None
    if pending is None or pending.version < version:
        # What the journal gave back after a restore: the other may have lost it too.
        charges = (fact for fact in store.ledger.facts(version) if not fact.voided)
        shown = max(charges, key=lambda fact: fact.attempt, default=None)
    elif pending.state in BOUND:
        shown = pending.fact()
    unfinished = None if pending is None else pending.attempt
    facts = [
        settled(store.ledger.facts(each), unfinished) for each in range(version + 1)
    ]
    signed = store.attempts.their_head()
    first = Evidence(
        versions=version + 1,
        facts=facts[0],
        signed=signed,
        pending=shown,
    )
    return [first, *(Evidence(versions=version + 1, facts=each) for each in facts[1:])]


# Attempts that only an owner or the dealer still knows: charged, counted again later or
# not.
#
# Both servers were put back, and their journal files don't name what the dealer has
# dealt for or what an owner has their signature on. Such an attempt may have left. So
# each that both servers have heard of, or that their operators let pass, is an entry in
# both ledgers, and charges everybody whom its version's coin draws. Nobody remembers
# its version either: versions that are over without a charge come first, what is left
# over is of the newest. The servers write entry after entry in step: after a break one
# is ahead by one at most, which the other takes over (``adoptable``), since it has
# heard of the attempt itself.

MOST = 100_000
"""Attempts at once. No training has lost more; a peer that says so is broken."""


def charge_unknown(session: Session, aggregator: Aggregator) -> None:
    """Charge what both ledgers lack and somebody remembers; before any attempt opens.

    Both servers stand at the same version with the same history by now (``meet``).

    Raises PeerViolation: the other server charges something else, or has heard of too
    much; NeedsOperators: a version's coin can't be known without new ones.
    """
    aggregator.link.begin_attempt(SETUP_ATTEMPT)
    for attempt, version in _unknown(session, aggregator):
        names = tuple(client.name for client in draw(aggregator, version))
        fact = Fact(
            version=version,
            attempt=attempt,
            voided=False,
            clients=names,
        )
        if exchange(aggregator.link, "unknown", fact) != fact:
            raise PeerViolation(
                "the other server charges a forgotten attempt in another way"
            )
        session.store.attempts.charge_unknown(fact)
        forgotten = "attempt %d was forgotten by both servers, and may have left: %s"
        charged = f"whoever it may have held is charged for version {version}"
        log.warning(forgotten, attempt, charged)


def _unknown(session: Session, aggregator: Aggregator) -> list[tuple[int, int]]:
    store = session.store
    attempts = session.store.attempts
    link = aggregator.link
    own = messages.Remembered(
        unused=attempts.unused_here(), unheard=attempts.next_number()
    )
    theirs = exchange(link, "remembered", own)
    unused = max(own.unused, theirs.unused)
    unheard = max(own.unheard, theirs.unheard)
    current = session.version
    if unheard > unused and own.unheard != theirs.unheard:
        # The dealer says its number to both, and owners show each server its own
        # signature: it comes, or the operators know better.
        known = min(own.unheard, theirs.unheard)
        what = (
            f"one server alone has heard of attempts {max(unused, known)} to"
            f" {unheard - 1}, which would be charged; an owner of theirs that comes to"
            " both servers says so too"
        )
        require_word(
            session,
            link,
            Permission.CLAIMED,
            (current, unheard - 1),
            what,
        )
    if unheard - unused > MOST:
        raise PeerViolation(f"{unheard - unused} attempts are said to be forgotten")
    versions = list(store.ledger.uncharged_versions(current))
    lost = max(unheard - unused, len(versions))
    newest = min(current, session.task.training.rounds - 1)
    versions += [newest] * (lost - len(versions))
    if lost:
        # Durable on both, so that a server that breaks off knows that these attempts
        # existed.
        store.attempts.hear(unused + lost - 1)
    progress = session.progress
    progress.next_attempt = max(progress.next_attempt, unused + lost)
    return list(zip(range(unused, unused + lost), versions, strict=True))


# What owners bring back to a server that has lost its memory: its own statements, and
# models.
#
# A statement is this server's own signature, so nobody can make one up. A version that
# one of them says is over is never released again: its model comes back from an owner,
# or from the operators' backup.

Body = TypeVar("Body", Opening, Statement)


def _own(
    session: Session,
    client: ClientId,
    shown: bytes,
    check: Callable[..., Body],
) -> Body | None:
    """Return what this server once signed for ``client``.

    None where the certificate that signed it was revoked since: whoever has that key
    can sign anything, and its owner must still get on.
    """
    try:
        body = check(session.verifier, session.role, shown, kept=True)
    except PeerUnavailable as error:
        log.warning("%s shows a signature that isn't believed: %s", client, error)
        return None
    if (body.task_digest, body.client) != (session.task.digest.value, client.name):
        raise PeerViolation("what was shown is another client's or task's")
    return body


def remember(session: Session, client: ClientId, shown: bytes) -> Statement | None:
    """Keep a statement that this server may have forgotten, durably; None: it isn't believed.

    Raises PeerViolation: this server hasn't signed it, or not for this client and task.
    """
    body = _own(session, client, shown, check_statement)
    if body is not None and session.store.statements.keep(body):
        shows = (
            "%s shows a statement of this server on version %d that its ledger doesn't"
            " hold: %s"
        )
        why = "its database was put back from an old copy. What it states counts again"
        log.warning(shows, client, body.version, why)
    return body


def hear_of(session: Session, client: ClientId, opening: bytes) -> None:
    """Keep that this server has opened an attempt for ``client``.

    Raises as ``remember`` does.
    """
    body = _own(session, client, opening, check_opening)
    if body is not None:
        session.store.attempts.hear(body.attempt)


def lost_model(session: Session, client: ClientId, shown: bytes) -> Statement | None:
    """Return the statement where its model is lost here.

    Raises PeerViolation: also if revoked.
    """
    body = remember(session, client, shown)
    if body is None:
        raise PeerViolation(
            f"the statement that {client} brings is of a revoked certificate"
        )
    given = session.progress.given_back
    has = max(session.version, -1 if given is None else given[0])
    return body if body.version > has else None


def give_back(
    session: Session,
    client: ClientId,
    lost: Statement,
    theta: ModelVector,
) -> None:
    """Take a lost model, on which the training goes on.

    Raises PeerViolation: it is another one.
    """
    task = session.task
    found = model_digest(task.digest, lost.version, task.model.parameters, theta)
    if found.value != lost.model_digest:
        raise PeerViolation(
            f"the model that {client} gives back isn't the one that was signed"
        )
    log.warning("%s gives model %d back", client, lost.version)
    session.progress.given_back = (lost.version, theta)


def take_back(session: Session) -> None:
    """At a link's beginning: go on from a model that an owner has given back."""
    given = session.progress.given_back
    session.progress.given_back = None
    if given is not None and given[0] > session.version:
        session.model_store.put(*given)


def require_nothing_lost(session: Session) -> None:
    """Before an attempt opens, and before it is prepared.

    Raises PeerUnavailable: a version that owners may have heard of would be released
    again; or its model has just come back.
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
