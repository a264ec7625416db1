"""Guarantees of a Poisson-subsampled Gaussian for groups: exact, and by Rényi's way.

k added records shift each round's sum by Bin(k, q) clips, so P is a mixture of
Gaussians and Q one Gaussian (Ganesh, "Tight group-level DP guarantees for DP-SGD with
sampling via mixture of Gaussians mechanisms", 2024, Thm 3.1). For additions the
poisoned side is P, for deletions Q. The exact guarantee composes the pair by privacy
loss; Rényi's: Liu eq. 8, L. 12, Xie L. 5, Thm 5, 6.
"""

import math
from abc import abstractmethod
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from precad.accounting import (
    Profile,
    SampledGaussian,
    SampledRound,
    group_profiles,
    log_affinity,
    mixture_divergences,
    mixture_rdp,
    require_bound,
    round_of,
    spent,
    whole_shift,
)
from precad.certify import (
    ApproximateDP,
    Curves,
    Direction,
    Guarantee,
    Moved,
    Unchanged,
    probabilities,
)
from precad.common import (
    Booleans,
    Floats,
    Misconfiguration,
    frozen_dataclass,
    frozen_kw_only_dataclass,
)
from precad.common.checks import count

_STEEPEST = 60
"""The largest |ε| of a line. Slopes e^ε beyond say nothing that the last ones don't,
and would overflow sums."""
_ROUNDING = 1e-10
"""Added to every δ: rounding of a group's weights, over all rounds, stays below it."""
_LINES = 4000
"""Lines kept for the curve. Each is a valid bound by itself; 4,000 leave 1e-6 on the
table."""

ORDERS = tuple(1 + 2.0 ** (i / 4) for i in range(-40, 41))
"""Rényi's α: 1 + 2^(i/4), from 1.001 to 1,025. Neither end binds in practice."""
_USELESS = 700.0
"""e^ε with ε beyond this says nothing about a probability."""


@frozen_dataclass
class _Groups(Guarantee):
    """Base of guarantees for groups whose curves come from one mechanism."""

    mechanism: SampledGaussian
    """All rounds of the training, as they are for one record or client."""

    def __post_init__(self) -> None:
        require_bound(self.mechanism, self.name)

    def _curves(self, k: int, direction: Direction) -> Curves:
        if self.mechanism.silent:
            return Unchanged()
        return self._group_curves(k, direction)

    @abstractmethod
    def _group_curves(self, k: int, direction: Direction) -> Curves:
        """Return the curves for k ≥ 1 where the mechanism touches data.

        With k additions the poisoned side is the mixture, with k deletions the one
        Gaussian.
        """


@frozen_dataclass
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
        """Return the lines of the composed profile of numerator over denominator."""
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
        floor = deltas[-1] + _ROUNDING
        stop = int(np.searchsorted(-deltas, -floor)) + 1
        epsilons = epsilons[:stop]
        deltas = deltas[:stop]
        if len(epsilons) > _LINES:
            spread = np.linspace(0, len(epsilons) - 1, _LINES)
            chosen = np.unique(spread.astype(np.int64))
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
        """Return the infimum over real ε of e^ε p + δ(ε), in the shape of ``p``.

        That is the most that the numerator gives an event to which the denominator
        gives p.
        """
        # Any line is a bound, so a threshold that rounding moved costs nothing but
        # tightness.
        line = np.searchsorted(-self._thresholds, -p)
        return np.clip(np.exp(self.epsilons[line]) * p + self.deltas[line], 0, 1)

    def inverse_lower(self, p: Floats) -> Floats:
        """Return the supremum of e^{−ε}(p − δ(ε)), in the shape of ``p``.

        The inverse of ``upper``: the least that the denominator gives an event to which
        the numerator gives p.
        """
        ends = np.exp(self.epsilons[1:]) * self._thresholds + self.deltas[1:]
        line = np.searchsorted(-ends, -p)
        return np.clip(np.exp(-self.epsilons[line]) * (p - self.deltas[line]), 0, 1)

    def delta(self, epsilon: float) -> float:
        """Return δ(ε) from the lines, by interpolation; 1 left of the first.

        Interpolation gives at least the true δ, since that is convex in e^ε.
        """
        slopes = np.exp(self.epsilons)
        return float(np.interp(np.exp(epsilon), slopes, self.deltas, left=1.0))


@lru_cache(maxsize=1024)
def _group_pair(mechanism: SampledGaussian, k: int) -> tuple[HockeyStick, HockeyStick]:
    """Compute ``ExactGroups.sticks``, once for all equal mechanisms."""
    forward, reverse = group_profiles(mechanism, k)
    return HockeyStick.of(forward), HockeyStick.of(reverse)


