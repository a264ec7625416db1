"""Composed losses: convolved by Fourier transforms, rounded up, and what they say of (ε, δ).

A transform of size N has an error of at most c·u·log2(N)·Σ|input| at every point, with
the unit roundoff u and c = 8 (Higham 2002, Theorem 24.2, has below 4·√2 for exact
twiddles, and 8 with rounded ones). With an error of at most Δ at a factor ĝ, its n-th
power is off by at most (|ĝ| + Δ)^n − |ĝ|^n, and by 8·n·u·|ln ĝ|·|ĝ|^n for the power's
own arithmetic. The mean of all that over the frequencies, and the inverse transform's
error, bound the error of every composed mass: they are added to every mass.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft

from precad.accounting.loss_lattice import UNIT, Floats, Integers, discounted, split

Complexes = NDArray[np.complex128]

# From this share on, rounds that all lose nothing are kept apart from the transform.
_MOSTLY_NOTHING = 1e-3
# What a power of one number may lack.
_POWER = 1e-9
# Within this distance of 1, logarithms are taken relative to it.
_NEAR = 0.5

OUTSIDE = 1e-13
"""Of the tilted mass, what may lie outside a window."""
SUMMED = 1e-9
"""Sums over a window, one after the other, lose at most this much of themselves."""


def convolved(factors: Iterable[tuple[Floats, int]], size: int) -> Floats:
    """Convolution of all factors, each ``count`` times, every mass raised by what it may lack.

    What lies at 0 needs no transform and is never rounded with the rest: where nearly
    every round loses nothing, the few that do stand in full precision beside it.
    """
    log_product = np.zeros(size // 2 + 1, dtype=np.complex128)
    log_largest, arithmetic = np.zeros((2, size // 2 + 1))
    log_atom = 0.0
    loss = 8 * UNIT * math.log2(size)
    for masses, count in factors:
        others = masses.copy()
        atom = float(masses[0])
        others[0] = 0.0
        rest = rfft(others)
        wrong = loss * float(rest[0].real)
        rest += atom - 1
        magnitude = np.abs(1 + rest)
        log_factor = _log1p(rest)
        log_atom += count * math.log(atom) if atom > 0 else -math.inf
        log_product += count * log_factor
        log_largest += count * np.log(magnitude + wrong)
        arithmetic += count * (np.abs(log_factor) + abs(atom - 1))
    atoms = math.exp(log_atom)
    if atoms > _MOSTLY_NOTHING:
        product = atoms * np.expm1(log_product - log_atom)
    else:
        atoms = 0.0
        product = np.exp(log_product)
    whole = np.exp(log_product.real)
    wrong_by = np.exp(log_largest) - whole + 8 * UNIT * arithmetic * whole
    wrong_by += (8 * UNIT + loss) * np.abs(product)
    # Every frequency but the first, and for an even size the last, stands for two.
    error = 2 * float(wrong_by.sum()) - float(wrong_by[0])
    error = max(0.0, error - (float(wrong_by[-1]) if size % 2 == 0 else 0.0)) / size
    composed = np.maximum(irfft(product, size), 0.0) + error
    composed[0] += atoms * (1 + _POWER)
    return np.asarray(composed)


def _log1p(values: Complexes) -> Complexes:
    """ln(1 + z), relatively exact also near 0, unlike NumPy's; its real part at least −700."""
    x = values.real
    y = values.imag
    found = np.empty_like(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        near = 0.5 * np.log1p(x * (2 + x) + y * y)
        found.real = np.where(np.abs(values) < _NEAR, near, np.log(np.abs(1 + values)))
    np.maximum(found.real, -700.0, out=found.real)
    found.imag = np.arctan2(y, 1 + x)
    return found


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Composed:
    """Tilted masses, each rounded up, of the losses ``points·cell``, [n] each and increasing."""

    points: Integers
    masses: Floats
    """A mass is its tilted one times e^{``log_moment`` − λ·loss}."""
    cell: float
    """A power of two, nats."""
    log_moment: float
    """K(λ)."""
    left_out: float
    """Probability above the window."""

    def log_moments(self, orders: Floats, tilt: float) -> Floats:
        """K at every one of ``orders``."""
        exponents = np.outer(orders - tilt, self.points * self.cell)
        exponents += np.log(np.maximum(self.masses, 1e-300))
        top = exponents.max(axis=1)
        sums = np.log(np.exp(exponents - top[:, None]).sum(axis=1))
        return np.asarray(self.log_moment + top + sums)

    def on(self, cell: float, tilt: float) -> "Composed":
        """The same on another lattice; where that is coarser, split onto it."""
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
        return Composed(
            points=points,
            masses=masses,
            cell=cell,
            log_moment=self.log_moment,
            left_out=self.left_out,
        )


def dense(
    first: int,
    wrapped: Floats,
    *,
    cell: float,
    log_moment: float,
    left_out: float,
) -> Composed:
    """Masses by point modulo their number, put in order from ``first``."""
    size = len(wrapped)
    masses = np.roll(wrapped, -(first % size))
    return Composed(
        points=np.arange(first, first + size),
        masses=masses,
        cell=cell,
        log_moment=log_moment,
        left_out=left_out,
    )


class Tilted:
    """The composed losses of one direction in a window, and what they say about (ε, δ)."""

    def __init__(self, composed: Composed, order: float, scale: float) -> None:
        self.scale = scale
        """What its lattice is fine against; 0 where a smaller one changes nothing."""
        self._cell = composed.cell
        self._losses = np.asarray(composed.points * composed.cell, np.float64)
        self.lowest = float(self._losses[0])
        """The lowest loss of the window."""
        self._infinite = composed.left_out
        # Far below the answer the weights overflow; there δ is above 1 anyway.
        log_weights = np.minimum(composed.log_moment - order * self._losses, 600.0)
        with np.errstate(over="ignore"):
            masses = composed.masses * np.exp(log_weights)
        decay = math.exp(-self._cell)
        # held_j = Σ_{i≥j} m_i·e^{l_j − l_i}, and δ_j − δ_{j+1} = (1 −
        # e^{−cell})·held_{j+1}: sums of positive terms alone.
        held = discounted(masses[::-1], decay)[::-1]
        steps = np.append(-math.expm1(-self._cell) * held[1:], 0.0)
        self._deltas = np.cumsum(steps[::-1])[::-1] * (1 + SUMMED)
        self._held = np.append(held[1:], 0.0) * decay
        self._whole = float(masses.sum()), float(held[0])

    def profile(self) -> tuple[Floats, Floats]:
        """Every point's ε, increasing, and δ(ε), at most 1."""
        return self._losses, np.asarray(
            np.minimum(self._deltas + self._infinite, 1.0), np.float64
        )

    def epsilon(self, delta: float) -> float:
        """The least ε of the window whose δ is at most ``delta``; infinite if there is none."""
        left = delta * (1 - SUMMED) - self._infinite
        if left <= 0:
            return math.inf
        over = np.flatnonzero(self._deltas > left)
        if not len(over):
            return self.lowest
        j = int(over[-1])
        over_by = float(self._deltas[j]) - left
        held = float(self._held[j])
        inside = math.log1p(over_by / held) if held > over_by * 1e-300 else math.inf
        return float(self._losses[j]) + min(inside, self._cell)

    def delta(self, epsilon: float) -> float:
        """δ(ε), at most 1."""
        j = math.floor((epsilon - self.lowest) / self._cell)
        if j >= len(self._losses):
            return min(1.0, self._infinite)
        if j < 0:
            total, held = self._whole
            below = (
                total * (1 + SUMMED) - held * math.exp(epsilon - self.lowest) + OUTSIDE
            )
            return min(1.0, below + self._infinite)
        inside = math.expm1(epsilon - float(self._losses[j])) * self._held[j]
        found = float(self._deltas[j] - inside)
        if not math.isfinite(found):
            return 1.0  # so far below the answer that the weights overflow
        return min(1.0, max(0.0, found) + self._infinite)
