"""Mean, standard deviation and missing values, all three for a norm of 1.

A record's vector is (x, 1 − x², 0) for its value x in [−1, 1], or (0, 0, 1) where it is
missing. x² + (1 − x²)² = 1 − x²·(1 − x²) is at most 1.
"""

from dataclasses import dataclass

import numpy as np

from research.questions.block import Floats, Integers
from research.questions.interval import Interval, around
from research.questions.ratio import Spread, fieller


@dataclass(frozen=True, kw_only=True)
class Moments:
    """A numeric column within stated bounds.

    Attributes:
        low: What is below is clipped to it.
        high: What is above is clipped to it.
        complete: Nothing is missing, by the table's own definition: the number of
            values is public then. A NaN counts as the centre's value there.
    """

    low: float
    high: float
    complete: bool = False
    norm: float = 1.0
    rounded: int = 2
    dimension: int = 3

    @property
    def centre(self) -> float:
        """The value of x = 0."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        """What a unit of x is in the column's own scale."""
        return (self.high - self.low) / 2

    def vectors(self, values: Floats) -> Floats:
        """Return records' vectors, ``[n, 3] float64``; NaN is missing."""
        missing = np.isnan(values)
        if self.complete:
            values, missing = np.where(missing, self.centre, values), missing & False
        clipped = np.clip(np.where(missing, self.centre, values), self.low, self.high)
        x = (clipped - self.centre) / self.half
        return np.column_stack([x, np.where(missing, 0.0, 1 - x**2), missing])

    def total(self, values: Floats, unit: int) -> Integers:
        """Return the integer sum over records, ``[3] int64``."""
        rounded = np.rint(self.vectors(values) * unit).astype(np.int64)
        total: Integers = rounded.sum(0)
        return total

    def _there(self, sums: Floats, records: int) -> Floats:
        """Return how many values are there, ``[draws]``."""
        missing = np.zeros(sums.shape[0]) if self.complete else sums[:, 2]
        there: Floats = records - missing
        return there

    def _bottom(self, noise: float) -> float:
        """Return the variance of how many values are there."""
        return 0.0 if self.complete else noise**2

    def mean(
        self,
        sums: Floats,
        *,
        noise: float,
        records: int,
        z: float,
        population: bool = False,
    ) -> Interval:
        """Return the mean of values that are there, ``[draws]``, by Fieller.

        Args:
            sums: Released, ``[draws, 3]``.
            noise: Standard deviation of each.
            records: How many records there are, which is public.
            z: How many deviations.
            population: Of the records' population, so with sampling: the sums' own
                covariance over records, at the released sums. (The deviation has no
                such interval: it would need fourth powers.)
        """
        there = self._there(sums, records)
        spread = Spread(top=noise**2, bottom=self._bottom(noise))
        if population:
            some = np.clip(there, 0, records)
            squares = np.clip(there - sums[:, 1], 0, some)
            sampled = Spread(
                top=np.maximum(squares - sums[:, 0] ** 2 / records, 0),
                bottom=some - some**2 / records,
                both=sums[:, 0] * (1 - some / records),
            )
            spread = spread.plus(sampled)
        x = fieller(sums[:, 0], there, spread, z=z, within=(-1.0, 1.0))
        return Interval(
            estimate=self.centre + self.half * x.estimate,
            low=self.centre + self.half * x.low,
            high=self.centre + self.half * x.high,
        )

    def deviation(
        self, sums: Floats, *, noise: float, records: int, z: float
    ) -> Interval:
        """Return the standard deviation of values that are there, ``[draws]``.

        The variance v is the ratio of N − W − S²/N to N, with S, W the first two sums
        and N the values that are there. Their covariance is the delta method's: Fieller
        takes the noise of N, the large part, as it is.
        """
        there = np.maximum(self._there(sums, records), 1.0)
        bottom = self._bottom(noise)
        mean = np.clip(sums[:, 0] / there, -1, 1)
        square = mean**2
        # The noise of S adds its own square, and that of N a part of it.
        bias = (noise**2 + square * bottom) / there
        top = there - sums[:, 1] - (sums[:, 0] * mean - bias)
        slope = 1 + square
        spread = Spread(
            top=bottom * slope**2 + noise**2 * (1 + 4 * square),
            bottom=bottom,
            both=bottom * slope,
        )
        v = fieller(top, there, spread, z=z, within=(0.0, 1.0))
        return Interval(
            estimate=self.half * np.sqrt(v.estimate),
            low=self.half * np.sqrt(v.low),
            high=self.half * np.sqrt(v.high),
        )

    def missing(
        self, sums: Floats, *, noise: float, records: int, z: float
    ) -> Interval:
        """Return the share of records without a value, ``[draws]``."""
        return around(sums[:, 2] / records, noise / records, z=z, most=1.0)
