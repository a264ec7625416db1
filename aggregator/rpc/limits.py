"""What one caller may take of a server at once, and how long it may keep a call waiting."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Self, TypeVar

from precad.common.errors import RejectedSubmission, Rejection, TooManyCalls
from precad.common.identity.party_certificate import Principal

Piece = TypeVar("Piece")
AT_ONCE = 4
"""Enough that one is always there to be hashed, encrypted and written."""
GRACE_S = 0.25
"""How long a server waits in a slot for its client, besides ``LEAST_RATE``."""
LEAST_RATE = 64e6
"""Bytes a second that keep the slots, of all together: what they bring a server to."""
MODELS_AT_ONCE = 1
"""Whoever has its own uploads while the others download: a server's line is full both
ways."""


class Call(Enum):
    """The calls that stay open, or cost seconds."""

    WATCH = "watch"
    SUBMIT = "submission"
    FETCH = "model fetch"
    CLAIM = "claim with a new rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Per caller; a client that reconnects has its old call beside the new one for a moment."""

    watches: int = 2
    submissions: int = 2
    fetches: int = 4
    claims: int = 1
    """With a rate whose account is being computed."""
    idle_s: float = 30.0
    """Longest wait for an upload's next piece, in seconds."""

    def most(self, call: Call) -> int:
        """How many calls of this kind one caller may have open."""
        most = (self.watches, self.submissions, self.fetches, self.claims)
        return dict(zip(Call, most, strict=True))[call]


class OpenCalls:
    """Counts each caller's open calls.

    Used on the event loop alone, hence without a lock.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._open: Counter[tuple[Principal, Call]] = Counter()

    @contextmanager
    def one_more(self, caller: Principal, call: Call) -> Iterator[None]:
        """Keep one call open. Raises TooManyCalls: the caller has as many as it may."""
        key = (caller, call)
        most = self.limits.most(call)
        if self._open[key] >= most:
            said = f"{caller} has {most} calls of kind {call.value} open"
            raise TooManyCalls(
                f"{said}, the most that one caller may; let one end first"
            )
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if self._open[key] == 0:
                # Names that called once take no memory.
                del self._open[key]

    def __len__(self) -> int:
        """How many calls are open, over all callers."""
        return self._open.total()


class TransferSlots:
    """A few vectors pass at a time: their number doesn't decide what they take of the server.

    Every vector on its way has a megabyte in gRPC and this process: clients send b, and
    get models, when a slot is free, in the order in which they asked. A slot ends early
    where the server would wait for its client, who goes on without one: nobody waits
    for a client that is slow on purpose. Where ``shares_grace``, and more than
    ``AT_ONCE`` wait, they share so many ``GRACE_S``: else the last of many slow clients
    would begin late.
    """

    def __init__(self, at_once: int = AT_ONCE, *, shares_grace: bool = False) -> None:
        self._places = asyncio.Semaphore(at_once)
        self.least_rate = LEAST_RATE / at_once
        """Of one slot."""
        self._shares_grace = shares_grace
        self._waiting = 0

    @classmethod
    def for_models(cls) -> Self:
        """Slots in which owners fetch models."""
        return cls(MODELS_AT_ONCE, shares_grace=True)

    def one(self) -> "TransferSlot":
        """One vector's; nothing is held yet."""
        return TransferSlot(self)

    async def taken(self) -> float:
        """Wait for the others. Returns the grace of whoever waited, in seconds."""
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        many = self._shares_grace and self._waiting > AT_ONCE
        return GRACE_S * AT_ONCE / self._waiting if many else GRACE_S

    def release(self) -> None:
        """One slot ends."""
        self._places.release()


class TransferSlot:
    """One vector's: a slot is held from ``take`` to ``close``, or until the client is too slow."""

    def __init__(self, slots: TransferSlots) -> None:
        self._slots = slots
        self._held = False
        self._left_s = 0.0

    async def take(self, limit_s: float | None = None) -> None:
        """Wait for the others.

        Raises RejectedSubmission: TRUNCATED, after ``limit_s``.
        """
        try:
            async with asyncio.timeout(limit_s):
                self._left_s += await self._slots.taken()
                self._held = True
        except TimeoutError:
            text = "this server had no time for it; send the same bytes again"
            raise RejectedSubmission(Rejection.TRUNCATED, text) from None

    def passed(self, size: int) -> None:
        """So many bytes of the vector have."""
        self._left_s += size / self._slots.least_rate

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around the wait for the client: where it takes too long, the slot ends meanwhile."""
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
        """Make room for the next one. May be called again."""
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
    """Yield an upload's pieces while they keep coming: a caller that dawdles is cut off.

    The upload's ``slot`` ends while a piece is waited for too long. Raises
    RejectedSubmission: TRUNCATED, when either time has passed.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + total_s
    iterator = aiter(pieces)
    while True:
        remaining = deadline - clock()
        if remaining <= 0:
            text = f"the upload took longer than {total_s:g} s"
            raise RejectedSubmission(Rejection.TRUNCATED, text)
        wait_s = min(idle_s, remaining)
        try:
            async with asyncio.timeout(wait_s):
                with slot.waiting() if slot else nullcontext():
                    piece = await anext(iterator)
        except StopAsyncIteration:
            return
        except TimeoutError:
            text = f"nothing came for {wait_s:g} s; send the same bytes again"
            raise RejectedSubmission(Rejection.TRUNCATED, text) from None
        yield piece
