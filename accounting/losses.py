"""One round's privacy loss on a lattice: a discrete pair that dominates the true one.

A round is a Poisson-sampled Gaussian with rate r and multiplier σ that happens with
probability c: P = Σ_i Bin(k, r)(i)·N(i, σ²) for a group of k against Q = N(0, σ²), and
with probability 1 − c nothing (an atom at loss 0). k records shift the sum by Bin(k, r)
clips (Ganesh 2024, Theorem 3.1). Owners with bounds b_j of their own shift it by
Σ b_j·Bin(1, r), each b_j and then the sum rounded up to a lattice: a shift that is
larger in distribution dominates (Choquette-Choo et al. 2024, Lemma 4.5). The loss L(x)
= ln P/Q, for k = 1 ln(1 + r·(e^{(2x−1)/(2σ²)} − 1)), rises with x. Between two points
of the lattice the masses of P and of Q are kept and split onto the ends ("connect the
dots", Doroshenko et al. 2022), which can only raise δ(ε), at every real ε, both ways.

A unit at m owners stands in one sum through each that takes part: with j of them there
the shift is Bin(j·k, r), and how many there are is public. So m owners, each with a
coin c, are a round of Bin(m, c) owners that says which: the mixture of their losses.

Points are multiples of one cell, fine around loss 0 and ever further apart away from
it: a large loss needs no finer cell than a small share of itself. So a lattice may be
as fine as a rate of 1e-9 asks for and still have a few thousand points.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr

from precad.accounting import UNIT, Losses, log_sums, reached, summed
from precad.common import Floats, Integers

_TAIL = 12.0
"""Standard deviations of noise kept on both sides. Beyond them lies 2e-33 of a round's
mass, which counts as infinite loss."""
_CELLS_PER_DEVIATION = 30
"""Cells per standard deviation of one round's loss. Splitting adds at most a variance
of cell²/6 a round on average, so a composition's deviation grows by 1e-4 of itself."""
_SHARE_OF_LOSS = 1 / 256
"""Away from loss 0 a cell may be this share of the loss in it."""
_WIDEST_CELL = 0.02
"""Away from loss 0 a cell may be this wide at most, in nats, or ``_SHARE_OF_LARGEST``
of the largest loss where that is more."""
_SHARE_OF_LARGEST = 1 / 4000
_LEAST_LOG_WEIGHT = -46.0
"""Weights of a group's shifts under e^−46 are left out and count as infinite loss."""
_FINE_CELLS = 2**16
"""Cells of the lattice to which each of a group's bounds is rounded up."""
_COARSE_CELLS = 2**9
"""Cells in the likely part of the lattice to which many sums are rounded up."""
_LEAST_MASS = 1e-300
"""More than all that floating point takes for 0."""
_TABLE = 4001
"""Points from which a group's loss is inverted by interpolation, before Newton's
steps."""
_STEPS = 3
"""Newton's steps after the interpolation."""
_BLOCK = 2**17
"""Exponents held in memory at once."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
"""Gauss and Legendre's rule. Its error on an interval of half a standard deviation is
below rounding."""
_WIDEST_INTERVAL = 0.5
"""Width of an interval of integration, in standard deviations of the noise."""
_MOST_INTERVALS = 2**16
_LARGE = 30.0
"""From e^30 on, 1 is nothing beside an exponential that is itself far below overflow.
"""


class SampledRound(NamedTuple):
    """One round without its count: the key by which events are merged."""

    rate: float
    """r, probability with which a record is drawn, in (0, 1]."""
    noise_multiplier: float
    """σ, over the sensitivity."""
    participation: float
    """c, probability that the round happens, in (0, 1]."""
    group: int = 1
    """k, how many records come or go together, at each owner."""
    bounds: tuple[float, ...] = ()
    """b_j of each of the k, the largest 1; empty where all are 1."""
    total: float = math.inf
    """The largest shift that they make together."""
    owners: int = 1
    """m, how many owners have them; the round happens for each by its own coin."""

    def when_there(self) -> list["SampledRound"]:
        """Return the rounds in which 1, 2, … and m owners are there: one group each."""
        return [
            self._replace(participation=1.0, group=self.group * there, owners=1)
            for there in range(1, self.owners + 1)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class Shift:
    """Distribution of the shift of one round's sum, in contribution bounds."""

    sizes: Floats
    """[m], at least 0; none is below one before it."""
    log_weights: Floats
    """[m], natural logarithms of the probabilities."""
    dropped: float = 0.0
    """Probability of the shifts that were left out. Whoever uses the others must count
    that much mass as telling the two cases apart with certainty."""


