"""How far a group of k shifts one round's noisy sum, and the privacy loss of that, composed.

P is the sum with the group (a mixture of Gaussians), Q the sum without (one Gaussian). The loss
at x is L(x) = ln P(x)/Q(x), increasing in x. Between two grid points the masses of P and of Q are
kept and split onto the ends ("connect the dots", Doroshenko et al. 2022): the discrete pair
dominates the true one, in both directions, at every real ε. Whatever is left out counts as
infinite loss. Composition is by FFT, on the range that dp-accounting's Chernoff bounds give.
"""

import math
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld import common as pld_common
from scipy.fft import irfft, next_fast_len, rfft
from scipy.signal import lfilter
from scipy.special import ndtr

from precad.certify.curves import Floats
from precad.common.checks import count


@dataclass(frozen=True, slots=True)
class Shift:
    """Distribution of the shift of one round's sum, in contribution bounds.

    Attributes:
        sizes: [m] float64, increasing, at least 0.
        log_weights: [m] float64, natural logarithms of the probabilities.
        dropped: probability of shifts that were left out; the user of this class must count that
            much mass as telling the two cases apart with certainty.
    """

    sizes: Floats
    log_weights: Floats
    dropped: float = 0.0


def log_ratio(x: Floats, shift: Shift, noise: float) -> Floats:
    """[n] float64: L(x) = ln Σ_i w_i e^{(2ix − i²)/(2σ²)}, the log-ratio of P to Q at ``x`` [n].

    P = Σ w_i N(i, σ²) is one round's sum with the group, Q = N(0, σ²) without; L is increasing.
    """
    exponents = _exponents(x, shift, noise)
    top = exponents.max(axis=1)
    return np.asarray(top + np.log(np.exp(exponents - top[:, None]).sum(axis=1)))


def log_ratio_slope(x: Floats, shift: Shift, noise: float) -> tuple[Floats, Floats]:
    """L(x) as `log_ratio` gives it, and its derivative; both [n] float64."""
    exponents = _exponents(x, shift, noise)
    top = exponents.max(axis=1)
    weights = np.exp(exponents - top[:, None])
    total = weights.sum(axis=1)
    return top + np.log(total), (weights @ shift.sizes) / (total * noise**2)


def _exponents(x: Floats, shift: Shift, noise: float) -> Floats:
    scaled = np.outer(x / noise**2, shift.sizes)
    scaled += shift.log_weights - shift.sizes**2 / (2 * noise**2)
    return scaled


def log_binomial(k: int, probability: float) -> Floats:
    """[k + 1] float64: log Pr[Bin(k, probability) = i]."""
    count("k", k)
    if probability in (0.0, 1.0):
        weights = np.full(k + 1, -np.inf)
        weights[round(k * probability)] = 0.0
        return weights
    # Sums of the ratios' logarithms, outwards from the mode: near it every weight is right to
    # rounding, and T rounds multiply what isn't (gammaln would cost four digits at k = 500).
    i = np.arange(k, dtype=np.float64)
    ratios = np.log((k - i) / (i + 1)) + (math.log(probability) - math.log1p(-probability))
    mode = min(int((k + 1) * probability), k)
    below = np.cumsum(-ratios[:mode][::-1])[::-1]
    weights = np.concatenate([below, [0.0], np.cumsum(ratios[mode:])])
    return np.asarray(weights - math.log(float(np.exp(weights).sum())))


def group_shift(k: int, probability: float, drop_below: float = -46.0) -> Shift:
    """Bin(k, q) unit contributions: k records of one direction, each drawn alone (Ganesh 2024).

    Shifts whose log-probability is under ``drop_below`` are left out and counted in ``dropped``.
    """
    log_weights = log_binomial(k, probability)
    kept = log_weights >= drop_below
    dropped = float(np.exp(log_weights[~kept]).sum()) if not kept.all() else 0.0
    return Shift(np.flatnonzero(kept).astype(np.float64), log_weights[kept], dropped)


def single_shift(probability: float) -> Shift:
    """One contribution with the given probability, else none."""
    if probability in (0.0, 1.0):
        return Shift(np.array([probability]), np.zeros(1))
    return Shift(np.array([0.0, 1.0]), np.array([math.log1p(-probability), math.log(probability)]))


