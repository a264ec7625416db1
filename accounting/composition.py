"""Many rounds' privacy loss together: tilted, composed by Fourier transforms, untilted.

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

K is ln M throughout, the logarithm of the moment generating function of the loss; K'
and K'' are its derivatives, which are the mean and the variance of the tilted loss.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.fft import next_fast_len
from scipy.optimize import brentq

from precad.accounting import (
    OUTSIDE,
    SUMMED,
    UNIT,
    Composed,
    Losses,
    SampledRound,
    Tilted,
    convolved,
    dense,
    log_affinity,
    one_round,
    reached,
    summed,
)
from precad.common import Floats, frozen_dataclass

_TAIL_SHARE = 1e-9
"""Of the wanted δ, what may be left out."""
_ADDED_VARIANCE = 2e-4
"""Of the composed variance, what all splittings together may add."""
_MOST_POINTS = 2**21
"""Points of one transform at most, which limits time and memory."""
_ALL_POINTS = 2**24
"""Points of all distinct rounds' transforms together at most, for the same reasons."""
_FEWEST_POINTS = 2**13
"""Points that each distinct round's transform may have, however many rounds there are.
"""
_FIRST_LOOK = 8
"""Where several kinds of rounds are composed, the tilt is found on lattices so many
times as coarse."""
_LEVEL = 2**12
"""Losses of a round beyond so many cells may be composed apart (``_Part.levels``)."""
_LEVEL_STEP = 2**3
"""How many times as wide the cells are for losses beyond ``_LEVEL``. Their points lie
on that wider lattice already."""
_MOST_LEVEL = 2**16
"""Losses beyond ``_LEVEL`` are composed apart only where the largest has more cells."""
_RETRIES = 6
"""Tilts and scales that are tried in search of ε."""
_CLOSE = 1.5
"""The search ends where the next tilt and scale are as large as the last, but for this
factor."""
_SCALE = 0.25
"""A lattice is fine against the composed deviation, or against this share of ε where
that is less."""
_LEAST_SCALE = 1e-6
"""The scale is at least this share of the composed deviation."""
_LARGEST_LOG_ORDER = 40.0
"""ln λ lies between this and its negative."""
_TOLD_APART = -40.0
"""Where ln((1 + e^ε)·∫√(PQ)) is about this or less, δ is 1 to rounding."""
_LARGEST_LOG_EXPONENT = 40 * math.log(2)
"""ln of the most that λ·loss may be: 2^40 is right to 5e-4."""
_LEAST_LOG_DELTA = -640.0
"""ln of a δ that can't be told from 0."""
_LEAST_VARIANCE = 1e-200
"""A composed variance that can't be told from 0."""
_PROFILE_LOG_DELTA = math.log(1e-6)
"""A whole curve leaves out what an answer at δ = 1e-6 leaves out."""
_MULTIPLES = 2.0 ** np.arange(-4, 15)
"""Chernoff's bound is tried at these multiples of the tilt. The best one is at most a
few percent from the optimum, and every one is a bound."""
_FOURTH = 4

Rounds = Mapping[SampledRound, int]
"""Distinct rounds, and how often each happened, at least once."""


def epsilon_of_delta(rounds: Rounds, delta: float) -> float:
    """Return the least ε ≥ 0 of all rounds together at ``delta``, in both directions.

    It is infinite where δ is too small.
    """
    return max(_epsilon(rounds, delta, reverse=reverse) for reverse in (False, True))


def delta_of_epsilon(rounds: Rounds, epsilon: float) -> float:
    """Return δ(ε) of all rounds together, the larger of both directions, in [0, 1]."""
    shared = math.fsum(count * log_affinity(one) for one, count in rounds.items())
    # δ(ε) is at least 1 − (1 + e^ε)·∫√(PQ).
    if epsilon + shared < _TOLD_APART:
        return 1.0
    return max(_delta(rounds, epsilon, reverse=reverse) for reverse in (False, True))


def profile(rounds: Rounds, *, reverse: bool) -> tuple[Floats, Floats]:
    """Return all of the curve δ(ε) of all rounds together in one direction.

    That is ε, increasing, and δ at each, [n] both. The curve is composed without a
    tilt, so δ is off by 1e-10 or so at every ε, where ``delta_of_epsilon`` is exact
    relatively.
    """
    direction = _Direction(rounds, reverse, _PROFILE_LOG_DELTA)
    return direction.tilted(order=0.0, scale=math.inf).profile()


