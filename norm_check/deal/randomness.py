"""One server's part of a batch's correlated randomness."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import PeerViolation
from precad.common.identifiers import Role
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.norm_check.deal.program import program
from precad.norm_check.deal.request import DealRequest


@dataclass(frozen=True, slots=True)
class BinaryTriple:
    """Shares by xor of random a, b and of c = a & b; arrays of one shape, int64."""

    a: NDArray[np.int64] = field(repr=False)
    b: NDArray[np.int64] = field(repr=False)
    c: NDArray[np.int64] = field(repr=False)


class DealtRandomness:
    """Expands, once and as needed, what the dealer gave this server for one batch.

    Args:
        role: SERVER_A or SERVER_B.
        key: 32 bytes that this server shares with the dealer.
        request: what was asked for.
        corrections: ``[request.correction_words] int64`` for B, empty for A.

    Raises:
        PeerViolation: the dealer sent another number of correction words.
    """

    def __init__(
        self, role: Role, key: Secret, request: DealRequest, corrections: RingVector
    ) -> None:
        if role not in {Role.SERVER_A, Role.SERVER_B}:
            raise ValueError(f"{role}: only the two servers are dealt to")
        expected = request.correction_words if role is Role.SERVER_B else 0
        if corrections.dtype != np.int64 or corrections.shape != (expected,):
            raise PeerViolation(
                f"the dealer sent correction words of shape {corrections.shape} to {role.value}, "
                f"expected ({expected},)"
            )
        self.role = role
        self.request = request
        self._key = key
        self._corrections = corrections
        self._binary_used = False

    def binary_triples(self) -> Iterator[BinaryTriple]:
        """The batch's binary triples in the order of ``program``, once."""
        if self._binary_used:
            raise RuntimeError("the binary triples of this batch are used already")
        self._binary_used = True
        return self._binary_triples()

    def _binary_triples(self) -> Iterator[BinaryTriple]:
        request, start = self.request, 0
        shapes = program(request.clients, request.comparisons)
        for number, ((shape, _), size) in enumerate(zip(shapes, request.sizes, strict=True)):
            stream = request.stream(self._key, number)
            a, b = stream.words(size), stream.words(size)
            if self.role is Role.SERVER_A:
                c = stream.words(size)
            else:
                c = self._corrections[start : start + size].copy()
                start += size
            yield BinaryTriple(a.reshape(shape), b.reshape(shape), c.reshape(shape))
