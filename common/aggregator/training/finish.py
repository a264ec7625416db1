"""A round's end: the next model is kept and announced, also where a break interrupted the round."""

import logging
from typing import assert_never

from precad.common.aggregator.release.reconstruct import reconstruct, step
from precad.common.aggregator.round.aggregator import Aggregator
from precad.common.aggregator.round.journal import ReleaseRecord
from precad.common.aggregator.round.messages import ReleaseView
from precad.common.aggregator.round.recovery import Recovery, Remedy, released_again
from precad.common.aggregator.round.states import Finished
from precad.common.aggregator.training.feed import RoundDone
from precad.common.aggregator.training.session import Session
from precad.common.errors import PeerViolation
from precad.common.identifiers import ClientId, Digest
from precad.common.link import PeerLink

log = logging.getLogger("precad")


def keep(session: Session, finished: Finished, seconds: float) -> None:
    """Persist the next model, then say that the round is done."""
    opened = finished.opened
    session.shelf.put(opened.version + 1, finished.theta)
    session.store.finish_attempt(opened.attempt, finished.model)
    session.progress.heard_from_peers()
    participations = session.store.participations()
    session.feed.publish(
        RoundDone(
            opened,
            frozenset(finished.valid),
            finished.rejections,
            finished.model,
            max(participations.values(), default=0),
            seconds,
        )
    )


def recover(session: Session, aggregator: Aggregator, recovery: Recovery) -> None:
    """Bring an interrupted round to its end, before a new one opens.

    Raises:
        PeerViolation: the other server's persisted share leads to another model.
    """
    view = recovery.attempt
    if view is None:
        return
    log.info("attempt %d was interrupted: %s", view.attempt, recovery.remedy.value)
    record = session.store.release_of(view.version)
    link, current = aggregator.link, session.shelf.current
    started = session.clock.now()
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
            keep(session, finished, session.clock.now() - started)
        case Remedy.EXCHANGE:
            released = released_again(_required(record))
            finished = reconstruct(aggregator, released, current.theta)
            keep(session, finished, session.clock.now() - started)
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
        view.attempt,
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
