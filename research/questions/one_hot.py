"""One-hot: count, shares, histogram, cross-table.

A record is in one cell, so its vector has norm 1 whatever the number of cells. What
isn't asked about, other levels, missing values and records outside a condition, is a
cell too: it costs nothing, and all cells together have the public number of records,
which takes a part of the noise off each.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from research.questions.block import Floats, Integers
from research.questions.interval import Interval, around


@dataclass(frozen=True, kw_only=True)
class OneHot:
    """Counts of cells.

    Attributes:
        cells: How many, with those that aren't asked about.
    """

    cells: int
    norm: float = 1.0
    rounded: int = 0

    @property
    def dimension(self) -> int:
        """A sum for each cell."""
        return self.cells

    def total(self, codes: Integers, unit: int) -> Integers:
        """Return the integer sum over records, ``[cells]``; ``codes`` is each one's."""
        counts: Integers = np.bincount(codes, minlength=self.cells).astype(np.int64)
        return counts * unit

    def counts(self, sums: Floats, *, noise: float, records: int, z: float) -> Interval:
        """Return each cell's count, ``[draws, cells]``.

        A count is a whole number: the ends are moved inward to whole numbers, which
        takes nothing off the coverage.

        Args:
            sums: Released, ``[draws, cells]`` in records.
            noise: Standard deviation of each.
            records: How many records there are, which is public.
            z: How many deviations.
        """
        excess = sums.sum(1, keepdims=True) - records
        adjusted = sums - excess / self.cells
        deviation = noise * math.sqrt(1 - 1 / self.cells)
        found = around(adjusted, deviation, z=z, most=records)
        low, high = np.ceil(found.low - 1e-9), np.floor(found.high + 1e-9)
        # A narrow interval may hold no whole number: then the nearest.
        empty = low > high
        nearest = np.rint(found.estimate)
        return Interval(
            estimate=found.estimate,
            low=np.where(empty, nearest, low),
            high=np.where(empty, nearest, high),
        )

    def population_shares(
        self, sums: Floats, *, noise: float, records: int, z: float
    ) -> Interval:
        """Return each cell's chance in the records' population, ``[draws, cells]``.

        Its test adds sampling, n·p·(1 − p) at the tried p, to the noise: a quadratic
        inequality in p, Wilson's interval where there is no noise.
        """
        excess = sums.sum(1, keepdims=True) - records
        share = (sums - excess / self.cells) / records
        variance = (noise / records) ** 2 * (1 - 1 / self.cells)
        # (s − p)² ≤ z²·(variance + p·(1 − p)/n)
        sampling = z**2 / records
        middle = (share + sampling / 2) / (1 + sampling)
        rest = (share**2 - z**2 * variance) / (1 + sampling)
        root = np.sqrt(np.maximum(middle**2 - rest, 0))
        return Interval(
            estimate=np.clip(share, 0, 1),
            low=np.clip(middle - root, 0, 1),
            high=np.clip(middle + root, 0, 1),
        )

    def shares(self, sums: Floats, *, noise: float, records: int, z: float) -> Interval:
        """Return each cell's share of all records, ``[draws, cells]``."""
        found = self.counts(sums, noise=noise, records=records, z=z)
        return Interval(
            estimate=found.estimate / records,
            low=found.low / records,
            high=found.high / records,
        )


def codes_by_group(
    codes: Integers, groups: Integers, *, cells: int, number: int
) -> Integers:
    """Return cells of a query by groups: a group's cells stand side by side.

    A record is in one group, so it costs no norm. With one group it is a condition.

    Args:
        codes: Each record's cell, ``[n]``, from 0 to below ``cells``.
        groups: Its group, ``[n]``, from 0; below 0 it is outside, the cell after all.
        cells: Of one group.
        number: How many groups there are.
    """
    found: Integers = np.where(groups < 0, cells * number, groups * cells + codes)
    return found


def codes_of_levels(values: npt.NDArray[np.object_], levels: list[str]) -> Integers:
    """Return cells of texts: one a listed level, then other, then missing.

    Missing are None, NaN and text without a letter or digit; blanks around a level and
    its case don't count.
    """
    places = {level.strip().casefold(): place for place, level in enumerate(levels)}
    other, missing = len(levels), len(levels) + 1

    def code(value: object) -> int:
        if value is None or value != value:  # noqa: PLR0124 -- NaN alone isn't itself
            return missing
        text = str(value).strip().casefold()
        if not any(letter.isalnum() for letter in text):
            return missing
        return places.get(text, other)

    return np.array([code(value) for value in values], dtype=np.int64)