def log_binomial(k: int, probability: float) -> Floats:
    """Return log Pr[Bin(k, probability) = i] for i = 0 to k, [k + 1] float64.

    ``k`` is the number of trials, ``probability`` that of each trial's success.
    """
    if probability in (0.0, 1.0):
        weights = np.full(k + 1, -np.inf)
        weights[round(k * probability)] = 0.0
        return weights
    # Sums of the ratios' logarithms, outwards from the mode: near it every weight is
    # right to rounding, and T rounds multiply what isn't (gammaln would cost four
    # digits at k = 500).
    i = np.arange(k, dtype=np.float64)
    log_odds = math.log(probability) - math.log1p(-probability)
    log_ratios = np.log((k - i) / (i + 1)) + log_odds
    mode = min(int((k + 1) * probability), k)
    below = np.cumsum(-log_ratios[:mode][::-1])[::-1]
    above = np.cumsum(log_ratios[mode:])
    weights = np.concatenate([below, [0.0], above])
    return weights - math.log(float(np.exp(weights).sum()))


def whole_shift(sampled_round: SampledRound) -> Shift:
    """Return the round's shift with all its sizes; never below the truth.

    A group's records are all added or all removed, each drawn independently.
    """
    rate, _, _, group, bounds, total, _ = sampled_round
    if not bounds:
        sizes = np.arange(group + 1, dtype=np.float64)
        log_weights = log_binomial(group, rate)
    elif rate == 1:
        sizes = np.array([math.fsum(bounds)])
        log_weights = np.zeros(1)
    else:
        sizes, log_weights = _sums(bounds, rate)
    return Shift(np.minimum(sizes, total), log_weights)


