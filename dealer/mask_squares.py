"""What the dealer deals for the masks that clients chose; all that it draws is fresh.

A share of r = a·a to each server, or, where the task's check is function secret sharing, keys of
gates (``gates.py``). Dealt once per context, when both servers have named it alike.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from precad.common.errors import PeerUnavailable, PeerViolation, PrecadError
from precad.common.identifiers import Digest, Role
from precad.common.ring import RingVector, dot, signed
from precad.common.secret import Secret
from precad.common.share.mask import mask_stream, opens
from precad.dealer.gate_batches import Deliver, Gates, Offsets, Work, offsets_of_masks
from precad.norm_check.dealt_triples import SquareRequest

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
    """The contexts of one attempt; not safe to call from several threads at once.

    Args:
        projections: k, where gates are dealt and not shares of squares.
    """

    def __init__(self, dimension: int, projections: int | None = None) -> None:
        self._dimension = dimension
        self._projections = projections
        self._gates = None if projections is None else Gates()
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
            deliver((ctx,), self._closed.get(ctx, once))
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
            first.deliver((ctx,), row_key)
            deliver((ctx,), row_key)
            if self._gates is None:
                return partial(self._square, first, half)
            of_a, of_b = (first, half) if first.role is Role.SERVER_A else (half, first)
            compute = partial(self._offsets, of_a, of_b, row_key)
            return self._gates.begin(ctx, (of_a.deliver, of_b.deliver), compute)
        return None

    def hurry(self) -> Work:
        """As ``DealerRole.hurry``, where gates are dealt."""
        assert self._gates is not None
        return self._gates.hurry()

    def forget(self, deliver: Deliver | None = None) -> None:
        """Drop the halves of a conversation that has ended; without one, all of an old attempt."""
        for ctx, half in list(self._waiting.items()):
            if deliver is None:
                half.deliver((ctx,), PeerUnavailable("a newer attempt has begun; take that one"))
            if deliver in (None, half.deliver):
                del self._waiting[ctx]
        if self._gates is not None:
            self._gates.forget(deliver)
        if deliver is None:
            self._closed.clear()
            if self._gates is not None:
                self._gates = Gates()

    def _refuse(self, half: _Half, why: str) -> None:
        """Which server broke the protocol, the dealer can't know: neither waits in vain."""
        ctx = half.request.context
        self._closed[ctx] = PeerViolation(f"nothing is dealt for {ctx.hex()}: {why}")
        for deliver in {half.deliver, self._waiting.pop(ctx, half).deliver}:
            deliver((ctx,), self._closed[ctx])

    def _square(self, one: _Half, other: _Half) -> None:
        ctx, r = one.request.context, sum(dot(a, a) for a in self._masks(one, other))
        # Whose share is drawn and whose is the rest, is all the same: either alone is uniform.
        drawn = secrets.randbits(64)
        one.deliver((ctx,), signed(drawn))
        other.deliver((ctx,), signed(r - drawn))

    def _offsets(self, of_a: _Half, of_b: _Half, row_key: Secret) -> Offsets:
        assert self._projections is not None
        seeds, size = (of_a.request.seed, of_b.request.seed), (self._dimension, self._projections)
        masks = self._masks(of_a, of_b)
        return offsets_of_masks(masks, of_a.request.names, seeds, row_key, size)

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
