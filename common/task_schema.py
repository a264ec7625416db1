"""The sections of a task file, and what each of their values may be.

Whether the numbers of several sections fit together is for `precad.common.task` to say.
"""

import math
import re
import unicodedata
from collections import Counter
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from precad.common import Misconfiguration

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Upto1000 = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
LossName = Literal["cross-entropy", "squared-error", "absolute-error", "huber"]
"""The losses that a task can name."""
MAX_FRACTIONAL_BITS = 52
_WITH_POINT = re.compile(r"-?[0-9]+\.[0-9]+")


class Section(
    BaseModel, frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
):
    """A table of the file: frozen, without unknown keys."""


class Parameter(Section):
    """One tensor of the model, as `named_parameters()` names it."""

    name: Name
    """As the module's `named_parameters()` has it."""
    shape: Annotated[tuple[Count, ...], Field(strict=False, max_length=8)]
    """Its extents; an empty list is a single number."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Buffer(Section):
    """A tensor of the model that isn't trained, alike for all owners."""

    name: Name
    """As the module's `named_buffers()` has it, or the attribute's."""
    digest: Sha256
    """SHA-256 of its numbers, kind and shape."""


class ModelSection(Section):
    """The model's parameters and where training starts."""

    architecture: Annotated[str, Field(min_length=1, max_length=100)] = "custom"
    """`logistic`, `mlp`, `cnn` (a small one for grey images of 28 × 28), which are
    built in; or any name that the data owners agree on."""
    parameters: Annotated[
        tuple[Parameter, ...], Field(strict=False, min_length=1, max_length=10_000)
    ]
    """Every tensor, in the module's own order; a table `{ name, shape }` each."""
    initial: Literal["zeros", "uniform", "file"] = "zeros"
    """`zeros`: every tensor zero; suits models of one layer, a deeper one can't learn
    from it. `uniform`: matrices uniform in ±1/√fan-in, expanded from the public
    `initial_seed`; vectors 1 where their name ends in weight (scales), else 0 (biases).
    `file`: the weights of `initial_file`, which are public: what they were trained on
    isn't protected."""
    initial_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Public: everybody computes the same initial model from it."""
    initial_file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """`file`: safetensors with these parameters, relative to the task's file. Everybody
    has it; its place is in no digest."""
    initial_digest: Sha256 | None = None
    """`file`: SHA-256 of the weights as float64, in the parameters' order; checked
    whenever they are read."""
    buffers: Annotated[tuple[Buffer, ...], Field(strict=False, max_length=10_000)] = ()
    """Tensors that aren't trained, such as a fixed scaler's: an owner with others is
    refused."""

    @model_validator(mode="after")
    def _of_a_file(self) -> Self:
        # The file is each party's own: a ledger's task, or a peer's, has none.
        of_file = self.initial == "file"
        misplaced = self.initial_file is not None and not of_file
        if misplaced or of_file is (self.initial_digest is None):
            raise Misconfiguration(
                "model.initial",
                self.initial,
                'goes with initial_file and initial_digest where it is "file", and with'
                " nothing else: precad task new --continue WEIGHTS writes all three",
            )
        return self


def level_text(text: str) -> str:
    """A level as it is compared: NFC, stripped, `true` for `True`, `2` for `2.0`."""
    plain = unicodedata.normalize("NFC", text).strip()
    if plain.lower() in {"true", "false"}:
        return plain.lower()
    if _WITH_POINT.fullmatch(plain):
        plain = plain.rstrip("0").rstrip(".")
        return "0" if plain == "-0" else plain
    return plain


class Column(Section):
    """One column of the owners' tables."""

    name: Name
    """As it stands above the column."""
    kind: Literal["numeric", "categorical"] = "numeric"
    """`numeric`: one input, (value − centre)/scale; `categorical`: one input for each
    level, 1 at the record's own, and a last one for every level that isn't listed."""
    centre: Finite = 0.0
    """Numeric: what is subtracted; a constant from public knowledge."""
    scale: Positive = 1.0
    """Numeric: what the rest is divided by; a constant from public knowledge."""
    fill: Finite | None = None
    """Numeric: what a missing value counts as, before centre and scale; refused without
    it."""
    levels: Annotated[tuple[Name, ...], Field(strict=False, max_length=10_000)] = ()
    """Categorical: the levels that have an input, or a class, of their own, in this
    order."""
    fill_level: Name | None = None
    """Categorical: the level that a missing value counts as; refused without it."""

    @property
    def inputs(self) -> int:
        """How many numbers it becomes."""
        return len(self.levels) + 1 if self.kind == "categorical" else 1


Marks = Annotated[
    tuple[Annotated[str, Field(max_length=200)], ...],
    Field(strict=False, max_length=100),
]
"""Cells of text that mean a missing value."""


