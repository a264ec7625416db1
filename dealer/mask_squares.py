"""What the dealer deals for the masks that clients chose; all that it draws is fresh.

A share of r = a·a to each server, once per context, when both servers have named it alike.
"""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from precad.common.errors import PeerUnavailable, PeerViolation, PrecadError
from precad.common.identifiers import Digest, Role
from precad.common.ring import RingVector, dot, signed
from precad.common.secret import Secret
from precad.common.share.mask import mask_stream, opens
from precad.norm_check.dealing import Answer
from precad.norm_check.dealt_triples import SquareRequest

Deliver = Callable[[bytes, Answer], None]
"""Takes the answer about one context to one server; doesn't wait. It stands for the server's
conversation."""
Work = Callable[[], None]
"""To be called in any thread; its answers go to both servers."""
_PIECE = 1 << 16
"""Words of a that are held at once."""


@dataclass(frozen=True, slots=True)
class _Half:
    role: Role
    request: SquareRequest
    deliver: Deliver

    def opens(self) -> bool:
        it = self.request
        own = it.commitment_a if self.role is Role.SERVER_A else it.commitment_b
        return opens(Digest(own), self.role, Digest(it.context), it.salt, it.seed)


class Squares:
    """The contexts of one attempt; not safe to call from several threads at once."""

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._waiting: dict[bytes, _Half] = {}
        self._closed: dict[bytes, PrecadError] = {}
        """Dealt, or refused: what whoever comes with such a context hears."""

    @property
    def waiting(self) -> int:
        """As ``DealerRole.waiting``."""
        return len(self._waiting)

    def ask(self, role: Role, request: SquareRequest, deliver: Deliver) -> Work | None:
        """As ``DealerRole.ask``."""
        half, ctx = _Half(role, request, deliver), request.context
        first = self._waiting.get(ctx)
        once = PeerUnavailable(f"{ctx.hex()} is dealt for once; take a new attempt")
        if ctx in self._closed or (first is not None and first.role is role):
            deliver(ctx, self._closed.get(ctx, once))
        elif not half.opens():
            self._refuse(half, f"{role.value}'s seed doesn't open its commitment")
        elif first is None:
            self._waiting[ctx] = half
        elif first.request != request:
            self._refuse(half, "the two servers name different commitments")
        else:
            del self._waiting[ctx]
            self._closed[ctx] = once
            row_key = Secret.random()
            first.deliver(ctx, row_key)
            deliver(ctx, row_key)
            return partial(self._square, first, half)
        return None

    def forget(self, deliver: Deliver | None = None) -> None:
        """Drop the halves of a conversation that has ended; without one, all of an old attempt."""
        for ctx, half in list(self._waiting.items()):
            if deliver is None:
                half.deliver(ctx, PeerUnavailable("a newer attempt has begun; take that one"))
            if deliver in (None, half.deliver):
                del self._waiting[ctx]
        if deliver is None:
            self._closed.clear()

    def _refuse(self, half: _Half, why: str) -> None:
        """Which server broke the protocol, the dealer can't know: neither waits in vain."""
        ctx = half.request.context
        self._closed[ctx] = PeerViolation(f"nothing is dealt for {ctx.hex()}: {why}")
        for deliver in {half.deliver, self._waiting.pop(ctx, half).deliver}:
            deliver(ctx, self._closed[ctx])

    def _square(self, one: _Half, other: _Half) -> None:
        ctx, r = one.request.context, sum(dot(a, a) for a in self._masks(one, other))
        # Whose share is drawn and whose is the rest, is all the same: either alone is uniform.
        drawn = secrets.randbits(64)
        one.deliver(ctx, signed(drawn))
        other.deliver(ctx, signed(r - drawn))

    def _masks(self, of_one: _Half, of_other: _Half) -> Iterator[RingVector]:
        """A = a_A + a_B, in pieces; each is good until the next one is asked for."""
        streams = [
            mask_stream(each.request.seed, each.role, *each.request.names)
            for each in (of_one, of_other)
        ]
        # Two buffers: one of a MiB would be fetched from the system anew for each submission.
        one, other = (np.empty(min(_PIECE, self._dimension), dtype=np.int64) for _ in streams)
        for start in range(0, self._dimension, _PIECE):
            size = min(_PIECE, self._dimension - start)
            a = streams[0].words_into(one[:size])
            a += streams[1].words_into(other[:size])
            yield a
