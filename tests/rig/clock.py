"""A clock for tests: waiting takes no time, and is remembered."""

from typing import Any

from precad.common.clock import Clock


class LeapingClock(Clock):
    """Time passes by sleeping alone."""

    def __init__(self, start: float = 1000.0) -> None:
        self.start = self.time = start
        self.slept: list[float] = []

    def now(self) -> float:
        """Where the sleeps have led."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Leap."""
        self.slept.append(round(seconds, 6))
        self.time += seconds

    def jitter(self) -> float:
        """None."""
        return 1.0


class LonelyClock(LeapingClock):
    """Whose conditions nobody ever notifies: every wait ends with its time."""

    def condition(self) -> Any:
        """One that is waited on alone."""
        return _Alone(self)


class _Alone:
    def __init__(self, clock: LonelyClock) -> None:
        self._clock = clock

    def __enter__(self) -> None:
        """Nobody else is there."""

    def __exit__(self, *_error: object) -> None:
        """Nobody waits."""

    def notify_all(self) -> None:
        """Nobody waits."""

    def wait(self, timeout: float) -> bool:
        """Until its time is over."""
        self._clock.sleep(timeout)
        return False