class DataSection(Section):
    """How a row of an owner's table becomes numbers; fixed before a record is read."""

    target: Column
    """What is learned: a categorical column's levels are the classes 0, 1, …; a numeric
    one is a number."""
    columns: Annotated[
        tuple[Column, ...], Field(strict=False, min_length=1, max_length=10_000)
    ]
    """The inputs' columns in the model's order; a table each. Owners who bring arrays
    need none of this section."""
    missing: Marks = ("", "NA", "NaN", "nan", "null")
    """Cells of text that mean a missing value; blanks around a cell don't count."""

    @cached_property
    def features(self) -> int:
        """How many numbers a record's input has."""
        return sum(column.inputs for column in self.columns)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        wrong = wrong_columns(self)
        if wrong:
            raise wrong
        return self


_NUMERIC = ("centre", "scale", "fill")
_CATEGORICAL = ("levels", "fill_level")
_PLAIN = {name: field.get_default() for name, field in Column.model_fields.items()}


def wrong_columns(section: DataSection) -> Misconfiguration | None:
    """The first thing that one column, or two of them, can't mean."""
    every = (*section.columns, section.target)
    names = Counter(column.name for column in every)
    for column in every:
        field = f"data, column {column.name}"
        levels = column.levels
        if names[column.name] > 1:
            return Misconfiguration(
                field, column.name, "stands there twice; name each column once"
            )
        foreign = _NUMERIC if column.kind == "categorical" else _CATEGORICAL
        # By value: a file that a program wrote has every field.
        beside = [name for name in foreign if getattr(column, name) != _PLAIN[name]]
        if beside:
            remedy = f"isn't for a {column.kind} column; leave out"
            return Misconfiguration(field, beside[0], remedy)
        if column.kind == "categorical" and not levels:
            return Misconfiguration(field, [], "list at least one level")
        read = Counter(map(level_text, levels))
        alike = [level for level in levels if read[level_text(level)] > 1]
        if alike:
            return Misconfiguration(
                field, alike, "are read alike: list each level once"
            )
        both = set(levels) & set(section.missing)
        if both:
            remedy = "is a level here and means a missing value in missing"
            return Misconfiguration(field, min(both), remedy)
    if section.target.fill is not None or section.target.fill_level is not None:
        remedy = "a record without a target teaches nothing: leave it out"
        return Misconfiguration("data.target", "fill", remedy)
    return None


class ClipBySize(Section):
    """A bound on a client's update that follows how much data the client has."""

    per_record: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)] = 2.0
    """c: an update may be as long as c of the records that its client samples on
    average, p_i·|D_i|, and one at least, times R. With p = 1, c = 1 is exactly what an
    honest client can add; below p = 1 samples vary, and 2 leaves them room."""
    most: Positive
    """C: largest L2 norm of any client's update."""


def _kind_of_clip(value: object) -> str:
    """Name what a clip is written as, so that its errors are about that alone."""
    return "table" if isinstance(value, dict | ClipBySize) else "number"


class PrivacySection(Section):
    """Clips, noise and sampling; symbols as in PRECAD Table 2."""

    record_clip: Positive
    """R: largest L2 norm of one record's, or unit's, gradient."""
    client_clip: Annotated[
        Annotated[Positive, Tag("number")] | Annotated[ClipBySize, Tag("table")],
        Discriminator(_kind_of_clip),
    ]
    """C: largest L2 norm of one client's update; or `{ per_record = c, most = C }`, and
    nobody weighs more than c times its share of the data."""
    noise_multiplier: Positive
    """σ: each server's noise standard deviation over R'."""
    unit: Annotated[str, Field(pattern=r"^[a-z][a-z-]{0,30}$")] | None = None
    """What is protected where it isn't a record: a name such as `patient`, in small
    letters. All records of one owner with the same identifier are one, and R, p, caps
    and sizes are of these; owners' settings say which column has it."""
    most_records_per_unit: Annotated[int, Field(ge=1, le=1000)] | None = None
    """L, with `unit`: a unit's gradient is the mean over so many of its records at
    most, drawn afresh each round; work is padded to it."""
    record_rate: Rate
    """p: largest Poisson sampling rate of records, or units, that a client may enrol
    with."""
    client_rate: Rate
    """q: Poisson sampling rate of clients."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """δ of every (ε, δ) statement; far below 1 over the records."""
    epsilon_limit: Positive | None = None
    """Servers let no client's exact ε of a unit (one server corrupted) pass this."""
    owners_per_unit: Annotated[int, Field(ge=1, le=100)] | None = None
    """m: at how many owners one unit is at most, as you declare; limits and accounts
    count what it costs there. One unless given."""
    cover_uploads: bool = False
    """Whether clients that aren't drawn upload zeros at the same time: hides the coin.
    """

    @property
    def most_client_clip(self) -> float:
        """C: what no client's update may pass, however much data the client has."""
        clip = self.client_clip
        return clip.most if isinstance(clip, ClipBySize) else clip

    @property
    def clip_per_record(self) -> float | None:
        """C of ``ClipBySize``; None where all clients have the same bound."""
        clip = self.client_clip
        return clip.per_record if isinstance(clip, ClipBySize) else None