def _sums(bounds: tuple[float, ...], probability: float) -> tuple[Floats, Floats]:
    """Return the sums of those bounds that are drawn, rounded up, and their ln Pr.

    Each bound is rounded up to a fine lattice; where that gives many sums, they are
    rounded up to a coarse one.
    """
    cells = max(1, math.floor(_FINE_CELLS / math.fsum(bounds)))
    masses = np.ones(1)
    for bound in bounds:
        up = math.ceil(bound * cells)
        drawn = np.pad(masses * probability, (up, 0))
        masses = np.pad(masses * (1 - probability), (0, up)) + drawn
    # What is too improbable for floating point is counted at the largest sum.
    masses[-1] += _LEAST_MASS
    places = np.flatnonzero(masses)
    width = 1
    if len(places) > _COARSE_CELLS:
        likely = np.flatnonzero(masses > math.exp(_LEAST_LOG_WEIGHT))
        width += int(likely[-1] - likely[0]) // _COARSE_CELLS
    together = np.bincount(-(-places // width), masses[places])
    occupied = np.flatnonzero(together)
    sizes = np.asarray(occupied * (width / cells), np.float64)
    return sizes, np.log(together[occupied])


@lru_cache(maxsize=64)
def group_shift(sampled_round: SampledRound) -> Shift:
    """Return ``whole_shift`` without its least probable sizes."""
    whole = whole_shift(sampled_round)
    log_weights = whole.log_weights
    kept = log_weights >= _LEAST_LOG_WEIGHT
    dropped = float(np.exp(log_weights[~kept]).sum())
    return Shift(whole.sizes[kept], log_weights[kept], dropped)


def log_affinity(sampled_round: SampledRound) -> float:
    """Return an upper bound of Bhattacharyya's ln ∫√(PQ), at most 0.

    √(Σ w_i·N(i, σ²)) is at most Σ √w_i·√N(i, σ²), whose integrals with √Q are known.
    The affinity of n rounds is at most the n-th power of one round's.
    """
    noise = sampled_round.noise_multiplier
    participation = sampled_round.participation
    if participation < 1:
        # Where the round doesn't happen, the two sides are alike.
        coins = np.exp(log_binomial(sampled_round.owners, participation))[1:]
        kept = [log_affinity(there) for there in sampled_round.when_there()]
        return math.log1p(float(coins @ np.expm1(kept)))
    shift = whole_shift(sampled_round)
    # ∫√(N(i, σ²)·N(0, σ²)) = e^{−i²/(8σ²)}.
    exponents = shift.log_weights / 2 - (shift.sizes / noise) ** 2 / 8
    return min(0.0, float(log_sums(exponents)))


def log_ratio(x: Floats, shift: Shift, noise: float) -> tuple[Floats, Floats]:
    """Return L(x) = ln Σ_i w_i e^{(2ix − i²)/(2σ²)} and its derivative.

    Args:
        x: [n], where they are computed.
        shift: The i, and the logarithms of the w_i.
        noise: σ, in the units of the i.

    Returns:
        L(x) in nats and L'(x), [n] float64 each.
    """
    values = np.empty_like(x)
    slopes = np.empty_like(x)
    constant = (shift.log_weights - shift.sizes**2 / (2 * noise**2))[:, None]
    # In blocks, which limits memory. The largest exponent is taken out of every sum.
    blocks = 1 + len(x) * len(shift.sizes) // _BLOCK
    for rows in np.array_split(np.arange(len(x)), blocks):
        weights = np.outer(shift.sizes / noise**2, x[rows])
        weights += constant
        top = weights.max(axis=0)
        weights -= top
        np.exp(weights, out=weights)
        total = weights.sum(axis=0)
        values[rows] = top + np.log(total)
        slopes[rows] = shift.sizes @ weights / (total * noise**2)
    return values, slopes


def loss_at(x: Floats, sampled_round: SampledRound) -> Floats:
    """Return the loss L(x) for each ``x``.

    It is relatively exact also where it is tiny, and doesn't overflow where it is
    large.

    Args:
        x: What a round may put out, over the clip, of any shape.
        sampled_round: The round, of which P and Q are taken as if it always happened.

    Returns:
        The losses in nats, float64, in the shape of ``x``.
    """
    rate, noise, _, group = sampled_round[:4]
    if group > 1:
        losses, _ = log_ratio(x.ravel(), group_shift(sampled_round), noise)
        return losses.reshape(x.shape)
    exponent = (2 * x - 1) / (2 * noise**2)
    return exponent if rate == 1 else log_mixed(exponent, rate)


def log_mixed(exponents: Floats, weight: float) -> Floats:
    """Return ln(1 + r·(e^u − 1)) for each u.

    Args:
        exponents: The u, of any shape; they may be infinite.
        weight: r, in (0, 1).

    Returns:
        The logarithms, float64, in the shape of ``exponents``.
    """
    near = np.log1p(weight * np.expm1(np.minimum(exponents, _LARGE)))
    # For a large u it is ln(r·e^u) + ln(1 + (1 − r)/r·e^{−u}).
    ratio = (1 - weight) / weight
    beyond = np.log1p(ratio * np.exp(-np.maximum(exponents, _LARGE)))
    far = exponents + math.log(weight) + beyond
    return np.where(exponents < _LARGE, near, far)


def _inverse_loss(losses: Floats, sampled_round: SampledRound) -> Floats:
    """Return the x at which each loss is reached: the inverse of ``loss_at``.

    Args:
        losses: In nats, [n], increasing.
        sampled_round: The round.

    Returns:
        [n] float64. Where a loss is never reached, −∞, or for a group the least x that
        is kept.
    """
    rate, noise, _, group = sampled_round[:4]
    if group > 1:
        return _inverse_loss_of_group(losses, sampled_round)
    variance = noise**2
    if rate == 1:
        return losses * variance + 0.5
    # x = σ²·ln(1 + (e^l − 1)/r) + 1/2; a large e^l is taken out of the logarithm.
    small = np.minimum(losses, _LARGE)
    large = np.maximum(losses, _LARGE)
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.log1p(np.maximum(np.expm1(small) / rate, -1.0))
        far = large - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-large))
    return variance * np.where(losses < _LARGE, near, far) + 0.5


