"""What `precad certify` works on: how models were trained, votes, losses, true labels.

They come from files, from the folders of finished runs or from options. Files of
numbers are read by ``number_files``.
"""

import secrets
import sys
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from precad.accounting import GdpCltAccountant, events
from precad.certify import (
    BOTH,
    HASHES,
    ConfidenceBudget,
    Direction,
    Ensemble,
    ExactGroups,
    FinishedRun,
    GaussianDP,
    Guarantee,
    Intervals,
    MeanInterval,
    Redrawn,
    RenyiGroups,
    Replacements,
    ScoreBound,
    Unit,
    ValidationAllowance,
    WithAbsent,
    expected_loss,
    score_intervals,
    simuem,
    vote_counts,
    votes_of,
)
from precad.cli import (
    Loss,
    OfTrainings,
    Prediction,
    Smoothing,
    read_array,
    refuse_given,
    require_given,
    trained,
)
from precad.cli import command_options as options
from precad.client.records.read_records import read_records
from precad.common import (
    LEAST_ROWS,
    Array,
    Bar,
    Integers,
    Misconfiguration,
    checks,
    frozen_kw_only_dataclass,
)
from precad.common import Unit as Protected

_TOLD = ("sampling_rate", "noise_multiplier", "rounds")
"""Options that say how models were trained, where no finished runs do."""
_LEAST_NOISE = 0.01
"""A noise multiplier below it bounds nothing."""
DIRECTIONS = {
    "either": BOTH,
    "additions": (Direction.ADDITIONS,),
    "deletions": (Direction.DELETIONS,),
    "replacements": (Direction.DELETIONS,),
}
"""The directions to certify against, by the name of the change.

A replacement is a deletion and an addition, whatever the direction."""

MOST_POINTS = 2**16
"""N of proofs of 8.6·10^9 coordinates, more than anybody has: nothing typed says N."""