class ObjectiveSection(Section):
    """What is minimised for a record, how its gradient is clipped (DP-CERT); no ε."""

    name: Literal[
        "plain",
        "dp-gaussian",
        "dp-smoothadv",
        "dp-stability",
        "dp-macer",
        "dp-consistency",
    ] = "plain"
    """`plain`: the owners' loss of the record; `dp-gaussian`: its mean over the record
    and noisy copies; `dp-smoothadv`: copies around an adversarial one; the others add a
    regulariser to `dp-gaussian`. All for models that are smoothed when they are used:
    docs/robustness.md."""
    noise: Upto1000 = 0.25
    """Standard deviation of a copy's Gaussian noise, in the inputs' units; the
    smoothing's too."""
    copies: Annotated[int, Field(ge=1, le=256)] = 2
    """K: noisy copies of each record; more than two don't help and cost their work."""
    original: bool = True
    """Whether the record itself counts beside its copies."""
    weight: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 2.0
    """Of the regulariser of `dp-stability`, `dp-macer` and `dp-consistency`."""
    margin: Upto1000 = 8.0
    """`dp-macer`: the hinge's γ."""
    attack_radius: Upto1000 = 0.5
    """`dp-smoothadv`: how far in L2 the adversarial record may lie."""
    attack_steps: Annotated[int, Field(ge=1, le=100)] = 4
    """`dp-smoothadv`: steps to it, each a gradient of K copies."""
    clipping: Literal["flat", "psac"] = "flat"
    """`flat`: a gradient longer than R is scaled to R; `psac`: every gradient g is
    scaled to R·g/(‖g‖ + s/(‖g‖ + s)), below R too."""
    stabiliser: Upto1000 = 0.1
    """`psac`: its s (r in the paper)."""


class TrainingSection(Section):
    """Optimisation."""

    learning_rate: Positive
    """η: the model moves by η times the noisy sum over the expected number of records.
    """
    rounds: Annotated[int, Field(ge=1, le=1_000_000)]
    """T: how many times the model is changed."""
    loss: LossName | None = None
    """What a record adds to what is minimised: `cross-entropy` of classes;
    `squared-error`, `absolute-error` or `huber` of a number. Unless given
    `squared-error` where `data.target` is numeric, else `cross-entropy`. An owner's
    settings may name a loss of its own."""
    attempts: Annotated[int, Field(ge=1, le=1000)] = 20
    """Most tries to get from one version to the next before the operators are asked."""
    any_operations: bool = False
    """Whether models and losses may hold operations that raise, or take longer, at some
    values: `deadlines.work` must then cover every record computed alone."""
    least_counted: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Least number of owners that count in a round: after three rounds in a row with
    fewer, both servers pause for their operators (`precad allow few`). Unless given
    they never do, and rounds without anybody are noise alone."""
    class_weights: Annotated[tuple[Rate, ...], Field(strict=False)] | None = None
    """What a record's loss is multiplied by, for each class in its order: 1 for the
    rarest, less for the others, as the clip cancels more (`task new --balance`). By
    shares that are public or stated, never counted in the records."""
    compact_release: bool | None = None
    """Whether a released sum is rounded to an eighth of one server's noise, and travels
    in the bits that it needs: to owners in a quarter of a model's bytes. It adds .07 % to
    the noise's variance. Releases before 0.3.0 refuse a task with it."""


class LocalSection(Section):
    """Each owner trains by itself and adds the difference: whole owners are protected.

    What an owner's records say is, not that it takes part.
    """

    epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    """E: how often an owner goes through its records in a round."""
    learning_rate: Positive
    """Of the owner's own steps, which are plain gradient descent."""
    batch_size: Annotated[int, Field(ge=1)] | None = None
    """Records of one step, in a new order each epoch; all at once unless given."""


class EnrolmentSection(Section):
    """Who may enrol; frozen before round 0."""

    clients: Annotated[int, Field(ge=1, le=100_000)]
    """n: most clients. The task starts when all have enrolled, or at the deadline."""
    min_clients: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Least number of enrolled clients to start with."""
    max_expected_records: Positive
    """Cap of p_i·|D_i| per client: an inflated claim would stall training. Leave room
    above the largest data set, which may grow before it enrols."""
    planned_units: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """N: records (units; whole owners with [local]) that are planned for in all. The
    noisy sum is divided by q·p·N, whatever owners claim, and so certificates hold;
    without it by what they claim. Far from what enrols it only makes steps too short or
    too long."""


class DeadlineSection(Section):
    """How long each wait may take, in seconds."""

    enrol: Seconds = 120.0
    """From a server's start until those who have enrolled are the roster."""
    collect: Seconds = 60.0
    """From the announcement of a round until it closes. An owner that takes longer than
    three times what most take, and a fifth of this, is left out of some rounds."""
    work: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 0.5
    """From a model's last byte, or the announcement where an owner holds the model, until
    its upload begins: three times the padded work of the slowest owner (`doctor`). 0:
    at once, and the time tells of the work."""
    rejoin: Seconds = 5.0
    """A client whose connection ended longer ago isn't waited for, if another is there."""
    outage: Seconds = 600.0
    """How long a server tries to get back to the other server and the dealer before it
    gives up."""
    peer: Seconds = 60.0
    """For one message of the other server or the dealer."""

    @property
    def enrol_in_words(self) -> str:
        """``enrol`` in minutes."""
        return f"{self.enrol / 60:.3g} min"
