"""What one caller may take of a server at once, and how long it may keep a call waiting."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from precad.aggregator.rpc.turns import Turn
from precad.common.clock import CLOCK, Clock
from precad.common.errors import RejectedSubmission, Rejection, TooManyCalls
from precad.common.identity.party_certificate import Principal

Piece = TypeVar("Piece")
_REMEMBERED = 10_000


class Call(Enum):
    """The calls that stay open."""

    WATCH = "watch"
    SUBMIT = "submission"
    FETCH = "model fetch"


@dataclass(frozen=True, slots=True)
class Limits:
    """Per caller; a client that reconnects has its old call beside the new one for a moment."""

    watches: int = 2
    submissions: int = 2
    fetches: int = 4
    burst: int = 200
    """Calls that may begin at once."""
    per_s: float = 50.0
    """Calls that may begin, in the long run."""
    idle_s: float = 30.0
    """Longest wait for an upload's next piece, in seconds."""

    def most(self, call: Call) -> int:
        """How many calls of this kind one caller may have open."""
        kinds = {Call.WATCH: self.watches, Call.SUBMIT: self.submissions, Call.FETCH: self.fetches}
        return kinds[call]


class OpenCalls:
    """Counts each caller's open calls. Used on the event loop alone, hence without a lock."""

    def __init__(self, limits: Limits, clock: Clock = CLOCK) -> None:
        self.limits = limits
        self._open: Counter[tuple[Principal, Call]] = Counter()
        self._clock = clock
        self._begun: dict[Principal, tuple[float, float]] = {}
        """How many calls a caller has begun that aren't forgiven yet, and when it was so."""

    def begin(self, caller: Principal) -> None:
        """One more call begins, of whatever kind.

        Raises:
            TooManyCalls: the caller asks too often.
        """
        now = self._clock.now()
        begun, at = self._begun.get(caller, (0.0, now))
        left = max(0.0, begun - (now - at) * self.limits.per_s)
        if left + 1 > self.limits.burst:
            raise TooManyCalls(
                f"{caller} makes more than {self.limits.per_s:g} calls a second; ask less often"
            )
        self._begun[caller] = left + 1, now
        if len(self._begun) > _REMEMBERED:
            # Names that called long ago take no memory.
            spent = self.limits.burst / self.limits.per_s
            self._begun = {k: v for k, v in self._begun.items() if now - v[1] < spent}

    @contextmanager
    def one_more(self, caller: Principal, call: Call) -> Iterator[None]:
        """Keep one call open.

        Raises:
            TooManyCalls: the caller has as many as it may.
        """
        key, most = (caller, call), self.limits.most(call)
        if self._open[key] >= most:
            raise TooManyCalls(
                f"{caller} has {most} calls of kind {call.value} open, the most that one caller "
                "may; let one end first"
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


async def in_time(
    pieces: AsyncIterator[Piece], *, idle_s: float, total_s: float, turn: Turn | None = None
) -> AsyncIterator[Piece]:
    """An upload's pieces, as long as they keep coming: a caller that dawdles is cut off.

    Args:
        pieces: as they arrive.
        idle_s: longest wait for one of them.
        total_s: longest time for all of them, from now.
        turn: the upload's; it ends while a piece is waited for too long.

    Raises:
        RejectedSubmission: TRUNCATED, when either has passed.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + total_s
    iterator = aiter(pieces)
    while True:
        remaining = deadline - clock()
        if remaining <= 0:
            raise RejectedSubmission(
                Rejection.TRUNCATED, f"the upload took longer than {total_s:g} s"
            )
        wait_s = min(idle_s, remaining)
        try:
            async with asyncio.timeout(wait_s):
                with turn.waiting() if turn else nullcontext():
                    piece = await anext(iterator)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise RejectedSubmission(
                Rejection.TRUNCATED,
                f"nothing came for {wait_s:g} s; send the same bytes again",
            ) from None
        yield piece
