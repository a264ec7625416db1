"""Time, waiting, and trying again, through one object that is passed in: tests have their own.

Deadlines are instants of ``Clock.now``, never of the wall clock, which may be set back
and jumps on machines that start without a battery: certificates alone are looked at by
it (``wall``). Callers differ in what they try again and after which errors; when to
stop and how long to wait between tries is decided here.
"""

import asyncio
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime


class Clock:
    """What passes time, in seconds: the operating system's clock and threads."""

    def now(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def condition(self) -> threading.Condition:
        """Return a new condition whose waits pass this clock's time."""
        return threading.Condition()

    def jitter(self) -> float:
        """Return a random factor from 0.5 to 1.5, which spreads waits that would end together."""
        return 0.5 + random.random()  # noqa: S311 -- not a secret

    def start_thread(self, name: str, target: Callable[[], None]) -> None:
        """Start a thread that ends with the process."""
        threading.Thread(
            target=target,
            name=name,
            daemon=True,
        ).start()


def call_in(
    loop: asyncio.AbstractEventLoop, call: Callable[..., object], *given: object
) -> None:
    """Have ``loop`` make a call, from any thread; once it has ended nobody is there to hear."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *given)


def wall() -> datetime:
    """Return the time of day as this machine has it, which may be wrong for a while."""
    return datetime.now(UTC)


CLOCK = Clock()
STOP_S = 3.0
"""How long a part that was told to end may take: 5 s with all that it has started."""
_CLEARING_UP_S = 10.0
"""How long the interpreter may clear up after that; a busy machine takes seconds over
it."""


def end_within(
    seconds: float, status: int, last: Callable[[], object] = lambda: None
) -> None:
    """End this process after so long, whatever still waits in it: it was told to end.

    What it had begun is lost as by a crash, which every part outlasts. ``last`` is
    called before.
    """

    def end() -> None:
        time.sleep(seconds)
        last()
        os._exit(status)

    threading.Thread(
        target=end,
        name="end",
        daemon=True,
    ).start()
    if hasattr(signal, "alarm"):
        # While the interpreter clears up, no thread runs any more: the system ends it
        # then, and its status says so.
        signal.alarm(math.ceil(seconds + _CLEARING_UP_S))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Seconds between tries: doubling from ``first_s`` to ``longest_s``."""

    first_s: float
    longest_s: float
    spread: bool = False
    """Half to one and a half times as long, by chance: clients that lost one server
    don't come back in one wave."""


@dataclass(eq=False, repr=False, kw_only=True)
class Retries:
    """Waits between tries, for ``total_s`` after the first failure, or from now."""

    total_s: float
    policy: RetryPolicy
    clock: Clock = CLOCK
    _: KW_ONLY
    counted_from_now: bool = False

    def __post_init__(self) -> None:
        self._wait_s = self.policy.first_s
        self._since = self.clock.now() if self.counted_from_now else None

    def renew(self) -> None:
        """Begin anew after a success: the next failure is a first one."""
        self._wait_s = self.policy.first_s
        self._since = None

    def remaining(self) -> float:
        """Return the seconds that are left; may be negative."""
        since = self._since
        return self.total_s + (0.0 if since is None else since - self.clock.now())

    def wait(self, error: Exception) -> None:
        """Wait before the next try; raise ``error`` when the time is over.

        The last wait is cut to what is left.
        """
        if self._since is None:
            self._since = self.clock.now()
        remaining = self.remaining()
        if remaining <= 0:
            raise error
        spread = self.clock.jitter() if self.policy.spread else 1.0
        self.clock.sleep(min(self._wait_s * spread, remaining))
        self._wait_s = min(2 * self._wait_s, self.policy.longest_s)
