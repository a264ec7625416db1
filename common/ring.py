"""The ring Z_2^64: int64 arrays whose arithmetic wraps.

Shares, masks and sums are ``[d] int64``, little-endian on the wire. NumPy's int64 *array*
arithmetic wraps modulo 2^64; Python ints don't, so scalars pass through ``signed``.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

RingVector: TypeAlias = NDArray[np.int64]
"""``[d] int64``: elements of Z_2^64 by their signed representatives in [-2^63, 2^63)."""

WORD_BYTES = 8
MODULUS = 2**64
_HALF = 2**63


def signed(value: int) -> int:
    """The representative of ``value`` mod 2^64 in [-2^63, 2^63)."""
    return (value + _HALF) % MODULUS - _HALF


def dot(x: RingVector, y: RingVector) -> int:
    """⟨x, y⟩ mod 2^64 as a signed Python int."""
    # Wraps like np.dot, and takes 0.6 of its time: integers have no BLAS.
    return signed(int(np.einsum("i,i", x, y)))


def to_bytes(x: RingVector) -> bytes:
    """Little-endian bytes, 8 per element."""
    return x.astype("<i8", copy=False).tobytes()


def byte_view(x: RingVector) -> memoryview:
    """The bytes of ``to_bytes`` without a copy, where the machine is little-endian."""
    return np.ascontiguousarray(x.astype("<i8", copy=False)).data.cast("B")


def from_bytes(data: bytes | bytearray | memoryview) -> RingVector:
    """Inverse of ``to_bytes``; a copy that may be written to.

    Raises ValueError: the length isn't a multiple of 8.
    """
    return np.frombuffer(data, dtype="<i8").astype(np.int64)


def view_words(data: bytes | bytearray | memoryview) -> RingVector:
    """``data`` read as ``from_bytes`` does, without a copy: it may not be written to.

    Raises ValueError: the length isn't a multiple of 8.
    """
    return np.frombuffer(data, dtype="<i8").astype(np.int64, copy=False)