def _inverse_loss_of_group(losses: Floats, sampled_round: SampledRound) -> Floats:
    """Return the x at which a group's losses are reached, for ``_inverse_loss``.

    A table gives a first guess, which Newton's steps improve. They move by at most σ
    each, and stay among what is kept.
    """
    sigma = sampled_round.noise_multiplier
    shift = group_shift(sampled_round)
    x = np.linspace(-_TAIL * sigma, shift.sizes[-1] + _TAIL * sigma, _TABLE)
    table, _ = log_ratio(x, shift, sigma)
    guess = np.interp(losses, table, x)
    for _ in range(_STEPS):
        value, slope = log_ratio(guess, shift, sigma)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = np.where(slope > 0, (value - losses) / slope, 0.0)
        guess = np.clip(guess - np.clip(step, -sigma, sigma), x[0], x[-1])
    return np.maximum.accumulate(guess)


@lru_cache(maxsize=4096)
def natural_cell(sampled_round: SampledRound) -> float:
    """Return the cell width at which the round's lattice costs nothing noticeable.

    In nats, a power of two. It depends on the round alone, so that more rounds are
    never reported to cost less.
    """
    sigma = sampled_round.noise_multiplier
    group = sampled_round.group
    # The loss's size and spread under Q, to within what a power of two needs.
    x = sigma * np.linspace(-3, 3, 601)
    density = np.exp(-0.5 * (x / sigma) ** 2)
    losses = loss_at(x, sampled_round)
    # The root of the mean square.
    size = math.sqrt(float(density @ losses**2) / float(density.sum()))
    if group == 1:
        deviation = min(size, 1 / sigma)
        largest_shift = 1.0
    else:
        # A group's losses may lie far from 0, all together.
        mean = float(density @ losses) / float(density.sum())
        deviation = max(math.sqrt(max(size**2 - mean**2, 0.0)), size / 8)
        largest_shift = float(group_shift(sampled_round).sizes[-1])
    furthest = np.array([largest_shift + 10 * sigma])
    largest_loss = float(loss_at(furthest, sampled_round)[0])
    widest = max(_WIDEST_CELL, largest_loss / 1000)
    wanted = min(deviation / _CELLS_PER_DEVIATION, widest)
    return 2.0 ** math.floor(math.log2(wanted))


def _lattice(low: float, high: float, cell: float) -> Integers:
    """Return the points of a lattice: every one near 0, fewer further out.

    Args:
        low: The lowest loss, at most 0, in nats.
        high: The highest loss, at least 0, in nats.
        cell: The lattice's width, in nats.

    Returns:
        [n] int64, increasing, from below ``low`` to above ``high``, in cells.
    """
    widest = max(_WIDEST_CELL, max(-low, high) * _SHARE_OF_LARGEST)
    above = _outwards(max(high, cell), cell=cell, widest=widest)
    below = _outwards(max(-low, cell), cell=cell, widest=widest)
    zero = np.zeros(1, np.int64)
    return np.unique(np.concatenate([zero, *above, *(-block for block in below)]))


def _outwards(end: float, *, cell: float, widest: float) -> list[Integers]:
    """Return blocks of points from 0 outwards, for ``_lattice``.

    From block to block the steps double, until they would be wider than ``widest``.

    Args:
        end: A loss above 0, beyond which the last point lies, in nats.
        cell: The lattice's width, in nats.
        widest: The widest step, in nats.

    Returns:
        Blocks of points, which increase; a block begins where the last one ended.
    """
    last = math.ceil(end / cell)
    end_of_last = 0
    step = 1
    blocks = []
    # Each block runs until a step twice as wide is a small enough share of the loss.
    while end_of_last < last:
        stop = last
        if 2 * step * cell <= widest:
            stop = min(last, math.ceil(2 * step / _SHARE_OF_LOSS))
        block = np.arange(end_of_last, stop + step, step, dtype=np.int64)
        blocks.append(block)
        end_of_last = int(block[-1])
        step = 2 * step
    return blocks


