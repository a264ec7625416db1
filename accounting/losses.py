"""One round's privacy loss on a lattice: a discrete pair that dominates the true one.

A round is a Poisson-sampled Gaussian with rate r and multiplier σ that happens with
probability c: P = Σ_i Bin(k, r)(i)·N(i, σ²) for a group of k against Q = N(0, σ²), and
with probability 1 − c nothing (an atom at loss 0). k records shift the sum by Bin(k, r)
clips (Ganesh, "Tight group-level DP guarantees for DP-SGD with sampling via mixture of
Gaussians mechanisms", 2024, Theorem 3.1). The loss L(x) = ln P/Q, for k = 1 ln(1 +
r·(e^{(2x−1)/(2σ²)} − 1)), rises with x. Between two points of the lattice the masses of
P and of Q are kept and split onto the ends ("connect the dots", Doroshenko et al.
2022), which can only raise δ(ε), at every real ε and in both directions.

Points are multiples of one cell, fine around loss 0 and ever further apart away from
it: a large loss needs no finer cell than a small share of itself. So a lattice may be
as fine as a rate of 1e-9 asks for and still have a few thousand points.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dtbsv
from scipy.special import log_ndtr

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

UNIT = 2.0**-53
"""The unit roundoff of float64."""

# Standard deviations of noise kept on both sides. Beyond, 2e-33 of a round's mass lies:
# infinite.
_TAIL = 12.0
# Cells per standard deviation of one round's loss: splitting adds at most a variance of
# cell²/6 a round on average, so that a composition's deviation grows by 1e-4 of itself.
_CELLS_PER_DEVIATION = 30
# Away from 0 a cell may be this share of the loss in it, and at most this wide, or this
# share of the largest loss.
_SHARE_OF_LOSS = 1 / 256
_WIDEST_CELL = 0.02
_SHARE_OF_LARGEST = 1 / 4000
# Weights of a group's shifts under e^−46 are left out and count as infinite loss.
_LEAST_LOG_WEIGHT = -46.0
# Points from which a group's loss is inverted, by interpolation and Newton's steps.
_TABLE = 4001
_STEPS = 3
# Exponents held at once.
_BLOCK = 2**17
# Gauss and Legendre's nodes: their error on an interval of half a standard deviation is
# below rounding.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
_WIDEST_INTERVAL = 0.5
_MOST_INTERVALS = 2**16
# From e^30 on, 1 is nothing beside an exponential that is itself far below overflow.
_LARGE = 30.0
# Lattices with more points between first and last are kept by their occupied points
# alone.
_DENSE = 2**16


class SampledRound(NamedTuple):
    """One round, without its count: what events are merged by. r and c lie in (0, 1]."""

    rate: float
    noise_multiplier: float
    """σ, over the sensitivity."""
    participation: float
    group: int = 1
    """k, how many records come or go together."""


@dataclass(frozen=True, slots=True, eq=False)
class Shift:
    """Distribution of the shift of one round's sum, in contribution bounds."""

    sizes: Floats
    """[m], increasing, at least 0."""
    log_weights: Floats
    """[m], natural logarithms of the probabilities."""
    dropped: float = 0.0
    """Probability of shifts that were left out; whoever uses the others must count that
    much mass as telling the two cases apart with certainty."""


def log_binomial(k: int, probability: float) -> Floats:
    """[k + 1] float64: log Pr[Bin(k, probability) = i]."""
    if probability in (0.0, 1.0):
        weights = np.full(k + 1, -np.inf)
        weights[round(k * probability)] = 0.0
        return weights
    # Sums of the ratios' logarithms, outwards from the mode: near it every weight is
    # right to rounding, and T rounds multiply what isn't (gammaln would cost four
    # digits at k = 500).
    i = np.arange(k, dtype=np.float64)
    ratios = np.log((k - i) / (i + 1)) + (
        math.log(probability) - math.log1p(-probability)
    )
    mode = min(int((k + 1) * probability), k)
    below = np.cumsum(-ratios[:mode][::-1])[::-1]
    weights = np.concatenate([below, [0.0], np.cumsum(ratios[mode:])])
    return np.asarray(weights - math.log(float(np.exp(weights).sum())))


