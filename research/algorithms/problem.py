"""What an algorithm is given, and what it gives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precad.simulation.datasets import DataSet
from research.checkpoint import Checkpoint
from research.defences import Defence
from research.poisoning import Attack
from research.registry import Registry

Reals = NDArray[np.float64]
Watch = Callable[[int, Reals], object]
"""Told how many rounds are done, and the model after them, ``[d]``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Who trains what on which records, and who of them is bad.

    Attributes:
        data: all records.
        shares: for each client the indices of its training records.
        model: name of one of ``MODELS``.
        seed: of everything that is drawn.
        attack: what the last ``attackers`` clients do.
        attackers: K.
        defence: takes the mean's place, where the algorithm lets a server see updates.
        watch: see ``Watch``; after a break not told again of what was kept.
        checkpoint: where the training's state is kept, and found.
    """

    data: DataSet = field(repr=False)
    shares: Sequence[NDArray[np.int64]] = field(repr=False)
    model: str
    seed: int
    attack: Attack = field(default_factory=Attack)
    attackers: int = 0
    defence: Defence | None = None
    watch: Watch = lambda _done, _theta: None
    checkpoint: Checkpoint | None = None

    def records(self, client: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """A client's records, poisoned where it is bad."""
        mine = self.shares[client]
        x, y = self.data.train_x[mine], self.data.train_y[mine]
        number = self.bad_number(client)
        if number is None:
            return x, y
        return self.attack.poison(x, y, number, self.data.classes)

    def bad_number(self, client: int) -> int | None:
        """Which of the bad clients it is, from 0; None for a good one."""
        number = client - (len(self.shares) - self.attackers)
        return number if number >= 0 else None


@dataclass(frozen=True, slots=True)
class Trained:
    """What an algorithm gave.

    Attributes:
        theta: the last model, ``[d]``.
        epsilon: ε at the settings' δ, by whom it holds against and the accountant;
            empty where nothing is protected.
    """

    theta: Reals = field(repr=False)
    epsilon: Mapping[str, float]


Algorithm = Callable[[Problem, Mapping[str, Any]], Trained]
"""A problem and the algorithm's own settings, by name; those of a step's sums are in
``sums.Sums``."""
ALGORITHMS: Registry[Algorithm] = Registry(
    "algorithm",
    "research.algorithms.sums",
    "research.algorithms.non_private",
    "research.algorithms.ins_dp_fedsgd",
    "research.algorithms.ins_dp_fedavg",
    "research.algorithms.dopamine",
)