@lru_cache(maxsize=1024)
def one_round(sampled_round: SampledRound) -> tuple[Losses, Losses]:
    """Return the dominating losses of one round, (P‖Q) and (Q‖P).

    Both are on the round's natural lattice. Masses come from Gauss and Legendre's rule
    on intervals of at most half a standard deviation, and the split from ∫P·(1 −
    e^{l−L}) directly, so that nothing cancels. What rounding can have taken is given
    back: every mass is raised by 64 units of roundoff (nine rounded terms, and an
    exponent of up to 72 whose own rounding enters the mass as a factor), and the part
    moved to the worse end by 8·(|l|/cell + 1) units of the mass (L and l are each right
    to 4 units, and their difference is divided by the cell's width). A group's L is
    right to 4 units of its largest exponent: so much more, and the share of a cell that
    it is. With several owners it says how many are there, and then what they lose.
    """
    if sampled_round.participation < 1:
        return _with_coins(sampled_round)
    sigma = sampled_round.noise_multiplier
    cell = natural_cell(sampled_round)
    shift = group_shift(sampled_round)
    # The largest shift of the sum.
    most = float(shift.sizes[-1])
    points, edges = _cells(sampled_round, cell)
    p, q, p_up, q_down = _integrated(
        points,
        edges,
        cell=cell,
        sampled_round=sampled_round,
    )

    # What a group's losses may be off by, and what each cell's split may be off by.
    rounding = 0.0
    if sampled_round.group > 1:
        rounding = 4 * UNIT * (most * (most + 2 * _TAIL * sigma) / sigma**2 + 64)
        # Of a sum of many bounds every probability is rounded once for each of them.
        rounding += 4 * UNIT * len(sampled_round.bounds)
    furthest = np.maximum(np.abs(points[1:]), np.abs(points[:-1]))
    slack = 8 * UNIT * (furthest + 1) + rounding / cell
    slack /= np.diff(points)
    # For P‖Q a higher loss is worse, for Q‖P a lower one.
    up = np.minimum(p_up + slack * p, p)
    down = np.minimum(q_down + slack * q, q)
    forward = np.append(p - up, 0.0) + np.append(0.0, up)
    reverse = np.append(down, 0.0) + np.append(0.0, q - down)

    # Beyond the ends the harmless side goes up to the end of the outermost cell, and
    # the other is infinite; but in a sampled round no loss lies below ln(1 − r), which
    # the lattice reaches.
    def tail(shifts: Floats) -> Floats:
        return np.asarray(np.exp(log_ndtr(-_TAIL - shifts / sigma)) * (1 + 1e-9))

    weights = np.exp(shift.log_weights)
    forward[1] += float(weights @ tail(shift.sizes))
    reverse[-2] += float(tail(np.array([most]))[0])
    forward_infinite = float(weights @ tail(most - shift.sizes)) + shift.dropped
    reverse_infinite = float(tail(np.zeros(1))[0])
    if shift.sizes[0] == 0:
        reverse[0] += reverse_infinite
        reverse_infinite = 0.0
    raised = 1 + 64 * UNIT + rounding
    return (
        reached(points, forward * raised, infinite=forward_infinite, cell=cell),
        reached(
            -points[::-1],
            reverse[::-1] * raised,
            infinite=reverse_infinite,
            cell=cell,
        ),
    )


def _cells(sampled_round: SampledRound, cell: float) -> tuple[Integers, Floats]:
    """Return the round's lattice, and where its losses are reached, for ``one_round``.

    Args:
        sampled_round: The round.
        cell: The lattice's width, in nats.

    Returns:
        The points, [n] int64, and the x of each, [n] float64, both increasing. The
        first and the last x are the ends of what is integrated.
    """
    rate, sigma, _, group = sampled_round[:4]
    shift = group_shift(sampled_round)
    first = -_TAIL * sigma
    last = float(shift.sizes[-1]) + _TAIL * sigma
    at_first, at_last = loss_at(np.array([first, last]), sampled_round)
    # Where no record may be drawn, no loss lies below k·ln(1 − r).
    bounded = shift.sizes[0] == 0
    lowest = group * math.log1p(-rate) if bounded else float(at_first)
    points = _lattice(min(lowest, 0.0), max(float(at_last), 0.0), cell)
    losses = points.astype(np.float64) * cell
    edges = np.clip(_inverse_loss(losses, sampled_round), first, last)
    edges[0] = first
    edges[-1] = last
    return points, edges


