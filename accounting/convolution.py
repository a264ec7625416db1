"""Composed losses: convolved by Fourier transforms, rounded up, and read as (ε, δ).

A transform of size N has an error of at most c·u·log2(N)·Σ|input| at every point, with
the unit roundoff u and c = 8 (Higham 2002, Theorem 24.2, has below 4·√2 for exact
twiddles, and 8 with rounded ones). With an error of at most Δ at a factor ĝ, its n-th
power is off by at most (|ĝ| + Δ)^n − |ĝ|^n, and by 8·n·u·|ln ĝ|·|ĝ|^n for the power's
own arithmetic. The mean of all that over the frequencies, and the inverse transform's
error, bound the error of every composed mass: they are added to every mass.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy.fft import irfft, rfft
from scipy.special import log1p

from precad.accounting import UNIT, discounted, log_sums, split
from precad.common import Floats, Integers

_MOSTLY_NOTHING = 1e-3
"""From this probability on, rounds that all lose nothing are kept apart from the
transform."""
_POWER = 1e-9
"""Relative error that the power of one number may have."""

OUTSIDE = 1e-13
"""Of the tilted mass, what may lie outside a window."""
SUMMED = 1e-9
"""Sums over a window, one after the other, lose at most this much of themselves."""


def convolved(factors: Iterable[tuple[Floats, int]], size: int) -> Floats:
    """Convolve all factors cyclically, and raise every mass by what it may lack.

    What lies at 0 needs no transform and is never rounded with the rest: where nearly
    every round loses nothing, the few that do stand in full precision beside it.

    Args:
        factors: The masses of each kind of round, [size], and how often it happens.
        size: Number of points of the lattice, modulo which losses are taken.

    Returns:
        The composed masses, [size] float64.
    """
    frequencies = size // 2 + 1
    log_product = np.zeros(frequencies, np.complex128)
    # Of the product of all (|ĝ| + Δ)^n.
    log_largest = np.zeros(frequencies)
    # The sum of all n·|ln ĝ|, with what rounding the atom adds.
    arithmetic = np.zeros(frequencies)
    log_atoms = 0.0
    # Δ, relative to a factor's mass.
    transform_error = 8 * UNIT * math.log2(size)
    for masses, count in factors:
        atom = float(masses[0])
        others = masses.copy()
        others[0] = 0.0
        # The factor ĝ less 1: what lies at 0 adds to every frequency alike.
        excess = rfft(others)
        wrong = transform_error * float(excess[0].real)
        excess += atom - 1
        magnitude = np.abs(1 + excess)
        # Relatively exact also near 0, unlike NumPy's.
        log_factor = log1p(excess)
        # Of a factor 0 too, so that no later step is ∞ − ∞.
        np.maximum(log_factor.real, -700.0, out=log_factor.real)
        log_atoms += count * math.log(atom) if atom > 0 else -math.inf
        log_product += count * log_factor
        log_largest += count * np.log(magnitude + wrong)
        arithmetic += count * (np.abs(log_factor) + abs(atom - 1))
    # The probability that no round loses anything.
    atoms = math.exp(log_atoms)
    if atoms > _MOSTLY_NOTHING:
        # The transform is of what is left beside the atom.
        product = atoms * np.expm1(log_product - log_atoms)
    else:
        atoms = 0.0
        product = np.exp(log_product)
    magnitude = np.exp(log_product.real)
    wrong_by = np.exp(log_largest) - magnitude + 8 * UNIT * arithmetic * magnitude
    wrong_by += (8 * UNIT + transform_error) * np.abs(product)
    # Every frequency but the first, and for an even size the last, stands for two.
    error = 2 * float(wrong_by.sum()) - float(wrong_by[0])
    if size % 2 == 0:
        error -= float(wrong_by[-1])
    composed: Floats = np.maximum(irfft(product, size), 0.0) + max(0.0, error) / size
    composed[0] += atoms * (1 + _POWER)
    return composed


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Composed:
    """Tilted masses, each rounded up, of the losses ``points·cell`` in a window."""

    points: Integers
    """[n], increasing."""
    masses: Floats
    """[n]. A loss's mass is its tilted one times e^{``log_moment`` − λ·loss}."""
    cell: float
    """Width of the lattice in nats, a power of two."""
    log_moment: float
    """K(λ)."""
    left_out: float
    """Probability above the window."""

    def log_moments(self, orders: Floats, tilt: float) -> Floats:
        """Return K at each of ``orders``.

        Args:
            orders: [m].
            tilt: The λ by which the masses are tilted.

        Returns:
            [m] float64.
        """
        exponents = np.outer(orders - tilt, self.points * self.cell)
        exponents += np.log(np.maximum(self.masses, 1e-300))
        return np.asarray(self.log_moment + log_sums(exponents))

    def on(self, cell: float, tilt: float) -> "Composed":
        """Return the same losses on another lattice; on a coarser one they are split.

        Args:
            cell: The other lattice's width in nats, a power of two.
            tilt: The λ by which the masses are tilted.
        """
        if cell <= self.cell:
            points = self.points * round(self.cell / cell)
            masses = self.masses
        else:
            points, masses = split(
                self.points,
                self.masses,
                fine=self.cell,
                coarse=cell,
                tilt=tilt,
            )
        return replace(self, points=points, masses=masses, cell=cell)


