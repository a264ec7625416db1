"""Many rounds' privacy loss together: tilted, composed by Fourier transforms, and turned back.

δ(ε) is decided far out in the tail of the composed loss, at masses like 1e-15, where a
plain Fourier transform holds nothing but rounding. So masses are tilted first: m_l
becomes m_l·e^{λl}/M(λ), with λ such that the mean of the composed tilted loss lies
where the answer is (the saddle point of Chernoff's bound). There the transform is as
exact, relatively, as elsewhere it is absolutely. Each distinct round is composed with
itself on a lattice of its own, as fine as that round needs; then the results are moved
to one lattice, as coarse as the whole allows, and multiplied: one splitting for each
distinct round and not for each round.

Everything that is left out is added to δ, so that the answer stays an upper bound:

- losses of one round so large that all rounds together hardly ever meet one, and what
  lies above a window, by Chernoff's bound: a billionth of δ, counted as infinite. The
  transform wraps what is outside a window around, which adds; so a window also holds
  all but 1e-13 of the tilted mass;
- rounding of the transforms (``convolution``);
- tilting: a factor's exponent is right to 4·(|λl| + |K|) units, which raises every
  mass.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.fft import next_fast_len
from scipy.optimize import brentq

from precad.accounting.convolution import (
    OUTSIDE,
    SUMMED,
    Composed,
    Tilted,
    convolved,
    dense,
)
from precad.accounting.loss_lattice import UNIT, Floats, Losses, summed
from precad.accounting.losses import SampledRound, log_affinity, one_round

# Of the wanted δ, what may be left out.
_TAIL_SHARE = 1e-9
# Of the composed variance, what all splittings together may add.
_ADDED_VARIANCE = 2e-4
# Points of one transform, and of all distinct rounds' transforms together: time and
# memory.
_MOST_POINTS = 2**21
_ALL_POINTS = 2**24
_FEWEST_POINTS = 2**13
# Where many kinds are composed, the tilt is found on lattices so much coarser.
_FIRST_LOOK = 8
# Losses of a round beyond so many cells are composed apart where there are many more,
# on a lattice so many times as wide (which their points lie on already).
_LEVEL = 2**12
_LEVEL_STEP = 2**3
_MOST_LEVEL = 2**16
# Tilts and scales tried until the next would be as large as the last, but for this
# factor.
_RETRIES = 6
_CLOSE = 1.5
# What a lattice is fine against is a deviation, or this share of ε where that is less.
_SCALE = 0.25
_LEAST_SCALE = 1e-6
_LARGEST_LOG_ORDER = 40.0
_TOLD_APART = -40.0
# ln of the most that λ·loss may be: 2^40 is right to 5e-4.
_LARGEST_LOG_EXPONENT = 40 * math.log(2)
# Where δ can't be told from 0; and a composed variance that can't.
_LEAST_LOG_DELTA = -640.0
_LEAST_VARIANCE = 1e-200
# A whole curve leaves out what an answer at δ = 1e-6 leaves out.
_PROFILE_LOG_DELTA = math.log(1e-6)
# Chernoff's bound is tried at these multiples of the tilt: the best one is at most a
# few percent from the optimum, and every one is a bound.
_MULTIPLES = 2.0 ** np.arange(-4, 15)
_FOURTH = 4

Rounds: TypeAlias = Mapping[SampledRound, int]
"""Distinct rounds, and how often each happened, at least once."""


def epsilon_of_delta(rounds: Rounds, delta: float) -> float:
    """The least ε ≥ 0 of all rounds together, both directions; infinite where δ is too small."""
    return max(_epsilon(rounds, delta, reverse=reverse) for reverse in (False, True))


def delta_of_epsilon(rounds: Rounds, epsilon: float) -> float:
    """δ(ε) of all rounds together, the larger of both directions, in [0, 1]."""
    shared = math.fsum(count * log_affinity(one) for one, count in rounds.items())
    if epsilon + shared < _TOLD_APART:
        return 1.0  # at least 1 − (1 + e^ε)·∫√(PQ)
    return max(_delta(rounds, epsilon, reverse=reverse) for reverse in (False, True))


def profile(rounds: Rounds, *, reverse: bool) -> tuple[Floats, Floats]:
    """ε, increasing, and δ(ε) of all rounds together in one direction: the whole curve, untilted.

    Off by 1e-10 or so at every ε, where ``delta_of_epsilon`` is exact relatively.
    """
    return (
        _Direction(rounds, reverse, _PROFILE_LOG_DELTA).tilted(0.0, math.inf).profile()
    )


def _delta(rounds: Rounds, epsilon: float, *, reverse: bool) -> float:
    parts = _Direction(rounds, reverse, _LEAST_LOG_DELTA).parts()
    if epsilon >= _largest(parts):
        # No finite loss lies above: there is no saddle point either.
        return min(1.0, math.fsum(part.infinite for part in parts))
    log_delta = 0.0
    # Chernoff's bound with little left out says where δ is; the second look leaves out
    # less.
    for _ in range(2):
        direction = _Direction(rounds, reverse, log_delta)
        order = direction.saddle_point(epsilon)
        log_delta = min(
            0.0, _summed(direction.first_look(), order)[0] - order * epsilon
        )
        log_delta = max(log_delta, _LEAST_LOG_DELTA)
    scale = epsilon * _SCALE if epsilon else math.inf
    return direction.tilted(order, scale).delta(epsilon)


def _epsilon(rounds: Rounds, delta: float, *, reverse: bool) -> float:
    direction = _Direction(rounds, reverse, math.log(delta))
    order = direction.saddle_point()
    scale = math.inf
    found = math.inf
    for _ in range(_RETRIES):
        tilted = direction.tilted(order, scale)
        found = min(found, tilted.epsilon(delta))
        if not 0 < found < math.inf:
            break
        # Where large losses are rare, Chernoff's ε lies far above the true one: look
        # closer.
        better = direction.saddle_point(found), found * _SCALE
        if better[0] > order / _CLOSE and better[1] > tilted.scale / _CLOSE:
            break
        order = min(order, better[0])
        scale = better[1]
    return max(0.0, found)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """``count`` rounds of one kind in one direction, on one lattice."""

    losses: Losses
    count: int
    infinite: float
    """Probability that one of them has infinite loss, or one left out."""

    @classmethod
    def of(
        cls,
        one: SampledRound,
        count: int,
        tail: float,
        *,
        reverse: bool,
    ) -> "_Part":
        """On its natural lattice, without losses that are met with a probability of ``tail``."""
        losses = one_round(one)[reverse]
        above = np.cumsum(np.exp(losses.log_masses[::-1])) * (1 + SUMMED)
        dropped = int(np.searchsorted(above, tail / count, side="right"))
        infinite = losses.infinite + (float(above[dropped - 1]) if dropped else 0.0)
        kept = len(above) - dropped
        points = losses.points[:kept]
        log_masses = losses.log_masses[:kept]
        left = Losses(
            points=points,
            log_masses=log_masses,
            infinite=infinite,
            cell=losses.cell,
        )
        return cls(left, count, min(1.0, count * infinite))

    def on(self, cell: float) -> "_Part":
        return _Part(self.losses.on(cell), self.count, self.infinite)

    def levels(self) -> list["_Part"]:
        """The same as several parts, each with losses of about one size, whose sum dominates.

        A round says whether its loss is rare, and then what it is. If it says what a
        usual round says too, whether it was rare or not, it only says more: so it
        splits into a usual round (masses relative to its share of P; its losses are all
        off by ln P/Q of "usual") and one that is 0 (off by as much, the other way) or a
        rare loss.
        """
        losses = self.losses
        cut = int(np.searchsorted(losses.points, _LEVEL, side="right"))
        if losses.points[-1] <= _MOST_LEVEL or cut == len(losses.points):
            return [self]
        usual = np.exp(losses.log_masses[:cut])
        rare = np.exp(losses.log_masses[cut:])
        share = float(usual.sum())
        of_q = 1 - float(rare @ np.exp(-losses.losses[cut:]))
        off = math.log(share / of_q)
        points = losses.points[cut:] // _LEVEL_STEP
        wide = losses.cell * _LEVEL_STEP
        # A rare loss lies at l − off, which is split onto the lattice like any other.
        shift = math.floor(-off / wide)
        up = min(
            1.0, math.expm1(off + shift * wide) / math.expm1(-wide) * (1 + 16 * UNIT)
        )
        places = np.concatenate([[0], points + shift, points + shift + 1])
        masses = np.concatenate([[share], rare * (1 - up), rare * up])
        found, at = np.unique(places, return_inverse=True)
        together = summed(at, masses, len(found)) * (1 + 16 * UNIT)
        kept = together > 0
        large = Losses(
            points=found[kept],
            log_masses=np.log(together[kept]),
            infinite=0.0,
            cell=wide,
        )
        relative = losses.log_masses[:cut] - math.log(share) + 8 * UNIT
        small = Losses(
            points=losses.points[:cut],
            log_masses=relative,
            infinite=0.0,
            cell=losses.cell,
        )
        return [
            _Part(small, self.count, self.infinite),
            *_Part(large, self.count, 0.0).levels(),
        ]

    def log_moments(self, orders: Floats) -> Floats:
        return self.count * self.losses.log_moments(orders)


def _least(bound: Callable[[Floats], Floats], steps: Floats) -> float:
    """The least of ``bound`` at ``steps``, which increase; any of its values is a bound.

    It is (f(s) + c)/s with f convex, f(0) = 0 and c > 0: it falls and then rises. So
    the least lies beside the least of every fourth.
    """
    near = _FOURTH * int(bound(steps[::_FOURTH]).argmin())
    return float(bound(steps[max(0, near - _FOURTH + 1) : near + _FOURTH]).min())


@dataclass(frozen=True, slots=True)
class _Window:
    """Where the answer is, under a tilt λ = ``order``."""

    order: float
    scale: float
    """The composed loss's deviation under the tilt, or less where ε is small."""
    log_tail: float
    """Logarithm of the probability that may lie above."""

    def around(self, log_moments: Callable[[Floats], Floats]) -> tuple[float, float]:
        """(low, high) of what has these K: by Chernoff's bound, at several orders."""
        order = self.order
        steps = np.unique(
            np.outer([order or 1 / self.scale, 1 / self.scale], _MULTIPLES)
        )
        here = float(log_moments(np.array([order]))[0])
        outside = math.log(OUTSIDE)

        def under_tilt(side: int) -> float:
            return _least(
                lambda s: (log_moments(order + side * s) - here - outside) / s, steps
            )

        low = -under_tilt(-1)
        plain = _least(lambda s: (log_moments(s) - self.log_tail) / s, steps)
        return low, max(low, under_tilt(1), plain)


