"""Guarantees of a Poisson-subsampled Gaussian for groups: exact, and by Rényi divergences.

k added records shift each round's sum by Bin(k, q) clips, so P is a mixture of
Gaussians and Q one Gaussian (Ganesh, "Tight group-level DP guarantees for DP-SGD with
sampling via mixture of Gaussians mechanisms", 2024, Thm 3.1). For additions the
poisoned side is P, for deletions Q. The exact guarantee composes the pair by privacy
loss; Rényi's: Liu eq. 8, L. 12, Xie L. 5, Thm 5, 6.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from precad.accounting.events import SampledGaussian, require_bound
from precad.accounting.exact import Profile, group_profiles
from precad.accounting.guarantees import spent
from precad.accounting.losses import (
    SampledRound,
    Shift,
    log_affinity,
    log_binomial,
    log_ratio,
)
from precad.accounting.rdp import mixture_rdp
from precad.certify.guarantee import (
    ApproximateDP,
    Booleans,
    Curves,
    Direction,
    Floats,
    Guarantee,
    Integers,
    Moved,
    Unchanged,
    probabilities,
)
from precad.common.checks import count
from precad.common.errors import Misconfiguration

# Slopes e^ε beyond ε = 60 say nothing that the last ones don't, and would overflow
# sums.
_STEEPEST = 60
# Added to every δ: rounding of a group's weights, over all rounds, stays below it.
_ROUNDING = 1e-10
# Lines kept for the curve. Each is a valid bound by itself; 4,000 leave 1e-6 on the
# table.
_LINES = 4000

ORDERS = tuple(1 + 2.0 ** (i / 4) for i in range(-40, 41))
"""Rényi's α: 1 + 2^(i/4), from 1.001 to 1,025. Neither end binds in practice."""
# e^ε with ε beyond this says nothing about a probability.
_USELESS = 700.0
# Added to every log-moment, in units of itself and of α: the rounding of a log-ratio,
# which α multiplies, and of exponents, which are about as large as the moment's
# logarithm.
_MOMENT_ROUNDING = 1e-13
# Points of one grid, and its points times components: seconds for all orders of a
# group.
_MOST_POINTS = 2**20
_MOST_WORK = 2**23


@dataclass(frozen=True, slots=True)
class _Groups(Guarantee):
    mechanism: SampledGaussian

    def __post_init__(self) -> None:
        require_bound(self.mechanism, self.name)

    def _curves(self, k: int, direction: Direction) -> Curves:
        if self.mechanism.silent:
            return Unchanged()
        return self._both(k)[direction is Direction.DELETIONS]

    @abstractmethod
    def _both(self, k: int) -> tuple[Curves, Curves]:
        """For additions, which poison the clean Gaussian, and deletions, the mixture."""


@dataclass(frozen=True, slots=True)
class HockeyStick:
    """Lines ``numerator ≤ e^ε · denominator + δ`` of one pair of distributions."""

    epsilons: Floats
    """[n], increasing."""
    deltas: Floats
    """[n], δ(ε) rounded up."""
    _thresholds: Floats
    """[n − 1], decreasing: the score below which the next line is better."""

    @classmethod
    def of(cls, profile: Profile) -> "HockeyStick":
        """From the composed profile of numerator over denominator."""
        epsilons = profile[0]
        deltas = profile[1] + _ROUNDING
        keep = np.abs(epsilons) <= _STEEPEST
        if not keep.any():
            # Every loss decides the test: the pair is told apart, and 0 ≤ p' ≤ 1 is all
            # there is.
            return cls(np.zeros(1), np.ones(1), np.zeros(0))
        epsilons = epsilons[keep]
        deltas = deltas[keep]
        # Steeper lines than the first whose δ has reached its floor gain nothing.
        stop = int(np.searchsorted(-deltas, -(deltas[-1] + _ROUNDING))) + 1
        epsilons = epsilons[:stop]
        deltas = deltas[:stop]
        if len(epsilons) > _LINES:
            chosen = np.unique(
                np.linspace(0, len(epsilons) - 1, _LINES).astype(np.int64)
            )
            epsilons = epsilons[chosen]
            deltas = deltas[chosen]
        # (δ_j − δ_{j+1})/(e^{ε_{j+1}} − e^{ε_j}), written so that no exponential
        # overflows.
        thresholds = (
            np.exp(-epsilons[:-1]) * -np.diff(deltas) / np.expm1(np.diff(epsilons))
        )
        # Decreasing by convexity; from the right, since rounding is magnified towards
        # the left.
        return cls(epsilons, deltas, np.maximum.accumulate(thresholds[::-1])[::-1])

    def upper(self, p: Floats) -> Floats:
        """Infimum over real ε of e^ε p + δ(ε): the numerator's most, given p of the other."""
        # Any line is a bound, so a threshold that rounding moved costs nothing but
        # tightness.
        line = np.searchsorted(-self._thresholds, -p)
        return np.clip(np.exp(self.epsilons[line]) * p + self.deltas[line], 0, 1)

    def inverse_lower(self, p: Floats) -> Floats:
        """The inverse of ``upper``, sup e^{−ε}(p − δ(ε)): the denominator's least, given p."""
        ends = np.exp(self.epsilons[1:]) * self._thresholds + self.deltas[1:]
        line = np.searchsorted(-ends, -p)
        return np.clip(np.exp(-self.epsilons[line]) * (p - self.deltas[line]), 0, 1)

    def delta(self, epsilon: float) -> float:
        """δ(ε), from the lines: at most interpolation above the true one; 1 left of the first."""
        return float(
            np.interp(np.exp(epsilon), np.exp(self.epsilons), self.deltas, left=1.0)
        )


