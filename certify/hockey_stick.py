"""δ(ε) over all real ε, and what it says about a score: the trade-off of a dominating pair."""

from dataclasses import dataclass

import numpy as np

from precad.certify.inputs import Floats
from precad.certify.loss_distribution import ROUNDING, LossDistribution

# Slopes e^ε beyond ε = 60 say nothing that the last ones don't, and would overflow sums.
_STEEPEST = 60
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
    def of(cls, losses: LossDistribution) -> "HockeyStick":
        """From the (composed) loss distribution of numerator over denominator."""
        epsilons, deltas = losses.profile()
        keep = np.abs(epsilons) <= _STEEPEST
        if not keep.any():
            # Every loss decides the test: the pair is told apart, and 0 ≤ p' ≤ 1 is all there is.
            return cls(np.zeros(1), np.ones(1), np.zeros(0))
        epsilons, deltas = epsilons[keep], deltas[keep]
        # Steeper lines than the first whose δ has reached its floor gain nothing.
        stop = int(np.searchsorted(-deltas, -(deltas[-1] + ROUNDING))) + 1
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
        """δ(ε), from the lines: at most interpolation above the composed distribution's."""
        return float(
            np.interp(
                np.exp(epsilon), np.exp(self.epsilons), self.deltas, right=float(self.deltas[-1])
            )
        )
