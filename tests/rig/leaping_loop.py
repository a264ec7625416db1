"""An event loop whose clock leaps to the next timer: hours take no time."""

import asyncio
import selectors
from typing import Any


class LeapingLoop(asyncio.SelectorEventLoop):
    """For ``asyncio.Runner``; nothing may be waited for but timers."""

    def __init__(self) -> None:
        loop, self.now = self, 0.0

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> Any:
                loop.now += timeout or 0.0
                return super().select(0)

        super().__init__(Selector())

    def time(self) -> float:
        return self.now


async def passing(seconds: float) -> None:
    """So much of a leaping loop's time."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()
