"""The group that a task's shares, sums and noise live in: Z_2^64, or the field of p elements.

``Group`` says what is done to its elements; everything else of a sum's way is written once. Both
have ``[n] int64``, the words as they cross the wire. The field's go up to p − 1: their sign says
nothing before ``decode``.
"""

from collections.abc import Callable

import numpy as np

from precad.common.prime_field import FieldVector, arithmetic, first_not_below, of_signed, signed_of
from precad.common.ring import RingVector
from precad.common.task import Task

_TOGETHER = 1 << 16
"""Words that are added at once: they stay in the processor's cache."""


class Group:
    """Z_2^64, where every word is an element; all vectors are ``[n] int64`` of one length."""

    def encode(self, x: RingVector) -> RingVector:
        """Signed integers as elements; in the ring they are their own."""
        return x

    def decode(self, words: RingVector) -> RingVector:
        """Inverse of ``encode``, for a sum with as much room as the task's headroom leaves."""
        return words

    def add(self, total: RingVector, more: RingVector) -> None:
        """Add ``more`` to ``total``."""
        total += more

    def subtract(self, total: RingVector, less: RingVector) -> None:
        """Subtract ``less`` from ``total``."""
        total -= less

    def first_foreign(self, words: RingVector) -> int | None:  # noqa: ARG002 -- all are elements
        """Where the first word stands that is no element, if any."""
        return None


class _Field(Group):
    def encode(self, x: RingVector) -> RingVector:
        return of_signed(x).view(np.int64)

    def decode(self, words: RingVector) -> RingVector:
        return signed_of(words.view(np.uint64))

    def add(self, total: RingVector, more: RingVector) -> None:
        _change(total, more, arithmetic().add)

    def subtract(self, total: RingVector, less: RingVector) -> None:
        _change(total, less, arithmetic().subtract)

    def first_foreign(self, words: RingVector) -> int | None:
        return first_not_below(words.view(np.uint64))


def _change(
    total: RingVector, by: RingVector, how: Callable[[FieldVector, FieldVector], FieldVector]
) -> None:
    for start in range(0, total.size, _TOGETHER):
        part = total[start : start + _TOGETHER].view(np.uint64)
        part[:] = how(part, by[start : start + _TOGETHER].view(np.uint64))


RING, FIELD = Group(), _Field()


def group_of(task: Task) -> Group:
    """The group of a task's shares, which its check decides."""
    return RING if task.proof is None else FIELD
