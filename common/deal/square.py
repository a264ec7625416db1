"""The dealer's squares of the masks that clients chose: once for each context.

A server's half is its seed; of both halves come a row key and shares of r = a·a, all drawn fresh.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from precad.common.deal.request import SquareRequest
from precad.common.errors import PeerUnavailable, PeerViolation, PrecadError
from precad.common.identifiers import Digest, Role
from precad.common.ring import dot, signed
from precad.common.secret import Secret
from precad.common.share.mask import mask_stream, opens

_PIECE = 1 << 16
"""Words of a that are held at once."""
Answer = Secret | int | PrecadError
"""Of one context: the row key, then this server's share of r; or why there is none."""
Deliver = Callable[[bytes, Answer], None]
"""Takes a context's answer to one server; doesn't wait. It stands for the server's conversation."""


@dataclass(frozen=True, slots=True)
class _Half:
    role: Role
    request: SquareRequest
    deliver: Deliver

    def opens(self) -> bool:
        named, ctx = self.request, Digest(self.request.context)
        of = named.commitment_a if self.role is Role.SERVER_A else named.commitment_b
        return opens(Digest(of), self.role, ctx, named.salt, named.seed)


class Squares:
    """The contexts of one attempt; not safe to call from several threads at once."""

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._waiting: dict[bytes, _Half] = {}
        self._closed: dict[bytes, PrecadError] = {}
        """Dealt, or refused: what whoever comes with such a context hears."""

    def ask(self, role: Role, request: SquareRequest, deliver: Deliver) -> Callable[[], None]:
        """Take a half. Returns what is left to do, in any thread: the second half's squaring."""
        half, ctx = _Half(role, request, deliver), request.context
        first = self._waiting.get(ctx)
        once = PeerUnavailable(f"{ctx.hex()} is dealt for once; take a new attempt")
        if ctx in self._closed or (first is not None and first.role is role):
            deliver(ctx, self._closed.get(ctx, once))
        elif not half.opens():
            self._refuse(ctx, deliver, f"{role.value}'s seed doesn't open its commitment")
        elif first is None:
            self._waiting[ctx] = half
        elif first.request != request:
            self._refuse(ctx, deliver, "the two servers name different commitments")
        else:
            del self._waiting[ctx]
            self._closed[ctx] = once
            row_key = Secret.random()
            first.deliver(ctx, row_key)
            deliver(ctx, row_key)
            of = (half, first) if role is Role.SERVER_A else (first, half)
            return lambda: self._square(*of)
        return lambda: None

    def forget(self, deliver: Deliver | None = None) -> None:
        """Drop the halves of a conversation that has ended; without one, all of an old attempt."""
        for ctx, half in list(self._waiting.items()):
            if deliver is None:
                half.deliver(ctx, PeerUnavailable("a newer attempt has begun; take that one"))
            if deliver in (None, half.deliver):
                del self._waiting[ctx]
        if deliver is None:
            self._closed.clear()

    def _refuse(self, ctx: bytes, deliver: Deliver, why: str) -> None:
        """Which server broke the protocol, the dealer can't know: neither waits in vain."""
        self._closed[ctx] = PeerViolation(f"nothing is dealt for {ctx.hex()}: {why}")
        first = self._waiting.pop(ctx, None)
        for each in (deliver, *([first.deliver] if first else [])):
            each(ctx, self._closed[ctx])

    def _square(self, a: _Half, b: _Half) -> None:
        named, r = a.request, 0
        names = [Digest(n) for n in (named.context, named.commitment_a, named.commitment_b)]
        of_a, of_b = (mask_stream(each.request.seed, each.role, *names) for each in (a, b))
        for start in range(0, self._dimension, _PIECE):
            size = min(_PIECE, self._dimension - start)
            mask = of_a.words(size) + of_b.words(size)
            r += dot(mask, mask)
        r_a = signed(secrets.randbits(64))
        a.deliver(named.context, r_a)
        b.deliver(named.context, signed(r - r_a))