@lru_cache(maxsize=64)
def group_shift(k: int, probability: float) -> Shift:
    """Bin(k, q) unit contributions: k records of one direction, each drawn alone."""
    log_weights = log_binomial(k, probability)
    kept = log_weights >= _LEAST_LOG_WEIGHT
    dropped = float(np.exp(log_weights[~kept]).sum())
    return Shift(np.flatnonzero(kept).astype(np.float64), log_weights[kept], dropped)


def log_affinity(one: SampledRound) -> float:
    """An upper bound of ln ∫√(PQ), Bhattacharyya's: n rounds share at most its n-th power.

    √(Σ w_i·N(i, σ²)) is at most Σ √w_i·√N(i, σ²), whose integrals with √Q are known.
    """
    sizes = np.arange(one.group + 1, dtype=np.float64)
    exponents = (
        log_binomial(one.group, one.rate) / 2 - (sizes / one.noise_multiplier) ** 2 / 8
    )
    top = float(exponents.max())
    whole = min(0.0, top + math.log(float(np.exp(exponents - top).sum())))
    share = one.participation
    return whole if share == 1 else math.log1p(share * math.expm1(whole))


def log_ratio(x: Floats, shift: Shift, noise: float) -> tuple[Floats, Floats]:
    """[n] float64 each: L(x) = ln Σ_i w_i e^{(2ix − i²)/(2σ²)} at ``x`` [n], and its derivative."""
    found = np.empty((2, len(x)))
    constant = (shift.log_weights - shift.sizes**2 / (2 * noise**2))[:, None]
    for rows in np.array_split(
        np.arange(len(x)), 1 + len(x) * len(shift.sizes) // _BLOCK
    ):
        weights = np.outer(shift.sizes / noise**2, x[rows])
        weights += constant
        top = weights.max(axis=0)
        weights -= top
        np.exp(weights, out=weights)
        total = weights.sum(axis=0)
        found[0, rows] = top + np.log(total)
        found[1, rows] = shift.sizes @ weights / (total * noise**2)
    return found[0], found[1]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Losses:
    """The losses of one round in one direction: ``points·cell``, [n] each."""

    points: Integers
    log_masses: Floats
    """Logarithms of their probabilities, rounded up."""
    infinite: float
    """Probability of infinite loss."""
    cell: float
    """A power of two, nats."""

    @property
    def losses(self) -> Floats:
        """[n] float64, nats."""
        return np.asarray(self.points * self.cell, dtype=np.float64)

    def tilted(self, order: float) -> tuple[float, float, float]:
        """K(λ) = ln Σ mass·e^{λ·loss} at ``order``, K'(λ) and K''(λ): tilted mean and variance."""
        losses = self.losses
        exponents = self.log_masses + order * losses
        top = float(exponents.max())
        weights = np.exp(exponents - top)
        total = float(weights.sum())
        mean = float(weights @ losses) / total
        return (
            top + math.log(total),
            mean,
            float(weights @ (losses - mean) ** 2) / total,
        )

    def on(self, cell: float) -> "Losses":
        """The same on a lattice at least as coarse, still dominating."""
        if cell == self.cell:
            return self
        points, masses = split(
            self.points, np.exp(self.log_masses), fine=self.cell, coarse=cell
        )
        kept = masses > 0
        return Losses(
            points=points[kept],
            log_masses=np.log(masses[kept]),
            infinite=self.infinite,
            cell=cell,
        )

    def log_moments(self, orders: Floats) -> Floats:
        """[m] float64: K at every one of ``orders`` [m]."""
        exponents = np.outer(orders, self.losses) + self.log_masses
        top = exponents.max(axis=1)
        return np.asarray(top + np.log(np.exp(exponents - top[:, None]).sum(axis=1)))