def _pair_curves(
    poisoned_over_clean: HockeyStick, clean_over_poisoned: HockeyStick
) -> Curves:
    def lower(p: Floats) -> Floats:
        # What always happens without the group happens with it: Gaussians share null
        # sets.
        return np.where(p == 1, 1.0, clean_over_poisoned.inverse_lower(p))

    return Moved(
        first=Unchanged(),
        up=poisoned_over_clean.upper,
        down=lower,
        refined=True,
    )


@lru_cache(maxsize=1024)
def _group_pair(mechanism: SampledGaussian, k: int) -> tuple[HockeyStick, HockeyStick]:
    forward, reverse = group_profiles(mechanism, k)
    return HockeyStick.of(forward), HockeyStick.of(reverse)


@dataclass(frozen=True, slots=True)
class ExactGroups(_Groups):
    """The exact trade-off of a Poisson-subsampled Gaussian for groups of any size."""

    name = "exact"

    def sticks(self, k: int) -> tuple[HockeyStick, HockeyStick]:
        """(with‖without, without‖with) for a group of k ≥ 1; kept for later calls."""
        return _group_pair(self.mechanism, count("k", k, least=1))

    def _both(self, k: int) -> tuple[Curves, Curves]:
        forward, reverse = self.sticks(k)
        return _pair_curves(forward, reverse), _pair_curves(reverse, forward)

    def as_approximate(self, delta: float | None = None) -> ApproximateDP:
        """(ε, δ)-DP of one record or client, exact, the larger δ's: at ``delta``, or at many ε."""
        if self.mechanism.silent:
            return ApproximateDP.single(0.0, 0.0)
        if delta is not None:
            epsilon = spent(self.mechanism, delta)
            if not math.isfinite(epsilon):
                raise Misconfiguration(
                    "delta", delta, "no ε has so small a δ here; raise δ"
                )
            return ApproximateDP.single(epsilon, delta)
        forward, reverse = self.sticks(1)
        largest = min(float(forward.epsilons[-1]), float(reverse.epsilons[-1]))
        epsilons = (
            np.geomspace(largest / 1000, largest, 200) if largest > 0 else np.zeros(1)
        )
        deltas = [min(1.0, max(forward.delta(e), reverse.delta(e))) for e in epsilons]
        return ApproximateDP(tuple(epsilons.tolist()), tuple(deltas))


@dataclass(frozen=True, slots=True, kw_only=True)
class RenyiCurves(Curves):
    """Best over orders α, [a] each above 1, of Hölder's bounds.

    Upper (e^ε p)^{(α−1)/α} with ε = D_α(poisoned‖clean), lower e^{−ε} p^{α/(α−1)} with
    ε = D_α(clean‖poisoned), [a] each and infinite where unknown. Where they aren't
    ``refined`` by the complement event and Lemma 5's joint test, they are Liu's
    outcomes guarantee as printed.
    """

    orders: Floats
    poisoned_over_clean: Floats
    clean_over_poisoned: Floats
    refined: bool = True

    def _upper(self, p: Floats) -> Floats:
        power = (self.orders - 1) / self.orders
        with np.errstate(divide="ignore", invalid="ignore"):
            exponent = power[:, None] * (
                self.poisoned_over_clean[:, None] + np.log(p.ravel())
            )
        # An unknown divergence says nothing, about p = 0 too (∞ − ∞).
        exponent = np.where(np.isnan(exponent), 0.0, exponent)
        return np.asarray(np.exp(np.minimum(exponent.min(axis=0), 0.0))).reshape(
            p.shape
        )

    def _lower(self, p: Floats) -> Floats:
        power = self.orders / (self.orders - 1)
        with np.errstate(divide="ignore"):
            exponent = (
                power[:, None] * np.log(p.ravel()) - self.clean_over_poisoned[:, None]
            )
        return np.asarray(np.exp(np.minimum(exponent.max(axis=0), 0.0))).reshape(
            p.shape
        )

    def separates(self, p_a: npt.ArrayLike, p_b: npt.ArrayLike) -> Booleans:
        """Liu Thm 10, or at any order Xie's Lemma 5 in the direction that its formula is for."""
        p_a = probabilities("p_a", p_a)
        p_b = probabilities("p_b", p_b)
        apart = Curves.separates(self, p_a, p_b)
        if not self.refined:
            return apart
        shape = (-1,) + (1,) * p_a.ndim
        orders = self.orders.reshape(shape)
        reach = renyi_reach_poisoned_over_clean(p_a, p_b, orders)
        reverse_reach = renyi_reach_clean_over_poisoned(p_a, p_b, orders)
        joint = (self.poisoned_over_clean.reshape(shape) < reach).any(axis=0) | (
            self.clean_over_poisoned.reshape(shape) < reverse_reach
        ).any(axis=0)
        # Lemma 5 speaks of p_a ≥ p_b with p_a + p_b ≤ 1 only.
        return np.asarray(apart | (joint & (p_a > p_b) & (p_a + p_b <= 1 + 1e-12)))


