"""The servers meet on a new link: where each stands, and what either has forgotten."""

import logging
import secrets

from precad.aggregator.peer_link import SETUP_ATTEMPT, PeerLink
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.agree_coin import agree_coin
from precad.aggregator.rounds.attempt_state import BOUND
from precad.aggregator.rounds.history import (
    adoptable,
    history_after,
    history_start,
    settled,
)
from precad.aggregator.rounds.joint_coin import cohort_of
from precad.aggregator.rounds.recovery import Recovery, compare
from precad.aggregator.rounds.server_messages import (
    Evidence,
    Fact,
    HeadBody,
    Position,
    PreparedView,
    Remembered,
)
from precad.aggregator.rounds.server_signatures import ServerSignatures
from precad.aggregator.training.finish_round import confirm
from precad.aggregator.training.session import Session
from precad.common.errors import PeerViolation
from precad.common.identifiers import Digest, Role
from precad.common.identity.signatures import SignedKind
from precad.common.keystream import encode_context

log = logging.getLogger("precad")


def meet(session: Session, link: PeerLink) -> Recovery:
    """Compare positions and histories; learn what this server has forgotten.

    Returns:
        What to do about an attempt that a break interrupted.

    Raises:
        PeerViolation: the servers' trainings or ledgers differ in a way that nothing mends.
    """
    link.begin_attempt(SETUP_ATTEMPT)
    for learned in (False, True):
        own = position_of(session)
        theirs = _greet(link, own)
        _take_larger(session, theirs)
        alike = _same_history(session, link, own, theirs)
        far = abs(own.version - theirs.version) > 1 or _stale(own) or _stale(theirs)
        if alike and (learned or not far):
            recovery = compare(own, theirs)
            if own.version == theirs.version:
                confirm(session)
            return recovery
        if not learned:
            _learn(session, link)
            _settle(session)
    raise PeerViolation(
        "the servers' ledgers hold different charges, and neither holds the other's signature over "
        "what it lacks. Restore both servers' newest state, or start a new task"
    )


def position_of(session: Session) -> Position:
    """Where this server stands, from its durable state."""
    store, current = session.store, session.model_store.current
    pending, head = store.attempts.pending(), store.ledger.head()
    return Position(
        role="server-a" if session.role is Role.SERVER_A else "server-b",
        version=current.version,
        model=str(current.digest),
        next_attempt=max(store.attempts.next_number(), session.progress.next_attempt),
        opened=store.versions.opened(current.version),
        prepared=None
        if pending is None
        else PreparedView(
            version=pending.version,
            attempt=pending.attempt,
            valid_set=str(pending.valid_set),
            bound=pending.state in BOUND,
        ),
        frozen=session.register.frozen,
        ledger_length=head.length,
        ledger_head=str(head.head),
        nonce=secrets.token_hex(32),
    )


def seals_of(session: Session) -> ServerSignatures:
    """This server's pen and eye."""
    return ServerSignatures(session.task.digest, session.role, session.signer, session.verifier)


def _greet(link: PeerLink, own: Position) -> Position:
    theirs = Position.from_bytes(link.exchange("position", own.to_bytes()))
    if theirs.role == own.role:
        raise PeerViolation(f"the other server claims to be {own.role} too")
    # Attempts are numbered from 0, and each is opened once: a larger count would stay for ever.
    if theirs.opened > (most := max(own.next_attempt, theirs.next_attempt)):
        raise PeerViolation(
            f"the other server has counted {theirs.opened} opened attempts of a version, and there "
            f"were at most {most}"
        )
    return theirs


def _stale(position: Position) -> bool:
    """Whether a database says that an attempt is pending whose version is over."""
    return position.prepared is not None and position.prepared.version < position.version


def _settle(session: Session) -> None:
    """A stale attempt that the other server hasn't voided is charged, and over."""
    pending = session.store.attempts.pending()
    if pending is not None and pending.version < session.model_store.current.version:
        session.store.attempts.settle(pending.attempt)


def _take_larger(session: Session, theirs: Position) -> None:
    """An attempt that either knows is used; an opened one that either counts was opened."""
    progress = session.progress
    progress.frozen_there = theirs.frozen
    own = session.store.attempts.next_number()
    progress.next_attempt = max(progress.next_attempt, own, theirs.next_attempt)
    if theirs.version == session.model_store.current.version:
        session.store.versions.raise_opened(theirs.version, theirs.opened)


def _same_history(session: Session, link: PeerLink, own: Position, theirs: Position) -> bool:
    """Whether both ledgers hold alike what is settled, under a salt of this greeting."""
    version = min(own.version, theirs.version)
    pending = [None if p.prepared is None else p.prepared.attempt for p in (own, theirs)]
    facts = settled(session.store.ledger.facts(version), *pending)
    digest = history_after(session.store.ledger.history(version), facts)
    a, b = (own, theirs) if session.role is Role.SERVER_A else (theirs, own)
    parts = (bytes.fromhex(a.nonce), bytes.fromhex(b.nonce), digest.value)
    salted = Digest.of(encode_context("greeting-history", *parts))
    return link.exchange("history", salted.value) == salted.value


