"""R² and the mean squared error of a regression, for a norm of √1.25.

A record's vector is (y, 1 − y², e² − ½, 0): its value scaled to [−1, 1] and its squared
residual over a stated bound's, which is in [0, 1]; (0, 0, 0, 1) where one is missing.
The half is the public number of records' own: it takes three quarters of what e² would
add to the squared norm.
"""

import math
from dataclasses import dataclass

import numpy as np

from research.questions.block import Floats, Integers
from research.questions.interval import Interval
from research.questions.ratio import Spread, fieller


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A model's predictions of a number within stated bounds.

    Attributes:
        low: What is below is clipped to it.
        high: What is above is clipped to it.
        residual: Residuals are clipped to it, either way: less noise, more bias.
    """

    low: float
    high: float
    residual: float
    dimension: int = 4
    norm: float = math.sqrt(1.25)
    rounded: int = 3

    @property
    def half(self) -> float:
        """What a unit of y is in the value's own scale."""
        return (self.high - self.low) / 2

    def vectors(self, values: Floats, predictions: Floats) -> Floats:
        """Return records' vectors, ``[n, 4] float64``; NaN in either is missing."""
        missing = np.isnan(values) | np.isnan(predictions)
        centre = (self.low + self.high) / 2
        clipped = np.clip(np.where(missing, centre, values), self.low, self.high)
        y = (clipped - centre) / self.half
        residuals = np.where(missing, 0.0, values - predictions) / self.residual
        squares = np.clip(residuals, -1, 1) ** 2
        there = 1.0 - missing
        return np.column_stack(
            [y * there, (1 - y**2) * there, (squares - 0.5) * there, missing]
        )

    def total(self, values: Floats, predictions: Floats, unit: int) -> Integers:
        """Return the integer sum over records, ``[4] int64``."""
        vectors = self.vectors(values, predictions) * unit
        rounded = np.rint(vectors).astype(np.int64)
        total: Integers = rounded.sum(0)
        return total

    def mean_squared_error(
        self, sums: Floats, *, noise: float, records: int, z: float
    ) -> Interval:
        """Return it, ``[draws]``, in the value's own scale squared.

        Args:
            sums: Released, ``[draws, 4]``.
            noise: Standard deviation of each.
            records: How many records there are, which is public.
            z: How many deviations.
        """
        there = records - sums[:, 3]
        spread = Spread(top=1.25 * noise**2, bottom=noise**2, both=0.5 * noise**2)
        top = sums[:, 2] + there / 2
        found = fieller(top, there, spread, z=z, within=(0.0, 1.0))
        scale = self.residual**2
        return Interval(
            estimate=scale * found.estimate,
            low=scale * found.low,
            high=scale * found.high,
        )

    def r_squared(
        self, sums: Floats, *, noise: float, records: int, z: float
    ) -> Interval:
        """Return 1 − residual over total sum of squares, ``[draws]``, from −1 on.

        The total's noise is the delta method's; the ratio's test is Fieller's.
        """
        there = np.maximum(records - sums[:, 3], 1.0)
        mean = np.clip(sums[:, 0] / there, -1, 1)
        slope = 1 + mean**2
        bias = noise**2 * slope / there
        total = there - sums[:, 1] - (sums[:, 0] * mean - bias)
        left = sums[:, 2] + there / 2
        spread = Spread(
            top=1.25 * noise**2,
            bottom=noise**2 * (slope**2 + 1 + 4 * mean**2),
            both=0.5 * noise**2 * slope,
        )
        scale = (self.residual / self.half) ** 2
        most = 2 / scale
        found = fieller(left, total, spread, z=z, within=(0.0, most))
        return Interval(
            estimate=1 - scale * found.estimate,
            low=1 - scale * found.high,
            high=1 - scale * found.low,
        )