@dataclass(frozen=True, slots=True)
class _Direction:
    """All rounds in one direction, P‖Q or in ``reverse`` Q‖P, to be answered around one δ."""

    rounds: Rounds
    reverse: bool
    log_delta: float

    @property
    def tail(self) -> float:
        """The probability that each kind may leave out at each step."""
        return math.exp(self.log_delta) * _TAIL_SHARE / (2 * len(self.rounds) + 1)

    def parts(self) -> list[_Part]:
        tail = self.tail
        reverse = self.reverse
        return [
            _Part.of(one, n, tail, reverse=reverse) for one, n in self.rounds.items()
        ]

    def first_look(self) -> list[_Part]:
        """All kinds, on lattices good enough for finding a tilt."""
        look = 1 if len(self.rounds) == 1 else _FIRST_LOOK
        return [part.on(look * part.losses.cell) for part in self.parts()]

    def saddle_point(self, epsilon: float | None = None) -> float:
        """λ ≥ 0 that minimises Chernoff's bound of ε at δ, or of δ at ``epsilon``."""
        parts = self.first_look()
        log_delta = self.log_delta

        def slope(log_order: float) -> float:
            order = math.exp(log_order)
            moment, mean, _ = _summed(parts, order)
            return (
                order * mean - moment + log_delta if epsilon is None else mean - epsilon
            )

        if epsilon is not None and _summed(parts, 0.0)[1] >= epsilon:
            return 0.0
        low = high = 0.0
        most = max(_largest(parts), _LEAST_VARIANCE)
        largest = min(_LARGEST_LOG_ORDER, _LARGEST_LOG_EXPONENT - math.log(most))
        while slope(high) < 0 and high < largest:
            low = high
            high = min(high + 2, largest)
        while slope(low) > 0 and low > -_LARGEST_LOG_ORDER:
            low, high = low - 2, low
        # Any λ is sound; where no one is best, the largest tried is taken.
        if not slope(low) <= 0 <= slope(high):
            return math.exp(high)
        return math.exp(float(brentq(slope, low, high, xtol=1e-3)))

    def tilted(self, order: float, scale: float) -> "Tilted":
        """Everything, composed under the tilt λ = ``order``, on lattices fine against ``scale``."""
        parts = self.parts()
        # Where all losses are one, a cell is as fine as anything.
        finest = min(part.losses.cell for part in parts)
        deviation = max(math.sqrt(_summed(self.first_look(), order)[2]), finest)
        scale = min(max(scale, deviation * _LEAST_SCALE), deviation)
        window = _Window(order, scale, math.log(self.tail))
        levels: list[_Part] = []
        for part in parts:
            # A kind that matters little among others may be split more coarsely.
            share = (
                _ADDED_VARIANCE / (2 * len(self.rounds))
                if len(self.rounds) > 1
                else 0.0
            )
            allowed = scale * math.sqrt(6 * share / part.count)
            coarse = allowed > 2 * part.losses.cell
            levels += (part.on(_power_of_two(allowed)) if coarse else part).levels()
        composed = [_alone(part, window, len(levels)) for part in levels]
        alone = 0.0 if len(levels) == 1 else scale
        return Tilted(_together(composed, window), order, alone)