def _delta(rounds: Rounds, epsilon: float, *, reverse: bool) -> float:
    """Return δ(ε) of all rounds in one direction, for ``delta_of_epsilon``."""
    parts = _Direction(rounds, reverse, _LEAST_LOG_DELTA).parts()
    if epsilon >= _largest_loss(parts):
        # No finite loss lies above: there is no saddle point either.
        return min(1.0, math.fsum(part.infinite for part in parts))
    log_delta = 0.0
    # Chernoff's bound with little left out says where δ is; the second look leaves out
    # less.
    for _ in range(2):
        direction = _Direction(rounds, reverse, log_delta)
        order = direction.saddle_point(epsilon)
        moment, _, _ = _log_moment(direction.first_look(), order)
        log_delta = max(min(0.0, moment - order * epsilon), _LEAST_LOG_DELTA)
    scale = epsilon * _SCALE if epsilon else math.inf
    return direction.tilted(order, scale).delta(epsilon)


def _epsilon(rounds: Rounds, delta: float, *, reverse: bool) -> float:
    """Return the least ε ≥ 0 in one direction, for ``epsilon_of_delta``."""
    direction = _Direction(rounds, reverse, math.log(delta))
    order = direction.saddle_point()
    scale = math.inf
    epsilon = math.inf
    for _ in range(_RETRIES):
        tilted = direction.tilted(order, scale)
        epsilon = min(epsilon, tilted.epsilon(delta))
        if not 0 < epsilon < math.inf:
            break
        # Where large losses are rare, Chernoff's ε lies far above the true one: look
        # closer.
        next_order = direction.saddle_point(epsilon)
        scale = epsilon * _SCALE
        if next_order > order / _CLOSE and scale > tilted.scale / _CLOSE:
            break
        order = min(order, next_order)
    return max(0.0, epsilon)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """``count`` rounds of one kind in one direction, on one lattice."""

    losses: Losses
    """What one of them loses; its own ``infinite`` isn't used."""
    count: int
    infinite: float
    """Probability that one of them has infinite loss, or one that was left out."""

    @classmethod
    def of(
        cls,
        sampled_round: SampledRound,
        count: int,
        tail: float,
        *,
        reverse: bool,
    ) -> "_Part":
        """Return equal rounds on the round's natural lattice.

        Args:
            sampled_round: One of them.
            count: How many there are.
            tail: Probability with which any of them may meet one of the largest losses,
                which are left out and count as infinite.
            reverse: Whether the direction is Q‖P instead of P‖Q.
        """
        losses = one_round(sampled_round)[reverse]
        # Mass of the largest loss, of the two largest, and so on.
        above = np.cumsum(np.exp(losses.log_masses[::-1])) * (1 + SUMMED)
        dropped = int(np.searchsorted(above, tail / count, side="right"))
        infinite = losses.infinite + (float(above[dropped - 1]) if dropped else 0.0)
        kept = len(above) - dropped
        finite = replace(
            losses,
            points=losses.points[:kept],
            log_masses=losses.log_masses[:kept],
            infinite=infinite,
        )
        return cls(finite, count, min(1.0, count * infinite))

    def on(self, cell: float) -> "_Part":
        """Return a part on a lattice at least as coarse that dominates this one."""
        return _Part(self.losses.on(cell), self.count, self.infinite)

    def levels(self) -> list["_Part"]:
        """Return parts with losses of about one size each, whose sum dominates these.

        A round says whether its loss is rare, and then what it is. If it says what a
        usual round says too, whether it was rare or not, it only says more: so it
        splits into a usual round (masses relative to its share of P; its losses are all
        off by ln P/Q of "usual") and one that is 0 (off by as much, the other way) or a
        rare loss.
        """
        losses = self.losses
        points = losses.points
        cut = int(np.searchsorted(points, _LEVEL, side="right"))
        if points[-1] <= _MOST_LEVEL or cut == len(points):
            return [self]
        # The masses of a usual round under P and under Q, and its loss as a message.
        rare = np.exp(losses.log_masses[cut:])
        usual_of_p = float(np.exp(losses.log_masses[:cut]).sum())
        usual_of_q = 1 - float(rare @ np.exp(-losses.losses[cut:]))
        off = math.log(usual_of_p / usual_of_q)
        wide = losses.cell * _LEVEL_STEP
        # A rare loss lies at l − off, which is split onto the lattice like any other.
        shift = math.floor(-off / wide)
        # Upwards, where they don't lie on the wider lattice: no loss is made smaller.
        lower = -(-points[cut:] // _LEVEL_STEP) + shift
        up = math.expm1(off + shift * wide) / math.expm1(-wide) * (1 + 16 * UNIT)
        up = min(1.0, up)
        places = np.concatenate([[0], lower, lower + 1])
        masses = np.concatenate([[usual_of_p], rare * (1 - up), rare * up])
        occupied, at = np.unique(places, return_inverse=True)
        together = summed(at, masses, len(occupied)) * (1 + 16 * UNIT)
        large = reached(occupied, together, infinite=0.0, cell=wide)
        small = replace(
            losses,
            points=points[:cut],
            log_masses=losses.log_masses[:cut] - math.log(usual_of_p) + 8 * UNIT,
            infinite=0.0,
        )
        return [
            _Part(small, self.count, self.infinite),
            *_Part(large, self.count, 0.0).levels(),
        ]

    def log_moments(self, orders: Floats) -> Floats:
        """Return K(λ) of all the rounds for every λ in ``orders``, [m] float64 both."""
        return self.count * self.losses.log_moments(orders)


def _least(bound: Callable[[Floats], Floats], steps: Floats) -> float:
    """Return the least of ``bound`` at ``steps``, which increase; any value is a bound.

    It is (f(s) + c)/s with f convex, f(0) = 0 and c > 0: it falls and then rises. So
    the least lies beside the least of every fourth.
    """
    near = _FOURTH * int(bound(steps[::_FOURTH]).argmin())
    beside = steps[max(0, near - _FOURTH + 1) : near + _FOURTH]
    return float(bound(beside).min())


@frozen_dataclass
class _Window:
    """Which losses are kept on a lattice, under a tilt λ = ``order``."""

    order: float
    scale: float
    """The composed loss's deviation under the tilt, or less where ε is small."""
    log_tail: float
    """Logarithm of the probability that may lie above the window."""

    def around(self, log_moments: Callable[[Floats], Floats]) -> tuple[float, float]:
        """Return the lowest and the highest loss to keep, in nats.

        Both come from Chernoff's bound, the best of several orders.

        Args:
            log_moments: Computes K(λ) of the losses for every λ of an array.
        """
        order = self.order
        tilts = [order or 1 / self.scale, 1 / self.scale]
        steps = np.unique(np.outer(tilts, _MULTIPLES))
        at_order = float(log_moments(np.array([order]))[0])
        outside = math.log(OUTSIDE)

        # Tilted, the moment generating function at s is e^{K(λ+s) − K(λ)}. So the mass
        # beyond one of these losses is at most OUTSIDE, or what may lie above.
        def below(steps: Floats) -> Floats:
            return (log_moments(order - steps) - at_order - outside) / steps

        def above(steps: Floats) -> Floats:
            return (log_moments(order + steps) - at_order - outside) / steps

        def above_untilted(steps: Floats) -> Floats:
            return (log_moments(steps) - self.log_tail) / steps

        low = -_least(below, steps)
        return low, max(low, _least(above, steps), _least(above_untilted, steps))


@frozen_dataclass
class _Direction:
    """All rounds in one direction, P‖Q or in ``reverse`` Q‖P, for answers near a δ."""

    rounds: Rounds
    reverse: bool
    log_delta: float
    """Logarithm of that δ: what may be left out is a share of it."""

    @property
    def tail(self) -> float:
        """Return the probability that each kind may leave out at each step."""
        return math.exp(self.log_delta) * _TAIL_SHARE / (2 * len(self.rounds) + 1)

    def parts(self) -> list[_Part]:
        """Return each kind of round on its natural lattice."""
        tail = self.tail
        return [
            _Part.of(kind, count, tail, reverse=self.reverse)
            for kind, count in self.rounds.items()
        ]

    def first_look(self) -> list[_Part]:
        """Return all kinds on lattices that are good enough for finding a tilt."""
        look = 1 if len(self.rounds) == 1 else _FIRST_LOOK
        return [part.on(look * part.losses.cell) for part in self.parts()]

    def saddle_point(self, epsilon: float | None = None) -> float:
        """Return the λ ≥ 0 at which Chernoff's bound is least.

        Args:
            epsilon: The bound is of δ at this ε; without it, of ε at this δ.
        """
        parts = self.first_look()
        log_delta = self.log_delta

        def slope(log_order: float) -> float:
            order = math.exp(log_order)
            moment, mean, _ = _log_moment(parts, order)
            if epsilon is None:
                return order * mean - moment + log_delta
            return mean - epsilon

        if epsilon is not None and _log_moment(parts, 0.0)[1] >= epsilon:
            return 0.0
        # In ln λ: [low, high] is moved until the bound's slope changes its sign in it.
        low = high = 0.0
        most = max(_largest_loss(parts), _LEAST_VARIANCE)
        largest = min(_LARGEST_LOG_ORDER, _LARGEST_LOG_EXPONENT - math.log(most))
        while slope(high) < 0 and high < largest:
            low = high
            high = min(high + 2, largest)
        while slope(low) > 0 and low > -_LARGEST_LOG_ORDER:
            high = low
            low = low - 2
        # Any λ is sound; where no one is best, the largest tried is taken.
        if not slope(low) <= 0 <= slope(high):
            return math.exp(high)
        return math.exp(float(brentq(slope, low, high, xtol=1e-3)))

    def tilted(self, order: float, scale: float) -> Tilted:
        """Return everything composed under a tilt.

        Args:
            order: λ, at least 0.
            scale: What lattices are fine against, in nats. At most the composed
                deviation is taken, and not much less.
        """
        parts = self.parts()
        # Where all losses are one, a cell is as fine as anything.
        finest = min(part.losses.cell for part in parts)
        _, _, variance = _log_moment(self.first_look(), order)
        deviation = max(math.sqrt(variance), finest)
        scale = min(max(scale, deviation * _LEAST_SCALE), deviation)
        window = _Window(order, scale, math.log(self.tail))
        kinds = len(self.rounds)
        # A kind that matters little among others may be split more coarsely.
        share = _ADDED_VARIANCE / (2 * kinds) if kinds > 1 else 0.0
        levels = []
        for part in parts:
            # Splitting adds at most a variance of cell²/6 a round on average.
            allowed = scale * math.sqrt(6 * share / part.count)
            coarse = allowed > 2 * part.losses.cell
            levels += (part.on(_power_of_two(allowed)) if coarse else part).levels()
        composed = [_self_composed(part, window, len(levels)) for part in levels]
        scale_that_matters = 0.0 if len(levels) == 1 else scale
        return Tilted(_together(composed, window), order, scale_that_matters)


def _self_composed(part: _Part, window: _Window, parts: int) -> Composed:
    """Compose the rounds of one part with each other, for ``_Direction.tilted``.

    A single round among others stays as it is, without a window. Where the window has
    too many points, the lattice is made coarser.

    Args:
        part: The rounds.
        window: What is kept of their losses.
        parts: How many parts share the memory.
    """
    sparse = part.count == 1 and parts > 1
    most = min(_MOST_POINTS, max(_FEWEST_POINTS, _ALL_POINTS // parts))
    low = high = 0.0
    if not sparse:
        low, high = window.around(part.log_moments)
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
    moment, _, _ = losses.tilted(order)
    exponents = order * losses.losses
    raised = 1 + UNIT * (16 + 4 * (np.abs(exponents) + abs(moment)))
    tilted = np.exp(losses.log_masses + exponents - moment) * raised
    if sparse:
        return Composed(
            points=losses.points,
            masses=tilted,
            cell=losses.cell,
            log_moment=moment,
            left_out=part.infinite,
        )
    first, size = _span(low, high, losses.cell)
    masses = summed(losses.points % size, tilted, size)
    if part.count > 1:
        masses = convolved([(masses, part.count)], size)
    return dense(
        first,
        masses,
        cell=losses.cell,
        log_moment=part.count * moment,
        left_out=part.infinite + math.exp(window.log_tail),
    )


def _largest_loss(parts: Sequence[_Part]) -> float:
    """Return the largest finite loss of all rounds together, in nats."""
    return math.fsum(part.count * float(part.losses.losses[-1]) for part in parts)


def _log_moment(parts: Sequence[_Part], order: float) -> tuple[float, float, float]:
    """Return K(λ), K'(λ) and K''(λ) of all rounds together.

    Each is the sum of the parts' own.

    Args:
        parts: All rounds, in one direction.
        order: λ.
    """
    of_parts = [
        [part.count * value for value in part.losses.tilted(order)] for part in parts
    ]
    moment, mean, variance = (
        math.fsum(values) for values in zip(*of_parts, strict=True)
    )
    return moment, mean, max(variance, _LEAST_VARIANCE)


def _together(parts: Sequence[Composed], window: _Window) -> Composed:
    """Move all parts to one lattice, and convolve them.

    The lattice is made coarser until the window has few enough points.
    """
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
            of_parts = [part.log_moments(orders, order) for part in moved]
            return np.asarray(np.sum(of_parts, axis=0))

        low, high = window.around(log_moments)
        first, size = _span(low, high, cell)
        if size <= _MOST_POINTS:
            break
        cell *= 2
    factors = ((summed(part.points % size, part.masses, size), 1) for part in moved)
    left_out = math.fsum(part.left_out for part in parts)
    return dense(
        first,
        convolved(factors, size),
        cell=cell,
        log_moment=math.fsum(part.log_moment for part in parts),
        left_out=left_out + math.exp(window.log_tail),
    )


def _power_of_two(width: float) -> float:
    """Return the largest power of two that is at most ``width``."""
    return 2.0 ** math.floor(math.log2(width))


def _span(low: float, high: float, cell: float) -> tuple[int, int]:
    """Return the first point of a window, and a number of points that holds it all.

    A Fourier transform of that size is quick.

    Args:
        low: The lowest loss of the window, in nats.
        high: The highest loss, in nats.
        cell: Width of the lattice, in nats.
    """
    first = math.floor(low / cell)
    points = math.ceil(high / cell) - first + 1
    return first, int(next_fast_len(max(points, 16), real=True))
