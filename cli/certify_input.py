"""Votes, scores and losses from files, and a guarantee from options."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from precad.common.account.gdp import clt_mu
from precad.common.certify import (
    ConfidenceBudget,
    Direction,
    ExactGroups,
    GaussianDP,
    Guarantee,
    Intervals,
    RenyiGroups,
    Replacements,
    ScoreBound,
    SubsampledGaussian,
    ValidationAllowance,
    score_intervals,
    simuem,
    votes_of,
)
from precad.common.certify.intervals import vote_counts
from precad.common.certify.runs import Ensemble, FinishedRun, Unit
from precad.common.errors import Misconfiguration
from precad.common.npy import read_npy


def read_array(field: str, path: Path) -> np.ndarray[Any, np.dtype[Any]]:
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


def _read_csv(path: Path) -> np.ndarray[Any, np.dtype[Any]]:
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


def stacked_scores(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
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


def true_labels(path: Path | None, points: int) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """[points] int64 from a file, or None where none is given."""
    if path is None:
        return None
    array = np.ravel(read_array("labels", path))
    if len(array) != points or not np.all(array % 1 == 0):
        raise Misconfiguration("labels", f"{len(array)} values", f"give {points} whole numbers")
    return array.astype(np.int64)


def ensemble(folders: list[Path]) -> Ensemble:
    """The finished runs in these folders."""
    return Ensemble(tuple(FinishedRun.read(folder) for folder in folders))


def mechanism_of(
    runs: Ensemble | None,
    unit: Unit,
    *,
    sampling: str | None,
    rate: float | None,
    noise: float | None,
    rounds: int | None,
) -> SubsampledGaussian:
    """From the runs' ledgers, or from the options, never from both.

    Raises:
        Misconfiguration: an option beside runs, an option missing without runs.
    """
    typed: dict[str, object] = {
        "--sampling-rate": rate,
        "--noise-multiplier": noise,
        "--rounds": rounds,
    }
    if runs is not None:
        for name, value in {**typed, "--sampling": sampling}.items():
            if value is not None:
                raise Misconfiguration(
                    name, value, "leave it out: with --runs it comes from the runs' own ledgers"
                )
        return runs.inputs.mechanism(unit)
    if rate is None or noise is None or rounds is None:
        name = next(name for name, value in typed.items() if value is None)
        raise Misconfiguration(name, None, "say how the models were trained, or give --runs")
    if unit is Unit.RECORD_OF_ONE_CLIENT:
        raise Misconfiguration(
            "--unit",
            unit.value,
            "only with --runs; without, give the rate and say record or client",
        )
    return SubsampledGaussian(sampling or "poisson", rate, noise, rounds)


def guarantee_of(
    kind: str,
    mechanism: SubsampledGaussian,
    *,
    delta: float | None,
    soundness_bits: int | None,
    replacements: bool,
) -> Guarantee:
    """The named guarantee of a mechanism, with validation's allowance where asked.

    Args:
        kind: exact, rdp, adp or gdp.
        mechanism: what was run.
        delta: for adp: use (ε, δ) at this δ only.
        soundness_bits: of validation; None where submissions can't be forged or aren't validated.
        replacements: certify k replaced instead of k added or deleted.
    """
    guarantee: Guarantee
    match kind:
        case "exact":
            guarantee = ExactGroups(mechanism)
        case "rdp":
            guarantee = RenyiGroups(mechanism)
        case "adp":
            guarantee = ExactGroups(mechanism).as_approximate(delta)
        case "gdp":
            mu = clt_mu(mechanism.rate, mechanism.noise_multiplier, mechanism.rounds)
            guarantee = GaussianDP(mu * math.sqrt(mechanism.participation), asymptotic_limit=True)
        case _:
            raise Misconfiguration("--guarantee", kind, "give exact, rdp, adp or gdp")
    if soundness_bits is not None:
        guarantee = ValidationAllowance(guarantee, mechanism.rounds, soundness_bits)
    return Replacements(guarantee) if replacements else guarantee


def directions_of(change: str) -> tuple[Direction, ...]:
    """The directions that a change's name stands for."""
    match change:
        case "additions":
            return (Direction.ADDITIONS,)
        case "deletions" | "replacements":
            return (Direction.DELETIONS,)
        case _:
            return (Direction.ADDITIONS, Direction.DELETIONS)


def intervals_of(
    path: Path,
    form: str | None,
    *,
    confidence: float,
    classes: int | None,
    models: int | None,
    simultaneous: bool,
    strict: bool,
    bound: str,
) -> tuple[Intervals, int, int]:
    """Confidence bounds from a file of votes, labels or scores.

    Args:
        path: ``.npy`` or CSV.
        form: votes, labels or scores; by default scores for three axes, else votes.
        confidence: of each point, or of all together where ``simultaneous``.
        classes: for labels, how many there are.
        models: how many votes every point must have.
        simultaneous: one budget for all points.
        strict: see `ConfidenceBudget`.
        bound: hoeffding or bernstein, for scores.

    Returns:
        The intervals, the number of models, the number of classes.
    """
    array = read_array("votes", path)
    chosen = form or ("scores" if array.ndim == 3 else "votes")
    if chosen == "scores":
        scores = stacked_scores(array)
        points, total, found = (*scores.shape, 0, 0, 0)[:3]
        budget = ConfidenceBudget(confidence, max(found, 2), points if simultaneous else 1, strict)
        return score_intervals(scores, budget, ScoreBound(bound)), total, found
    counts = votes_of(array, classes) if chosen == "labels" else vote_counts(array, models)
    return vote_intervals(counts, confidence=confidence, simultaneous=simultaneous, strict=strict)


def vote_intervals(
    counts: np.ndarray[Any, np.dtype[np.int64]],
    *,
    confidence: float,
    simultaneous: bool,
    strict: bool,
) -> tuple[Intervals, int, int]:
    """SimuEM on counts; the intervals, the number of models, the number of classes."""
    points = len(counts) if simultaneous else 1
    budget = ConfidenceBudget(confidence, counts.shape[1], points, strict)
    return simuem(counts, budget), int(counts[0].sum()), counts.shape[1]
