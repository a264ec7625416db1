"""Confidence intervals for votes and scores, paid from one explicit budget."""

from enum import Enum

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from precad.certify import probabilities
from precad.common import (
    AnyNumbers,
    Floats,
    Integers,
    Misconfiguration,
    frozen_dataclass,
    frozen_kw_only_dataclass,
    inside_unit_interval,
)
from precad.common.checks import count

_LEAST_CLASSES = 2
_MATRIX = 2
"""Axes of votes and labels."""
_STACK = 3
"""Axes of scores."""
# More than the following is beyond what anybody certifies: one wrong label in a file
# mustn't fill the memory.
_MOST_CLASSES = 100_000
"""Classes at most."""
_MOST_VOTES = 2**31
"""Models that vote, at most."""
_MOST_COUNTS = 2**27
"""Counts of votes at most: points times classes."""


@frozen_kw_only_dataclass
class ConfidenceBudget:
    """How the chance of a wrong statement, 1 − confidence, is split.

    Raises Misconfiguration: a field is out of its range.
    """

    confidence: float
    """Of each point's statement; of all points together where ``points`` counts them.
    """
    classes: int
    """L; each class gets one one-sided interval (SimuEM's α/L)."""
    points: int = 1
    """How many share the budget; 1 gives each point its own, as the papers do."""
    strict: bool = False
    """Halve each interval's share. The label is chosen from the same votes, so a plain
    union has 2L one-sided events, not L; strict pays for all of them."""

    def __post_init__(self) -> None:
        inside_unit_interval("confidence", self.confidence)
        count("classes", self.classes, least=_LEAST_CLASSES)
        count("points", self.points, least=1)

    @property
    def per_interval(self) -> float:
        """Return the chance of error that one one-sided interval may spend."""
        sides = 2 if self.strict else 1
        return (1 - self.confidence) / (self.classes * self.points * sides)

    def require_classes(self, columns: int) -> None:
        """Check that votes or scores have as many columns as there are classes.

        Raises Misconfiguration: they haven't.
        """
        if columns != self.classes:
            raise Misconfiguration(
                "classes", self.classes, f"the data have {columns} columns"
            )


@frozen_dataclass
class Intervals:
    """Bounds on the scores of the predicted label and of all others, [points] each."""

    labels: Integers
    """The predicted labels: with the most votes or the highest mean score."""
    p_a: Floats
    """The predicted label's score from below."""
    p_b: Floats
    """Every other label's score from above."""


class ScoreBound(Enum):
    """Which inequality turns mean scores into bounds."""

    HOEFFDING = "hoeffding"
    """Hoeffding's, which needs the number of scores alone."""
    BERNSTEIN = "bernstein"
    """The empirical Bernstein inequality, which uses the scores' variance too."""


def clopper_pearson_lower(
    successes: npt.ArrayLike, trials: npt.ArrayLike, error: float
) -> Floats:
    """Return a one-sided lower bound on a binomial's rate; 0 without successes.

    Clopper and Pearson 1934: the ``error`` quantile of Beta(s, n − s + 1).

    Args:
        successes: s, at most n.
        trials: n, which broadcasts against s.
        error: The chance with which the bound may be wrong.
    """
    s = np.asarray(successes, np.float64)
    n = np.asarray(trials, np.float64)
    return np.where(s > 0, betaincinv(np.maximum(s, 1), n - s + 1, error), 0.0)


def clopper_pearson_upper(
    successes: npt.ArrayLike, trials: npt.ArrayLike, error: float
) -> Floats:
    """Return a one-sided upper bound on a binomial's rate; 1 without failures.

    The bound is wrong with a chance of at most ``error``. Arguments broadcast.
    """
    # The lower bound of the failures: accurate where 1 − error would round.
    return 1 - clopper_pearson_lower(np.subtract(trials, successes), trials, error)


