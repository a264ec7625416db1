"""Limits on what one caller may take of a server at once, and for how long.

``OpenCalls`` counts a caller's open calls, ``TransferSlots`` lets a few vectors pass at
a time, and ``in_time`` cuts off an upload that dawdles.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar

from precad.common import RejectedSubmission, Rejection

Piece = TypeVar("Piece")
"""One message of a stream."""
AT_ONCE = 4
"""How many bodies a server reads at the same time.

Enough that one is always there to be hashed, encrypted and written.
"""
GRACE_S = 0.25
"""Seconds that a server waits in a slot for its client, whatever the client's rate.

The bytes that pass add to it, at ``LEAST_RATE``, but not beyond it: who was quick until
then keeps a slot no longer than anybody.
"""
MODEL_GRACE_S = 0.05
"""The same for a model, divided by the clients that wait for it and the one that has it.

Who doesn't read what it asked for holds up the owners behind it for so long. So n such
calls cost an owner about ``MODEL_GRACE_S``·(ln n + 1) seconds: .18 s where five clients
have four each (measured .24 s with d = 10^6 on a busy machine; with a whole grace for
each it was 2.9 s).
"""
LEAST_GRACE_S = 0.002
"""That, however many wait.

With less, no client of a crowd on a quick line would keep its slot, and all their
models would be in memory at once.
"""
LEAST_RATE = 64e6
"""Bytes a second, of all slots together, at which clients keep their slots.

So many the slots bring a server to, until it has seen that its line is slower.
"""
LEAST_SLOT_RATE = 1e6
"""Bytes a second that one slot takes at least, whatever was seen: who is slower on
purpose keeps none."""
LOOK_S = 0.5
"""Seconds over which all slots' bytes are counted."""
MORE_THAN_SHARE = 1.25
"""A slot is kept by whoever brings so much more than everybody did at once."""
MODELS_AT_ONCE = 1
"""How many models a server sends at the same time.

An owner that has its model uploads while the others download: so a server's line is
full in both directions.
"""


IDLE_S = 30.0
"""Longest wait for an upload's next piece, in seconds."""


class TransferSlots:
    """A few slots for vectors on their way between clients and one server.

    Every vector on its way has a megabyte in gRPC and in this process. With slots their
    number doesn't decide what they take of the server: clients send their bodies b, and
    get models, when a slot is free, in the order in which they asked.

    A slot ends early where the server would wait for its client. The client goes on
    without a slot: nobody waits for a client that is slow on purpose.

    A full line is seen by what everybody brings at once: a client with a slot that
    brings a quarter more has the others' part of the line, and keeps its slot. So one
    body after the other is whole, and can be validated, while others upload. Clients
    whose own lines are slow bring no more alone than beside others: less comes while
    some wait, and from then on all go on at once.

    A client may be waited for so long as ``GRACE_S``. Those who wait share
    ``shared_grace_s`` seconds, where it is given: else the last of many slow clients
    would begin late.
    """

    def __init__(
        self,
        at_once: int = AT_ONCE,
        shared_grace_s: float | None = None,
    ) -> None:
        """Begin with ``LEAST_RATE``: nothing of the line is known."""
        self._places = asyncio.Semaphore(at_once)
        self._most_rate = LEAST_RATE / at_once
        self.least_rate = self._most_rate
        """Bytes a second that keep one slot."""
        self._best_rate = 0.0
        """The most bytes a second that all brought together."""
        self._looks_in_vain = 0
        """How often in a row less came while some waited."""
        self._looked_at = 0.0
        self._since_then: Counter[TransferSlot] = Counter()
        """Bytes of each client since then."""
        self._shared_grace_s = shared_grace_s
        self._waiting = 0
        """How many clients wait for a slot."""

    async def taken(self) -> float:
        """Wait until a slot is free, and take it.

        Returns the grace of the client that waited, in seconds: how long the server may
        wait for it.
        """
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        if self._shared_grace_s is None:
            return GRACE_S
        return max(LEAST_GRACE_S, self._shared_grace_s / (1 + self._waiting))

    def release(self) -> None:
        """Give one taken slot back."""
        self._places.release()

    def count(self, slot: "TransferSlot", size: int) -> None:
        """Count what a client brings, with a slot or without, and learn the line's rate.

        Of the times in which much comes, and nobody waits, the one with the most
        clients says what each brings beside all others.
        """
        self._since_then[slot] += size
        now = asyncio.get_running_loop().time()
        seconds = now - self._looked_at
        if seconds < LOOK_S:
            return
        # A longer time has a pause in it.
        if seconds < 2 * LOOK_S:
            self._learn(self._since_then.total() / seconds, len(self._since_then))
        self._looked_at = now
        self._since_then.clear()

    def _learn(self, rate: float, clients: int) -> None:
        """Learn from what so many ``clients`` have just brought together."""
        if rate > 1.1 * self._best_rate:
            self._best_rate = rate
            self.least_rate = self._most_rate
        if self._waiting and rate < 0.7 * self._best_rate:
            self._looks_in_vain += 1
        elif self._waiting:
            self._looks_in_vain = 0
        # One such look may be a beginning. Where less comes while some wait, from now
        # on all go on at once.
        if self._looks_in_vain > 1:
            self._best_rate = math.inf
            self.least_rate = self._most_rate
        if rate > 0.9 * self._best_rate and not self._waiting:
            share = max(LEAST_SLOT_RATE, MORE_THAN_SHARE * rate / clients)
            self.least_rate = min(self.least_rate, share)


