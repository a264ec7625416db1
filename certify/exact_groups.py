"""The exact guarantee: the dominating pair of a group of k, composed by its privacy loss.

k added records shift each round's sum by Bin(k, q) clips, so P is a mixture of Gaussians and Q one
Gaussian (Ganesh, "Tight group-level DP guarantees for DP-SGD with sampling via mixture of
Gaussians mechanisms", 2024, Thm 3.1). For additions the poisoned side is P, for deletions Q.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from precad.accounting.calibrate import spent
from precad.accounting.events import SampledGaussian, require_bound
from precad.accounting.exact import Profile, group_profiles
from precad.certify.curves import Curves, Floats, Identity
from precad.certify.guarantee import ApproximateDP, Direction, Guarantee
from precad.common.checks import count
from precad.common.errors import Misconfiguration

# Slopes e^ε beyond ε = 60 say nothing that the last ones don't, and would overflow sums.
_STEEPEST = 60
# Added to every δ: rounding of a group's weights, over all rounds, stays below it.
_ROUNDING = 1e-10
# Lines kept for the curve. Each is a valid bound by itself; 4,000 leave 1e-6 on the table.
_LINES = 4000


@dataclass(frozen=True, slots=True)
class HockeyStick:
    """Lines ``numerator ≤ e^ε · denominator + δ`` of one pair of distributions.

    Attributes:
        epsilons: [n] float64, increasing.
        deltas: [n] float64, δ(ε) rounded up.
        _thresholds: [n − 1] float64, decreasing: the score below which the next line is better.
    """

    epsilons: Floats
    deltas: Floats
    _thresholds: Floats

    @classmethod
    def of(cls, profile: Profile) -> "HockeyStick":
        """From the composed profile of numerator over denominator."""
        epsilons, deltas = profile[0], profile[1] + _ROUNDING
        keep = np.abs(epsilons) <= _STEEPEST
        if not keep.any():
            # Every loss decides the test: the pair is told apart, and 0 ≤ p' ≤ 1 is all there is.
            return cls(np.zeros(1), np.ones(1), np.zeros(0))
        epsilons, deltas = epsilons[keep], deltas[keep]
        # Steeper lines than the first whose δ has reached its floor gain nothing.
        stop = int(np.searchsorted(-deltas, -(deltas[-1] + _ROUNDING))) + 1
        epsilons, deltas = epsilons[:stop], deltas[:stop]
        if len(epsilons) > _LINES:
            chosen = np.unique(np.linspace(0, len(epsilons) - 1, _LINES).astype(np.int64))
            epsilons, deltas = epsilons[chosen], deltas[chosen]
        # (δ_j − δ_{j+1})/(e^{ε_{j+1}} − e^{ε_j}), written so that no exponential overflows.
        thresholds = (
            np.exp(-epsilons[:-1]) * (deltas[:-1] - deltas[1:]) / np.expm1(np.diff(epsilons))
        )
        # Decreasing by convexity; from the right, since rounding is magnified towards the left.
        return cls(epsilons, deltas, np.maximum.accumulate(thresholds[::-1])[::-1])

    def upper(self, p: Floats) -> Floats:
        """Infimum over real ε of e^ε p + δ(ε): the numerator's most, given p of the other."""
        # Any line is a bound, so a threshold that rounding moved costs nothing but tightness.
        line = np.searchsorted(-self._thresholds, -p)
        return np.clip(np.exp(self.epsilons[line]) * p + self.deltas[line], 0, 1)

    def inverse_lower(self, p: Floats) -> Floats:
        """Supremum over real ε of e^{−ε}(p − δ(ε)): the denominator's least.

        Given p under the numerator: the inverse function of ``upper``, on the same lines.
        """
        ends = np.exp(self.epsilons[1:]) * self._thresholds + self.deltas[1:]
        line = np.searchsorted(-ends, -p)
        return np.clip(np.exp(-self.epsilons[line]) * (p - self.deltas[line]), 0, 1)

    def delta(self, epsilon: float) -> float:
        """δ(ε), from the lines: at most interpolation above the true one; 1 left of the first."""
        lines = np.exp(self.epsilons)
        return float(np.interp(np.exp(epsilon), lines, self.deltas, left=1.0))


@dataclass(frozen=True, slots=True)
class PairCurves(Curves):
    """Curves of one direction from both hockey sticks of its pair.

    Attributes:
        poisoned_over_clean: δ of poisoned‖clean; gives the upper curve, and the lower one through
            the complement event.
        clean_over_poisoned: δ of clean‖poisoned; gives the lower curve, and the upper one through
            the complement event.
    """

    poisoned_over_clean: HockeyStick
    clean_over_poisoned: HockeyStick

    refined = True

    def _upper(self, p: Floats) -> Floats:
        """Infimum over real ε of e^ε p + δ_{poisoned‖clean}(ε)."""
        return self.poisoned_over_clean.upper(p)

    def _lower(self, p: Floats) -> Floats:
        """Supremum over real ε of e^{−ε}(p − δ_{clean‖poisoned}(ε))."""
        # What always happens without the group happens with it: Gaussians share null sets.
        return np.where(p == 1, 1.0, self.clean_over_poisoned.inverse_lower(p))


@lru_cache(maxsize=1024)
def _group_pair(mechanism: SampledGaussian, k: int) -> tuple[HockeyStick, HockeyStick]:
    forward, reverse = group_profiles(mechanism, k)
    return HockeyStick.of(forward), HockeyStick.of(reverse)


@dataclass(frozen=True, slots=True)
class ExactGroups(Guarantee):
    """The exact trade-off of a Poisson-subsampled Gaussian for groups of any size."""

    mechanism: SampledGaussian

    name = "exact"

    def __post_init__(self) -> None:
        require_bound(self.mechanism, self.name)

    def sticks(self, k: int) -> tuple[HockeyStick, HockeyStick]:
        """(with‖without, without‖with) for a group of k ≥ 1; kept for later calls."""
        return _group_pair(self.mechanism, count("k", k, least=1))

    def _curves(self, k: int, direction: Direction) -> Curves:
        """The group pair's curves; additions poison the clean Gaussian, deletions the mixture."""
        if self.mechanism.silent:
            return Identity()
        forward, reverse = self.sticks(k)
        if direction is Direction.ADDITIONS:
            return PairCurves(forward, reverse)
        return PairCurves(reverse, forward)

    def as_approximate(self, delta: float | None = None) -> ApproximateDP:
        """(ε, δ)-DP of one record or client, exact: at ``delta``, or for many ε to choose from.

        The larger δ of both directions goes with each ε.
        """
        if self.mechanism.silent:
            return ApproximateDP.single(0.0, 0.0)
        if delta is not None:
            epsilon = spent(self.mechanism, delta)
            if not math.isfinite(epsilon):
                raise Misconfiguration("delta", delta, "no ε has so small a δ here; raise δ")
            return ApproximateDP.single(epsilon, delta)
        forward, reverse = self.sticks(1)
        largest = min(float(forward.epsilons[-1]), float(reverse.epsilons[-1]))
        epsilons = np.geomspace(largest / 1000, largest, 200) if largest > 0 else np.zeros(1)
        deltas = [min(1.0, max(forward.delta(e), reverse.delta(e))) for e in epsilons]
        return ApproximateDP(tuple(epsilons.tolist()), tuple(deltas))
