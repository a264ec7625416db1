"""How well a model does: class × score bin as one one-hot vector.

A record is in one cell, of its class and its score's bin, so accuracy, confusion, ROC,
AUC, log loss and calibration together take a norm of 1. What isn't there, a class or a
score, is the last cell. All answers are of the *binned* scores: equal bins on [0, 1],
whose middle stands for all of them. Two scores in one bin are a tie, which AUC counts
as half, so that few bins make it a little too small; many bins have more noise.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from research.questions.block import Floats, Integers
from research.questions.interval import Interval, around
from research.questions.one_hot import OneHot
from research.questions.ratio import Spread, fieller


def bins_for(records: int, noise: float) -> int:
    """Return how many score bins make AUC's error least, by noise and by ties.

    Args:
        records: How many there are.
        noise: Standard deviation of a cell's count.
    """
    return max(4, round(6 * math.pow(records / noise / 114, 0.3)))


@dataclass(frozen=True, kw_only=True)
class Scores:
    """A model's scores of two classes.

    Attributes:
        bins: Of the scores.
    """

    bins: int

    @property
    def block(self) -> OneHot:
        """Cells: class 0 by bins, class 1 by bins, not there."""
        return OneHot(cells=2 * self.bins + 1)

    @property
    def middles(self) -> Floats:
        """What stands for a bin's scores, ``[bins]``."""
        middles: Floats = (np.arange(self.bins) + 0.5) / self.bins
        return middles

    def codes(self, scores: Floats, classes: Floats) -> Integers:
        """Return each record's cell, ``[n] int64``; NaN in either isn't there."""
        missing = np.isnan(scores) | np.isnan(classes)
        held = np.clip(np.where(missing, 0.0, scores), 0, 1)
        bins = np.minimum((held * self.bins).astype(np.int64), self.bins - 1)
        cells = bins + self.bins * (np.where(missing, 0.0, classes) > 0)
        return np.where(missing, 2 * self.bins, cells).astype(np.int64)

    def pooled(self, codes: Integers) -> Floats:
        """Return the cells' true counts as sums of one release, ``[1, cells]``."""
        counts = np.bincount(codes, minlength=2 * self.bins + 1)
        return counts[None, :].astype(np.float64)

    def answers(
        self, sums: Floats, *, noise: float, records: int, population: bool = False
    ) -> "Answers":
        """Return what the released sums answer.

        Args:
            sums: ``[draws, cells]``, in records.
            noise: Standard deviation of each.
            records: How many records there are, which is public.
            population: Intervals are of the records' population.
        """
        return Answers(
            scores=self,
            sums=sums,
            noise=noise,
            records=records,
            population=population,
        )


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What one release, or each of many, says of a model."""

    scores: Scores
    sums: Floats
    noise: float
    records: int
    population: bool = False
    """Intervals are of the records' population: sampling is added to the noise."""

    @property
    def cells(self) -> Floats:
        """Counts whose total is the number of records, ``[draws, cells]``."""
        excess = self.sums.sum(1, keepdims=True) - self.records
        cells: Floats = self.sums - excess / self.sums.shape[1]
        return cells

    @cached_property
    def counts(self) -> Floats:
        """Cells that are counts, none below 0, ``[draws, cells]``."""
        return counts_of(self.cells, self.records)

    def _spread(self, top: Floats, bottom: Floats) -> Spread:
        """Return the covariance of two sums of cells with these weights, by cell."""
        cells = self.sums.shape[1]
        counts = self.counts

        def both(one: Floats, other: Floats) -> Floats:
            # The known total takes the mean's noise off.
            common = one.sum(-1) * other.sum(-1) / cells
            found = self.noise**2 * ((one * other).sum(-1) - common)
            if self.population:
                # The cells' own covariance: multinomial, at counts of at least 0.
                joint = (one * other * counts).sum(-1)
                product = (one * counts).sum(-1) * (other * counts).sum(-1)
                found = found + joint - product / self.records
            return np.asarray(found)

        return Spread(
            top=both(top, top), bottom=both(bottom, bottom), both=both(top, bottom)
        )

    def share(
        self, top: Floats, bottom: Floats, *, z: float, most: float = 1.0
    ) -> Interval:
        """Return a weighted sum of cells over another, ``[draws]``.

        Args:
            top: Weights of the numerator, ``[cells]``.
            bottom: Those of the denominator, ``[cells]``.
            z: How many deviations.
            most: The ratio's largest value.
        """
        cells = self.cells
        spread = self._spread(top, bottom)
        return fieller(cells @ top, cells @ bottom, spread, z=z, within=(0.0, most))

    @property
    def _there(self) -> Floats:
        there = np.ones(self.sums.shape[1])
        there[-1] = 0
        return there

    def _from(self, cut: int) -> Floats:
        """Return 1 for bins from the cut on, else 0, ``[bins]``."""
        return np.where(np.arange(self.scores.bins) >= cut, 1.0, 0.0)

    def _by_class(self, negative: Floats, positive: Floats) -> Floats:
        return np.concatenate([negative, positive, [0.0]])

    def accuracy(self, cut: int, *, z: float) -> Interval:
        """Return the share of right classes where bins from ``cut`` on are class 1."""
        above = self._from(cut)
        return self.share(self._by_class(1 - above, above), self._there, z=z)

    def confusion(self, cut: int, *, z: float) -> Interval:
        """Return true and false negatives, false and true positives: ``[draws, 4]``.

        They are counts of the pooled records, whatever the other answers are of.
        """
        above = self._from(cut)
        none = np.zeros(self.scores.bins)
        weights = np.stack(
            [
                self._by_class(1 - above, none),
                self._by_class(none, 1 - above),
                self._by_class(above, none),
                self._by_class(none, above),
            ],
            1,
        )
        inside = weights.sum(0)
        variance = self.noise**2 * (inside - inside**2 / self.sums.shape[1])
        deviation = np.sqrt(variance)
        return around(self.cells @ weights, deviation, z=z, most=self.records)

    def log_loss(self, *, z: float) -> Interval:
        """Return the mean of −log of the class's score, at bins' middles, ``[draws]``."""
        middle = self.scores.middles
        loss = self._by_class(-np.log(1 - middle), -np.log(middle))
        return self.share(loss, self._there, z=z, most=float(loss.max()))

    def roc(self, cut: int, *, z: float) -> tuple[Interval, Interval]:
        """Return rates of false and of true positives for a cut, ``[draws]`` both."""
        above = self._from(cut)
        none, every = np.zeros(self.scores.bins), np.ones(self.scores.bins)
        false = self.share(
            self._by_class(above, none), self._by_class(every, none), z=z
        )
        true = self.share(self._by_class(none, above), self._by_class(none, every), z=z)
        return false, true

    def calibration(self, first: int, last: int, *, z: float) -> Interval:
        """Return the share of class 1 among scores of bins first to last, ``[draws]``."""
        place = np.arange(self.scores.bins)
        inside = np.where((first <= place) & (place <= last), 1.0, 0.0)
        none = np.zeros(self.scores.bins)
        return self.share(
            self._by_class(none, inside), self._by_class(inside, inside), z=z
        )

    def auc(self, *, z: float) -> Interval:
        """Return the area under the ROC curve, ``[draws]``.

        AUC is U/(n₀·n₁) with U the number of pairs in the right order, ties as half.
        Its test is Fieller's, of the two products' noise to first order at the released
        cells. The estimate is that of cells which are counts: none below 0.
        """
        bins = self.scores.bins
        cells = self.cells
        right, pairs = _pairs(cells, bins)
        negative, positive = cells[:, :bins], cells[:, bins : 2 * bins]
        nothing = np.zeros((cells.shape[0], 1))
        ties_below = np.cumsum(negative, 1) - negative / 2
        ties_above = positive.sum(1, keepdims=True) - (
            np.cumsum(positive, 1) - positive / 2
        )
        by_right = np.concatenate([ties_above, ties_below, nothing], 1)
        totals = (positive.sum(1, keepdims=True), negative.sum(1, keepdims=True))
        by_pairs = np.concatenate(
            [np.repeat(total, bins, 1) for total in totals] + [nothing], 1
        )
        spread = self._spread(by_right, by_pairs)
        found = fieller(right, pairs, spread, z=z, within=(0.0, 1.0))
        counted = _pairs(self.counts, bins)
        estimate = counted[0] / np.maximum(counted[1], 1e-9)
        return Interval(
            estimate=np.clip(estimate, found.low, found.high),
            low=found.low,
            high=found.high,
        )


def _pairs(cells: Floats, bins: int) -> tuple[Floats, Floats]:
    """Return the pairs of both classes in the right order, and all; ``[draws]``."""
    negative, positive = cells[:, :bins], cells[:, bins : 2 * bins]
    below = np.cumsum(negative, 1) - negative / 2
    return (positive * below).sum(1), negative.sum(1) * positive.sum(1)


def counts_of(cells: Floats, records: int) -> Floats:
    """Return the nearest cells that are at least 0 and have this total, by draws.

    The projection to the simplex: a constant is taken off, and what is below 0 is 0.
    """
    sorted_cells = -np.sort(-cells, axis=1)
    place = np.arange(1, cells.shape[1] + 1)
    excess = (np.cumsum(sorted_cells, 1) - records) / place
    kept = (sorted_cells > excess).sum(1)
    taken = excess[np.arange(kept.size), kept - 1]
    counts: Floats = np.maximum(cells - taken[:, None], 0)
    return counts
