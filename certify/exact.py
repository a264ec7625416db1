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
from precad.certify.approximate import ApproximateDP
from precad.certify.guarantee import Curves, Direction, Guarantee, Identity
from precad.certify.hockey_stick import HockeyStick
from precad.certify.inputs import Floats
from precad.certify.loss_distribution import one_round
from precad.certify.shift import Shift, group_shift
from precad.common.checks import count
from precad.common.errors import Misconfiguration


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


def pair_of(
    shift: Shift, mechanism: SampledGaussian, points_per_deviation: float
) -> tuple[HockeyStick, HockeyStick]:
    """All rounds' hockey sticks, (with‖without, without‖with), of the shifted sum and the plain."""
    both = one_round(
        shift, mechanism.effective_noise_multiplier, mechanism.participation, points_per_deviation
    )
    forward, reverse = (HockeyStick.of(losses.composed(mechanism.count)) for losses in both)
    return forward, reverse


@lru_cache(maxsize=1024)
def _group_pair(
    mechanism: SampledGaussian, k: int, points_per_deviation: float
) -> tuple[HockeyStick, HockeyStick]:
    return pair_of(group_shift(k, mechanism.rate), mechanism, points_per_deviation)


# Coarser grids are sound, but shrink radii: 29 becomes 19
# (docs/certificates.md, "The exact pair").
_LEAST_POINTS = 10


@dataclass(frozen=True, slots=True)
class ExactGroups(Guarantee):
    """The exact trade-off of a Poisson-subsampled Gaussian for groups of any size.

    Attributes:
        mechanism: what was run.
        points_per_deviation: fineness of the grid, at least 10. Coarser is sound, and looser.
    """

    mechanism: SampledGaussian
    points_per_deviation: float = 20.0

    name = "exact"

    def __post_init__(self) -> None:
        require_bound(self.mechanism, self.name)
        if not self.points_per_deviation >= _LEAST_POINTS:
            raise Misconfiguration(
                "points_per_deviation", self.points_per_deviation, "at least 10, else radii shrink"
            )

    def sticks(self, k: int) -> tuple[HockeyStick, HockeyStick]:
        """(with‖without, without‖with) for a group of k ≥ 1; kept for later calls."""
        return _group_pair(self.mechanism, count("k", k, least=1), self.points_per_deviation)

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
        deltas = [max(forward.delta(e), reverse.delta(e)) for e in epsilons]
        return ApproximateDP(tuple(epsilons.tolist()), tuple(min(d, 1 - 1e-12) for d in deltas))
