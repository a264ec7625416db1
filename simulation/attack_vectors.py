"""Vectors that bad clients submit.

Each goes through the honest client's sharing and commitments, so that nothing but the
validation stands between it and the model. A malformed upload (garbage bytes, a truncated
share) never gets this far: it isn't a ring vector.
"""

import math
from enum import Enum

import numpy as np

from precad.common.encode import squared_norm
from precad.common.keystream import Keystream
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.task import Task


class Forgery(Enum):
    """What a bad client puts in its update's place."""

    WRAPAROUND = "wraparound"
    """Multiples of 2^32: huge, but their square is 0 in Z_2^64. The paper's check accepts it;
    the range test rejects it."""
    OVERSIZE = "oversize"
    """The honest direction at norm 2β: short enough for the range test, rejected by the norm."""
    GARBAGE = "garbage"
    """Uniform ring elements; rejected by the range test."""


def forged_update(kind: Forgery, task: Task, honest: RingVector) -> RingVector:
    """The vector that a client of this kind submits in place of ``honest``, ``[d] int64``.

    Its norm over the integers is above β, always.
    """
    match kind:
        case Forgery.WRAPAROUND:
            signs = _random_words(honest.size) & 1
            return (2 * signs - 1) << 32
        case Forgery.OVERSIZE:
            return _oversize(task, honest)
        case Forgery.GARBAGE:
            return _random_words(honest.size)


def _oversize(task: Task, honest: RingVector) -> RingVector:
    """The honest vector scaled to 2β; a zero vector has no direction: one coordinate is 2β."""
    largest = int(np.max(np.abs(honest), initial=0))
    if largest:
        factor = 2.0 * task.bound / math.sqrt(squared_norm(honest))
        scaled: RingVector = np.rint(honest.astype(np.float64) * factor).astype(np.int64)
        if squared_norm(scaled) > task.bound**2:
            return scaled
    single = np.zeros_like(honest)
    single[0] = 2 * task.bound
    return single


def _random_words(count: int) -> RingVector:
    return Keystream(Secret.random(), "forged-update").words(count)
