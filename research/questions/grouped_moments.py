"""Mean, standard deviation and missing values by group, for a norm of √(1 + γ²).

A group's number of values isn't public, and (x, 1 − x²) alone doesn't tell it: so a
mean by groups isn't free, as counts, quantiles and survival by groups are. A record's
vector in its group's place is (x, 1 − x², γ), or its group's missing coordinate. The
mean's squared error is in proportion to (1 + γ²)·(1 + μ²/γ²), which γ² = |μ| makes
least: a half is near that unless means are near the bounds.

(A condition is free: with one group, what is outside counts as missing.)
"""

import math
from dataclasses import dataclass

import numpy as np

from research.questions.block import Floats, Integers
from research.questions.interval import Interval
from research.questions.moments import Moments
from research.questions.ratio import Spread, fieller

COUNTED = 0.5
"""γ."""
_PLACES = 4
"""Coordinates of a group: x, 1 − x², γ, missing."""


@dataclass(frozen=True, kw_only=True)
class GroupedMoments:
    """A numeric column's moments in each group.

    Attributes:
        column: Its bounds.
        groups: How many; a record outside all is zero.
    """

    column: Moments
    groups: int

    @property
    def dimension(self) -> int:
        """Four sums a group."""
        return _PLACES * self.groups

    @property
    def norm(self) -> float:
        """Of a record of any value."""
        return math.hypot(1.0, COUNTED)

    @property
    def rounded(self) -> int:
        """Of one group."""
        return _PLACES - 1

    def total(self, values: Floats, groups: Integers, unit: int) -> Integers:
        """Return the integer sum over records, ``[dimension] int64``.

        Args:
            values: ``[n]``; NaN is missing.
            groups: ``[n]``, from 0; what isn't a group's number is outside.
            unit: u.
        """
        plain = self.column.vectors(values)
        there = 1 - plain[:, 2]
        own = np.column_stack([plain[:, :2], COUNTED * there, plain[:, 2]])
        rounded = np.rint(own * unit).astype(np.int64)
        total = np.stack(
            [rounded[groups == group].sum(0) for group in range(self.groups)]
        )
        return total.ravel()

    def means(self, sums: Floats, *, noise: float, z: float) -> Interval:
        """Return each group's mean, ``[draws, groups]``, by Fieller.

        Args:
            sums: Released, ``[draws, dimension]``.
            noise: Standard deviation of each.
            z: How many deviations.
        """
        by_group = sums.reshape(sums.shape[0], self.groups, _PLACES)
        spread = Spread(top=noise**2, bottom=(noise / COUNTED) ** 2)
        x = fieller(
            by_group[:, :, 0],
            by_group[:, :, 2] / COUNTED,
            spread,
            z=z,
            within=(-1.0, 1.0),
        )
        centre, half = self.column.centre, self.column.half
        return Interval(
            estimate=centre + half * x.estimate,
            low=centre + half * x.low,
            high=centre + half * x.high,
        )
