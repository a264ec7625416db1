"""What `precad certify` reads: votes, scores, losses and labels, and votes under input noise."""

import re
import secrets
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from precad.certify.curves import Booleans, Integers
from precad.certify.finished_runs import Ensemble
from precad.certify.inefficacy import MeanInterval, expected_loss
from precad.certify.intervals import (
    ConfidenceBudget,
    Intervals,
    ScoreBound,
    score_intervals,
    simuem,
    vote_counts,
    votes_of,
)
from precad.cli.certify import Loss, Prediction, Smoothing
from precad.cli.predict import trained
from precad.common.errors import Misconfiguration
from precad.common.npy import Array, read_npy
from precad.common.terminal import Bar

if TYPE_CHECKING:
    from precad.client.trained_model import TrainedModel

_NAME = re.compile(r'\s*"?[^\W\d][^",]*"?\s*')
"""A column's name: it begins with a letter."""


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
    # Spreadsheets begin a file with a byte-order mark.
    with path.open(encoding="utf-8-sig") as file:
        lines = file.read().splitlines()
    # Names alone are a header. A row with a number in it is data, whatever else is wrong with it:
    # dropped as a header, it would shift all points.
    names = bool(lines) and all(_NAME.fullmatch(cell) for cell in lines[0].split(","))
    with warnings.catch_warnings(action="ignore"):  # of an empty file it only warns
        array = np.loadtxt(lines[names:], delimiter=",", ndmin=2)
    if not array.size:
        raise ValueError("it is empty")
    return array


def right(path: Path | None, labels: Integers) -> Booleans:
    """[points] bool: which labels are the file's true ones; all count where none is given."""
    if path is None:
        return np.ones(len(labels), dtype=bool)
    return np.asarray(labels == true_labels(path, len(labels)))


def true_labels(path: Path, points: int) -> Array:
    """The file's labels, ``[points]``. Raises Misconfiguration: they aren't so many numbers."""
    truth = np.ravel(read_array("labels", path))
    if len(truth) != points or not np.all(truth % 1 == 0):
        raise Misconfiguration("labels", f"{len(truth)} values", f"give {points} whole numbers")
    return truth


def budget(request: Prediction | Smoothing, points: int, classes: int) -> ConfidenceBudget:
    """The chance of a wrong statement that is asked for, and who shares it."""
    together = points if request.simultaneous else 1
    strict = isinstance(request, Prediction) and request.strict
    return ConfidenceBudget(request.confidence, classes, together, strict)


def vote_intervals(request: Prediction, runs: Ensemble | None) -> tuple[Intervals, int, int]:
    """Confidence bounds from the runs' votes, or from one file of votes, labels or scores.

    Returns:
        The intervals, the number of models, the number of classes.

    Raises:
        Misconfiguration: not one file, or what it holds can't be votes or scores.
    """
    if runs is not None:
        counts = runs.votes(request.classes)
    else:
        sources = request.sources
        if len(sources) != 1:
            raise Misconfiguration("votes", len(sources), "give one file of votes or scores")
        array = read_array("votes", sources[0])
        match request.form or ("scores" if array.ndim == 3 else "votes"):
            case "scores":
                scores, bound = _stacked(array), ScoreBound(request.interval)
                points, models, classes = (*scores.shape, 0, 0, 0)[:3]
                shares = budget(request, points, max(classes, 2))
                return score_intervals(scores, shares, bound), models, classes
            case "labels":
                counts = votes_of(array, request.classes)
            case "votes":
                counts = vote_counts(array, request.models)
    return simuem(counts, budget(request, *counts.shape)), int(counts[0].sum()), counts.shape[1]


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
    given, bound, sources = request.expected, request.bound, request.sources
    if given is not None:
        if sources and runs is None:
            raise Misconfiguration("--loss", given, "give a file of losses or --loss, not both")
        if not 0 <= given <= bound:
            raise Misconfiguration("--loss", given, f"give a number in [0, {bound:g}]")
        return MeanInterval(given, given, given, 0)
    losses: Array
    if runs is None:
        if len(sources) != 1:
            raise Misconfiguration("losses", len(sources), "give one file, --loss or --runs")
        losses = read_array("losses", sources[0])
        # A CSV of one column or one row is one loss a run.
        losses = losses.ravel() if losses.ndim == 2 and 1 in losses.shape else losses
    elif len(runs.runs) == 1:
        return None
    elif bound != 1:
        raise Misconfiguration("--bound", bound, "losses of finished runs lie in [0, 1]")
    else:
        losses = runs.mean_losses()
    return expected_loss(losses, bound, request.confidence, ScoreBound(request.interval))