def _power_mean(p_a: Floats, p_b: Floats, exponent: Floats) -> Floats:
    """((p_a^s + p_b^s)/2)^{1/s}; 0 where s < 0 and p_b = 0."""
    with np.errstate(divide="ignore"):
        logs = np.stack(
            np.broadcast_arrays(exponent * np.log(p_a), exponent * np.log(p_b))
        )
    return np.asarray(np.exp((logsumexp(logs, axis=0) - math.log(2)) / exponent))


def renyi_reach_poisoned_over_clean(
    p_a: npt.ArrayLike, p_b: npt.ArrayLike, order: npt.ArrayLike
) -> Floats:
    """The least D_α(poisoned‖clean) at which B can draw level with A.

    −log(1 − p_a − p_b + 2η) with η the power mean of exponent 1 − α: the formula of
    Xie's Lemma 5 and Thm 5, whose text names the other direction. Broadcasts; 0 where
    p_a ≤ p_b.
    """
    p_a = probabilities("p_a", p_a)
    p_b = probabilities("p_b", p_b)
    eta = _power_mean(p_a, p_b, 1 - np.asarray(order, dtype=np.float64))
    with np.errstate(divide="ignore"):
        return np.asarray(
            np.maximum(0.0, -np.log(np.maximum(0.0, 1 - p_a - p_b + 2 * eta)))
        )


def renyi_reach_clean_over_poisoned(
    p_a: npt.ArrayLike, p_b: npt.ArrayLike, order: npt.ArrayLike
) -> Floats:
    """The least D_α(clean‖poisoned) at which B can draw level with A.

    α/(α−1)·log(1 − p_a − p_b + 2m) with m the power mean of exponent α: minimising Σ
    clean^α poisoned^{1−α} over poisoned distributions that give A and B the same
    weight.
    """
    p_a = probabilities("p_a", p_a)
    p_b = probabilities("p_b", p_b)
    order = np.asarray(order, dtype=np.float64)
    mean = _power_mean(p_a, p_b, order)
    return np.asarray(
        np.maximum(0.0, order / (order - 1) * np.log(1 - p_a - p_b + 2 * mean))
    )


@dataclass(frozen=True, slots=True)
class RenyiGroups(_Groups):
    """The Rényi divergences of the group's mixture of Gaussians, both directions, T rounds."""

    orders: tuple[float, ...] = ORDERS
    refined: bool = True

    name = "RDP"

    def __post_init__(self) -> None:
        _Groups.__post_init__(self)
        if not self.orders or not all(order > 1 for order in self.orders):
            raise Misconfiguration("orders", self.orders, "give orders, each above 1")

    def divergences(self, k: int) -> tuple[Floats, Floats]:
        """[orders] each: T-fold D_α(with‖without) and D_α(without‖with) for a group of k ≥ 1."""
        m = self.mechanism
        steps = _group_divergences(m.rate, m.effective_noise_multiplier, k, self.orders)
        one, other = (mixture_rdp(step, m.participation, self.orders) for step in steps)
        return m.count * one, m.count * other

    def _both(self, k: int) -> tuple[Curves, Curves]:
        orders = np.asarray(self.orders)
        (one, other) = self.divergences(k)
        return (
            RenyiCurves(
                orders=orders,
                poisoned_over_clean=one,
                clean_over_poisoned=other,
                refined=self.refined,
            ),
            RenyiCurves(
                orders=orders,
                poisoned_over_clean=other,
                clean_over_poisoned=one,
                refined=self.refined,
            ),
        )


