"""The shape of a comparison's tree, whose leaves are the words of n bits.

Level i turns left where bit n − 1 − i of a word is 0, right where it is 1. The last seven levels
are one block's 128 bits, one for each word (Boyle, Gilboa and Ishai, "Function secret sharing:
improvements and extensions", CCS 2016, Sec. 3.2.3).
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from precad.norm_check.fss.prg import ONE, WORD, Words

TERMINATED = 7
"""Levels that the tree ends early."""
LEAF_VALUES = 1 << TERMINATED
LEAST_BITS, MOST_BITS = TERMINATED + 1, 64


def turn(words: Words, level: int, bits: int) -> Words:
    """``[N]``: 1 where a word's path turns right at ``level``, 0 where left."""
    right = words >> np.uint64(bits - 1 - level)
    right &= ONE
    return right


def turns(words: Words, bits: int) -> Words:
    """``[m, N]``: all turns of the paths of ``[N]`` words; m = n − 7."""
    places = np.arange(bits - 1, TERMINATED - 1, -1, dtype=WORD)
    right = words >> places[:, None]
    right &= ONE
    return right


def modulus_mask(bits: int) -> np.uint64:
    """2^n − 1: arithmetic mod 2^n is that of 64 bits under this mask."""
    return np.uint64(2**bits - 1)


def parts(gates: int, together: int) -> Iterator[slice]:
    """The gates of a batch, about ``together`` of them at a time, in parts of one size.

    A small rest would take as many calls of NumPy as a whole part.
    """
    count = max(round(gates / together), min(gates, 1))
    ends = np.linspace(0, gates, count + 1).astype(int)
    yield from (slice(start, end) for start, end in pairwise(ends.tolist()))
