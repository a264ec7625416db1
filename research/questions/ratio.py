"""A ratio of two noisy sums: Fieller's interval.

The ratio r of A to B passes its test where (a − r·b)² ≤ z²·Var(a − r·b): a quadratic
inequality in r. It needs no approximation where a and b are Gaussian. Where b isn't
told apart from 0, every r may pass: the interval is then the whole range.
"""

from dataclasses import dataclass

import numpy as np

from research.questions.block import Floats
from research.questions.interval import Interval


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Covariance of numerator a and denominator b; each a number or ``[draws, …]``."""

    top: Floats | float
    """Var(a)."""
    bottom: Floats | float
    """Var(b)."""
    both: Floats | float = 0.0
    """Cov(a, b)."""

    def plus(self, other: "Spread") -> "Spread":
        """Return that of the sum of independent pairs."""
        return Spread(
            top=self.top + other.top,
            bottom=self.bottom + other.bottom,
            both=self.both + other.both,
        )


def fieller(
    top: Floats,
    bottom: Floats,
    spread: Spread,
    *,
    z: float,
    within: tuple[float, float],
) -> Interval:
    """Return the ratio's interval, held to the range that it has anyway.

    Args:
        top: a, ``[draws, …]``.
        bottom: b, of a true value that isn't negative.
        spread: Their covariance.
        z: How many deviations.
        within: The ratio's least and largest value.
    """
    least, most = within
    square = bottom**2 - z**2 * spread.bottom
    middle = top * bottom - z**2 * spread.both
    rest = top**2 - z**2 * spread.top
    inside = middle**2 - square * rest
    bounded = (square > 0) & (bottom > 0) & (inside >= 0)
    root = np.sqrt(np.where(bounded, inside, 0.0))
    divisor = np.where(bounded, square, 1.0)
    low = np.where(bounded, (middle - root) / divisor, least)
    high = np.where(bounded, (middle + root) / divisor, most)
    safe = np.where(bottom > 0, bottom, 1.0)
    estimate = np.where(bottom > 0, top / safe, (least + most) / 2)
    return Interval(
        estimate=np.clip(estimate, least, most),
        low=np.clip(low, least, most),
        high=np.clip(high, least, most),
    )
