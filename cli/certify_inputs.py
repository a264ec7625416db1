"""What `precad certify` reads: how models were trained, votes, scores, losses and labels.

In a file a line that is taken for a row, or a row for a header, changes a count of
points, models or runs, and with it a bound. So whatever isn't plainly one of them is
asked for or refused.
"""

import re
import secrets
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from precad.accounting import events
from precad.accounting.gdp import GdpCltAccountant
from precad.certify import guarantee as guarantees
from precad.certify import intervals
from precad.certify.finished_runs import Ensemble, FinishedRun, Unit
from precad.certify.group_guarantees import ExactGroups, RenyiGroups
from precad.certify.guarantee import LARGEST_GROUP, Integers
from precad.certify.inefficacy import MeanInterval, expected_loss
from precad.certify.intervals import ConfidenceBudget, Intervals
from precad.cli import command_options as asked
from precad.cli.command_options import Loss, OfTrainings, Prediction, Smoothing
from precad.cli.owner_commands import trained
from precad.client.records.read_records import read_records
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.npy import Array, read_npy
from precad.common.terminal import Bar

_LEAST_NOISE = 0.01
DIRECTIONS = {
    "either": guarantees.BOTH,
    "additions": (guarantees.Direction.ADDITIONS,),
    "deletions": (guarantees.Direction.DELETIONS,),
    "replacements": (guarantees.Direction.DELETIONS,),
}
"""What to certify against, by the name of the change; replacements are both in any
direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The mechanism that is certified."""

    runs: Ensemble | None
    """None where options say how the models were trained."""
    unit: Unit
    mechanism: events.SampledGaussian
    """What was run, as one unit meets it."""
    soundness_bits: int | None
    """Of validation; None where submissions can't be forged or aren't validated."""
    attempts: int
    """How often one client may have submitted in all."""
    redraws: int = 0
    """Coins that were drawn again; nothing where the rate of clients doesn't matter."""
    proof_points: int | None = None
    """N, where clients proved their norms."""

    def change(self, request: OfTrainings) -> asked.Change:
        """What is certified against: a client that turns bad replaces its update."""
        if request.change is not None:
            return request.change
        return "replacements" if self.unit is Unit.CLIENT else "either"

    @classmethod
    def of(cls, request: OfTrainings) -> "Trained":
        """From the runs' ledgers, or from the options, never from both."""
        rate = request.sampling_rate
        noise = request.noise_multiplier
        rounds = request.rounds
        typed: dict[str, object]
        typed = {
            "--sampling-rate": rate,
            "--noise-multiplier": noise,
            "--rounds": rounds,
        }
        bits = request.soundness_bits
        unit = Unit(request.unit or (Unit.CLIENT if request.runs else Unit.RECORD))
        if group_size("absent", request.absent) and unit is not Unit.CLIENT:
            raise Misconfiguration("absent", request.absent, "only clients are absent")
        if request.runs:
            typed |= {"--sampling": request.sampling, "--soundness-bits": bits}
            for name, value in typed.items():
                if value is not None:
                    remedy = (
                        "leave it out: with --runs it comes from the runs' own ledgers"
                    )
                    raise Misconfiguration(name, value, remedy)
            runs = Ensemble(
                tuple(FinishedRun.read(folder) for folder in request.sources)
            )
            inputs = runs.inputs
            if unit is Unit.CLIENT:
                bits = inputs.malicious_submission_soundness_bits
            redraws = 0 if unit is Unit.RECORD else inputs.redrawn_coins
            mechanism = inputs.mechanism(unit)
            points = inputs.proof_points
            return cls(
                runs=runs,
                unit=unit,
                mechanism=mechanism,
                soundness_bits=bits,
                attempts=inputs.most_attempts,
                redraws=redraws,
                proof_points=points,
            )
        if rate is None or noise is None or rounds is None:
            name = next(name for name, value in typed.items() if value is None)
            raise Misconfiguration(
                name, None, "say how the models were trained, or give --runs"
            )
        if unit is Unit.RECORD_OF_ONE_CLIENT:
            remedy = "only with --runs; without, give the rate and say record or client"
            raise Misconfiguration("--unit", unit.value, remedy)
        events.require_poisson(request.sampling or "poisson")
        checks.rate("sampling_rate", rate)
        events.require_rounds("rounds", rounds)
        if checks.noise_multiplier(noise) < _LEAST_NOISE:
            remedy = f"bounds nothing; give {_LEAST_NOISE:g} or more"
            raise Misconfiguration("noise_multiplier", noise, remedy)
        mechanism = events.poisson_gaussian(
            rate=rate,
            noise_multiplier=noise,
            count=rounds,
        )
        attempts = rounds * checks.count("attempts", request.attempts, 1)
        return cls(
            runs=None,
            unit=unit,
            mechanism=mechanism,
            soundness_bits=bits,
            attempts=attempts,
        )

    def guarantee(
        self, kind: asked.GuaranteeKind, request: OfTrainings
    ) -> guarantees.Guarantee:
        """The named guarantee, with validation's allowance where submissions are validated."""
        m = self.mechanism
        guarantee: guarantees.Guarantee
        match kind:
            case "exact":
                guarantee = ExactGroups(m)
            case "rdp":
                guarantee = RenyiGroups(m)
            case "adp":
                guarantee = ExactGroups(m).as_approximate(request.delta)
            case "gdp":
                limit = GdpCltAccountant()
                limit.compose(m)
                guarantee = guarantees.GaussianDP(limit.mu, asymptotic=True)
        if self.soundness_bits is not None:
            allowed = self.attempts, self.soundness_bits, self.proof_points
            guarantee = guarantees.ValidationAllowance(guarantee, *allowed)
        if self.change(request) == "replacements":
            guarantee = guarantees.Replacements(guarantee)
        if request.absent:
            guarantee = guarantees.WithAbsent(guarantee, request.absent)
        return (
            guarantees.Redrawn(guarantee, self.redraws) if self.redraws else guarantee
        )

    def document(
        self, request: OfTrainings, guarantee: guarantees.Guarantee
    ) -> dict[str, Any]:
        """This part of an answer; ``runs`` with what all of them together cost in privacy."""
        m = self.mechanism
        runs = self.runs
        return {
            "guarantee": request.guarantee,
            "asymptotic": guarantee.asymptotic,
            "change": self.change(request),
            "absent": request.absent,
            "redrawn_coins": self.redraws,
            "unit": self.unit.value,
            "mechanism": {
                "sampling": m.sampling.value,
                "sampling_rate": m.rate,
                "noise_multiplier": m.effective_noise_multiplier,
                "rounds": m.count,
                "participation": m.participation,
            },
            "soundness_bits": self.soundness_bits,
            "attempts": None if self.soundness_bits is None else self.attempts,
            "hashes": None if self.proof_points is None else guarantees.HASHES,
            "runs": (
                runs
                and {
                    "count": len(runs.runs),
                    "task_digest": runs.inputs.task_digest,
                    "joint_privacy_cost": [
                        cost.to_json() for cost in runs.privacy_cost()
                    ],
                }
            ),
        }


