"""The vectors that clients of a benchmark submit, and whether a sum is theirs."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from precad.common.ring import RingVector

DEVIATIONS = 10.0
"""Of the noise, within which all of a right result lies: a wrong alarm has a chance
below 1e-15."""
_LARGEST = 5


def vectors(count: int, dimension: int, bound: int) -> list[RingVector]:
    """``count`` dense vectors, ``[d] int64``, at most ``bound`` long; the same every time."""
    size = max(1, bound // (_LARGEST * math.isqrt(dimension) + 1))
    places = np.arange(dimension, dtype=np.int64)
    period = 2 * _LARGEST + 1
    return [
        size * ((places * (i % (period - 1) + 1) + i) % period - _LARGEST)
        for i in range(count)
    ]


def is_sum(
    moved: NDArray[np.float64], given: Sequence[RingVector], deviation: float
) -> bool:
    """Whether ``moved`` (``[d] float64``) is the sum of ``given`` and noise of that deviation.

    A coordinate of noise may hide one of a vector; no vector that is missing hides in
    what is left along its own direction.
    """
    left = moved - np.sum(given, axis=0)
    limit = DEVIATIONS * deviation
    along = (abs(left @ x) / np.linalg.norm(x) for x in given)
    return bool(np.abs(left).max() <= limit and max(along) <= limit)