def vote_counts(counts: npt.ArrayLike) -> Integers:
    """Return counts of votes as int64, after all checks.

    Raises Misconfiguration: another shape, something else than whole numbers of at
    least 0, or a point with another number of votes than the first one.

    Args:
        counts: [points, classes].

    Returns:
        [points, classes] int64.
    """
    array = np.asarray(counts)
    if array.ndim != _MATRIX or array.shape[1] < _LEAST_CLASSES or not len(array):
        raise Misconfiguration(
            "votes",
            f"shape {array.shape}",
            "give [points, classes], 2 classes at least",
        )
    if not _whole(array):
        raise Misconfiguration(
            "votes", str(array.dtype), "votes are whole numbers; scores go in as scores"
        )
    if array.min() < 0 or array.max() > _MOST_VOTES:
        raise Misconfiguration(
            "votes",
            f"{array.min()} to {array.max()}",
            f"counts lie in [0, {_MOST_VOTES}]",
        )
    array = array.astype(np.int64)
    sums = array.sum(axis=1)
    expected = int(sums[0])
    wrong = np.flatnonzero(sums != expected)
    if len(wrong) or expected < 1:
        row = int(wrong[0]) if len(wrong) else 0
        raise Misconfiguration(
            "votes",
            f"row {row} sums to {int(sums[row])}",
            f"every point needs one vote of each of the {expected} models; give"
            " counts as [points, classes], or labels as [points, models] and say so",
        )
    return array


def _whole(array: AnyNumbers) -> bool:
    """Return whether all of an array are whole numbers, of an integer type or not."""
    if array.dtype.kind == "f":
        return bool(np.isfinite(array).all() and (np.mod(array, 1) == 0).all())
    return array.dtype.kind in "iu"


def votes_of(labels: npt.ArrayLike, classes: int | None = None) -> Integers:
    """Count the votes of each class at each point.

    Raises Misconfiguration: another shape, a label that isn't a class, or too many
    classes.

    Args:
        labels: [points, models], what each model predicts.
        classes: How many there are; as many as the highest label needs if not given.

    Returns:
        [points, classes] int64.
    """
    array = np.asarray(labels)
    if array.ndim != _MATRIX or 0 in array.shape:
        raise Misconfiguration(
            "labels", f"shape {array.shape}", "give [points, models]"
        )
    if not _whole(array):
        raise Misconfiguration(
            "labels", str(array.dtype), "labels are class indices 0, 1, …"
        )
    array = array.astype(np.int64)
    least = array.min()
    points = len(array)
    highest = int(array.max())
    total = max(highest + 1, 2)
    if classes is not None:
        total = count("classes", classes, least=2)
    if total > _MOST_CLASSES or total * points > _MOST_COUNTS:
        most = f"at most {_MOST_CLASSES} classes, and {_MOST_COUNTS} counts in all"
        raise Misconfiguration(
            "labels",
            highest if classes is None else classes,
            f"{points} points with {total} classes don't fit: {most}",
        )
    if least < 0 or highest >= total:
        wrong = int(least) if least < 0 else highest
        raise Misconfiguration("labels", wrong, f"give 0 to {total - 1}")
    # Each point has a range of numbers of its own, one number a class.
    numbers = (np.arange(points)[:, None] * total + array).ravel()
    return np.bincount(numbers, minlength=points * total).reshape(points, total)


def simuem(counts: npt.ArrayLike, budget: ConfidenceBudget) -> Intervals:
    """Return SimuEM's bounds: Clopper–Pearson at α/L each, p_B at most 1 − p_A.

    Jia, Cao and Gong 2021. Raises Misconfiguration: bad counts (`vote_counts`), or
    another number of classes than budgeted.

    Args:
        counts: [points, classes], votes of independent models.
        budget: The chance of a wrong statement.
    """
    array = vote_counts(counts)
    budget.require_classes(array.shape[1])
    votes = int(array[0].sum())
    # Of classes with as many votes the one of the lowest index comes first.
    first, second = np.argsort(-array, axis=1, kind="stable").T[:2]
    rows = np.arange(len(array))
    p_a = clopper_pearson_lower(array[rows, first], votes, budget.per_interval)
    # The second-most-voted class has the largest upper bound of all others.
    next_best = clopper_pearson_upper(array[rows, second], votes, budget.per_interval)
    # The minimum is no other bound but for rounding: s₂ ≤ n − s₁, and at one error
    # level the upper bound of n − s₁ is 1 − p_A. Nothing can tell them apart.
    return Intervals(labels=first, p_a=p_a, p_b=np.minimum(next_best, 1 - p_a))


