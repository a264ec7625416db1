"""End a round: keep the next model, tell each other so, and only then tell owners.

A model that was stated to owners is never made again, so both servers must have it on
their disks by then. A round ends in the same way after a break (``recovery``).
"""

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from precad.aggregator import Counted, PeerLink
from precad.aggregator.training import RoundDone, Session
from precad.common import ClientId, Clock, Digest, ModelVector, listed, log
from precad.common.wire import StepCost


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
    *,
    step: bytes | None = None,
) -> None:
    """Persist the next model θ_{t+1}, ``[d]``, whose digest is ``model``.

    ``step`` leads to it from θ_t, where that is known.
    Its round is announced to owners later, once the other server has the model too
    (``confirm``). Raises StorageFailure: the disk or the database fails.
    """
    opened = counted.opened
    made = opened.version + 1
    seal = session.store.versions.model_seal(made)
    session.model_store.put(made, theta, seal, model, step=step)
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
    rejected: dict[str, list[ClientId]] = defaultdict(list)
    for client, reason in sorted(counted.rejections.items()):
        rejected[reason.value].append(client)
    rejected_names = "".join(
        f", {len(clients)} {reason}{_named(clients, counted.submissions)}"
        for reason, clients in sorted(rejected.items())
    )
    asleep = sorted(opened.asleep.intersection(counted.rejections))
    if asleep:
        rejected_names += f", {len(asleep)} not waited for{_named(asleep, {})}"
    step_times = ", ".join(f"{cost.step} {cost.seconds:.2f} s" for cost in steps.costs)
    enough = len(valid) >= (session.task.training.least_counted or 1)
    log.log(
        logging.INFO if enough else logging.WARNING,
        "version %d, attempt %d: %d of %d submissions count%s%s; %s",
        opened.version,
        opened.attempt,
        len(valid),
        len(opened.cohort),
        _named(sorted(valid), counted.submissions),
        rejected_names,
        step_times,
        extra={"version": opened.version, "attempt": opened.attempt},
    )


def _named(clients: Sequence[ClientId], submissions: Mapping[ClientId, str]) -> str:
    """Name owners and their submissions for the round's line."""
    return listed(
        [f"{client} {submissions.get(client, '')}".rstrip() for client in clients]
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
