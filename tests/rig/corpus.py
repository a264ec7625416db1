"""Vectors that the check of norms must reject, and others around the bound.

docs/soundness.md, "What must be rejected, and what accepted".
"""

import math

import numpy as np

from precad.common.fixed_point import clip_update
from precad.common.ring import RingVector
from precad.common.task import Task

LEAST = -(2**63)


def unit(dimension: int, value: int, *, at: int = 0) -> RingVector:
    x = np.zeros(dimension, dtype=np.int64)
    x[at] = value
    return x


def wrapping(d: int) -> list[RingVector]:
    """Of small squared norms in the ring, or of none."""
    square_zero = np.zeros(d, dtype=np.int64)
    square_zero[:3] = 2**32, 3 * 2**33, -(2**40)
    assert int(np.dot(square_zero, square_zero)) == 0
    single = [unit(d, value) for value in (2**32, LEAST, LEAST + 1, 2**63 - 1)]
    spread = [np.full(d, value, dtype=np.int64) for value in (2**32, LEAST)]
    return [square_zero, *single, *spread, unit(d, LEAST) + unit(d, LEAST, at=5)]


def too_long(d: int, beta: int) -> list[RingVector]:
    single = [unit(d, value) for value in (beta + 1, -beta - 1, 2 * beta, 15 * beta)]
    spread = [
        np.full(d, times * beta // math.isqrt(d), dtype=np.int64) for times in (2, 64)
    ]
    return [unit(d, beta) + unit(d, 1, at=1), *single, *spread]  # The first: β² + 1.


def multiple(d: int, power: int, rng: np.random.Generator) -> RingVector:
    """A random multiple of 2^power that is not zero, also where that is 63."""
    dense = rng.integers(LEAST, 2**63 - 1, d, endpoint=True) << power
    dense[0] |= np.int64(1) << power
    return dense


def honest(task: Task, rng: np.random.Generator) -> RingVector:
    scale = rng.choice([1e2, 1e5, 1e7])
    total = np.trunc(scale * rng.standard_normal(task.dimension)).astype(np.int64)
    total *= rng.random(task.dimension) < rng.choice([0.05, 1.0])
    return clip_update(total, task.mechanism.bound, task.fractional_bits)
