"""What both servers do alike around the rounds: the aggregator's parts, a round's end, errors."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import assert_never

from precad.common.aggregator.collect import Held
from precad.common.aggregator.round.aggregator import Aggregator
from precad.common.aggregator.round.matching import match
from precad.common.aggregator.round.messages import HeldList, ReleaseView
from precad.common.aggregator.round.recovery import (
    Recovery,
    Remedy,
    compare,
    position_of,
    released_again,
)
from precad.common.aggregator.round.settling import (
    BATCH_WORDS,
    MAX_BATCH_CLIENTS,
    reconstruct,
    release,
    step,
    validate_and_sum,
)
from precad.common.aggregator.round.setup import agree_row_secret, greet
from precad.common.aggregator.round.states import Finished, Opened
from precad.common.aggregator.service.dealing import RemoteDealer
from precad.common.aggregator.service.feed import RoundDone
from precad.common.aggregator.service.session import Session
from precad.common.aggregator.store import ReleaseRecord, RoundState
from precad.common.errors import PeerUnavailable, PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest
from precad.common.link import FrameTransport, PeerLink
from precad.common.noise import DiscreteGaussian
from precad.common.ring import WORD_BYTES
from precad.common.task import Task

log = logging.getLogger("precad")

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 3.0
"""Waits between attempts to get back to the other server or the dealer."""
_ENTRY_BYTES = 1024
_WORDS_PER_COMPARISON = 64


def max_message_bytes(task: Task) -> int:
    """Cap of one message between the servers, from the task alone.

    The largest are an opening (a batch of d-vectors), the comparisons' openings and the lists
    over a cohort.
    """
    opening = max(BATCH_WORDS, task.dimension) * WORD_BYTES
    comparisons = (
        MAX_BATCH_CLIENTS * (2 * task.projections + 1) * _WORDS_PER_COMPARISON * WORD_BYTES
    )
    lists = task.enrolment.clients * _ENTRY_BYTES
    return max(opening, comparisons, lists) + 4096


def connect(session: Session, transport: FrameTransport) -> tuple[PeerLink, Recovery]:
    """Open the protocol on a transport: compare positions.

    Returns:
        The link, and what to do about a round that a break interrupted.

    Raises:
        PeerViolation: the servers' trainings differ.
    """
    link = PeerLink(
        transport,
        session.task.digest,
        max_message_bytes=max_message_bytes(session.task),
        timeout_s=session.task.deadlines.peer,
    )
    current = session.shelf.current
    note_done(session)
    session.store.abandon_open()
    session.inbox.cancel()
    own = position_of(session.store, session.role, current.round, current.digest)
    theirs = greet(link, own)
    session.next_number = max(own.next_number, theirs.next_number)
    return link, compare(own, theirs)


def note_done(session: Session) -> None:
    """Mark the round done that led to the kept model, if a crash came between the two."""
    current = session.shelf.current
    interrupted = session.store.release_of(current.round - 1) if current.round else None
    if interrupted is not None and interrupted.state is RoundState.RELEASED:
        session.store.finish_round(interrupted.number, current.digest)


def is_over(session: Session, recovery: Recovery) -> bool:
    """Whether both servers hold the final model: their positions alone say so."""
    last = session.task.training.rounds
    return recovery.remedy is Remedy.NOTHING and session.shelf.current.round >= last


def make_aggregator(session: Session, link: PeerLink, dealer: RemoteDealer) -> Aggregator:
    """This server's role object for one link; its roster is frozen.

    The row secret is fresh for every link and the dealer's keys for every start of the dealer;
    neither is ever stored.

    Raises:
        PeerUnavailable: the dealer isn't there, or the servers joined different starts of it.
    """
    row_secret = agree_row_secret(link, session.role, session.task)
    dealer_key = dealer.join()
    if link.exchange("dealer", dealer.epoch) != dealer.epoch:
        raise PeerUnavailable("the dealer restarted between the servers' joins; joining again")
    return Aggregator(
        task=session.task,
        role=session.role,
        roster=session.register.roster(),
        link=link,
        dealing=dealer,
        dealer_key=dealer_key,
        row_secret=row_secret,
        noise=DiscreteGaussian(session.task.noise_units),
        store=session.store,
    )


def recover(session: Session, aggregator: Aggregator, recovery: Recovery) -> None:
    """Bring an interrupted round to its end, before a new one opens.

    Raises:
        PeerViolation: the other server's persisted share leads to another model.
    """
    view = recovery.round
    if view is None:
        return
    log.info("round %d was interrupted: %s", view.number, recovery.remedy.value)
    record = session.store.release_of(view.version)
    link, current = aggregator.link, session.shelf.current
    started = time.monotonic()
    match recovery.remedy:
        case Remedy.FORFEIT:
            _forfeit(session, link, view, released_here=record is not None)
        case Remedy.SEND:
            link.send("noisy-share", _required(record).noisy_share)
            _compare_models(link, current.digest)
        case Remedy.RECEIVE:
            released = released_again(_required(record))
            data = link.receive("noisy-share")
            finished = step(aggregator, released, current.theta, data)
            _compare_models(link, finished.model)
            _keep(session, finished, started)
        case Remedy.EXCHANGE:
            released = released_again(_required(record))
            _keep(session, reconstruct(aggregator, released, current.theta), started)
        case Remedy.NOTHING:
            raise AssertionError("a round that needs nothing was named")
        case never:
            assert_never(never)


def _forfeit(session: Session, link: PeerLink, view: ReleaseView, *, released_here: bool) -> None:
    if released_here:
        # As long as this server's round stands as released, a break here leads to a forfeit
        # again; were it forfeited first, nobody would tell the other server to charge it.
        link.receive("forfeited")
    session.store.forfeit(
        view.number,
        view.version,
        view.cohort_size,
        session.shelf.current.digest,
        [ClientId(name) for name in view.valid],
    )
    if not released_here:
        link.send("forfeited", b"")


def _compare_models(link: PeerLink, model: Digest) -> None:
    if link.exchange("recovered", model.value) != model.value:
        raise PeerViolation("the servers recovered different models; nothing more is released")


def _required(record: ReleaseRecord | None) -> ReleaseRecord:
    if record is None:
        raise AssertionError("a released round has no record")
    return record


@contextmanager
def holding(collected: Mapping[ClientId, Held | Rejection]) -> Iterator[None]:
    """Spooled shares are removed at the end, however the round ends."""
    try:
        yield
    finally:
        for item in collected.values():
            if isinstance(item, Held):
                item.discard()


def settle(
    session: Session,
    aggregator: Aggregator,
    opened: Opened,
    collected: Mapping[ClientId, Held | Rejection],
    theirs: HeldList,
    started: float,
) -> None:
    """From two lists of held submissions to the next model, persisted and announced."""
    matched = match(opened, session.role, collected, theirs, session.inbox.verifier)
    released = release(aggregator, validate_and_sum(aggregator, matched))
    finished = reconstruct(aggregator, released, session.shelf.current.theta)
    _keep(session, finished, started)


def _keep(session: Session, finished: Finished, started: float) -> None:
    opened = finished.opened
    session.shelf.put(opened.version + 1, finished.theta)
    session.store.finish_round(opened.number, finished.model)
    session.heard_from_peers()
    participations = session.store.participations()
    session.feed.publish(
        RoundDone(
            opened,
            frozenset(finished.valid),
            finished.rejections,
            finished.model,
            max(participations.values(), default=0),
            time.monotonic() - started,
        )
    )


def persist(session: Session, attempt: Callable[[], None]) -> None:
    """Try until the training is over; a lost link or dealer is tried again for ``outage``.

    The outage counts from the first failure after both were last heard from: a long round or a
    long enrolment isn't one.

    Args:
        session: this server.
        attempt: connects, recovers and plays rounds; returns when training is over.

    Raises:
        PeerUnavailable: nothing worked for ``deadlines.outage`` seconds.
        PrecadError: anything else that can't be mended by trying again.
    """
    wait_s, alone_since = FIRST_WAIT_S, None
    while True:
        contacts = session.contacts
        try:
            attempt()
        except PeerUnavailable as error:
            now = time.monotonic()
            if alone_since is None or session.contacts > contacts:
                wait_s, alone_since = FIRST_WAIT_S, now
            if now - alone_since > session.task.deadlines.outage:
                raise
            session.error = f"{error}; trying again"
            log.warning("%s; trying again", error)
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        else:
            session.error = ""
            return
