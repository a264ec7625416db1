"""What the replaceable functions of a simulation see, and attacks by name, for the command line.

Vectors that bad clients submit go through the honest client's sharing and commitments, so that
nothing but the validation stands between them and the model. An attack of your own:
docs/simulate.md.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from precad.common.encode import clip_update, decode, encode, squared_norm
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role, Secret
from precad.common.ring import Keystream, RingVector
from precad.common.task import Task

Matrix = NDArray[np.int64]
"""``[clients, d] int64``, a client's update a row, in units of the last place."""


@dataclass(frozen=True, slots=True)
class View:
    """A round as an attack or another rule of aggregation sees it."""

    task: Task
    version: int
    """t, from 0."""
    theta: NDArray[np.float64] = field(repr=False)
    """θ_t, ``[d]``; read-only."""
    clients: tuple[str, ...]
    """Names, one for each row that the function is given."""
    others: Matrix = field(repr=False)
    """The other clients' honest updates, ``[any, d]``: more than a real attacker knows. Without
    rows where an aggregation is called."""
    generator: np.random.Generator = field(repr=False)
    """Seeded by the simulation's seed and the round."""

    def decode(self, units: Matrix) -> NDArray[np.float64]:
        """Units of the last place as real numbers, any shape."""
        return decode(units, self.task.fractional_bits)

    def encode(self, real: NDArray[np.float64]) -> Matrix:
        """Real numbers in units of the last place, toward zero, any shape."""
        return encode(real, self.task.fractional_bits)


Attack = Callable[[Matrix, View], Matrix]
"""The bad clients' honest updates ``[k, d]`` in, what they submit ``[k, d] int64`` out."""
Aggregate = Callable[[Matrix, View], NDArray[np.int64] | NDArray[np.float64]]
"""The valid updates ``[m, d]`` in; what takes the place of their sum out, ``[d]``, in units."""
Sampler = Callable[[int, str, int, float], NDArray[np.int64]]
"""Version, client, its number of records and p in; the drawn records' indices out."""
Cohort = Callable[[int, tuple[str, ...], float], Iterable[str]]
"""Version, all clients and q in; who is drawn out."""
Absent = Callable[[int, tuple[str, ...]], Iterable[str]]
"""Version and who is drawn in; who of them submits nothing out."""
Noise = Callable[[Role, int, int], RingVector]
"""Server, version and d in; that server's noise out, ``[d] int64``, in units."""


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
    """What it submits in place of ``honest``, ``[d]``: of a norm over the integers above β."""
    if kind is Forgery.OVERSIZE:
        return _oversize(task, honest)
    words = Keystream(Secret.random(), "forged-update").words(honest.size)
    return words if kind is Forgery.GARBAGE else (2 * (words & 1) - 1) << 32


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


def flip(updates: Matrix, view: View) -> Matrix:
    """Against the cohort: minus the mean of its honest updates, as long as the bound allows."""
    mean = np.concatenate([view.others, updates]).mean(axis=0)
    length = float(np.linalg.norm(mean))
    if length == 0:
        return updates
    longest = np.rint(-mean / length * 2 * view.task.bound).astype(np.int64)
    row = clip_update(longest, view.task.bound, view.task.fractional_bits)
    return np.tile(row, (len(updates), 1))


def forge(kind: Forgery, updates: Matrix, view: View) -> Matrix:
    """What bad clients of the demo submit; rejected, always."""
    return np.array([forged_update(kind, view.task, update) for update in updates])


NAMED: dict[str, Attack] = {"flip": flip, **{kind.value: partial(forge, kind) for kind in Forgery}}


def named(name: str) -> Attack:
    """The attack of this name. Raises Misconfiguration: there is none."""
    if name not in NAMED:
        raise Misconfiguration("attack", name, f"use one of {', '.join(NAMED)}, or a function")
    return NAMED[name]