class TransferSlot:
    """The slot of one vector.

    It is held from ``take`` to ``close``, or until the client is too slow.
    """

    def __init__(self, slots: TransferSlots) -> None:
        self._slots = slots
        self._held = False
        self._grace_s = 0.0
        """The most seconds that this slot's client may ever have left."""
        self._left_s = 0.0
        """Seconds that the server may still wait for the client in this slot."""

    async def take(self, limit_s: float | None = None) -> None:
        """Wait until this vector has a slot; ``None`` waits without a limit.

        Raises RejectedSubmission: TRUNCATED, none was free for ``limit_s`` seconds.
        """
        try:
            async with asyncio.timeout(limit_s):
                self._grace_s = await self._slots.taken()
                self._left_s = self._grace_s
                self._held = True
        except TimeoutError:
            raise RejectedSubmission(
                Rejection.TRUNCATED,
                "this server had no time for it; send the same bytes again",
            ) from None

    def passed(self, size: int) -> None:
        """Note that ``size`` bytes of the vector have passed: the client gains time."""
        self._slots.count(self, size)
        gained_s = size / self._slots.least_rate
        self._left_s = min(self._left_s + gained_s, self._grace_s)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measure the wait for the client that happens inside the block.

        The slot ends during the wait where the client has no time left.
        """
        if not self._held:
            yield
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        early_end = loop.call_later(max(0.0, self._left_s), self.close)
        try:
            yield
        finally:
            early_end.cancel()
            self._left_s -= loop.time() - began

    def close(self) -> None:
        """Give the slot back, if it is held. May be called again."""
        if self._held:
            self._held = False
            self._slots.release()


async def in_time(
    pieces: AsyncIterator[Piece],
    *,
    idle_s: float,
    total_s: float,
    slot: TransferSlot | None = None,
) -> AsyncIterator[Piece]:
    """Yield an upload's pieces while they keep coming; cut off a caller that dawdles.

    A piece may take ``idle_s`` seconds, the whole upload ``total_s``. The upload's
    ``slot`` ends while a piece is waited for too long.

    Raises RejectedSubmission: TRUNCATED, when either time has passed.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + total_s
    iterator = aiter(pieces)
    while True:
        remaining_s = deadline - clock()
        if remaining_s <= 0:
            raise RejectedSubmission(
                Rejection.TRUNCATED, f"the upload took longer than {total_s:g} s"
            )
        wait_s = min(idle_s, remaining_s)
        try:
            async with asyncio.timeout(wait_s):
                with slot.waiting() if slot else nullcontext():
                    piece = await anext(iterator)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise RejectedSubmission(
                Rejection.TRUNCATED,
                f"nothing came for {wait_s:g} s; send the same bytes again",
            ) from None
        yield piece
