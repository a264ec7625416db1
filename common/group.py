"""The group that a task's shares, sums and noise live in: Z_2^64, or the field of p elements.

``Group`` says what is done to its elements; everything else of a sum's way is written once. Both
have ``[n] int64``, the words as they cross the wire. The field's go up to p − 1: their sign says
nothing before ``decode``.
"""

from typing import Protocol

import numpy as np

from precad.common.prime_field import arithmetic, first_not_below, of_signed, signed_of
from precad.common.ring import RingVector
from precad.common.task import Task

_TOGETHER = 1 << 16
"""Words that are added at once: they stay in the processor's cache."""


class Group(Protocol):
    """What a share's words are; all vectors are ``[n] int64`` of one length."""

    def encode(self, x: RingVector) -> RingVector:
        """Signed integers as elements; in the ring they are their own."""

    def decode(self, words: RingVector) -> RingVector:
        """Inverse of ``encode``, for a sum with as much room as the task's headroom leaves."""

    def add(self, total: RingVector, more: RingVector) -> None:
        """Add ``more`` to ``total``."""

    def subtract(self, total: RingVector, less: RingVector) -> None:
        """Subtract ``less`` from ``total``."""

    def first_foreign(self, words: RingVector) -> int | None:
        """Where the first word stands that is no element, if any."""


class _Ring:
    def encode(self, x: RingVector) -> RingVector:
        return x

    def decode(self, words: RingVector) -> RingVector:
        return words

    def add(self, total: RingVector, more: RingVector) -> None:
        total += more

    def subtract(self, total: RingVector, less: RingVector) -> None:
        total -= less

    def first_foreign(self, words: RingVector) -> int | None:  # noqa: ARG002 -- all are elements
        return None


class _Field:
    def encode(self, x: RingVector) -> RingVector:
        return of_signed(x).view(np.int64)

    def decode(self, words: RingVector) -> RingVector:
        return signed_of(words.view(np.uint64))

    def add(self, total: RingVector, more: RingVector) -> None:
        math = arithmetic()
        for start in range(0, total.size, _TOGETHER):
            part = total[start : start + _TOGETHER].view(np.uint64)
            part[:] = math.add(part, more[start : start + _TOGETHER].view(np.uint64))

    def subtract(self, total: RingVector, less: RingVector) -> None:
        math = arithmetic()
        for start in range(0, total.size, _TOGETHER):
            part = total[start : start + _TOGETHER].view(np.uint64)
            part[:] = math.subtract(part, less[start : start + _TOGETHER].view(np.uint64))

    def first_foreign(self, words: RingVector) -> int | None:
        return first_not_below(words.view(np.uint64))


RING: Group = _Ring()
FIELD: Group = _Field()


def group_of(task: Task) -> Group:
    """The group of a task's shares, which its check decides."""
    return RING if task.proof is None else FIELD
