"""Noisy shares cut to the bits that their sum needs.

No sum S leaves ±M, with M = Σβ_i + ten standard deviations of both servers' noise
(``Mechanism.most_sum``; beyond it with a chance below 2^−75 a coordinate). So S is known
from S mod 2^B, with B bits that tell 2M + 1 numbers apart: of a share y only y mod 2^B
travels, is kept, and is sent again after a break. Both servers make S of the same two
messages. In Z_2^64 that is exact, as 2^B divides the order.

In the field of p elements y_A + y_B is S + p, unless both shares lie within M of the
field's ends: then it may be S or S + 2p. Words that near to 0 or to p (1.5·10^−11 of
them at M = 2^26) follow in full, each behind its place. Where both servers sent a place in
full, S is what those words add up to.

A cut share says no more than the whole one: the other server may know S, and its own
share's other bits. Cutting is a function of the share alone, so prepare, countersign,
send and recovery are the same, with other bytes.
"""

from collections.abc import Iterable

import numpy as np

from precad.common import (
    MODULUS,
    WORD_BYTES,
    Booleans,
    Claim,
    Misconfiguration,
    PeerViolation,
    RingVector,
    Task,
    Words,
    frozen_kw_only_dataclass,
    packed_bytes,
)
from precad.common.short_words import pack, unpack
from precad.norm_check import Group, group_of

_WHOLE_BITS = 8 * WORD_BYTES
_FULL = np.dtype([("place", "<u8"), ("word", "<u8")])
"""A word that travels in full, behind its place."""


@frozen_kw_only_dataclass
class CutShares:
    """How the noisy shares of one training travel."""

    dimension: int
    """d."""
    group: Group
    """What shares are elements of."""
    most: int | None
    """M; None where shares travel whole, as before ``training.compact_release``."""

    @classmethod
    def of(cls, task: Task, claims: Iterable[Claim]) -> "CutShares":
        """Return the form for a task and the claims of its frozen roster."""
        mechanism = task.mechanism
        return cls(
            dimension=mechanism.dimension,
            group=group_of(task),
            most=mechanism.most_sum(claims) if mechanism.compact_release else None,
        )

    @property
    def bits(self) -> int:
        """B; 64 where shares travel whole."""
        return _WHOLE_BITS if self.most is None else (2 * self.most + 1).bit_length()

    def cut(self, noisy_share: RingVector) -> bytes:
        """Return what a server sends of its share y, ``[d] int64``."""
        low = pack(noisy_share, self.bits)
        near = np.flatnonzero(self._is_near(noisy_share.view(np.uint64)))
        full = np.empty(near.size, _FULL)
        full["place"] = near
        full["word"] = noisy_share[near].view(np.uint64)
        return low + full.tobytes()

    def joined(self, own: bytes, theirs: bytes) -> RingVector:
        """Return S, ``[d] int64``, from both servers' messages.

        Raises PeerViolation: the other server's message isn't what ``cut`` makes of
        any share, or S leaves ±M.
        """
        own_low, own_full = self._read(own)
        their_low, their_full = self._read(theirs)
        if self.most is None:
            self.group.add(their_low, own_low)
            return self.group.decode(their_low)
        order = self.group.order
        total = own_low
        total += their_low
        # Mod 2^64, which 2^B divides; 0 in the ring.
        total -= np.uint64(order % MODULUS).view(np.int64)
        total <<= _WHOLE_BITS - self.bits
        total >>= _WHOLE_BITS - self.bits
        for place in own_full.keys() & their_full.keys():
            both = (own_full[place] + their_full[place]) % order
            total[place] = both - order if both > order // 2 else both
        outside = np.flatnonzero((total > self.most) | (total < -self.most))
        if outside.size:
            raise PeerViolation(
                f"coordinate {outside[0]} of the noisy sum is {total[outside[0]]}, and"
                f" no sum of this training leaves ±{self.most}: the other server's"
                " noisy share is wrong"
            )
        return total

    def _is_near(self, words: Words) -> Booleans:
        """Return which elements lie within M of the field's ends; none of a ring."""
        if self.most is None or self.group.order == MODULUS:
            return np.zeros(words.size, bool)
        last = self.group.order - 1
        return (words <= np.uint64(self.most)) | (words >= np.uint64(last - self.most))

    def _read(self, message: bytes) -> tuple[RingVector, dict[int, int]]:
        """Return a message's low bits, signed, and its full words by their places.

        What a full word says isn't compared with anything: it counts only where this
        server sent one as well, and a server may send any share.

        Raises PeerViolation: it has another length, or a whole word is no element.
        """
        length = packed_bytes(self.dimension, self.bits)
        try:
            low = unpack(memoryview(message)[:length], self.dimension, self.bits)
            full = np.frombuffer(message, _FULL, offset=length)
        except (Misconfiguration, ValueError):
            raise PeerViolation(
                f"the other server's noisy share has {len(message)} bytes; it has"
                f" {length}, and {_FULL.itemsize} for each word in full"
            ) from None
        foreign = self.group.first_foreign(low) if self.most is None else None
        if foreign is not None:
            raise PeerViolation(
                f"word {foreign} of the other server's noisy share isn't of the field"
            )
        return low, dict(full.tolist())
