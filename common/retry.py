"""Trying again: one way to wait between tries, and to stop trying.

The callers differ in what they try and in which errors are worth another try; when to stop and
how long to wait is decided here.
"""

from dataclasses import dataclass

from precad.common.clock import CLOCK, Clock


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds between tries: doubling from ``first_s`` to ``longest_s``."""

    first_s: float
    longest_s: float
    spread: bool = False
    """Half to one and a half times as long, by chance: clients that lost one server don't come
    back in one wave."""


class Patience:
    """How much longer it is worth trying.

    Args:
        total_s: how long to go on after the first failure; ``counted_from_now``: from now.
        waits: between tries.
        clock: passes the time.
    """

    def __init__(
        self, total_s: float, waits: Waits, clock: Clock = CLOCK, *, counted_from_now: bool = False
    ) -> None:
        self._total_s = total_s
        self._waits = waits
        self._clock = clock
        self._wait_s = waits.first_s
        self._since = clock.now() if counted_from_now else None

    def renew(self) -> None:
        """Something worked: the next failure is a first one."""
        self._wait_s = self._waits.first_s
        self._since = None

    def remaining(self) -> float:
        """Seconds that are left; may be negative."""
        if self._since is None:
            return self._total_s
        return self._since + self._total_s - self._clock.now()

    def wait(self, error: Exception) -> None:
        """Wait before the next try; the last wait is cut to what is left.

        Raises:
            Exception: ``error``, when the time is over.
        """
        if self._since is None:
            self._since = self._clock.now()
        remaining = self.remaining()
        if remaining <= 0:
            raise error
        wait_s = self._wait_s
        if self._waits.spread:
            wait_s *= self._clock.jitter()
        self._clock.sleep(min(wait_s, remaining))
        self._wait_s = min(2 * self._wait_s, self._waits.longest_s)