def group_size(field: str, size: int) -> int:
    """A number of attackers, or of absent clients, of which a certificate can be made."""
    if checks.count(field, size) > LARGEST_GROUP:
        raise Misconfiguration(field, size, f"give at most {LARGEST_GROUP:,}")
    return size


def true_labels(path: Path, points: int, header: asked.Header) -> Array:
    """The file's labels, ``[points]``.

    Raises Misconfiguration: they aren't so many numbers.
    """
    truth = np.ravel(
        read_array(
            "labels",
            path,
            header,
            counted=True,
            rows=points,
        )
    )
    if len(truth) != points or not np.all(truth % 1 == 0):
        raise Misconfiguration(
            "labels", f"{len(truth)} values", f"give {points} whole numbers"
        )
    return truth


def budget(
    request: Prediction | Smoothing, points: int, classes: int
) -> ConfidenceBudget:
    """The chance of a wrong statement that is asked for, and who shares it."""
    together = points if request.simultaneous else 1
    # A prediction's label is chosen from the same votes.
    strict = isinstance(request, Prediction)
    return ConfidenceBudget(
        confidence=request.confidence,
        classes=classes,
        points=together,
        strict=strict,
    )


def vote_intervals(
    request: Prediction, runs: Ensemble | None
) -> tuple[Intervals, int, int]:
    """Confidence bounds from runs' votes or one file, the number of models, that of classes."""
    if runs is not None:
        counts = runs.votes(request.classes)
    else:
        sources = request.sources
        if len(sources) != 1:
            raise Misconfiguration(
                "votes", len(sources), "give one file of votes or scores"
            )
        # Votes are told from row numbers by their sums, which are all alike.
        array = read_array(
            "votes", sources[0], request.header, counted=request.form != "labels"
        )
        match request.form or ("scores" if array.ndim == 3 else "votes"):
            case "scores":
                scores = _stacked(array)
                bound = intervals.ScoreBound(request.interval)
                points, models, classes = (*scores.shape, 0, 0, 0)[:3]
                shares = budget(request, points, max(classes, 2))
                return intervals.score_intervals(scores, shares, bound), models, classes
            case "labels":
                counts = intervals.votes_of(array, request.classes)
            case "votes":
                counts = intervals.vote_counts(array)
    found = intervals.simuem(counts, budget(request, *counts.shape))
    return found, int(counts[0].sum()), counts.shape[1]