def split(
    points: Integers,
    masses: Floats,
    *,
    fine: float,
    coarse: float,
    tilt: float = 0.0,
) -> tuple[Integers, Floats]:
    """Masses of losses ``points·fine``, each split onto both neighbours in a coarser lattice.

    Both P and Q keep their masses. Masses are tilted by e^{λ·loss} before and after.
    Points increase, and both cells are powers of two. Every point of the coarse lattice
    in between comes back, with masses rounded up.
    """
    ratio = round(coarse / fine)
    lower = points // ratio
    inside = (points - lower * ratio) * fine
    up = np.minimum(np.expm1(-inside) / math.expm1(-coarse) * (1 + 16 * UNIT), 1.0)
    spoiled = 1 + UNIT * (16 + 4 * tilt * coarse)
    first = int(lower[0])
    size = int(lower[-1]) - first + 2
    falling = masses * (1 - up) * np.exp(-tilt * inside) * spoiled
    rising = masses * up * np.exp(tilt * (coarse - inside)) * spoiled
    if size > _DENSE:
        both = np.concatenate([lower, lower + 1])
        found, at = np.unique(both, return_inverse=True)
        return found, summed(at, np.concatenate([falling, rising]), len(found))
    moved = summed(lower - first, falling, size) + summed(
        lower - first + 1, rising, size
    )
    return np.arange(first, first + size, dtype=np.int64), moved


def summed(places: Integers, masses: Floats, size: int) -> Floats:
    """[size] float64: masses by place, 0 to ``size`` − 1."""
    return np.bincount(places, masses, size).astype(np.float64, copy=False)


def discounted(values: Floats, factor: float) -> Floats:
    """[n] float64: y_i = x_i + factor·y_{i−1}, by forward substitution."""
    # Not SciPy's filters: they load its statistics, which takes every owner most of a
    # second.
    rows = np.ones((2, len(values)), order="F")
    rows[1] = -factor
    return np.asarray(
        dtbsv(
            1,
            rows,
            values,
            lower=1,
            diag=1,
        )
    )


def loss_at(x: Floats, one: SampledRound) -> Floats:
    """L(x), relatively exact also where it is tiny, and without overflow where it is large."""
    if one.group > 1:
        shift = group_shift(one.group, one.rate)
        return log_ratio(x.ravel(), shift, one.noise_multiplier)[0].reshape(x.shape)
    exponent = (2 * x - 1) / (2 * one.noise_multiplier**2)
    return exponent if one.rate == 1 else log_mixed(exponent, one.rate)


def log_mixed(exponents: Floats, share: float) -> Floats:
    """ln(1 + r·(e^u − 1)) for each u, which may be infinite; r in (0, 1)."""
    near = np.log1p(share * np.expm1(np.minimum(exponents, _LARGE)))
    ratio = (1 - share) / share
    far = (
        exponents
        + math.log(share)
        + np.log1p(ratio * np.exp(-np.maximum(exponents, _LARGE)))
    )
    return np.where(exponents < _LARGE, near, far)


def _where(losses: Floats, one: SampledRound) -> Floats:
    """The x at which the loss is reached; −∞, or the least that is kept, where it never is."""
    if one.group > 1:
        return _where_of_group(losses, one)
    variance = one.noise_multiplier**2
    if one.rate == 1:
        return np.asarray(losses * variance + 0.5)
    small = np.minimum(losses, _LARGE)
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.log1p(np.maximum(np.expm1(small) / one.rate, -1.0))
        beyond = np.maximum(losses, _LARGE)
        far = beyond - math.log(one.rate) + np.log1p(-(1 - one.rate) * np.exp(-beyond))
    return np.asarray(variance * np.where(losses < _LARGE, near, far) + 0.5)


