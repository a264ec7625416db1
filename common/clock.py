"""Time, and waiting for it, as one object that is passed in: tests play with a clock of their own.

Deadlines are instants of ``Clock.now``, never of the wall clock, which may be set back.
"""

import random
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol


class Condition(Protocol):
    """As ``threading.Condition``."""

    def __enter__(self) -> object:
        """Hold the lock."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> object:
        """Let it go."""

    def wait(self, timeout: float | None = None) -> bool:
        """Let the lock go until somebody notifies; False after ``timeout`` seconds."""

    def notify_all(self) -> None:
        """Wake everybody who waits."""


class Clock(Protocol):
    """What passes time, in seconds."""

    def now(self) -> float:
        """Monotonic seconds."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def condition(self) -> Condition:
        """A new condition whose waits pass this clock's time."""

    def jitter(self) -> float:
        """From 0.5 to 1.5, by chance: spreads waits that would end together."""

    def start_thread(self, name: str, target: Callable[[], None]) -> None:
        """A thread that ends with the process."""


class SystemClock:
    """This machine's."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def condition(self) -> Condition:
        """A new condition."""
        return threading.Condition()

    def jitter(self) -> float:
        """From 0.5 to 1.5, uniform."""
        return 0.5 + random.random()  # noqa: S311 -- not a secret

    def start_thread(self, name: str, target: Callable[[], None]) -> None:
        """A daemon thread."""
        threading.Thread(target=target, name=name, daemon=True).start()


CLOCK = SystemClock()