@frozen_kw_only_dataclass
class Trained:
    """How the models were trained: the mechanism whose guarantee is certified."""

    request: OfTrainings
    """What was asked."""
    runs: Ensemble | None
    """The finished runs; None where options say how the models were trained."""
    unit: Unit
    """What k counts: clients or records."""
    mechanism: events.SampledGaussian
    """What was run, as one unit meets it."""
    soundness_bits: int | None
    """Of validation; None where submissions can't be forged or aren't validated."""
    attempts: int
    """How often one client may have submitted, in all rounds together."""
    redraws: int = 0
    """Coins that were drawn again; 0 where the rate of clients doesn't matter."""
    proof_points: int | None = None
    """N of the norm proofs; None where clients didn't prove their norms."""
    planned_units: int | None = None
    """N of the task; None where claims make the denominator, or nobody said it."""
    owners_of_share: int | None = None
    """How many owners may hold the share of the data that is asked about; else None."""

    @property
    def counted(self) -> str:
        """Return what k counts, in the plural, by the runs' own unit."""
        runs = self.runs
        protects = Protected.RECORD
        if runs is not None:
            protects = Protected(runs.inputs.protects)
        return self.unit.plural(protects)

    @property
    def change(self) -> options.Change:
        """Return what is certified against.

        Unless the request says it, a client turns bad and replaces its update, and a
        record is added or deleted.
        """
        by_client = self.unit is Unit.CLIENT
        return self.request.change or ("replacements" if by_client else "either")

    @classmethod
    def of(cls, request: OfTrainings) -> "Trained":
        """Return what the runs' ledgers say, or what the options say, never a mixture.

        Raises Misconfiguration: an option is missing, is out of its range or stands
        beside --runs, or a folder isn't a finished run.
        """
        default_unit = Unit.CLIENT if request.runs else Unit.RECORD
        unit = Unit(request.unit or default_unit)
        if request.absent and unit is not Unit.CLIENT:
            raise Misconfiguration("absent", request.absent, "only clients are absent")
        by_clients = request.runs and unit is Unit.CLIENT
        if request.data_share is not None and not by_clients:
            raise Misconfiguration(
                "data_share",
                request.data_share,
                "only of clients, with --runs: a run says who holds how much",
            )
        if request.runs:
            return cls._of_runs(request, unit)
        return cls._of_options(request, unit)

    @classmethod
    def _of_runs(cls, request: OfTrainings, unit: Unit) -> "Trained":
        """Read the ledgers of finished runs, and refuse options that say the same."""
        refuse_given(
            request,
            (*_TOLD, "sampling", "soundness_bits"),
            why="the runs' own ledgers say it",
            by="--runs",
        )
        runs = Ensemble(tuple(FinishedRun.read(folder) for folder in request.sources))
        inputs = runs.inputs
        soundness_bits = None
        if unit is Unit.CLIENT:
            soundness_bits = inputs.malicious_submission_soundness_bits
        mechanism = inputs.mechanism(unit)
        owners = None
        if request.data_share is not None:
            mechanism = inputs.worst_owners(request.data_share)
            owners = len(mechanism.group_bounds)
            # Beside them, of any size.
            mechanism = replace(
                mechanism,
                group_bounds=(1.0,) * request.absent + mechanism.group_bounds,
                group_total=request.absent + mechanism.group_total,
            )
        elif request.change in ("additions", "either"):
            # Who joins may claim any size.
            mechanism = inputs.model_copy(update={"owner_bounds": []}).mechanism(unit)
        return cls(
            request=request,
            runs=runs,
            unit=unit,
            mechanism=mechanism,
            owners_of_share=owners,
            soundness_bits=soundness_bits,
            attempts=inputs.most_attempts,
            redraws=0 if unit is Unit.RECORD else inputs.redrawn_coins,
            proof_points=inputs.proof_points,
            planned_units=inputs.planned_units,
        )

    @classmethod
    def _of_options(cls, request: OfTrainings, unit: Unit) -> "Trained":
        """Return what the options say; each is needed, and must be in its range."""
        require_given(request, _TOLD, instead="finished runs with --runs")
        rate, noise_multiplier, rounds = (getattr(request, name) for name in _TOLD)
        bits = request.soundness_bits
        if unit is Unit.RECORD_OF_ONE_CLIENT:
            raise Misconfiguration(
                "--unit",
                unit.value,
                "only with --runs; without, give the rate and say record or client",
            )
        checks.rate("sampling_rate", rate)
        events.require_rounds("rounds", rounds)
        if checks.noise_multiplier(noise_multiplier) < _LEAST_NOISE:
            raise Misconfiguration(
                "noise_multiplier",
                noise_multiplier,
                f"bounds nothing; give {_LEAST_NOISE:g} or more",
            )
        return cls(
            request=request,
            runs=None,
            unit=unit,
            mechanism=events.poisson_gaussian(
                rate=rate,
                noise_multiplier=noise_multiplier,
                count=rounds,
            ),
            soundness_bits=bits,
            # Who says so many bits may mean proofs: then hashes count too.
            proof_points=MOST_POINTS if bits and bits >= LEAST_ROWS else None,
            attempts=rounds * checks.count("attempts", request.attempts, 1),
        )

    def guarantee(self, kind: options.GuaranteeKind) -> Guarantee:
        """Return the guarantee of this kind, for the change that is asked about.

        It allows for submissions that passed validation wrongly, for honest clients
        that may be absent and for coins that were drawn again.
        """
        mechanism = self.mechanism
        request = self.request
        guarantee: Guarantee
        match kind:
            case "exact":
                guarantee = ExactGroups(mechanism)
            case "rdp":
                guarantee = RenyiGroups(mechanism)
            case "adp":
                guarantee = ExactGroups(mechanism).as_approximate(request.delta)
            case "gdp":
                accountant = GdpCltAccountant()
                accountant.compose(mechanism)
                guarantee = GaussianDP(accountant.mu, asymptotic=True)
        if self.soundness_bits is not None:
            guarantee = ValidationAllowance(
                guarantee,
                attempts=self.attempts,
                soundness_bits=self.soundness_bits,
                proof_points=self.proof_points,
            )
        if self.change == "replacements":
            guarantee = Replacements(guarantee)
        if request.absent:
            guarantee = WithAbsent(guarantee, request.absent)
        if self.redraws:
            guarantee = Redrawn(guarantee, self.redraws)
        return guarantee

    def document(self, guarantee: Guarantee) -> dict[str, object]:
        """Return this part of an answer, as a JSON object.

        ``runs`` in it says what publishing the models of all runs costs in privacy.
        """
        mechanism = self.mechanism
        request = self.request
        runs = None
        if self.runs is not None:
            costs = self.runs.privacy_cost()
            runs = {
                "count": len(self.runs.runs),
                "task_digest": self.runs.inputs.task_digest,
                "joint_privacy_cost": [cost.to_json() for cost in costs],
            }
        return {
            "guarantee": request.guarantee,
            "asymptotic": guarantee.asymptotic,
            "change": self.change,
            "absent": request.absent,
            "data_share": request.data_share,
            "owners_of_share": self.owners_of_share,
            "redrawn_coins": self.redraws,
            "planned_units": self.planned_units,
            "unit": self.unit.value,
            "counted": self.counted,
            "mechanism": {
                "sampling": mechanism.sampling.value,
                "sampling_rate": mechanism.rate,
                "noise_multiplier": mechanism.effective_noise_multiplier,
                "rounds": mechanism.count,
                "participation": mechanism.participation,
            },
            "soundness_bits": self.soundness_bits,
            "attempts": None if self.soundness_bits is None else self.attempts,
            "hashes": None if self.proof_points is None else HASHES,
            "runs": runs,
        }


