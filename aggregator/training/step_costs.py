"""What the steps of a round cost on one server: for its operator, and for benchmarks."""

import time
from dataclasses import dataclass

from precad.common.clock import Clock


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step of a round."""

    step: str
    """``collect``, ``validate``, ``release`` or ``keep``."""
    seconds: float
    cpu_seconds: float
    """Of this process's threads; its workers' isn't in it."""
    ended: float
    """When it was over, by this machine's monotonic clock."""
    cpu_ended: float
    """This process's processor time until then."""


class Steps:
    """Times a round's steps, one after the other.

    Args:
        clock: passes the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.now(), time.process_time()
        self._costs: list[StepCost] = []

    def over(self, step: str) -> None:
        """``step`` ends now; the next one begins."""
        now = self._clock.now(), time.process_time()
        took = now[0] - self._began[0], now[1] - self._began[1]
        self._costs.append(StepCost(step, *took, *now))
        self._began = now

    @property
    def costs(self) -> tuple[StepCost, ...]:
        """The steps that are over, in order."""
        return tuple(self._costs)

    @property
    def seconds(self) -> float:
        """Of all of them together."""
        return sum(cost.seconds for cost in self._costs)
