"""End a round: keep the next model, tell each other so, and only then tell owners.

A model that was stated to owners is never made again, so both servers must have it on
their disks by then. A round ends in the same way after a break (``recovery``).
"""

import logging
import time
from collections import Counter

from precad.aggregator.attempt_states import Counted
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.training.session import RoundDone, Session
from precad.common.clock import Clock
from precad.common.identifiers import Digest
from precad.common.model import ModelVector
from precad.common.wire.calls import StepCost

log = logging.getLogger("precad")


class Steps:
    """Measure a round's steps: ``collect``, ``validate``, ``release`` and ``keep``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.now()
        self._cpu_began = time.process_time()
        self.costs: list[StepCost] = []
        """What the steps that are over took, in order."""

    def over(self, step: str) -> None:
        """Note that ``step`` ends now, and that the next one begins."""
        ended = self._clock.now()
        cpu_ended = time.process_time()
        cost = StepCost(
            step=step,
            seconds=ended - self._began,
            cpu_seconds=cpu_ended - self._cpu_began,
            ended=ended,
            cpu_ended=cpu_ended,
        )
        self.costs.append(cost)
        self._began = ended
        self._cpu_began = cpu_ended


def keep(
    session: Session,
    counted: Counted,
    theta: ModelVector,
    model: Digest,
    steps: Steps,
) -> None:
    """Persist the next model θ_{t+1}, ``[d]``, whose digest is ``model``.

    Its round is announced to owners later, once the other server has the model too
    (``confirm``). Raises StorageFailure: the disk or the database fails.
    """
    opened = counted.opened
    version = opened.version + 1
    session.model_store.put(
        version, theta, session.store.versions.model_seal(version), model
    )
    session.store.attempts.finish(opened.attempt, model)
    session.progress.heard_from_peers(session.clock.now())
    steps.over("keep")
    participations = session.store.ledger.participations()
    valid = frozenset(counted.valid)
    session.progress.unannounced = RoundDone(
        opened=opened,
        valid=valid,
        rejections=counted.rejections,
        model=model,
        most_participations=max(participations.values(), default=0),
        steps=tuple(steps.costs),
    )
    rejected = Counter(reason.value for reason in counted.rejections.values())
    rejection_counts = "".join(
        f", {count} {reason}" for reason, count in sorted(rejected.items())
    )
    step_times = ", ".join(f"{cost.step} {cost.seconds:.2f} s" for cost in steps.costs)
    enough = len(valid) >= (session.task.training.least_counted or 1)
    log.log(
        logging.INFO if enough else logging.WARNING,
        "version %d is made: %d of %d submissions count%s; %s",
        version,
        len(valid),
        len(opened.cohort),
        rejection_counts,
        step_times,
    )


def say_kept(session: Session, link: PeerLink) -> None:
    """Exchange with the other server that the model is on the disk, then announce it.

    Only then anybody else hears of the model: what was stated to owners is never made
    again, so both servers must have it by then. Raises PeerUnavailable or
    PeerViolation: the link breaks, or the servers are out of step.
    """
    link.exchange("kept", session.model_store.current.digest.value)
    confirm(session)


def confirm(session: Session) -> None:
    """Announce the newest model, which the other server is known to hold too."""
    session.store.versions.confirm(session.version)
    done = session.progress.unannounced
    session.progress.unannounced = None
    if done is not None:
        session.event_log.publish(done)
