"""A round's end: the next model is kept, both servers say so, and only then owners hear of it.

A model that is stated to owners is never made again, so both servers must have it on
their disks by then. The same end comes after a break (``recovery``).
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
    """Times a round's steps: ``collect``, ``validate``, ``release``, ``keep``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.now(), time.process_time()
        self.costs: list[StepCost] = []
        """The steps that are over, in order."""

    def over(self, step: str) -> None:
        """``step`` ends now; the next one begins."""
        began, cpu_began = self._began
        ended = self._clock.now()
        cpu_ended = time.process_time()
        cost = StepCost(
            step=step,
            seconds=ended - began,
            cpu_seconds=cpu_ended - cpu_began,
            ended=ended,
            cpu_ended=cpu_ended,
        )
        self.costs.append(cost)
        self._began = ended, cpu_ended


def keep(
    session: Session,
    counted: Counted,
    theta: ModelVector,
    model: Digest,
    steps: Steps,
) -> None:
    """Persist θ_{t+1}, ``[d]``; it is announced once the other has it too (``confirm``)."""
    opened = counted.opened
    version = opened.version + 1
    session.model_store.put(
        version, theta, session.store.versions.model_seal(version), model
    )
    session.store.attempts.finish(opened.attempt, model)
    session.progress.heard_from_peers(session.clock.now())
    steps.over("keep")
    most = max(session.store.ledger.participations().values(), default=0)
    valid = frozenset(counted.valid)
    costs = tuple(steps.costs)
    session.progress.unannounced = RoundDone(
        opened=opened,
        valid=valid,
        rejections=counted.rejections,
        model=model,
        most_participations=most,
        steps=costs,
    )
    reasons = sorted(
        Counter(reason.value for reason in counted.rejections.values()).items()
    )
    others = "".join(f", {number} {reason}" for reason, number in reasons)
    took = ", ".join(f"{cost.step} {cost.seconds:.2f} s" for cost in costs)
    made = "version %d is made: %d of %d submissions count%s; %s"
    log.info(
        made,
        version,
        len(valid),
        len(opened.cohort),
        others,
        took,
    )


def say_kept(session: Session, link: PeerLink) -> None:
    """Tell each other that the model is on the disk; only then anybody else hears of it.

    A model that is stated to owners is never made again: both servers must have it by
    then.
    """
    link.exchange("kept", session.model_store.current.digest.value)
    confirm(session)


def confirm(session: Session) -> None:
    """Announce the current model, which the other server is known to hold too."""
    session.store.versions.confirm(session.version)
    done = session.progress.unannounced
    session.progress.unannounced = None
    if done is not None:
        session.event_log.publish(done)
