"""Projections by NumPy: what every kernel must equal bit for bit, and what is used without one.

A product of matrices does the work, because that is what NumPy has a fast library for. Words are
cut into bytes and entries are −1, 0 and 1, so every sum is an integer of float32's range: exact in
any order of summation.
"""

import numpy as np
from numpy.typing import NDArray

from precad.common.ring import WORD_BYTES, RingVector

BLOCK = 64
"""Coordinates of one mask."""
MASKS = 2
"""u and v."""
_STEP = 256
"""Blocks a product: 255·64·_STEP < 2^24 bounds every partial sum, which float32 holds exactly."""
_NIBBLE = 4
_LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_SHIFT = np.uint64(_NIBBLE)


def _entry_table() -> NDArray[np.void]:
    """Four entries for each byte: bits i of its low half u and of its high half v give u − v."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    entries = bits[:, :_NIBBLE].astype(np.float32) - bits[:, _NIBBLE:]
    # As one opaque item a byte, so that a look-up moves all four entries.
    return np.ascontiguousarray(entries).view(f"V{_NIBBLE * 4}").reshape(256)


_TABLE = _entry_table()
_WEIGHTS = np.arange(0, 64, 8)


def project_blocks(words: RingVector, masks: NDArray[np.uint64], z: RingVector) -> None:
    """Add to ``z[r]`` the inner product of row r and the words, mod 2^64.

    Args:
        words: ``[64·n] int64``, contiguous.
        masks: ``[n, k, 2] uint64``, little-endian: the masks u and v of each block and row; entry
            i of a row's block is bit i of u minus bit i of v.
        z: ``[k] int64``, changed in place.
    """
    for start in range(0, len(masks), _STEP):
        part = masks[start : start + _STEP]
        z += _projected(words[start * BLOCK : (start + len(part)) * BLOCK], part)


def _projected(words: RingVector, masks: NDArray[np.uint64]) -> RingVector:
    n, k, _ = masks.shape
    u, v = masks[:, :, 0].T, masks[:, :, 1].T
    # A byte of an index holds four bits of u below the same four of v. The even quarters of all
    # bytes come first, then the odd ones; the words are put into the same order.
    indices = np.empty((MASKS, k, n), dtype="<u8")
    indices[0] = (u & _LOW_NIBBLES) | ((v & _LOW_NIBBLES) << _SHIFT)
    indices[1] = ((u >> _SHIFT) & _LOW_NIBBLES) | (v & ~_LOW_NIBBLES)
    # "raise" would copy through a buffer.
    entries = _TABLE.take(indices.view(np.uint8), mode="clip").view(np.float32)
    limbs = words.astype("<i8", copy=False).view(np.uint8).reshape(-1, MASKS, _NIBBLE, WORD_BYTES)
    halves = limbs.transpose(1, 0, 2, 3).reshape(MASKS, -1, WORD_BYTES).astype(np.float32)
    sums = (entries @ halves).astype(np.int64).sum(axis=0)
    projected: RingVector = (sums << _WEIGHTS).sum(axis=1, dtype=np.int64)
    return projected