def true_labels(path: Path, points: int, header: options.Header) -> Array:
    """Read the true labels of all points, ``[points]``.

    Raises Misconfiguration: the file doesn't hold so many whole numbers.
    """
    labels = read_array(
        "labels",
        path,
        header,
        counted=True,
        rows=points,
    ).ravel()
    if len(labels) != points or not np.all(labels % 1 == 0):
        raise Misconfiguration(
            "labels", f"{len(labels)} values", f"give {points} whole numbers"
        )
    return labels


def budget(
    request: Prediction | Smoothing, points: int, classes: int
) -> ConfidenceBudget:
    """Return how the chance of a wrong statement is shared by points and classes."""
    return ConfidenceBudget(
        confidence=request.confidence,
        classes=classes,
        points=points if request.simultaneous else 1,
        # A prediction's label is chosen from the same votes.
        strict=isinstance(request, Prediction),
    )


def vote_intervals(
    request: Prediction, runs: Ensemble | None
) -> tuple[Intervals, int, int]:
    """Return confidence bounds of votes or scores, and how many models and classes.

    The votes are those of ``runs``; without runs one file has votes, labels or scores.

    Raises Misconfiguration: there isn't one file, or it doesn't hold what it should.
    """
    if runs is not None:
        return _of_votes(request, runs.votes(request.classes))
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
            # Zeros stand for what another shape lacks: it is refused by name.
            points, models, classes = (*scores.shape, 0, 0, 0)[:3]
            shares = budget(request, points, max(classes, 2))
            bounds = score_intervals(scores, shares, ScoreBound(request.interval))
            return bounds, models, classes
        case "labels":
            counts = votes_of(array, request.classes)
        case "votes":
            counts = vote_counts(array)
    return _of_votes(request, counts)


def _of_votes(request: Prediction, counts: Integers) -> tuple[Intervals, int, int]:
    """Return bounds, models and classes of votes ``[points, classes]``."""
    points, classes = counts.shape
    bounds = simuem(counts, budget(request, points, classes))
    return bounds, int(counts[0].sum()), classes


def _stacked(array: Array) -> Array:
    """Return scores as ``[points, models, classes]``.

    Rows of point, model and one score a class, as CSV has them, are put in order.

    Raises Misconfiguration: they aren't such rows, or one is missing or there twice.
    """
    if array.ndim != 2:
        return array
    indices = array[:, :2]
    if array.shape[1] < 4 or np.isnan(indices).any():
        raise Misconfiguration(
            "scores",
            f"shape {array.shape}",
            "give rows of point, model and one score a class",
        )
    points = len(np.unique(array[:, 0]))
    models = len(np.unique(array[:, 1]))
    distinct_rows = len(np.unique(indices, axis=0))
    if len(array) != points * models or distinct_rows != len(array):
        raise Misconfiguration(
            "scores",
            f"{len(array)} rows",
            f"give one row for each of {points} points × {models} models",
        )
    # By point, and by model where points are alike.
    return array[np.lexsort((array[:, 1], array[:, 0])), 2:].reshape(points, models, -1)