@frozen_dataclass
class ExactGroups(_Groups):
    """The exact trade-off of a Poisson-subsampled Gaussian for groups of any size.

    Raises Misconfiguration: the mechanism isn't one under Poisson sampling and
    add/remove.
    """

    name = "exact"

    def sticks(self, k: int) -> tuple[HockeyStick, HockeyStick]:
        """Return the lines of with‖without and of without‖with, for a group of k ≥ 1.

        They are kept for later calls. Raises Misconfiguration: k isn't such a number.
        """
        return _group_pair(self.mechanism, count("k", k, least=1))

    def _group_curves(self, k: int, direction: Direction) -> Curves:
        poisoned_over_clean, clean_over_poisoned = self.sticks(k)
        if direction is Direction.DELETIONS:
            poisoned_over_clean, clean_over_poisoned = self.sticks(k)[::-1]

        def lower(p: Floats) -> Floats:
            # What always happens without the group happens with it: Gaussians share
            # null sets.
            return np.where(p == 1, 1.0, clean_over_poisoned.inverse_lower(p))

        return Moved(up=poisoned_over_clean.upper, down=lower, refined=True)

    def as_approximate(self, delta: float | None = None) -> ApproximateDP:
        """Return the exact (ε, δ)-DP of one record or client.

        At ``delta``; without it at many ε, each with the larger δ of both directions.
        Raises Misconfiguration: no finite ε has so small a ``delta``.
        """
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
        epsilons = np.zeros(1)
        if largest > 0:
            epsilons = np.geomspace(largest / 1000, largest, 200)
        deltas = [min(1.0, max(forward.delta(e), reverse.delta(e))) for e in epsilons]
        return ApproximateDP(tuple(epsilons.tolist()), tuple(deltas))


@frozen_kw_only_dataclass
class RenyiCurves(Curves):
    """Best over orders α of Hölder's bounds.

    Upper (e^ε p)^{(α−1)/α} with ε = D_α(poisoned‖clean), lower e^{−ε} p^{α/(α−1)} with
    ε = D_α(clean‖poisoned).
    """

    orders: Floats
    """[a], α, each above 1."""
    poisoned_over_clean: Floats
    """[a], D_α(poisoned‖clean) in nats, infinite where unknown."""
    clean_over_poisoned: Floats
    """[a], D_α(clean‖poisoned) in nats, infinite where unknown."""
    refined: bool = True
    """Whether the complement event and Lemma 5's joint test sharpen the curves. Without
    these they are Liu's outcomes guarantee as printed."""

    def _upper(self, p: Floats) -> Floats:
        power = (self.orders - 1) / self.orders
        with np.errstate(divide="ignore", invalid="ignore"):
            exponents = self.poisoned_over_clean[:, None] + np.log(p.ravel())
            exponents = power[:, None] * exponents
        # An unknown divergence says nothing, about p = 0 too (∞ − ∞).
        exponents = np.where(np.isnan(exponents), 0.0, exponents)
        best: Floats = np.exp(np.minimum(exponents.min(axis=0), 0.0))
        return best.reshape(p.shape)

    def _lower(self, p: Floats) -> Floats:
        power = self.orders / (self.orders - 1)
        with np.errstate(divide="ignore"):
            exponents = power[:, None] * np.log(p.ravel())
        exponents -= self.clean_over_poisoned[:, None]
        best: Floats = np.exp(np.minimum(exponents.max(axis=0), 0.0))
        return best.reshape(p.shape)

    def separates(self, p_a: npt.ArrayLike, p_b: npt.ArrayLike) -> Booleans:
        """Return whether label A stays strictly ahead of B at each point.

        By Liu's Theorem 10, or at any order by Xie's Lemma 5 in the direction that its
        formula is for. Raises Misconfiguration: a score is NaN or outside [0, 1].
        """
        p_a = probabilities("p_a", p_a)
        p_b = probabilities("p_b", p_b)
        apart = Curves.separates(self, p_a, p_b)
        if not self.refined:
            return apart
        # Orders along an axis of their own, before those of the points.
        shape = (-1,) + (1,) * p_a.ndim
        orders = self.orders.reshape(shape)
        reach = renyi_reach_poisoned_over_clean(p_a, p_b, orders)
        forward = self.poisoned_over_clean.reshape(shape) < reach
        reach = renyi_reach_clean_over_poisoned(p_a, p_b, orders)
        reverse = self.clean_over_poisoned.reshape(shape) < reach
        joint = forward.any(axis=0) | reverse.any(axis=0)
        # Lemma 5 speaks of p_a ≥ p_b with p_a + p_b ≤ 1 only.
        return np.asarray(apart | (joint & (p_a > p_b) & (p_a + p_b <= 1 + 1e-12)))


def _power_mean(p_a: Floats, p_b: Floats, exponent: Floats) -> Floats:
    """Return ((p_a^s + p_b^s)/2)^{1/s}; 0 where s < 0 and p_b = 0."""
    with np.errstate(divide="ignore"):
        log_sums = np.logaddexp(exponent * np.log(p_a), exponent * np.log(p_b))
    return np.asarray(np.exp((log_sums - math.log(2)) / exponent))