# A loss of 45 decides any test: at most e^−45 of Q lies there. Beyond it, loss is infinite.
_LARGEST_LOSS = 45.0
# Standard deviations of noise kept on both sides; less than 1e-20 lies outside.
_TAIL = 9.3
# Grid points of one round, at most: a bound on memory. Beyond it the grid is coarser, still sound.
_MOST_POINTS = 2**17
# Narrowest grid: losses below it are rounding.
_NARROWEST = 1e-12
_TAIL_MASS = 1e-15
# Where Chernoff's bound is tried, in inverse grid lengths.
_CHERNOFF_ORDERS = np.array([-20, -12, -7, -4, -2, 2, 4, 7, 12, 20])


ROUNDING = 1e-10
"""Added to every δ: rounding, in the FFT and in the masses over all rounds, stays below it."""


@dataclass(frozen=True, slots=True)
class LossDistribution:
    """Losses ``(first + i)·interval`` with probabilities ``masses[i]`` under the first argument.

    Attributes:
        first: index of the lowest loss.
        masses: [n] float64.
        infinite: probability of infinite loss.
        interval: grid width, in nats.
    """

    first: int
    masses: Floats
    infinite: float
    interval: float

    def composed(self, times: int) -> "LossDistribution":
        """``times`` independent rounds."""
        if times == 1:
            return self
        if self.infinite >= 1 - _TAIL_MASS:
            # One round already tells the two apart for certain.
            return LossDistribution(0, np.zeros(1), 1.0, self.interval)
        low, high = pld_common.compute_self_convolve_bounds(
            self.masses, times, _TAIL_MASS, _CHERNOFF_ORDERS / len(self.masses)
        )
        size = next_fast_len(max(high - low + 1, len(self.masses)), real=True)
        # The transform wraps around at ``size``; what matters is rolled back to the front.
        wrapped = irfft(rfft(self.masses, size) ** times, size)
        masses = np.roll(wrapped, -low)[: high - low + 1]
        infinite = _TAIL_MASS - math.expm1(times * math.log1p(-self.infinite))
        return LossDistribution(self.first * times + low, masses, min(1.0, infinite), self.interval)

    def profile(self) -> tuple[Floats, Floats]:
        """Every grid point's ε, increasing, and δ(ε) rounded up; [n] float64 each."""
        masses = np.maximum(self.masses, 0.0)
        decay = math.exp(-self.interval)
        # above_j = Σ_{i>j} m_i and discounted_j = Σ_{i>j} m_i e^{ε_j − ε_i}: sums of bounded
        # terms, unlike e^ε times a tail.
        above = np.cumsum(masses[::-1])[::-1] - masses
        shifted = np.concatenate([[0.0], masses[::-1][:-1]])
        discounted = lfilter([decay], [1.0, -decay], shifted)[::-1]
        epsilons = (self.first + np.arange(len(masses), dtype=np.float64)) * self.interval
        return epsilons, np.clip(above - discounted, 0, 1) + self.infinite + ROUNDING

    def with_participation(self, probability: float) -> "LossDistribution":
        """The round happens with ``probability``, as everybody sees; else the loss is 0."""
        if probability == 1:
            return self
        first = min(self.first, 0)
        last = max(self.first + len(self.masses) - 1, 0)
        masses = np.zeros(last - first + 1)
        start = self.first - first
        masses[start : start + len(self.masses)] = probability * self.masses
        masses[-first] += 1 - probability
        return LossDistribution(first, masses, probability * self.infinite, self.interval)


def _interval_masses(edges: Floats, shift: Shift, noise: float) -> tuple[Floats, Floats]:
    """Masses of P and of Q between neighbouring edges; [n − 1] each."""

    def between(mean: float) -> Floats:
        scaled = (edges - mean) / noise
        # The difference of the smaller tails keeps relative accuracy far out.
        below, above = np.diff(ndtr(scaled)), -np.diff(ndtr(-scaled))
        return np.asarray(np.where(scaled[:-1] > 0, above, below))

    weights = np.exp(shift.log_weights)
    p = np.zeros(len(edges) - 1)
    for size, weight in zip(shift.sizes, weights, strict=True):
        p += weight * between(float(size))
    return p, between(0.0)