def expectation(request: Loss, runs: Ensemble | None) -> MeanInterval | None:
    """Return the clean expected loss: as given, or estimated from several runs.

    None for one finished run alone, which gives no expectation.

    Raises Misconfiguration: there isn't one source of losses, or they are out of range.
    """
    loss = request.expected
    bound = request.bound
    sources = request.sources
    if loss is not None:
        if sources and runs is None:
            raise Misconfiguration(
                "--loss", loss, "give a file of losses or --loss, not both"
            )
        if not 0 <= loss <= bound:
            raise Misconfiguration("--loss", loss, f"give a number in [0, {bound:g}]")
        return MeanInterval(
            mean=loss,
            lower=loss,
            upper=loss,
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
        if losses.ndim == 2 and 1 in losses.shape:
            losses = losses.ravel()
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
        how=ScoreBound(request.interval),
    )


@frozen_kw_only_dataclass
class Smoothed:
    """Votes of a model on noisy copies of inputs, and what is known of them."""

    sigma: float
    """Standard deviation of the noise, in the inputs' own units."""
    votes: Integers
    """``[points, classes]``: the copies that count."""
    selection: Array | None
    """As ``votes``, of other copies, which choose the label; None where the label is
    chosen from the same votes, and every class pays for it."""
    labels: Array | None
    """True ones, ``[points]``; None where they aren't known."""
    facts: dict[str, object] = field(default_factory=dict)
    """What else an answer says of the votes, as a JSON object."""


def votes_of_file(request: Smoothing) -> Smoothed:
    """Read votes under noise, and the votes that choose labels, from files.

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
    votes = vote_counts(read_array("votes", request.votes, header, counted=True))
    selection = None
    if request.selection is not None:
        selection = read_array("selection", request.selection, header, counted=True)
    labels = None
    if request.labels is not None:
        labels = true_labels(request.labels, len(votes), header)
    return Smoothed(
        sigma=request.sigma,
        votes=votes,
        selection=selection,
        labels=labels,
    )


def votes_of_model(request: Smoothing) -> Smoothed:
    """Take a trained model's votes on noisy copies of records.

    On a terminal a bar shows the progress. With --keep votes are kept as they come, and
    another call goes on from there, with the same draw of the noise.

    Raises Misconfiguration: an option doesn't go with --data, or the model, the records
    or the noise can't be had.
    """
    from precad.client.gradients import noisy_votes  # noqa: PLC0415 -- seconds of torch
    from precad.client.records import as_records  # noqa: PLC0415

    refuse_given(
        request,
        ("votes", "selection", "labels"),
        why="records and labels are given",
        by="--data",
    )
    model, module, settings = trained(request)
    task = model.task
    assert request.data is not None
    columns = None if settings is None else settings.columns
    records = as_records(read_records(request.data, task.data, columns))
    inputs = records.inputs[: request.first]
    labels = records.targets[: request.first]
    keep = request.keep
    draw = request.draw
    if draw is None:
        draw = secrets.randbelow(noisy_votes.DRAWS)
        if keep is not None and keep.exists():
            draw = noisy_votes.kept_draw(keep)
    sigma = request.sigma
    if sigma is None and task.objective is not None:
        sigma = task.objective.noise
    if sigma is None:
        raise Misconfiguration(
            "--sigma", None, "the task's objective names none: say how much noise"
        )
    sampling = noisy_votes.VoteSampling(
        sigma=sigma,
        selection=request.select,
        copies=request.copies,
        draw=draw,
    )
    network = model.load_into(module)
    digest = str(model.digest)
    with Bar("noisy votes", len(inputs), sys.stderr) as bar:
        votes = noisy_votes.sample_votes(
            network,
            inputs,
            sampling,
            keep=keep,
            model=digest,
            progress=bar.at,
        )
    return Smoothed(
        sigma=sigma,
        votes=votes.votes,
        selection=votes.selection,
        labels=labels.numpy(),
        facts={
            "model": digest,
            "selection_copies": request.select,
            "draw": draw,
        },
    )
