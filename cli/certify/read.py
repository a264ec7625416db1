"""Votes, scores, losses and labels, from files or from finished runs."""

from pathlib import Path

import numpy as np

from precad.cli.certify.request import Loss, Prediction
from precad.common.certify import (
    ConfidenceBudget,
    Intervals,
    ScoreBound,
    expected_loss,
    score_intervals,
    simuem,
    votes_of,
)
from precad.common.certify.inefficacy import MeanInterval
from precad.common.certify.inputs import Integers
from precad.common.certify.intervals import vote_counts
from precad.common.certify.runs import Ensemble
from precad.common.errors import Misconfiguration
from precad.common.npy import Array, read_npy


def read_array(field: str, path: Path) -> Array:
    """The array in a ``.npy`` file (never unpickled) or a CSV file (one header line allowed).

    Raises:
        Misconfiguration: no such file, or neither format.
    """
    if not path.is_file():
        raise Misconfiguration(field, str(path), "there is no such file")
    if path.suffix == ".npy":
        return read_npy(field, path)
    try:
        return _read_csv(path)
    except ValueError as error:
        raise Misconfiguration(
            field, str(path), f"give a .npy array of numbers, or CSV ({error})"
        ) from None


def _read_csv(path: Path) -> Array:
    with path.open(encoding="utf-8") as file:
        first = file.readline()
    try:
        [float(cell) for cell in first.split(",")]
        header = 0
    except ValueError:
        header = 1
    # Empty cells become NaN, which the checks refuse by name.
    array = np.genfromtxt(path, delimiter=",", skip_header=header, ndmin=2, encoding="utf-8")
    if not array.size:
        raise ValueError("it is empty")
    return array


def true_labels(path: Path | None, points: int) -> Integers | None:
    """[points] int64 from a file, or None where none is given."""
    if path is None:
        return None
    array = np.ravel(read_array("labels", path))
    if len(array) != points or not np.all(array % 1 == 0):
        raise Misconfiguration("labels", f"{len(array)} values", f"give {points} whole numbers")
    return array.astype(np.int64)


def vote_intervals(request: Prediction, runs: Ensemble | None) -> tuple[Intervals, int, int]:
    """Confidence bounds from the runs' votes, or from one file of votes, labels or scores.

    Returns:
        The intervals, the number of models, the number of classes.

    Raises:
        Misconfiguration: not one file, or what it holds can't be votes or scores.
    """

    def budget(points: int, classes: int) -> ConfidenceBudget:
        together = points if request.simultaneous else 1
        return ConfidenceBudget(request.confidence, classes, together, request.strict)

    if runs is not None:
        counts = runs.votes(request.classes)
    else:
        sources = request.sources or []
        if len(sources) != 1:
            raise Misconfiguration("votes", len(sources), "give one file of votes or scores")
        array = read_array("votes", sources[0])
        form = request.form or ("scores" if array.ndim == 3 else "votes")
        if form == "scores":
            scores = _stacked(array)
            points, models, classes = (*scores.shape, 0, 0, 0)[:3]
            bound = ScoreBound(request.interval)
            return score_intervals(scores, budget(points, max(classes, 2)), bound), models, classes
        labels = form == "labels"
        counts = votes_of(array, request.classes) if labels else vote_counts(array, request.models)
    points, classes = counts.shape
    return simuem(counts, budget(points, classes)), int(counts[0].sum()), classes


def _stacked(array: Array) -> Array:
    """[points, models, classes] from an array of that shape, or from CSV rows point, model, scores.

    Raises:
        Misconfiguration: the rows aren't one for each pair of point and model.
    """
    if array.ndim != 2:
        return array
    if array.shape[1] < 4 or np.isnan(array[:, :2]).any():
        raise Misconfiguration(
            "scores", f"shape {array.shape}", "give rows of point, model and one score a class"
        )
    points, models = (len(np.unique(array[:, i])) for i in (0, 1))
    if len(array) != points * models or len(np.unique(array[:, :2], axis=0)) != len(array):
        raise Misconfiguration(
            "scores",
            f"{len(array)} rows",
            f"give one row for each of {points} points × {models} models",
        )
    order = np.lexsort((array[:, 1], array[:, 0]))
    return array[order, 2:].reshape(points, models, -1)


def expectation(request: Loss, runs: Ensemble | None) -> MeanInterval | None:
    """The clean expected loss: given, or estimated; None for one run alone.

    Raises:
        Misconfiguration: no source or two, a loss outside [0, bound] or NaN, or a wrong shape.
    """
    given, bound, sources = request.expected, request.bound, request.sources or []
    if given is None and runs is None and len(sources) != 1:
        raise Misconfiguration("losses", len(sources), "give one file, --loss or --runs")
    if given is not None:
        if sources and runs is None:
            raise Misconfiguration("--loss", given, "give a file of losses or --loss, not both")
        if not 0 <= given <= bound:
            raise Misconfiguration("--loss", given, f"give a number in [0, {bound:g}]")
        return MeanInterval(given, given, given, 0)
    if runs is None:
        means = _mean_losses(sources[0], bound)
    elif len(runs.runs) == 1:
        return None
    elif bound != 1:
        raise Misconfiguration("--bound", bound, "losses of finished runs lie in [0, 1]")
    else:
        means = runs.mean_losses()
    return expected_loss(means, bound, request.confidence, ScoreBound(request.interval))


def _mean_losses(path: Path, bound: float) -> Array:
    """[runs] float64 from a file of losses [runs] or [runs, points]."""
    array = np.asarray(read_array("losses", path), dtype=np.float64)
    if array.ndim == 2 and 1 in array.shape:
        # A CSV of one column or one row is one loss a run.
        array = array.ravel()
    if array.ndim not in (1, 2) or not array.size:
        raise Misconfiguration("losses", f"shape {array.shape}", "give [runs] or [runs, points]")
    if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= bound):
        raise Misconfiguration("losses", "NaN or out of range", f"losses lie in [0, {bound:g}]")
    return array if array.ndim == 1 else array.mean(axis=1)