def _inverse(losses: Floats, x: Floats, loss_at_x: Floats, shift: Shift, noise: float) -> Floats:
    """The x at which the loss is reached: interpolation, then Newton's steps inside the range."""
    guess = np.interp(losses, loss_at_x, x)
    for _ in range(3):
        value, slope = log_ratio_slope(guess, shift, noise)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = np.where(slope > 0, (value - losses) / slope, 0.0)
        guess = np.clip(guess - np.clip(step, -noise, noise), x[0], x[-1])
    return np.maximum.accumulate(guess)


def _standard_deviation(weights: Floats, losses: Floats) -> float:
    total = weights.sum()
    mean = float(weights @ losses / total)
    return math.sqrt(float(weights @ (losses - mean) ** 2 / total))


def _split(p: Floats, q: Floats, losses: Floats, interval: float) -> Floats:
    """[n + 1] float64: masses ``p`` [n] between neighbouring ``losses``, moved onto the losses.

    Both masses are kept: with v of P at the upper end and p − v at the lower,
    (p − v) e^{−l} + v e^{−l−h} = q.
    """
    with np.errstate(over="ignore"):
        to_upper = np.clip((p - q * np.exp(losses[:-1])) / -math.expm1(-interval), 0, p)
    return np.asarray(np.append(p - to_upper, 0.0) + np.append(0.0, to_upper))


def one_round(
    shift: Shift, noise: float, participation: float, points_per_deviation: float
) -> tuple[LossDistribution, LossDistribution]:
    """The dominating loss distributions of one round, (P‖Q) and (Q‖P).

    Args:
        shift: of the sum, in contribution bounds; not all at 0.
        noise: σ, the noise multiplier.
        participation: probability that the round happens for the group.
        points_per_deviation: grid points in one standard deviation of the loss, at least 10
            (a coarser grid is sound, and shrinks the radius).
    """
    x = np.linspace(-_TAIL * noise, shift.sizes[-1] + _TAIL * noise, 4001)
    loss_at_x = log_ratio(x, shift, noise)
    p, q = _interval_masses(x, shift, noise)
    middle = np.clip((loss_at_x[1:] + loss_at_x[:-1]) / 2, -_LARGEST_LOSS, _LARGEST_LOSS)
    deviation = min(_standard_deviation(masses, middle) for masses in (p, q))
    deviation *= math.sqrt(participation)
    low, high = max(loss_at_x[0], -_LARGEST_LOSS), min(loss_at_x[-1], _LARGEST_LOSS)
    interval = max(deviation / points_per_deviation, (high - low) / _MOST_POINTS, _NARROWEST)

    first = math.floor(low / interval)
    last = max(math.ceil(high / interval), first + 1)
    losses = np.arange(first, last + 1) * interval
    edges = _inverse(losses, x, loss_at_x, shift, noise)
    if loss_at_x[0] >= losses[0]:
        edges[0] = x[0]
    if loss_at_x[-1] <= losses[-1]:
        edges[-1] = x[-1]
    p, q = _interval_masses(edges, shift, noise)
    forward = _split(p, q, losses, interval)
    # The other way round, every loss has the other sign.
    reverse = _split(q[::-1], p[::-1], -losses[::-1], interval)

    # What lies beyond an edge of the grid has a loss inside the outermost interval, or beyond it.
    # Rounded up, that is the interval's upper end on one side and infinite loss on the other.
    weights = np.exp(shift.log_weights)
    forward[1] += float(weights @ ndtr((edges[0] - shift.sizes) / noise))
    reverse[1] += float(ndtr(-edges[-1] / noise))
    forward_infinite = float(weights @ ndtr((shift.sizes - edges[-1]) / noise)) + shift.dropped
    reverse_infinite = float(ndtr(edges[0] / noise))
    both = (
        LossDistribution(first, forward, forward_infinite, interval),
        LossDistribution(-last, reverse, reverse_infinite, interval),
    )
    return both[0].with_participation(participation), both[1].with_participation(participation)