def _stacked(array: Array) -> Array:
    """[points, models, classes] from such an array, or from CSV rows point, model, scores."""
    if array.ndim != 2:
        return array
    if array.shape[1] < 4 or np.isnan(array[:, :2]).any():
        remedy = "give rows of point, model and one score a class"
        raise Misconfiguration("scores", f"shape {array.shape}", remedy)
    points, models = (len(np.unique(array[:, i])) for i in (0, 1))
    if len(array) != points * models or len(np.unique(array[:, :2], axis=0)) != len(
        array
    ):
        remedy = f"give one row for each of {points} points × {models} models"
        raise Misconfiguration("scores", f"{len(array)} rows", remedy)
    order = np.lexsort((array[:, 1], array[:, 0]))
    return array[order, 2:].reshape(points, models, -1)


def expectation(request: Loss, runs: Ensemble | None) -> MeanInterval | None:
    """The clean expected loss: given, or estimated; None for one run alone."""
    given = request.expected
    bound = request.bound
    sources = request.sources
    if given is not None:
        if sources and runs is None:
            raise Misconfiguration(
                "--loss", given, "give a file of losses or --loss, not both"
            )
        if not 0 <= given <= bound:
            raise Misconfiguration("--loss", given, f"give a number in [0, {bound:g}]")
        return MeanInterval(
            mean=given,
            lower=given,
            upper=given,
            runs=0,
        )
    losses: Array
    if runs is None:
        if len(sources) != 1:
            raise Misconfiguration(
                "losses", len(sources), "give one file, --loss or --runs"
            )
        losses = read_array("losses", sources[0], request.header)
        # A CSV of one column or one row is one loss a run.
        losses = losses.ravel() if losses.ndim == 2 and 1 in losses.shape else losses
    elif len(runs.runs) == 1:
        return None
    elif bound != 1:
        raise Misconfiguration(
            "--bound", bound, "losses of finished runs lie in [0, 1]"
        )
    else:
        losses = runs.mean_losses()
    return expected_loss(
        losses,
        bound=bound,
        confidence=request.confidence,
        how=intervals.ScoreBound(request.interval),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothed:
    """What is certified: votes ``[points, classes]`` under noise of ``sigma``."""

    sigma: float
    votes: Integers
    selection: Array | None
    """As ``votes``, of other copies; None where every class pays."""
    labels: Array | None
    """True ones, ``[points]``; None where they aren't known."""
    facts: dict[str, Any] = field(default_factory=dict)


def votes_of_file(request: Smoothing) -> Smoothed:
    """Votes from a file.

    Raises Misconfiguration: no file, no σ, or files that don't fit.
    """
    if request.votes is None:
        raise Misconfiguration(
            "votes", None, "give a file of votes, or a model and --data"
        )
    if request.sigma is None:
        raise Misconfiguration(
            "--sigma", None, "say how much noise the votes are under"
        )
    header = request.header
    chosen = request.selection
    truth = request.labels
    counts = intervals.vote_counts(
        read_array("votes", request.votes, header, counted=True)
    )
    other = (
        None
        if chosen is None
        else read_array("selection", chosen, header, counted=True)
    )
    labels = None if truth is None else true_labels(truth, len(counts), header)
    return Smoothed(
        sigma=request.sigma,
        votes=counts,
        selection=other,
        labels=labels,
    )


def votes_of_model(request: Smoothing) -> Smoothed:
    """A trained model's votes on noisy copies of records, with progress on a terminal."""
    from precad.client.gradients import noisy_votes  # noqa: PLC0415 -- seconds of torch
    from precad.client.records.torch_records import as_records  # noqa: PLC0415

    beside = {
        "votes": request.votes,
        "--selection": request.selection,
        "--labels": request.labels,
    }
    for name, value in beside.items():
        if value is not None:
            raise Misconfiguration(
                name, str(value), "leave it out: --data has records and labels"
            )
    found, module, settings = trained(request)
    assert request.data is not None
    columns = None if settings is None else settings.columns
    records = as_records(read_records(request.data, found.task.data, columns))
    inputs = records.inputs[: request.first]
    labels = records.targets[: request.first]
    draw = (
        secrets.randbelow(noisy_votes.DRAWS) if request.draw is None else request.draw
    )
    if request.keep is not None and request.keep.exists() and request.draw is None:
        draw = noisy_votes.kept_draw(request.keep)
    objective = found.task.objective
    sigma = (
        objective.noise
        if request.sigma is None and objective is not None
        else request.sigma
    )
    if sigma is None:
        remedy = "the task's objective names none: say how much noise"
        raise Misconfiguration("--sigma", None, remedy)
    how = noisy_votes.VoteSampling(
        sigma=sigma,
        selection=request.select,
        copies=request.copies,
        draw=draw,
    )
    net = found.load_into(module)
    digest = str(found.digest)
    with Bar("noisy votes", len(inputs), sys.stderr) as line:
        votes = noisy_votes.sample_votes(
            net,
            inputs,
            how,
            keep=request.keep,
            model=digest,
            progress=line.at,
        )
    facts = {
        "model": digest,
        "selection_copies": how.selection,
        "draw": how.draw,
    }
    return Smoothed(
        sigma=how.sigma,
        votes=votes.votes,
        selection=votes.selection,
        labels=labels.numpy(),
        facts=facts,
    )


_NAME = re.compile(r'\s*"?[^\W\d][^",]*"?\s*')
"""A column's name: it begins with a letter."""
_INDEX = re.compile(r'\s*"?(|index|unnamed: 0)"?\s*', re.IGNORECASE)
"""The name that pandas gives a column of row numbers, or that it gets when it is read
again."""
_ROWS = 3
"""From so many rows on, a first column of 0, 1, 2, … is an index and no coincidence."""


def read_array(
    field: str,
    path: Path,
    header: asked.Header,
    *,
    counted: bool = False,
    rows: int | None = None,
) -> Array:
    """The array in a ``.npy`` file (never unpickled) or a CSV file, ``[rows, columns]``.

    ``counted``: a column that numbers its rows may belong to it, and rising numbers be
    its first row: whoever adds up or compares what was read finds such a header there.
    ``rows``: how many there must be, where that is known: so many are no header. Raises
    Misconfiguration: it isn't numbers, or what is a header or an index doesn't show.
    """

    def refused(why: str) -> Misconfiguration:
        return Misconfiguration(field, str(path), why)

    if not path.is_file():
        raise refused("there is no such file")
    if path.suffix == ".npy":
        return read_npy(field, path)
    try:
        # Spreadsheets begin a file with a byte-order mark.
        lines = path.read_text(encoding="utf-8-sig").rstrip().splitlines()
        below = _below(lines, header)
        array = np.zeros((0, 0))
        if lines[below:]:
            array = np.loadtxt(lines[below:], delimiter=",", ndmin=2, comments=None)
    except ValueError as error:
        raise refused(f"give a .npy array of numbers, or CSV ({error})") from None
    if not array.size:
        raise refused("give a file with numbers: it is empty")
    if len(array) != len(lines) - below:
        gap = lines.index(next(each for each in lines if not each.strip())) + 1
        raise refused(f"line {gap} is empty: mend or remove it")
    open_question = header is None and not below and len(array) != rows
    if open_question and _may_be_names(array, counted=counted):
        begin = lines[0] if len(lines[0]) <= 20 else lines[0][:20] + "…"
        question = (
            "a header, as pandas writes it, or numbers? Say which with --header yes or"
        )
        raise refused(f"begins with {begin}: {question} --header no")
    if (
        not counted
        and array.shape[1] > 1
        and len(array) >= _ROWS
        and _counts(array[:, 0])
    ):
        remedy = "write it without an index (index=False), or give a .npy file"
        raise refused(f"its first column counts its rows: {remedy}")
    return array


def _below(lines: list[str], header: asked.Header) -> int:
    """1 where the first line is a header: names alone, or what is said to be one; else 0.

    A row with a number in it is data, whatever else is wrong with it: dropped, it would
    shift all.
    """
    cells = lines[0].split(",") if lines else []
    others = cells[1:]
    names = [bool(_NAME.fullmatch(cell)) for cell in cells]
    if others and _INDEX.fullmatch(cells[0]):
        numbered = [cell.strip('" ') for cell in others] == [
            str(i) for i in range(len(others))
        ]
        if all(names[1:]) or numbered:
            raise ValueError("it has an index: write it without, by index=False")
    return int(header == "yes" or (header is None and bool(cells) and all(names)))


def _may_be_names(array: Array, *, counted: bool) -> bool:
    """Whether the first row may be columns' numbers: 0, 1, 2, …, or some of them."""
    first = array[0]
    others = array[1:]
    if not len(others) or (first % 1 != 0).any() or first[0] < 0:
        return False
    if counted or len(first) == 1:
        return _counts(first) or bool(len(first) == 1 and (others % 1 != 0).any())
    return all(one < other for one, other in pairwise(first.tolist()))


def _counts(column: Array) -> bool:
    return bool((column == np.arange(len(column))).all())