def _where_of_group(losses: Floats, one: SampledRound) -> Floats:
    shift = group_shift(one.group, one.rate)
    sigma = one.noise_multiplier
    x = np.linspace(-_TAIL * sigma, shift.sizes[-1] + _TAIL * sigma, _TABLE)
    guess = np.interp(losses, log_ratio(x, shift, sigma)[0], x)
    for _ in range(_STEPS):
        value, slope = log_ratio(guess, shift, sigma)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = np.where(slope > 0, (value - losses) / slope, 0.0)
        guess = np.clip(guess - np.clip(step, -sigma, sigma), x[0], x[-1])
    return np.maximum.accumulate(guess)


@lru_cache(maxsize=4096)
def natural_cell(one: SampledRound) -> float:
    """The width at which the lattice of ``one`` costs nothing worth mentioning; a power of two.

    A function of the round alone, so that more rounds are never reported to cost less.
    """
    sigma = one.noise_multiplier
    x = sigma * np.linspace(-3, 3, 601)
    density = np.exp(-0.5 * (x / sigma) ** 2)
    losses = loss_at(x, one)
    size = math.sqrt(float(density @ losses**2) / float(density.sum()))
    if one.group == 1:
        deviation = min(size, 1 / sigma)
        most = 1.0
    else:
        # A group's losses may lie far from 0, all together.
        mean = float(density @ losses) / float(density.sum())
        deviation = max(math.sqrt(max(size**2 - mean**2, 0.0)), size / 8)
        most = float(group_shift(one.group, one.rate).sizes[-1])
    largest = float(loss_at(np.array([most + 10 * sigma]), one)[0])
    wanted = min(deviation / _CELLS_PER_DEVIATION, max(_WIDEST_CELL, largest / 1000))
    return 2.0 ** math.floor(math.log2(wanted))


def _lattice(low: float, high: float, cell: float) -> Integers:
    """Points from below ``low`` ≤ 0 to above ``high`` ≥ 0: every one near 0, fewer further out."""
    widest = max(_WIDEST_CELL, max(-low, high) * _SHARE_OF_LARGEST)

    def outwards(end: float) -> list[Integers]:
        last = math.ceil(end / cell)
        block = 0
        step = 1
        found = []
        # Steps double; each block runs until a step twice as wide is a small enough
        # share.
        while block < last:
            fits = 2 * step * cell <= widest
            stop = min(last, math.ceil(2 * step / _SHARE_OF_LOSS)) if fits else last
            ends = np.arange(block, stop + step, step, dtype=np.int64)
            found.append(ends)
            block = int(ends[-1])
            step = 2 * step
        return found

    parts = [np.zeros(1, dtype=np.int64), *outwards(max(high, cell))]
    parts += [-part for part in outwards(max(-low, cell))]
    return np.unique(np.concatenate(parts))


