"""What the replaceable functions of a simulation see, and their types."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from precad.common.encode import decode, encode
from precad.common.identifiers import Role
from precad.common.ring import RingVector
from precad.common.task import Task

Matrix = NDArray[np.int64]
"""``[clients, d] int64``, a client's update a row, in units of the last place."""


@dataclass(frozen=True, slots=True)
class View:
    """A round as an attack or another rule of aggregation sees it.

    Attributes:
        task: the simulated task.
        version: t, from 0.
        theta: θ_t, ``[d] float64``; read-only.
        clients: names, one for each row that the function is given.
        others: the other clients' honest updates, ``[any, d] int64``: more than a real attacker
            knows. Without rows where an aggregation is called.
        generator: seeded by the simulation's seed and the round.
    """

    task: Task
    version: int
    theta: NDArray[np.float64] = field(repr=False)
    clients: tuple[str, ...]
    others: Matrix = field(repr=False)
    generator: np.random.Generator = field(repr=False)

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
