"""Whose vector passes now: a few at a time, so that their number doesn't decide what they take.

Every vector on its way has a megabyte in gRPC and this process. A server that is busy gains nothing
from a hundred at once, so clients send b, and get models, when their turn comes. A turn ends early
where the server would wait for its client: whoever is slow goes on without one, beside the others,
and takes little, because what comes is consumed at once. So nobody is kept waiting by a client that
is slow, or silent, or in no hurry on purpose.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

AT_ONCE = 4
"""Enough that one is always there to be hashed, encrypted and written."""
GRACE_S = 0.25
"""How long a server waits in a turn for its client, besides ``LEAST_RATE``."""
LEAST_RATE = 16e6
"""Bytes a second that keep a turn: a quarter of what ``AT_ONCE`` of them bring a server to."""


class Turns:
    """Hands turns out in the order in which they were asked for.

    Args:
        at_once: how many vectors pass at once.
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._places = asyncio.Semaphore(at_once)

    def one(self) -> "Turn":
        """One vector's; nothing is held yet."""
        return Turn(self._places)


class Turn:
    """One vector's way. Used on the event loop alone.

    Args:
        places: one is held from ``take`` to ``close``, or until the client is too slow.
    """

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._held = False
        self._left_s = GRACE_S

    async def take(self) -> None:
        """Wait for the others."""
        await self._places.acquire()
        self._held = True

    def passed(self, size: int) -> None:
        """So many bytes of the vector have."""
        self._left_s += size / LEAST_RATE

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around the wait for the client: where it takes too long, the turn ends meanwhile."""
        if not self._held:
            yield
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        end = loop.call_later(max(0.0, self._left_s), self.close)
        try:
            yield
        finally:
            end.cancel()
            self._left_s -= loop.time() - began

    def close(self) -> None:
        """The next one's turn. May be called again."""
        if self._held:
            self._held = False
            self._places.release()
