"""STAT-OPT, Min-Max and Min-Sum (Shejwalkar and Houmansadr, NDSS 2021, Sec. IV).

The bad clients submit the honest mean plus γ times a direction, γ as large as their
distance to the honest updates allows: no more than those have from each other.
Direction: minus the standard deviation, coordinate by coordinate.
"""

from collections.abc import Callable

import numpy as np

from research.poisoning.attack import ATTACKS, Attack, Reals, Scene

_DOUBLINGS = 40
_HALVINGS = 30


class StatOpt(Attack):
    """Args: ``within``: the distances of a vector, ``[m]``, and those of the honest, ``[m, m]``."""

    def __init__(self, within: Callable[[Reals, Reals], bool]) -> None:
        self._within = within

    def submit(self, honest: Reals, scene: Scene) -> Reals:
        """The furthest vector that passes, once for each bad client."""
        known = np.concatenate([scene.others, honest])
        mean, direction = known.mean(axis=0), -known.std(axis=0)
        among = np.array([_squares(known, row) for row in known])

        def passes(gamma: float) -> bool:
            return self._within(_squares(known, mean + gamma * direction), among)

        low, high = 0.0, 1.0
        for _ in range(_DOUBLINGS):
            if not direction.any() or not passes(high):
                break
            low, high = high, 2 * high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if passes(middle) else (low, middle)
        return np.tile(mean + low * direction, (len(honest), 1))


def _squares(rows: Reals, one: Reals) -> Reals:
    """Squared distances of ``one`` to each row."""
    return np.asarray(((rows - one) ** 2).sum(axis=1))


@ATTACKS.register("min-max")
def min_max() -> Attack:
    """Its largest distance to an honest update is at most the largest between two of those."""
    return StatOpt(lambda own, among: bool(own.max() <= among.max()))


@ATTACKS.register("min-sum")
def min_sum() -> Attack:
    """Its squared distances add up to at most those of any honest update."""
    return StatOpt(lambda own, among: bool(own.sum() <= among.sum(axis=1).max()))
