"""Time, waiting and retries, by an object that is passed in: tests have their own.

Deadlines are instants of ``Clock.now``, never of the wall clock: that may be set back,
and it jumps on machines that start without a battery. Only certificates are compared
with the wall clock (``wall``). Callers decide what is tried again and after which
errors; ``Retries`` decides when to stop and how long to wait between tries.
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
from dataclasses import dataclass
from datetime import UTC, datetime

from precad.common import frozen_dataclass


class Clock:
    """The source of time, in seconds: the operating system's clock and threads."""

    def now(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for so long."""
        time.sleep(seconds)

    def condition(self) -> threading.Condition:
        """Return a new condition whose waits pass this clock's time."""
        return threading.Condition()

    def jitter(self) -> float:
        """Return a random factor from 0.5 to 1.5.

        It spreads waits that would end together.
        """
        return 0.5 + random.random()  # noqa: S311 -- not a secret

    def start_thread(self, name: str, target: Callable[[], None]) -> None:
        """Start a daemon thread, one that doesn't keep the process from ending."""
        start_thread(name, target)


def start_thread(name: str, target: Callable[[], None]) -> threading.Thread:
    """Start and return a daemon thread, whatever clock its code uses."""
    thread = threading.Thread(
        target=target,
        name=name,
        daemon=True,
    )
    thread.start()
    return thread


def call_in(
    loop: asyncio.AbstractEventLoop,
    call: Callable[..., object],
    *arguments: object,
) -> None:
    """Have an event loop make a call soon; may be used from any thread.

    Once the loop is closed nothing happens: nobody is left who could receive the call.
    """
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for an event of this event loop, with None for ever, else so long."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def wall() -> datetime:
    """Return this machine's time of day, in UTC; it may be wrong for a while."""
    return datetime.now(UTC)


CLOCK: Clock = Clock()
"""The operating system's clock, which all use but tests."""
STOP_S = 3.0
"""Seconds that a part may take to end after it was told to; with all that it has
started it may take 5."""
_CLEARING_UP_S = 10.0
"""Seconds that the interpreter may clear up after that: a busy machine takes some."""


def end_within(
    seconds: float, status: int, last: Callable[[], object] = lambda: None
) -> None:
    """End this process, which was told to, after ``seconds``, whatever waits in it.

    Work that it had begun is lost as in a crash, which every part survives. ``last`` is
    called just before the process exits with ``status``.
    """

    def end() -> None:
        time.sleep(seconds)
        last()
        os._exit(status)

    start_thread("end", end)
    if hasattr(signal, "alarm"):
        # No thread runs any more while the interpreter clears up. The system then ends
        # the process, and its exit status says so.
        signal.alarm(math.ceil(seconds + _CLEARING_UP_S))


@frozen_dataclass
class RetryPolicy:
    """Seconds to wait between tries, doubling from ``first_s`` up to ``longest_s``."""

    first_s: float
    longest_s: float
    spread: bool = False
    """Whether each wait is multiplied by a random factor from 0.5 to 1.5, so that
    clients that lost one server don't come back in one wave."""


@dataclass(eq=False, repr=False, kw_only=True)
class Retries:
    """Waits between tries, until ``total_s`` seconds after the first failure."""

    total_s: float
    policy: RetryPolicy
    clock: Clock = CLOCK
    counted_from_now: bool = False
    """Whether the time runs from the construction on, not from the first failure."""

    def __post_init__(self) -> None:
        self._wait_s = self.policy.first_s
        self._since = self.clock.now() if self.counted_from_now else None

    def renew(self) -> None:
        """Begin anew after a success: the next failure counts as the first one."""
        self._wait_s = self.policy.first_s
        self._since = None

    def remaining(self) -> float:
        """Return the seconds that are left; below 0 where the time is over."""
        if self._since is None:
            return self.total_s
        return self.total_s + (self._since - self.clock.now())

    def wait(self, error: Exception) -> None:
        """Wait before the next try, at most as long as time is left.

        Raises ``error``, the failure of the try before: the time is over.
        """
        if self._since is None:
            self._since = self.clock.now()
        remaining = self.remaining()
        if remaining <= 0:
            raise error
        factor = self.clock.jitter() if self.policy.spread else 1.0
        self.clock.sleep(min(self._wait_s * factor, remaining))
        self._wait_s = min(2 * self._wait_s, self.policy.longest_s)