def _learn(session: Session, link: PeerLink) -> None:
    """Show what this server's ledger holds, and take what this server had signed itself."""
    store, seals = session.store, seals_of(session)
    shown = _evidence(session)
    link.send("evidence", shown[0].to_bytes())
    first = Evidence.from_bytes(link.receive("evidence"))
    if not 0 < first.versions <= session.task.training.rounds + 1:
        raise PeerViolation(f"the other server shows a ledger of {first.versions} versions")
    for each in shown[1:]:
        link.send("evidence", each.to_bytes())
    theirs = [first]
    theirs += [Evidence.from_bytes(link.receive("evidence")) for _ in range(first.versions - 1)]
    sealed = None
    if first.sealed is not None:
        sealed = seals.read(seals.role, SignedKind.HEAD, first.sealed, HeadBody)
        if sealed.task != str(session.task.digest):
            raise PeerViolation("the other server shows a head of another task")
    # What this server has heard of and doesn't know was, and may have left.
    heard = range(store.attempts.unused_here(), store.attempts.next_number())
    found = adoptable(history_start(session.task.digest), theirs, sealed, heard)
    if learned := store.attempts.learn(found):
        log.warning(
            "this server had forgotten %d charges that it signed: they are in its ledger again. "
            "Its database was put back from an old copy, or changed",
            learned,
        )


def _evidence(session: Session) -> list[Evidence]:
    store, version = session.store, session.model_store.current.version
    pending, witness = store.attempts.pending(), store.attempts.their_head()
    attempt = None if pending is None else pending.attempt
    bound: Fact | None = None
    stale = pending is not None and pending.version < version
    if pending is not None and not stale and pending.state in BOUND:
        names = tuple(client.name for client in pending.valid)
        bound = Fact(version=pending.version, attempt=pending.attempt, voided=False, clients=names)
    elif pending is None or stale:
        # What the journal gave back after a restore: the other may have lost it too.
        remembered = [fact for fact in store.ledger.facts(version) if not fact.voided]
        bound = max(remembered, key=lambda fact: fact.attempt, default=None)
    return [
        Evidence(
            versions=version + 1,
            facts=settled(store.ledger.facts(each), attempt),
            sealed=None if each else witness,
            pending=bound if not each else None,
        )
        for each in range(version + 1)
    ]


# Attempts that only an owner or the dealer still knows: charged, counted again later or not.
#
# Both servers were put back, and their journal files don't name what the dealer has dealt for or
# what an owner has their signature on. Such an attempt may have left. So each is an entry in both
# ledgers, and charges everybody whom its version's coin draws. Nobody remembers its version either:
# versions that are over without a charge come first, what is left over is of the newest.
#
# The servers write entry after entry in step, so that after a break one of them is ahead by one at
# most; the other takes that one over (``adoptable``), since it has heard of the attempt itself.


MOST = 100_000
"""Attempts at once. No training has lost more; a peer that says so is broken."""


def charge_unknown(session: Session, aggregator: Aggregator) -> None:
    """Charge what both ledgers lack and somebody remembers; before any attempt opens.

    Both servers stand at the same version with the same history by now (``meet``).

    Raises:
        PeerViolation: the other server charges something else, or has heard of too much.
        NeedsOperators: a version's coin can't be known without new ones.
    """
    aggregator.link.begin_attempt(SETUP_ATTEMPT)
    for attempt, version in _unknown(session, aggregator):
        coin = agree_coin(aggregator, version)
        drawn = cohort_of(coin, aggregator.roster, session.task.privacy.client_rate, version)
        names = tuple(client.name for client in drawn)
        fact = Fact(version=version, attempt=attempt, voided=False, clients=names)
        theirs = aggregator.link.exchange("unknown", fact.to_bytes())
        if Fact.from_bytes(theirs) != fact:
            raise PeerViolation("the other server charges a forgotten attempt in another way")
        session.store.attempts.charge_unknown(fact)
        log.warning(
            "attempt %d was forgotten by both servers, and may have left: whoever it may have held "
            "is charged for version %d",
            attempt,
            version,
        )


def _unknown(session: Session, aggregator: Aggregator) -> list[tuple[int, int]]:
    """Attempts and the versions that they are charged for."""
    store, link = session.store, aggregator.link
    own = Remembered(unused=store.attempts.unused_here(), unheard=store.attempts.next_number())
    theirs = Remembered.from_bytes(link.exchange("remembered", own.to_bytes()))
    unused, unheard = max(own.unused, theirs.unused), max(own.unheard, theirs.unheard)
    if unheard - unused > MOST:
        raise PeerViolation(f"{unheard - unused} attempts are said to be forgotten")
    current = session.model_store.current.version
    versions = list(store.ledger.uncharged_versions(current))
    lost = max(unheard - unused, len(versions))
    newest = min(current, session.task.training.rounds - 1)
    versions += [newest] * (lost - len(versions))
    # Durable on both, so that a server that breaks off knows that these attempts existed.
    store.attempts.hear(unused + lost - 1)
    progress = session.progress
    progress.next_attempt = max(progress.next_attempt, unused + lost)
    return list(zip(range(unused, unused + lost), versions, strict=True))
