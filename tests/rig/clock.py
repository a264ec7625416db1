"""A clock for tests: waiting takes no time, and is remembered."""

from precad.common.clock import SystemClock


class LeapingClock(SystemClock):
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
