"""What bad owners can move: an owner of b records, by at most b·R in L2 norm.

The servers check that an owner's sum is within its own bound, b times a record's norm,
and nothing of how that is made up: one block may get all of it. So against the answer
without these owners each released sum moves by b·Δ_j/a_j at most: √J of their records
where J blocks of norm 1 share equally. The total of several cells, which can all move
together, moves by the root of their number times that.

A ratio moves with its two sums at once, so its bounds are those of their box: sound,
and a little wide, since one norm has to pay for both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from research.questions.block import Floats
from research.questions.release import Release


@dataclass(frozen=True, kw_only=True)
class BadRecords:
    """Records whose owners are malicious, and how far they reach in one block.

    Attributes:
        records: b: all of theirs.
        reach: How far one of them can move a released sum, in the block's scale.
    """

    records: int
    reach: float

    @classmethod
    def of(cls, release: Release, block: int, records: int) -> "BadRecords":
        """Return so many records' in a block, by its place in the release.

        The reach is 2^f/u_j, with what rounding takes of the unit: Δ_j/a_j, nearly.
        """
        reach = 2**release.bits / int(release.units[block])
        return cls(records=records, reach=reach)

    @property
    def sum(self) -> float:
        """How far each released sum can move, or a unit combination of them."""
        return self.records * self.reach

    def total(self, cells: int) -> float:
        """How far the total of so many cells can move."""
        return math.sqrt(cells) * self.sum

    def ratio(
        self, top: float, bottom: float, *, within: tuple[float, float]
    ) -> tuple[float, float]:
        """Return the least and the most that a ratio of two sums can be made.

        Args:
            top: The good records' numerator.
            bottom: Their denominator, which isn't negative.
            within: What the printed ratio is held to.
        """
        least, most = within
        if bottom <= self.sum:
            return within
        ends = [
            (top + up * self.sum) / (bottom + down * self.sum)
            for up in (-1, 1)
            for down in (-1, 1)
        ]
        return max(least, min(ends)), min(most, max(ends))

    def auc(self, cells: Floats) -> tuple[float, float]:
        """Return the least and the most that AUC can be made, over the cells' box.

        AUC is a mean over positives of a number that rises with their bin, and over
        negatives of one that falls. So an extreme has each class's cells at their
        most on one side of a cut and at their least on the other: all pairs of cuts
        are tried.

        Args:
            cells: The good records' counts, class 0 by bins, class 1 by bins.
        """
        bins = cells.size // 2
        most, least = cells + self.sum, np.maximum(cells - self.sum, 0.0)
        cuts = range(bins + 1)
        places = np.arange(bins)

        def extreme(*, negatives_right: bool) -> list[float]:
            found = []
            for cut in cuts:
                rises = (places >= cut) == negatives_right
                negatives = np.where(rises, most[:bins], least[:bins])
                for other in cuts:
                    rises = (places >= other) != negatives_right
                    positives = np.where(rises, most[bins:], least[bins:])
                    found.append(_auc(negatives, positives))
            return found

        return (
            min(extreme(negatives_right=True)),
            max(extreme(negatives_right=False)),
        )


def largest_owners(sizes: Sequence[int], owners: int) -> int:
    """Return the records of the largest so many owners: the worst case of K bad ones."""
    return sum(sorted(sizes, reverse=True)[:owners])


def _auc(negatives: Floats, positives: Floats) -> float:
    """Return AUC of binned scores; 1/2 where a class is empty."""
    pairs = negatives.sum() * positives.sum()
    below = np.cumsum(negatives) - negatives / 2
    return float((positives * below).sum() / pairs) if pairs > 0 else 0.5