def hoeffding_half_width(samples: int, error: float) -> float:
    """Return sqrt(ln(1/error)/(2n)), one-sided, for means of n values in [0, 1].

    Hoeffding 1963. Raises Misconfiguration: ``samples`` or ``error`` is out of its
    range.
    """
    inside_unit_interval("error", error)
    return float(np.sqrt(-np.log(error) / (2 * count("samples", samples, least=1))))


def bernstein_half_width(variance: npt.ArrayLike, samples: int, error: float) -> Floats:
    """Return sqrt(2V ln(2/e)/n) + 7 ln(2/e)/(3(n−1)), one-sided, for means in [0, 1].

    Maurer and Pontil 2009, Thm 4. Raises Misconfiguration: ``samples`` or ``error`` is
    out of its range.

    Args:
        variance: V, of any shape, with the divisor n − 1.
        samples: n, at least 2.
        error: e, the chance with which the bound may be wrong.
    """
    inside_unit_interval("error", error)
    n = count("samples", samples, least=2)
    log_term = np.log(2 / error)
    v = np.asarray(variance, np.float64)
    return np.asarray(np.sqrt(2 * v * log_term / n) + 7 * log_term / (3 * (n - 1)))


def mean_half_width(
    scores: Floats,
    error: float,
    bound: ScoreBound,
    axis: int = 0,
) -> Floats:
    """Return the half-width of a one-sided interval around a mean.

    Raises Misconfiguration: too few scores, or ``error`` is out of its range.

    Args:
        scores: Independent values in [0, 1] along ``axis``.
        error: The chance with which the bound may be wrong.
        bound: The inequality.
        axis: Along which the mean is taken.

    Returns:
        The half-width, in the mean's shape or a number for all.
    """
    samples = scores.shape[axis]
    match bound:
        case ScoreBound.HOEFFDING:
            return np.asarray(hoeffding_half_width(samples, error))
        case ScoreBound.BERNSTEIN:
            count("models", samples, least=2)
            return bernstein_half_width(scores.var(axis=axis, ddof=1), samples, error)


def score_intervals(
    scores: npt.ArrayLike,
    budget: ConfidenceBudget,
    bound: ScoreBound = ScoreBound.HOEFFDING,
) -> Intervals:
    """Return bounds on expected scores, each class at α/L.

    Liu's probability scores, Xie Sec. 6.3.3. Raises Misconfiguration: wrong shape, NaN,
    a score outside [0, 1], another number of classes.

    Args:
        scores: [points, models, classes], in [0, 1].
        budget: The chance of a wrong statement.
        bound: The inequality.
    """
    array = np.asarray(scores)
    shape = array.shape
    if len(shape) != _STACK or 0 in shape or shape[2] < _LEAST_CLASSES:
        raise Misconfiguration(
            "scores",
            f"shape {shape}",
            "give [points, models, classes], 2 classes at least",
        )
    budget.require_classes(shape[2])
    # In blocks of points: a file of scores may be larger than memory.
    size = max(1, 4_000_000 // (shape[1] * shape[2]))
    blocks = [
        _block_intervals(
            probabilities("scores", array[start : start + size]), budget, bound
        )
        for start in range(0, len(array), size)
    ]
    return Intervals(
        labels=np.concatenate([block.labels for block in blocks]),
        p_a=np.concatenate([block.p_a for block in blocks]),
        p_b=np.concatenate([block.p_b for block in blocks]),
    )


def _block_intervals(
    scores: Floats, budget: ConfidenceBudget, bound: ScoreBound
) -> Intervals:
    """Compute ``score_intervals`` of as many points as fit in memory."""
    mean = scores.mean(axis=1)
    width = mean_half_width(scores, budget.per_interval, bound, axis=1)
    first = mean.argmax(axis=1)
    rows = np.arange(len(scores))
    # The highest upper bound of any class but the predicted one.
    upper = np.clip(mean + width, 0, 1)
    upper[rows, first] = -np.inf
    p_a = np.clip(mean - width, 0, 1)[rows, first]
    p_b = upper.max(axis=1)
    # Where one model's scores sum to at most 1, so do the expectations.
    sums_to_one = (scores.sum(axis=2) <= 1 + 1e-6).all(axis=1)
    p_b = np.where(sums_to_one, np.minimum(p_b, 1 - p_a + 1e-6), p_b)
    return Intervals(labels=first, p_a=p_a, p_b=p_b)