def dense(
    first: int,
    wrapped: Floats,
    *,
    cell: float,
    log_moment: float,
    left_out: float,
) -> Composed:
    """Put the masses of a cyclic convolution in order.

    Args:
        first: The lowest point of the window.
        wrapped: [n], the mass of each point at the point modulo n.
        cell: Width of the lattice, in nats.
        log_moment: K(λ).
        left_out: Probability above the window.
    """
    size = len(wrapped)
    return Composed(
        points=np.arange(first, first + size),
        masses=np.roll(wrapped, -(first % size)),
        cell=cell,
        log_moment=log_moment,
        left_out=left_out,
    )


class Tilted:
    """The composed losses of one direction in a window, to be asked for ε or δ.

    Between two points of the lattice there is no mass, so δ(ε) is linear in e^ε there.
    """

    def __init__(self, composed: Composed, order: float, scale: float) -> None:
        """Take the tilt λ = ``order`` off, and add δ up from the highest loss down."""
        self.scale = scale
        """What its lattice is fine against; 0 where a smaller one changes nothing."""
        self._cell = composed.cell
        self._losses = np.asarray(composed.points * composed.cell, np.float64)
        self.lowest = float(self._losses[0])
        """The lowest loss of the window, in nats."""
        self._infinite = composed.left_out
        # Far below the answer the weights overflow; there δ is above 1 anyway.
        log_weights = np.minimum(composed.log_moment - order * self._losses, 600.0)
        with np.errstate(over="ignore"):
            masses = composed.masses * np.exp(log_weights)
        decay = math.exp(-self._cell)
        # tail_j = Σ_{i≥j} m_i·e^{l_j − l_i}, and δ_j − δ_{j+1} = (1 −
        # e^{−cell})·tail_{j+1}: sums of positive terms alone.
        tails = discounted(masses[::-1], decay)[::-1]
        steps = np.append(-math.expm1(-self._cell) * tails[1:], 0.0)
        self._deltas = np.cumsum(steps[::-1])[::-1] * (1 + SUMMED)
        # Of the losses above each point, Σ_{i>j} m_i·e^{l_j − l_i}.
        self._tails = np.append(tails[1:], 0.0) * decay
        self._total = float(masses.sum())
        self._lowest_tail = float(tails[0])

    def profile(self) -> tuple[Floats, Floats]:
        """Return every point's ε, increasing, and δ(ε), at most 1; [n] float64 both."""
        deltas = np.minimum(self._deltas + self._infinite, 1.0)
        return self._losses, np.asarray(deltas, np.float64)

    def epsilon(self, delta: float) -> float:
        """Return the least ε of the window whose δ is at most ``delta``.

        It is infinite if there is none.
        """
        # What the finite losses may add up to.
        left = delta * (1 - SUMMED) - self._infinite
        if left <= 0:
            return math.inf
        over = np.flatnonzero(self._deltas > left)
        if not len(over):
            return self.lowest
        # The answer lies between this point and the next.
        j = int(over[-1])
        over_by = float(self._deltas[j]) - left
        tail = float(self._tails[j])
        inside = math.log1p(over_by / tail) if tail > over_by * 1e-300 else math.inf
        return float(self._losses[j]) + min(inside, self._cell)

    def delta(self, epsilon: float) -> float:
        """Return δ(ε), at most 1."""
        j = math.floor((epsilon - self.lowest) / self._cell)
        if j >= len(self._losses):
            return min(1.0, self._infinite)
        if j < 0:
            # Every loss of the window lies above.
            within = self._total * (1 + SUMMED)
            within -= self._lowest_tail * math.exp(epsilon - self.lowest)
            return min(1.0, within + OUTSIDE + self._infinite)
        inside = math.expm1(epsilon - float(self._losses[j])) * self._tails[j]
        within = float(self._deltas[j] - inside)
        # So far below the answer that the weights overflow.
        if not math.isfinite(within):
            return 1.0
        return min(1.0, max(0.0, within) + self._infinite)
