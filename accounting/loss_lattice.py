"""Discrete privacy losses on a lattice, and how they are moved to a coarser one.

Points are whole multiples of a cell, whose width is a power of two. A loss between two
points is split onto both so that the masses of P and of Q are kept ("connect the dots",
Doroshenko et al. 2022). That can only raise δ(ε), at every real ε: the pair on the
lattice dominates the pair that it stands for.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg.blas import dtbsv

from precad.common import Floats, Integers

UNIT = 2.0**-53
"""The unit roundoff of float64."""

_DENSE = 2**16
"""Lattices with more points between first and last are kept by their occupied points
alone."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Losses:
    """The losses ``points·cell`` of one round in one direction, and their masses."""

    points: Integers
    """[n], increasing."""
    log_masses: Floats
    """[n], logarithms of the losses' probabilities, rounded up."""
    infinite: float
    """Probability of infinite loss."""
    cell: float
    """Width of the lattice in nats, a power of two."""

    @property
    def losses(self) -> Floats:
        """Return the losses, [n] float64, in nats."""
        return np.asarray(self.points * self.cell, np.float64)

    def tilted(self, order: float) -> tuple[float, float, float]:
        """Return K(λ), K'(λ) and K''(λ) at λ = ``order``.

        K(λ) = ln Σ mass·e^{λ·loss}. Its derivatives are the mean and the variance of
        the losses whose masses were tilted, multiplied by e^{λ·loss}.
        """
        losses = self.losses
        exponents = self.log_masses + order * losses
        top = float(exponents.max())
        weights = np.exp(exponents - top)
        total = float(weights.sum())
        mean = float(weights @ losses) / total
        variance = float(weights @ (losses - mean) ** 2) / total
        return top + math.log(total), mean, variance

    def on(self, cell: float) -> "Losses":
        """Return losses on a lattice at least as coarse that dominate these."""
        if cell == self.cell:
            return self
        points, masses = split(
            self.points,
            np.exp(self.log_masses),
            fine=self.cell,
            coarse=cell,
        )
        return reached(points, masses, infinite=self.infinite, cell=cell)

    def log_moments(self, orders: Floats) -> Floats:
        """Return K(λ) for every λ in ``orders``, [m] float64 both."""
        return log_sums(np.outer(orders, self.losses) + self.log_masses)


def reached(
    points: Integers,
    masses: Floats,
    *,
    infinite: float,
    cell: float,
) -> Losses:
    """Return the losses that have a probability above 0.

    Args:
        points: The lattice's points, [n], increasing.
        masses: The probability of each, [n].
        infinite: The probability of infinite loss.
        cell: The lattice's width, in nats.
    """
    kept = masses > 0
    return Losses(
        points=points[kept],
        log_masses=np.log(masses[kept]),
        infinite=infinite,
        cell=cell,
    )


def log_sums(exponents: Floats) -> Floats:
    """Return ln Σ e^x over the last axis, of any shape; float64 without that axis.

    SciPy's takes ten times as long for a few hundred.
    """
    top = exponents.max(axis=-1)
    sums = np.exp(exponents - top[..., None]).sum(axis=-1)
    return np.asarray(top + np.log(sums))


def split(
    points: Integers,
    masses: Floats,
    *,
    fine: float,
    coarse: float,
    tilt: float = 0.0,
) -> tuple[Integers, Floats]:
    """Split each loss ``points·fine`` onto its two neighbours in a coarser lattice.

    Both P and Q keep their masses.

    Args:
        points: [n], increasing.
        masses: [n], the points' masses under P.
        fine: The width of their lattice in nats, a power of two.
        coarse: The width of the coarser one, a power of two.
        tilt: λ, if masses are tilted by e^{λ·loss}, both before and after.

    Returns:
        The coarse lattice's points and their masses, rounded up: every point from the
        first to the last, or the occupied ones alone where there are very many.
    """
    ratio = round(coarse / fine)
    lower = points // ratio
    # From the lower neighbour, in nats.
    distance = (points - lower * ratio) * fine
    # The part that goes to the upper one.
    up = np.minimum(np.expm1(-distance) / math.expm1(-coarse) * (1 + 16 * UNIT), 1.0)
    raised = 1 + UNIT * (16 + 4 * tilt * coarse)
    falling = masses * (1 - up) * np.exp(-tilt * distance) * raised
    rising = masses * up * np.exp(tilt * (coarse - distance)) * raised
    first = int(lower[0])
    size = int(lower[-1]) - first + 2
    if size > _DENSE:
        neighbours = np.concatenate([lower, lower + 1])
        occupied, places = np.unique(neighbours, return_inverse=True)
        moved = np.concatenate([falling, rising])
        return occupied, summed(places, moved, len(occupied))
    fallen = summed(lower - first, falling, size)
    risen = summed(lower - first + 1, rising, size)
    return np.arange(first, first + size, dtype=np.int64), fallen + risen


def summed(places: Integers, masses: Floats, size: int) -> Floats:
    """Sum masses by place.

    Args:
        places: [n], each from 0 to ``size`` − 1.
        masses: [n].
        size: Number of places.

    Returns:
        The sums, [size] float64.
    """
    return np.bincount(places, masses, size).astype(np.float64, copy=False)


def discounted(values: Floats, factor: float) -> Floats:
    """Return y with y_i = x_i + factor·y_{i−1}, by forward substitution.

    Args:
        values: x, [n].
        factor: What the sum so far is multiplied by at each step.

    Returns:
        y, [n] float64.
    """
    # Not SciPy's filters: they load its statistics, which takes every owner most of a
    # second.
    band = np.ones((2, len(values)), order="F")
    band[1] = -factor
    return np.asarray(dtbsv(k=1, a=band, x=values, lower=1, diag=1))