def renyi_reach_poisoned_over_clean(
    p_a: npt.ArrayLike, p_b: npt.ArrayLike, order: npt.ArrayLike
) -> Floats:
    """Return the least D_α(poisoned‖clean) at which B can draw level with A.

    −log(1 − p_a − p_b + 2η) with η the power mean of exponent 1 − α: the formula of
    Xie's Lemma 5 and Thm 5, whose text names the other direction. 0 where p_a ≤ p_b.
    Raises Misconfiguration: a score is NaN or outside [0, 1].

    Args:
        p_a: The clean score of label A.
        p_b: The clean score of label B. All arguments broadcast.
        order: α, above 1.

    Returns:
        Divergences in nats, float64.
    """
    p_a = probabilities("p_a", p_a)
    p_b = probabilities("p_b", p_b)
    eta = _power_mean(p_a, p_b, 1 - np.asarray(order, np.float64))
    with np.errstate(divide="ignore"):
        reach = -np.log(np.maximum(0.0, 1 - p_a - p_b + 2 * eta))
    return np.asarray(np.maximum(0.0, reach))


def renyi_reach_clean_over_poisoned(
    p_a: npt.ArrayLike, p_b: npt.ArrayLike, order: npt.ArrayLike
) -> Floats:
    """Return the least D_α(clean‖poisoned) at which B can draw level with A.

    α/(α−1)·log(1 − p_a − p_b + 2m) with m the power mean of exponent α: minimising Σ
    clean^α poisoned^{1−α} over poisoned distributions that give A and B the same
    weight. Raises Misconfiguration: a score is NaN or outside [0, 1].

    Args:
        p_a: The clean score of label A.
        p_b: The clean score of label B. All arguments broadcast.
        order: α, above 1.

    Returns:
        Divergences in nats, float64.
    """
    p_a = probabilities("p_a", p_a)
    p_b = probabilities("p_b", p_b)
    order = np.asarray(order, np.float64)
    mean = _power_mean(p_a, p_b, order)
    reach = order / (order - 1) * np.log(1 - p_a - p_b + 2 * mean)
    return np.asarray(np.maximum(0.0, reach))


@frozen_dataclass
class RenyiGroups(_Groups):
    """The Rényi divergences of the group's mixture of Gaussians, in both directions.

    Raises Misconfiguration: the mechanism isn't one under Poisson sampling and
    add/remove, or an order isn't above 1.
    """

    orders: tuple[float, ...] = ORDERS
    """α, each above 1."""
    refined: bool = True
    """As in ``RenyiCurves``."""

    name = "RDP"

    def __post_init__(self) -> None:
        _Groups.__post_init__(self)
        if not self.orders or not all(order > 1 for order in self.orders):
            raise Misconfiguration("orders", self.orders, "give orders, each above 1")

    def divergences(self, k: int) -> tuple[Floats, Floats]:
        """Return all rounds' D_α(with‖without) and D_α(without‖with), [orders] each.

        For a group of k ≥ 1, in nats.
        """
        event = self.mechanism
        # The coin of the whole round comes after.
        step = round_of(replace(event, participation=1.0), k)
        steps = _group_divergences(step, self.orders)
        forward, reverse = (
            mixture_rdp(step, event.participation, self.orders) for step in steps
        )
        return event.count * forward, event.count * reverse

    def _group_curves(self, k: int, direction: Direction) -> Curves:
        poisoned_over_clean, clean_over_poisoned = self.divergences(k)
        if direction is Direction.DELETIONS:
            poisoned_over_clean, clean_over_poisoned = self.divergences(k)[::-1]
        return RenyiCurves(
            orders=np.asarray(self.orders),
            poisoned_over_clean=poisoned_over_clean,
            clean_over_poisoned=clean_over_poisoned,
            refined=self.refined,
        )


@lru_cache(maxsize=4096)
def _group_divergences(
    step: SampledRound, orders: tuple[float, ...]
) -> tuple[Floats, Floats]:
    """Return one round's divergences, for ``RenyiGroups.divergences``.

    They are computed once for all equal rounds.

    Args:
        step: The round, which always happens.
        orders: The α, each above 1.

    Returns:
        D_α(with‖without) and D_α(without‖with), [orders] each, read-only, in nats.
    """
    # Rényi's divergence of order 1/2 is no larger than any other, and the same both
    # ways.
    if -2 * log_affinity(step) > _USELESS:
        forward = reverse = np.full(len(orders), np.inf)
    else:
        forward, reverse = mixture_divergences(
            whole_shift(step),
            noise=step.noise_multiplier,
            orders=np.asarray(orders),
            limit=_USELESS,
        )
    forward.setflags(write=False)
    reverse.setflags(write=False)
    return forward, reverse