@dataclass(frozen=True, slots=True)
class Smoothed:
    """What is certified.

    Attributes:
        sigma: of the noise.
        votes: ``[points, classes]``.
        selection: the same, of other copies; None where every class pays.
        labels: ``[points]``, true ones; None where they aren't known.
        facts: what else there is to say.
    """

    sigma: float
    votes: Integers
    selection: Array | None
    labels: Array | None
    facts: dict[str, Any] = field(default_factory=dict)


def votes_of_file(request: Smoothing) -> Smoothed:
    """Votes from a file. Raises Misconfiguration: no file, no σ, or files that don't fit."""
    if request.votes is None:
        raise Misconfiguration("votes", None, "give a file of votes, or a model and --data")
    if request.sigma is None:
        raise Misconfiguration("--sigma", None, "say how much noise the votes are under")
    counts = vote_counts(read_array("votes", request.votes))
    other = None if request.selection is None else read_array("selection", request.selection)
    labels = None if request.labels is None else true_labels(request.labels, len(counts))
    return Smoothed(request.sigma, counts, other, labels)


def votes_of_model(request: Smoothing) -> Smoothed:
    """A trained model's votes on noisy copies of records, with progress on a terminal.

    Raises:
        Misconfiguration: an option is missing or beside the point, or a file can't be used.
    """
    # Seconds of torch.
    from precad.client.gradients.noisy_votes import DRAWS, Sampling, sample_votes  # noqa: PLC0415
    from precad.client.records.read_records import read_records  # noqa: PLC0415
    from precad.client.records.torch_records import as_records  # noqa: PLC0415

    beside = {"votes": request.votes, "--selection": request.selection, "--labels": request.labels}
    for name, value in beside.items():
        if value is not None:
            raise Misconfiguration(name, str(value), "leave it out: --data has records and labels")
    found, module, settings = trained(
        request.config, request.task, request.model_file, request.model
    )
    assert request.data is not None
    columns = None if settings is None else settings.columns
    records = as_records(read_records(request.data, found.task.data, columns))
    inputs, labels = records.inputs[: request.first], records.targets[: request.first]
    draw = secrets.randbelow(DRAWS) if request.draw is None else request.draw
    if request.keep is not None and request.keep.exists() and request.draw is None:
        draw = _kept_draw(request)
    how = Sampling(_sigma(request, found), request.select, request.copies, draw)
    with Bar("noisy votes", len(inputs), sys.stderr) as line:
        votes = sample_votes(
            found.load_into(module),
            inputs,
            how,
            keep=request.keep,
            model=str(found.digest),
            progress=line.at,
        )
    facts = {"model": str(found.digest), "selection_copies": how.selection, "draw": how.draw}
    return Smoothed(how.sigma, votes.votes, votes.selection, labels.numpy(), facts)


def _sigma(request: Smoothing, found: "TrainedModel") -> float:
    if request.sigma is not None:
        return request.sigma
    if found.task.objective is None:
        raise Misconfiguration(
            "--sigma", None, "the task's objective names none: say how much noise"
        )
    return found.task.objective.noise


def _kept_draw(request: Smoothing) -> int:
    """The draw of the votes that are kept."""
    from precad.client.gradients.noisy_votes import kept_draw  # noqa: PLC0415 -- torch

    assert request.keep is not None
    return kept_draw(request.keep)