@lru_cache(maxsize=4096)
def _group_divergences(
    probability: float,
    noise: float,
    k: int,
    orders: tuple[float, ...],
) -> tuple[Floats, Floats]:
    # Rényi's divergence of order 1/2 is no larger than any other, and the same both
    # ways.
    if -2 * log_affinity(SampledRound(probability, noise, 1.0, k)) > _USELESS:
        forward = reverse = np.full(len(orders), np.inf)
    else:
        shift = Shift(np.arange(k + 1, dtype=np.float64), log_binomial(k, probability))
        forward, reverse = mixture_divergences(
            shift,
            noise=noise,
            orders=np.asarray(orders),
            limit=_USELESS,
        )
    forward.setflags(write=False)
    reverse.setflags(write=False)
    return forward, reverse


def mixture_divergences(
    shift: Shift,
    *,
    noise: float,
    orders: Floats,
    limit: float = math.inf,
) -> tuple[Floats, Floats]:
    """One round's D_α(P‖Q) and D_α(Q‖P) for P = Σ w_i N(i, σ²) and Q = N(0, σ²).

    By the trapezoid rule in the log domain, whose own error is below rounding for these
    analytic integrands; of orders whose grid would be too large, nothing is claimed.
    P's far components are left out where Minkowski's inequality says that they add
    nothing: ‖P/Q‖_α ≤ ‖P_near/Q‖_α + Σ_far w_i e^{(α−1)i²/(2σ²)}. A D_α(P‖Q) certainly
    above ``limit`` is reported as infinite, unevaluated.
    """
    forward, reverse = np.full((2, len(orders)), np.inf)
    nearest = np.zeros(len(orders), dtype=np.int64)
    squares = shift.sizes**2 / (2 * noise**2)
    for index, order in enumerate(orders):
        log_norms = shift.log_weights + (order - 1) * squares
        if order / (order - 1) * float(log_norms.max()) < limit:
            tails = np.logaddexp.accumulate(log_norms[::-1])[::-1]
            nearest[index] = max(int(np.searchsorted(-tails, 36.0)), 1)
    for some in _blocks(np.arange(len(orders))):
        reverse[some] = _reverse_divergences(shift, noise, orders[some])
    for some in _blocks(np.flatnonzero(nearest)):
        these = orders[some]
        near = int(nearest[some].max())
        ends = (-12 * noise, float(these.max()) * shift.sizes[near - 1] + 12 * noise)
        forward[some] = _divergences(
            shift,
            noise,
            orders=these,
            near=near,
            exponents=these,
            ends=ends,
        )
    return forward, reverse


def _blocks(indices: Integers) -> list[Integers]:
    # Neighbouring orders share one grid: the log-ratio is what costs.
    return np.array_split(indices, -(-len(indices) // 8)) if len(indices) else []


def _reverse_divergences(shift: Shift, noise: float, orders: Floats) -> Floats:
    # Leaving components of P out only raises the divergence of Q from P.
    first = float(shift.log_weights[0])
    kept = shift.log_weights > (first if math.isfinite(first) else 0.0) - 80
    near = int(np.flatnonzero(kept)[-1]) + 1
    mean = float(np.exp(shift.log_weights) @ shift.sizes)
    most = float(orders.max()) - 1
    # The integrand peaks where x is −(α − 1)·E[i | x], and is at most w_0^{1−α}·Q.
    lowest = -min(most * mean + 12 * noise, noise * math.sqrt(144 - 2 * most * first))
    return _divergences(
        shift,
        noise,
        orders=orders,
        near=near,
        exponents=1 - orders,
        ends=(lowest, 12 * noise),
    )


def _divergences(
    shift: Shift,
    noise: float,
    *,
    orders: Floats,
    near: int,
    exponents: Floats,
    ends: tuple[float, float],
) -> Floats:
    """[orders]: ln E_Q[(P_near/Q)^exponent] / (α − 1), the integral taken between the ends."""
    # The integrand is analytic in a strip of half-width πσ² (the zeros of P/Q), and a
    # mode's standard deviation is about σ: this step leaves both errors under 1e-14.
    step = min(noise / 8, noise**2 / 2)
    low = math.floor(ends[0] / step)
    high = math.ceil(ends[1] / step)
    if high - low > min(_MOST_POINTS, _MOST_WORK // near):
        return np.full(len(orders), np.inf)
    x = np.arange(low, high + 1, dtype=np.float64) * step
    ratio, _ = log_ratio(x, Shift(shift.sizes[:near], shift.log_weights[:near]), noise)
    density = -((x / noise) ** 2) / 2 - math.log(noise * math.sqrt(2 * math.pi))
    log_moments = exponents[:, None] * ratio + density
    top = log_moments.max(axis=1)
    sums = np.exp(log_moments - top[:, None]).sum(axis=1)
    found = top + np.log(sums * step)
    found += _MOMENT_ROUNDING * (orders + np.abs(found))
    return np.asarray(np.maximum(0.0, found / (orders - 1)))