@lru_cache(maxsize=1024)
def one_round(one: SampledRound) -> tuple[Losses, Losses]:
    """The dominating losses of one round, (P‖Q) and (Q‖P), on its natural lattice.

    Masses come from Gauss and Legendre's rule on intervals of at most half a standard
    deviation, and the split from ∫P·(1 − e^{l−L}) directly, so that nothing cancels.
    What rounding can have taken is given back: every mass is raised by 64 units of
    roundoff (nine rounded terms, and an exponent of up to 72 whose own rounding enters
    the mass as a factor), and the part moved to the worse end by 8·(|l|/cell + 1) units
    of the mass (L and l are each right to 4 units, and their difference is divided by
    the cell's width). A group's L is right to 4 units of its largest exponent: so much
    more, and the share of a cell that it is.
    """
    sigma = one.noise_multiplier
    cell = natural_cell(one)
    shift = group_shift(one.group, one.rate)
    most = float(shift.sizes[-1])
    bounded = shift.sizes[0] == 0
    first = -_TAIL * sigma
    last = most + _TAIL * sigma
    ends = loss_at(np.array([first, last]), one)
    lowest = one.group * math.log1p(-one.rate) if bounded else float(ends[0])
    points = _lattice(min(lowest, 0.0), max(float(ends[1]), 0.0), cell)
    edges = np.clip(_where(points.astype(np.float64) * cell, one), first, last)
    edges[0], edges[-1] = first, last
    even = math.ceil((last - first) / (_WIDEST_INTERVAL * sigma))
    between = np.linspace(first, last, min(even, _MOST_INTERVALS) + 1)
    x = np.unique(np.concatenate([edges, between]))
    middle = (x[1:] + x[:-1]) / 2
    half = np.diff(x) / 2
    at = np.clip(np.searchsorted(edges, middle) - 1, 0, len(points) - 2)

    nodes = middle[:, None] + half[:, None] * _NODES
    log_q = -0.5 * (nodes / sigma) ** 2 - math.log(sigma * math.sqrt(2 * math.pi))
    losses = loss_at(nodes, one)
    lower = (points[:-1] * cell)[at]
    upper = (points[1:] * cell)[at]
    q = np.exp(log_q) * _WEIGHTS * half[:, None]
    p = np.exp(log_q + losses) * _WEIGHTS * half[:, None]
    width = -np.expm1(lower - upper)
    # The part of P that goes up, and the part of Q that goes down: for Q‖P down is
    # worse.
    rising = (p * -np.expm1(lower[:, None] - losses)).sum(axis=1) / width
    falling = (q * -np.expm1(losses - upper[:, None])).sum(axis=1) / width

    def by_cell(values: Floats) -> Floats:
        return summed(at, np.maximum(values, 0.0), len(points) - 1)

    rounding = (
        4 * UNIT * (most * (most + 2 * _TAIL * sigma) / sigma**2 + 64) * (one.group > 1)
    )
    slack = (
        8 * UNIT * (np.maximum(np.abs(points[1:]), np.abs(points[:-1])) + 1)
        + rounding / cell
    )
    slack /= np.diff(points)
    p_mass = by_cell(p.sum(axis=1))
    q_mass = by_cell(q.sum(axis=1))
    up = np.minimum(by_cell(rising) + slack * p_mass, p_mass)
    down = np.minimum(by_cell(falling) + slack * q_mass, q_mass)
    forward = np.append(p_mass - up, 0.0) + np.append(0.0, up)
    reverse = np.append(down, 0.0) + np.append(0.0, q_mass - down)

    # Beyond the ends the harmless side goes up to the end of the outermost cell, and
    # the other is infinite; but in a sampled round no loss lies below ln(1 − r), which
    # the lattice reaches.
    def tail(shifts: Floats) -> Floats:
        return np.asarray(np.exp(log_ndtr(-_TAIL - shifts / sigma)) * (1 + 1e-9))

    weights = np.exp(shift.log_weights)
    forward[1] += float(weights @ tail(shift.sizes))
    reverse[-2] += float(tail(np.array([most]))[0])
    infinite = float(weights @ tail(most - shift.sizes)) + shift.dropped
    reverse_infinite = float(tail(np.zeros(1))[0])
    if bounded:
        reverse[0] += reverse_infinite
        reverse_infinite = 0.0
    share = one.participation
    raised = 1 + 64 * UNIT + rounding
    return (
        _direction(
            points,
            forward * raised,
            infinite=infinite,
            share=share,
            cell=cell,
        ),
        _direction(
            -points[::-1],
            reverse[::-1] * raised,
            infinite=reverse_infinite,
            share=share,
            cell=cell,
        ),
    )


def _direction(
    points: Integers,
    masses: Floats,
    *,
    infinite: float,
    share: float,
    cell: float,
) -> Losses:
    masses = masses * share
    masses[np.searchsorted(points, 0)] += 1 - share
    kept = masses > 0
    return Losses(
        points=points[kept],
        log_masses=np.log(masses[kept]),
        infinite=share * infinite,
        cell=cell,
    )
