"""Clocks for tests, and an event loop: waiting takes no time, and is remembered."""

import asyncio
import selectors
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import cast

from precad.common.clock import Clock


class LeapingClock(Clock):
    """Time passes by sleeping alone."""

    def __init__(self, start: float = 1000.0) -> None:
        self.start = self.time = start
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.time += seconds

    def jitter(self) -> float:
        return 1.0


class LonelyClock(LeapingClock):
    """Nobody else is there to be waited for: whoever waits lets time pass."""

    def condition(self) -> threading.Condition:
        return cast("threading.Condition", _Alone(self))


class _Alone(nullcontext["LonelyClock"]):
    def notify_all(self) -> None: ...

    def wait(self, timeout: float) -> bool:
        self.enter_result.sleep(timeout)
        return False

    def wait_for(self, ready: Callable[[], object], timeout: float) -> bool:
        return bool(ready()) or self.wait(timeout)


class LeapingLoop(asyncio.SelectorEventLoop):
    """For ``asyncio.Runner``; nothing may be waited for but timers."""

    def __init__(self) -> None:
        loop, self.now = self, 0.0

        class Selector(selectors.DefaultSelector):
            def select(
                self, timeout: float | None = None
            ) -> list[tuple[selectors.SelectorKey, int]]:
                loop.now += timeout or 0.0
                return super().select(0)

        super().__init__(Selector())

    def time(self) -> float:
        return self.now


async def passing(seconds: float) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()