def _alone(part: _Part, window: _Window, parts: int) -> Composed:
    sparse = part.count == 1 and parts > 1
    most = min(_MOST_POINTS, max(_FEWEST_POINTS, _ALL_POINTS // parts))
    low, high = (0.0, 0.0) if sparse else window.around(part.log_moments)
    largest = float(part.losses.losses[-1])
    while (high - low) / part.losses.cell > most:
        if part.losses.cell > largest:
            # So many rounds lose so much that no lattice holds them: nothing is
            # claimed.
            return Composed(
                points=np.zeros(1, np.int64),
                masses=np.ones(1),
                cell=part.losses.cell,
                log_moment=0.0,
                left_out=1.0,
            )
        part = part.on(2 * part.losses.cell)
        low, high = window.around(part.log_moments)
    losses = part.losses
    order = window.order
    cell = part.losses.cell
    moment = losses.tilted(order)[0]
    exponents = order * losses.losses
    spoiled = 1 + UNIT * (16 + 4 * (np.abs(exponents) + abs(moment)))
    tilted = np.exp(losses.log_masses + exponents - moment) * spoiled
    if sparse:
        return Composed(
            points=losses.points,
            masses=tilted,
            cell=cell,
            log_moment=moment,
            left_out=part.infinite,
        )
    first, size = _span(low, high, cell)
    once = summed(losses.points % size, tilted, size)
    masses = once if part.count == 1 else convolved([(once, part.count)], size)
    left_out = part.infinite + math.exp(window.log_tail)
    return dense(
        first,
        masses,
        cell=cell,
        log_moment=part.count * moment,
        left_out=left_out,
    )


def _largest(parts: Sequence[_Part]) -> float:
    return math.fsum(part.count * float(part.losses.losses[-1]) for part in parts)


def _summed(parts: Sequence[_Part], order: float) -> tuple[float, float, float]:
    """K(λ), K'(λ), K''(λ) of all rounds together."""
    each = [
        [part.count * value for value in part.losses.tilted(order)] for part in parts
    ]
    moment, mean, variance = (math.fsum(column) for column in zip(*each, strict=True))
    return moment, mean, max(variance, _LEAST_VARIANCE)


def _together(parts: Sequence[Composed], window: _Window) -> Composed:
    """All kinds, on one lattice."""
    if len(parts) == 1:
        return parts[0]
    share = _ADDED_VARIANCE / (2 * len(parts))
    order = window.order
    wanted = _power_of_two(window.scale * math.sqrt(6 * share))
    # Every part lies on the finest lattice of all.
    cell = max(wanted, min(part.cell for part in parts))
    while True:
        moved = [part.on(cell, order) for part in parts]

        def log_moments(orders: Floats, moved: Sequence[Composed] = moved) -> Floats:
            return np.asarray(
                np.sum([p.log_moments(orders, order) for p in moved], axis=0)
            )

        low, high = window.around(log_moments)
        first, size = _span(low, high, cell)
        if size <= _MOST_POINTS:
            break
        cell *= 2
    factors = ((summed(p.points % size, p.masses, size), 1) for p in moved)
    left_out = math.fsum(part.left_out for part in parts) + math.exp(window.log_tail)
    moment = math.fsum(part.log_moment for part in parts)
    return dense(
        first,
        convolved(factors, size),
        cell=cell,
        log_moment=moment,
        left_out=left_out,
    )


def _power_of_two(width: float) -> float:
    return 2.0 ** math.floor(math.log2(width))


def _span(low: float, high: float, cell: float) -> tuple[int, int]:
    """First point of a window, and a size that transforms quickly."""
    first = math.floor(low / cell)
    return first, int(
        next_fast_len(max(math.ceil(high / cell) - first + 1, 16), real=True)
    )
