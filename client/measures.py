"""Measures predictions on records with known targets: scikit-learn's, with intervals.

Each interval covers 95 %. A share has Wilson's (1927). The AUC has DeLong's (1988),
taken of log(1 − AUC), so that it stays below 1. Means of what each record adds (Brier
score, absolute and squared error) have the delta method's, taken of the logarithm, and
so has 1 − R². Records count as independent draws: where several are one patient's, the
true intervals are wider.
"""

from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest, rankdata, sem, t
from sklearn import metrics
from torch import Tensor

from precad.client.gradients import beside_targets, level_names
from precad.client.results import Measure, Results
from precad.common import AnyNumbers, Booleans, Floats, Floats32, Task

_UPPER = 0.975
"""The quantile at the upper end of a 95 % interval."""
_PARTS = 10
"""Parts of the records, by what is predicted, in which calibration is looked at."""
_LEAST = 20
"""Records of such a part at least: fewer say little."""


class _Estimate(NamedTuple):
    """A value and its interval."""

    value: float
    low: float
    high: float

    def named(self, name: str, of: str) -> Measure:
        """Return it as a measure."""
        return Measure(name=name, of=of, **self._asdict())


def results_of(task: Task, outputs: Floats32, targets: Tensor) -> Results:
    """Return all measures of a model's outputs for targets, both ``[n, …]``.

    There are none where ``beside_targets`` is None, or of a single record. Of two
    classes the second is what is looked for: sensitivity is its recall.
    """
    target = task.target.name
    results = Results(records=len(targets), target=target)
    beside = beside_targets(task, outputs, targets)
    if beside is None or len(targets) == 1:
        return results
    predicted, true = beside
    if predicted.ndim == 1:
        measures = _of_numbers(predicted, true, target)
        return results.model_copy(update={"measures": measures})
    levels = level_names(task, predicted.shape[1])
    classes = len(levels)
    answers = predicted.argmax(axis=1)
    counts = metrics.confusion_matrix(true, answers, labels=range(classes))
    right = counts.diagonal()
    measures = [_share(right.sum(), counts.sum()).named("accuracy", target)]
    recalls = ["recall"] * classes
    if classes == 2:  # noqa: PLR2004
        recalls = ["specificity", "sensitivity"]
    for place, total in enumerate(counts.sum(axis=1)):
        if total:
            recall = _share(right[place], total)
            measures.append(recall.named(recalls[place], levels[place]))
    if classes == 2:  # noqa: PLR2004
        level = levels[1]
        scores = predicted[:, 1]
        positive = true == 1
        brier = _around(
            metrics.brier_score_loss(positive, scores), (positive - scores) ** 2
        )
        measures.append(brier.named("Brier score", level))
        if 0 < positive.sum() < len(positive):
            measures.append(_area(scores, positive).named("AUC", level))
        measures += _calibration(scores, positive, f"share that is {level}")
    update = {"measures": measures, "levels": levels, "confusion": counts.tolist()}
    return results.model_copy(update=update)


def scores_of(task: Task, outputs: Floats32, targets: Tensor) -> dict[str, float]:
    """Return the values that ``results_of`` has, by the measure's name.

    Of more than two classes the recalls are one value, their mean, the balanced
    accuracy; calibration is no value to compare by.
    """
    measures = results_of(task, outputs, targets).measures
    scores = {row.name: row.value for row in measures if row.predicted is None}
    if scores.pop("recall", None) is not None:
        recalls = [row.value for row in measures if row.name == "recall"]
        scores["balanced accuracy"] = float(np.mean(recalls))
    return scores


def _of_numbers(predicted: Floats, true: Floats, target: str) -> list[Measure]:
    """Return the measures of predicted and true numbers, both ``[n]``, n > 1."""
    errors = np.abs(predicted - true)
    spread = (true - true.mean()) ** 2
    r2 = metrics.r2_score(true, predicted)
    root = metrics.root_mean_squared_error(true, predicted)
    of_r2 = (errors**2 - (1 - r2) * spread) / (spread.mean() or 1)
    absolute = metrics.mean_absolute_error(true, predicted)
    return [
        _around(r2, of_r2, 1).named("R²", target),
        _around(absolute, errors).named("mean absolute error", target),
        _around(root, errors**2 / (2 * root or 1)).named(
            "root mean squared error", target
        ),
        *_calibration(predicted, true, f"mean {target}"),
    ]


def _around(value: float, terms: Floats, base: float = 0) -> _Estimate:
    """Return a value with an interval that stays on its side of ``base``.

    It is that of the distance's logarithm, by the delta method: to first order the
    value moves with the mean of ``terms``, ``[n]``.
    """
    distance = value - base
    width = t.ppf(_UPPER, len(terms) - 1) * sem(terms) / (abs(distance) or 1)
    ends = base + distance * np.exp([-width, width])
    return _Estimate(value, *sorted(ends))


def _share(count: int, total: int) -> _Estimate:
    """Return a share of records with Wilson's interval."""
    interval = binomtest(count, total).proportion_ci(method="wilson")
    return _Estimate(count / total, *interval)


def _area(scores: Floats, positive: Booleans) -> _Estimate:
    """Return the area under the ROC curve with DeLong's interval.

    Where the classes don't overlap, or one has a single record, there is no variance to
    see: then it is that of as many right answers as the smaller class has records.
    """
    area = metrics.roc_auc_score(positive, scores)
    others, count = np.bincount(positive)
    smaller = min(count, others)
    if smaller == 1 or area in (0, 1):
        return _share(round(area * smaller), smaller)._replace(value=area)
    ranks = rankdata(scores)
    # The share of the other class that each record passes, beside what is expected.
    above = (ranks[positive] - rankdata(scores[positive])) / others - area
    below = (ranks[~positive] - rankdata(scores[~positive])) / count + area - 1
    terms = np.concatenate([above / count, below / others])
    return _around(area, len(scores) * terms, 1)


def _calibration(predicted: Floats, true: AnyNumbers, what: str) -> list[Measure]:
    """Return what is true by predictions, in parts of the records, both ``[n]``.

    ``what`` says what was found in a part, in words.
    """
    found = []
    parts = max(1, min(_PARTS, len(true) // _LEAST))
    for rows in np.array_split(np.argsort(predicted, kind="stable"), parts):
        seen = true[rows]
        mean = seen.mean()
        half = t.ppf(_UPPER, len(seen) - 1) * sem(seen)
        observed = _Estimate(mean, mean - half, mean + half)
        if seen.dtype == np.bool_:
            observed = _share(seen.sum(), len(seen))
        expected = predicted[rows].mean()
        part = f"{len(rows)} records predicted {expected:.4g}"
        measure = observed.named(f"calibration: {what}", part)
        update = {"predicted": expected, "records": len(rows)}
        found.append(measure.model_copy(update=update))
    return found