def _integrated(
    points: Integers,
    edges: Floats,
    *,
    cell: float,
    sampled_round: SampledRound,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Integrate P and Q over each cell of the lattice, for ``one_round``.

    Args:
        points: [n], the lattice's points.
        edges: [n], the x at which the loss is each of them.
        cell: Width of the lattice, in nats.
        sampled_round: The round.

    Returns:
        Four masses of each cell, [n − 1] each: of P, of Q, the part of P that is moved
        to the cell's upper end, and the part of Q that is moved to its lower end.
    """
    sigma = sampled_round.noise_multiplier
    first = float(edges[0])
    last = float(edges[-1])
    intervals = math.ceil((last - first) / (_WIDEST_INTERVAL * sigma))
    even = np.linspace(first, last, min(intervals, _MOST_INTERVALS) + 1)
    x = np.unique(np.concatenate([edges, even]))
    middle = (x[1:] + x[:-1]) / 2
    half = np.diff(x) / 2
    # The cell in which each interval lies: no interval crosses the border of a cell.
    at = np.clip(np.searchsorted(edges, middle) - 1, 0, len(points) - 2)

    # Everything at the nodes is [intervals, nodes].
    nodes = middle[:, None] + half[:, None] * _NODES
    log_q = -0.5 * (nodes / sigma) ** 2 - math.log(sigma * math.sqrt(2 * math.pi))
    losses = loss_at(nodes, sampled_round)
    lower = (points[:-1] * cell)[at]
    upper = (points[1:] * cell)[at]
    q = np.exp(log_q) * _WEIGHTS * half[:, None]
    p = np.exp(log_q + losses) * _WEIGHTS * half[:, None]
    # In a cell from l to u the part of P that goes up is (1 − e^{l−L})/(1 − e^{l−u}) of
    # it, and the part of Q that goes down (1 − e^{L−u})/(1 − e^{l−u}).
    width = -np.expm1(lower - upper)
    rising = (p * -np.expm1(lower[:, None] - losses)).sum(axis=1) / width
    falling = (q * -np.expm1(losses - upper[:, None])).sum(axis=1) / width

    def by_cell(values: Floats) -> Floats:
        return summed(at, np.maximum(values, 0.0), len(points) - 1)

    return (
        by_cell(p.sum(axis=1)),
        by_cell(q.sum(axis=1)),
        by_cell(rising),
        by_cell(falling),
    )


def _with_coins(sampled_round: SampledRound) -> tuple[Losses, Losses]:
    """Return the losses of a round that runs its step with a probability.

    Each of several owners has a coin of its own; where none is there, the loss is 0.
    All lie on the finest lattice of any number of owners.
    """
    owners = sampled_round.owners
    chances = np.exp(log_binomial(owners, sampled_round.participation))
    # A binomial's weights are right to a few units for each owner.
    chances *= 1 + 16 * UNIT * owners
    steps = [one_round(there) for there in sampled_round.when_there()]
    cell = min(step.cell for step, _ in steps)

    def mixed(each: tuple[Losses, ...]) -> Losses:
        points = [losses.points * round(losses.cell / cell) for losses in each]
        masses = [
            chance * np.exp(losses.log_masses)
            for chance, losses in zip(chances[1:], each, strict=True)
        ]
        together, at = np.unique(np.concatenate([[0], *points]), return_inverse=True)
        return reached(
            together,
            summed(at, np.concatenate([chances[:1], *masses]), len(together)),
            infinite=float(chances[1:] @ [losses.infinite for losses in each]),
            cell=cell,
        )

    forward, reverse = zip(*steps, strict=True)
    return mixed(forward), mixed(reverse)
