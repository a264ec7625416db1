"""The task that owners, servers and dealer agree on; all messages carry its digest.

Whether its numbers fit together is checked when it is made, so that no round can meet
what doesn't (docs/soundness.md, "Headroom"). Each refusal names the field to change,
its value, and one that fits; named fractional bits satisfy every rule of the ring.
"""

import json
import math
from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from precad.common import (
    HALF_WIDTHS,
    LEAST_ROWS,
    LEFT_OUT,
    MAX_BOUND,
    MOST_OWNERS,
    NOISE_DEVIATIONS,
    Answers,
    Block,
    Contribution,
    Digest,
    LocalTraining,
    Mechanism,
    Misconfiguration,
    ModelStep,
    ProofShape,
    Query,
    Questions,
    SampledGradients,
    Unit,
    filled,
    fixed,
    parsed,
    read_toml,
    too_coarse,
)
from precad.common import task_schema as schema

TAU = 7
"""Half-width of the range test in units of β: |z| ≤ τβ."""
MIN_NOISE_UNITS = 1024.0
"""Least noise deviation in units: from it on the continuous Gaussian's PLD holds."""
MAX_CLIP_RATIO = 1024
"""Largest C/R: a client's clip rounds by C·2^−30 at most, far below a record."""
MOST_DELTA = 0.01
"""Largest δ of a task that is written or played now."""
ROOM_IN_SIZES = 2.0
"""A data set may have grown to so many times the largest that was planned for."""
SUM_LIMIT = 2**62
RANGE_LIMIT = 2**63
_REMEDIES = {
    "extra_forbidden": (
        "unknown key; mend its name, remove it, or install a precad that knows it"
    ),
    "missing": "is required",
}
_KINDS = {
    "literal_error": (
        "is none of count, shares, cross-table, histogram, mean, quantiles, survival,"
        " evaluation, covariance, least-squares (a column's: numeric, categorical); a"
        " minimum or maximum would tell of one record: ask for quantiles, such as .05"
    )
}
"""What is said of another kind of query or column."""
_OF_QUESTIONS = ("columns", "missing", "equal_errors")


class Task(schema.Section):
    """A training that owners, two servers and, where it has one, a dealer agree on."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    """What people call it: small letters, digits and hyphens."""
    model: schema.ModelSection
    privacy: schema.PrivacySection
    training: schema.TrainingSection
    enrolment: schema.EnrolmentSection
    fractional_bits: Annotated[int, Field(ge=1, le=schema.MAX_FRACTIONAL_BITS)] = 20
    """f: an update's unit in the last place is 2^−f."""
    validation: Literal["crypten", "proof"] = "crypten"
    """How norms are checked: `crypten`, a Beaver square and CrypTen's comparisons, with
    a dealer; or `proof`, by the owners' own proofs: no dealer, and a server that cheats
    learns no more."""
    projections: Annotated[int, Field(ge=40, le=256)] = 40
    """k: rows of the range test; soundness error 2^−k a submission, or a hash that an
    owner tries: at least 100 of them, and 100 unless given, under `proof`."""
    deadlines: schema.DeadlineSection = schema.DeadlineSection()
    objective: schema.ObjectiveSection | None = None
    """What a record's gradient is of; the owners' plain loss without it."""
    local: schema.LocalSection | None = None
    """Where owners train by themselves; a sample's gradients without it."""
    data: schema.DataSection | None = None
    """How tables become numbers, where owners bring tables: a public constant."""
    query: Annotated[tuple[Query, ...], Field(strict=False)] | None = None
    """What is asked in place of a training: a table each (docs/questions.md)."""
    columns: Annotated[tuple[schema.Column, ...], Field(strict=False)] | None = None
    """Of questions, without `[data]`: categorical columns and their levels."""
    missing: schema.Marks | None = None
    """Of questions, without `[data]`: as `data.missing`, with the same default."""
    equal_errors: bool | None = None
    """Of questions: the greatest error is least, and not the sum of squared ones."""

    @classmethod
    def parse(cls, data: dict[str, object]) -> Self:
        """From plain values. Raises Misconfiguration."""
        return parsed(cls, data, _REMEDIES)

    @classmethod
    def parse_new(cls, data: dict[str, object]) -> Self:
        """As ``parse``, for a task that is written or played now.

        Ledgers of earlier days may hold tasks that nobody should write any more, and
        none says where a party has its task's weights. Raises Misconfiguration.
        """
        task = cls.parse(data)
        check_delta(task.privacy.delta)
        if task.model.initial == "file" and task.model.initial_file is None:
            raise Misconfiguration(
                "model.initial_file",
                None,
                'names the weights of model.initial = "file", beside the task\'s file:'
                " precad task new --continue WEIGHTS writes it",
            )
        return task

    @classmethod
    def load(cls, path: Path) -> Self:
        """From a TOML file; unknown keys are refused. Raises Misconfiguration."""
        values = read_toml("task", path)
        model = values.get("model")
        if isinstance(model, dict) and isinstance(model.get("initial_file"), str):
            model["initial_file"] = str(path.resolve().parent / model["initial_file"])
        return cls.parse_new(values)

    @model_validator(mode="before")
    @classmethod
    def _by_check(cls, data: Any) -> Any:
        check = data.get("validation") if isinstance(data, dict) else None
        if check == "fss":
            raise Misconfiguration(
                "validation",
                check,
                'is no more: write "proof", which gives the same and needs no dealer;'
                " ledgers of such a task are read by precad ledger and report",
            )
        return {"projections": LEAST_ROWS} | data if check == "proof" else data

    @model_validator(mode="before")
    @classmethod
    def _of_questions(cls, data: Any) -> Any:
        """Fill in what a question leaves open in none of its tasks."""
        if not isinstance(data, dict) or data.get("query") is None:
            return data
        asked = {name: data.get(name) for name in Questions.model_fields}
        return filled(data, parsed(Questions, asked, _REMEDIES | _KINDS))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        wrong = _wrong_together(self)
        if wrong:
            field, remedy, *other = wrong
            raise Misconfiguration(
                field, other[0] if other else attrgetter(field)(self), remedy
            )
        return self

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> Self:
        """Copy it with other values, unchecked; digest and mechanism are its own."""
        copied = super().model_copy(update=update, deep=deep)
        for name in vars(copied).keys() - Task.model_fields.keys():
            del vars(copied)[name]
        return copied

    @cached_property
    def canonical(self) -> bytes:
        """The bytes that the digest is of: JSON, sorted keys, shortest floats."""
        values = self.model_dump(mode="json")
        # A task without them has the digest that it had before they could be described.
        for section, later_fields in (
            (values, ("data", "objective", "local", "query", *_OF_QUESTIONS)),
            (values["model"], ("initial_digest", "buffers")),
            (
                values["privacy"],
                ("owners_per_unit", "unit", "most_records_per_unit"),
            ),
            (values["enrolment"], ("planned_units",)),
            (
                values["training"],
                (
                    "any_operations",
                    "least_counted",
                    "loss",
                    "class_weights",
                    "compact_release",
                ),
            ),
        ):
            for later in later_fields:
                if not section[later]:
                    del section[later]
        del values["model"]["initial_file"]  # each party's own
        return json.dumps(
            values,
            sort_keys=True,
            separators=(",", ":"),
            allow_nan=False,
        ).encode()

    @cached_property
    def digest(self) -> Digest:
        """SHA-256 of the canonical form; peers whose digest differs are refused.

        With proofs, of their sizes too: whoever would compute others is another task's.
        """
        sizes = (
            b"" if self.proof is None else json.dumps(self.proof.parameters).encode()
        )
        return Digest.of(b"precad/v1/task\0" + self.canonical + sizes)

    @cached_property
    def mechanism(self) -> Mechanism:
        """What one release is: the one place that noise, caps and accounts ask."""
        privacy = self.privacy
        unit = Unit.RECORD if privacy.unit is None else Unit(privacy.unit)
        contribution: Contribution
        step: ModelStep | None = ModelStep(learning_rate=self.training.learning_rate)
        if self.query is not None:
            contribution = Answers(unit_clip=privacy.record_clip, unit=unit)
            step = None
        elif self.local is None:
            contribution = SampledGradients(
                unit_clip=privacy.record_clip,
                unit_rate=privacy.record_rate,
                unit=unit,
                most_records_per_unit=privacy.most_records_per_unit,
            )
        else:
            contribution = LocalTraining(
                unit_clip=privacy.most_client_clip,
                **self.local.model_dump(),
            )
        return Mechanism(
            contribution=contribution,
            step=step,
            parameters=self.model.parameters,
            owner_clip=privacy.most_client_clip,
            clip_per_unit=privacy.clip_per_record,
            owner_rate=privacy.client_rate,
            hides_coin=privacy.cover_uploads,
            noise_multiplier=privacy.noise_multiplier,
            planned_units=self.enrolment.planned_units,
            owners_per_unit=privacy.owners_per_unit or 1,
            releases=self.training.rounds,
            attempts=self.training.attempts,
            fractional_bits=self.fractional_bits,
            compact_release=bool(self.training.compact_release),
        )

    @property
    def dimension(self) -> int:
        """d: length of the released vector."""
        return self.mechanism.dimension

    @cached_property
    def questions(self) -> Questions | None:
        """What is asked; None where a model is trained."""
        if self.query is None:
            return None
        asked = {name: getattr(self, name) for name in Questions.model_fields}
        return Questions.model_construct(**asked)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Each query's place in the vector; none where a model is trained."""
        if self.questions is None:
            return ()
        return self.questions.blocks(round(self.mechanism.sensitivity_units))

    @property
    def target(self) -> schema.Column:
        """What is learned; without a recipe a column of no name, numbers as they are."""
        return schema.Column(name="target") if self.data is None else self.data.target

    @property
    def loss(self) -> schema.LossName:
        """The loss of a record, where its owner has none of its own."""
        numeric = self.data and not self.target.levels
        return self.training.loss or ("squared-error" if numeric else "cross-entropy")

    @cached_property
    def at_one_owner(self) -> Self:
        """The same with a unit at one owner alone, to say beside what that costs."""
        privacy = self.privacy.model_copy(update={"owners_per_unit": None})
        return self.model_copy(update={"privacy": privacy})

    @cached_property
    def proof(self) -> ProofShape | None:
        """The proofs' sizes, where clients prove their norms."""
        if self.validation != "proof":
            return None
        return ProofShape(
            dimension=self.mechanism.dimension,
            bound=self.mechanism.bound,
            rows=self.projections,
        )

    @property
    def has_dealer(self) -> bool:
        """Whether a third party deals what the check needs."""
        return self.validation != "proof"


def check_delta(delta: float) -> None:
    """Raise Misconfiguration: a δ is too large for a task that is played now."""
    if delta > MOST_DELTA:
        raise Misconfiguration(
            "privacy.delta",
            delta,
            f"must be at most {MOST_DELTA}: beside a larger one ε says nothing",
        )


def require_dealer(task: Task, address: str | None) -> None:
    """Raise Misconfiguration: a task's dealer is missing, or one is given for none."""
    if task.has_dealer is not (address is None):
        return
    remedy = (
        'give its HOST:PORT, or take a task with validation = "proof", which needs none'
    )
    if address is not None:
        remedy = 'remove it: a task with validation = "proof" has no dealer'
    raise Misconfiguration("dealer", address, remedy)


def with_objective(task: Task, objective: schema.ObjectiveSection | str) -> Task:
    """The same task with another record objective, by its name or in full.

    Raises Misconfiguration: there is none of this name.
    """
    section = (
        {"name": objective} if isinstance(objective, str) else objective.model_dump()
    )
    values = task.model_dump(mode="json", exclude={"objective"})
    return Task.parse(values | {"objective": section})


_Wrong = tuple[str, str] | tuple[str, str, object]
"""A field, what would fit, and what is wrong where that isn't the field's value."""


def _wrong_together(task: Task) -> _Wrong | None:
    """Return the first rule that no field decides alone and that is broken."""
    wrong_question = _wrong_with_questions(task)
    if wrong_question is not None:
        return wrong_question
    privacy = task.privacy
    enrolment = task.enrolment
    deadlines = task.deadlines
    most_client_clip = privacy.most_client_clip
    if privacy.record_clip > most_client_clip:
        remedy = f"must be at most privacy.client_clip = {most_client_clip}"
        return "privacy.record_clip", remedy
    if enrolment.min_clients > enrolment.clients:
        remedy = f"must be at most enrolment.clients = {enrolment.clients}"
        return "enrolment.min_clients", remedy
    least = task.training.least_counted
    if least is not None and (least > enrolment.clients or privacy.cover_uploads):
        return "training.least_counted", (
            f"must be at most enrolment.clients = {enrolment.clients}, and goes without"
            " privacy.cover_uploads: a pause would tell owners how many the coin drew"
        )
    if task.training.compact_release and enrolment.planned_units is None:
        return "training.compact_release", (
            "needs enrolment.planned_units: owners make the next model themselves, and"
            " have to know what a sum is divided by"
        )
    if deadlines.work >= deadlines.collect:
        return "deadlines.work", (
            f"must be below deadlines.collect = {deadlines.collect}: uploads begin"
            " then, and have to arrive"
        )
    if task.validation == "proof" and task.projections < LEAST_ROWS:
        return "projections", (
            f'must be at least {LEAST_ROWS} under validation = "proof", and is so'
            " unless given: owners can try hashes for rows that suit them"
        )
    of_classes = task.loss == "cross-entropy"
    if task.data and task.query is None and of_classes is not bool(task.target.levels):
        return "training.loss", (
            "must fit data.target: cross-entropy where that is categorical, another"
            " where it is numeric"
        )
    names = [parameter.name for parameter in task.model.parameters]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        remedy = "names two parameters; each needs its own name"
        return "model.parameters", remedy, repeated
    wrong_unit = _wrong_with_unit(task) or _wrong_with_local(task)
    if wrong_unit is not None:
        return wrong_unit
    broken = _broken_headroom(task)
    if broken is not None:
        return _what_would_fit(broken, task)
    if task.query is not None:
        coarse = too_coarse(task.mechanism, task.blocks)
        return None if coarse is None else ("query", coarse, len(task.query))
    largest_clip = MAX_CLIP_RATIO * privacy.record_clip
    if most_client_clip > largest_clip:
        remedy = (
            f"must be at most {MAX_CLIP_RATIO}·privacy.record_clip = {largest_clip:g}:"
            " the rounding of a client's clip has to stay far below one record"
        )
        return "privacy.client_clip", remedy, most_client_clip
    return None


def _wrong_with_questions(task: Task) -> _Wrong | None:
    """Return what a task with questions may not say."""
    if task.query is None:
        given = [name for name in _OF_QUESTIONS if getattr(task, name)]
        remedy = "goes with [[query]]; a training has [data]"
        return (given[0], remedy) if given else None
    must_be = fixed(
        task.blocks,
        record_clip=task.privacy.record_clip,
        largest=task.enrolment.max_expected_records,
    )
    for field, right in must_be.items():
        value = attrgetter(field)(task)
        if value != right and (value or right):
            return field, LEFT_OUT
    if task.privacy.most_records_per_unit not in (None, 1):
        return "privacy.most_records_per_unit", LEFT_OUT
    if task.enrolment.clients > MOST_OWNERS:
        remedy = f"must be at most {MOST_OWNERS:,} for a question, which names them"
        return "enrolment.clients", remedy, task.enrolment.clients
    return None


def _wrong_with_unit(task: Task) -> _Wrong | None:
    """Return what doesn't fit the task's own unit, such as a patient."""
    privacy = task.privacy
    if (privacy.unit is None) != (privacy.most_records_per_unit is None):
        return "privacy.most_records_per_unit", (
            "goes with privacy.unit, and privacy.unit with it: the most records of one"
            " unit, such as a patient, that count in a round"
        )
    if privacy.unit in (Unit.RECORD, Unit.OWNER):
        return "privacy.unit", (
            "names what several records belong to, such as patient: leave it out where"
            " each record is protected by itself, or, with [local], a whole owner"
        )
    if privacy.unit is not None and task.local is not None:
        return "privacy.unit", "leave it out with [local]: there an owner is the unit"
    return None


def _wrong_with_local(task: Task) -> _Wrong | None:
    """Return what doesn't fit whole owners' training, where an owner is the unit."""
    if task.local is None:
        return None
    privacy = task.privacy
    if privacy.record_rate != 1:
        remedy = "must be 1 with [local]: an owner trains on all its records"
        return "privacy.record_rate", remedy
    if privacy.clip_per_record is not None:
        remedy = "give a number with [local]: all owners weigh alike"
        return "privacy.client_clip", remedy
    if privacy.owners_per_unit is not None:
        return "privacy.owners_per_unit", "leave it out with [local]: an owner is one"
    if privacy.record_clip != privacy.client_clip:
        return "privacy.record_clip", (
            f"must be privacy.client_clip = {privacy.client_clip} with [local]: the"
            " owner's whole difference is clipped, and nothing else"
        )
    remedy = "leave it out with [local]: an owner minimises its plain loss"
    if task.objective is not None:
        return "objective", remedy
    if task.training.class_weights:
        return "training.class_weights", remedy
    return None


def _projection_width(task: Task) -> int:
    """2τ in the ring; in the field 4B/β, as sums must stay below p/2."""
    return 2 * TAU if task.validation == "crypten" else 4 * HALF_WIDTHS


_Rule = Literal["bound", "range", "noise", "sum"]


def _broken_headroom(task: Task) -> _Rule | None:
    """Return the ring's first broken rule (docs/soundness.md, "Headroom")."""
    mechanism = task.mechanism
    # In this order: the noise of a dimension that is out of range may be no number.
    if not 1 <= mechanism.bound <= MAX_BOUND:
        return "bound"
    # No projection that passes part 1 of validation has wrapped.
    widest = _projection_width(task) * mechanism.bound * mechanism.dimension
    if widest >= RANGE_LIMIT:
        return "range"
    # Fine enough to be taken for continuous.
    if mechanism.noise_units < MIN_NOISE_UNITS:
        return "noise"
    # A round's sum doesn't wrap, with both servers' noise as if it added up fully.
    room = SUM_LIMIT - 2 * NOISE_DEVIATIONS * mechanism.noise_units
    largest_sum = task.enrolment.clients * mechanism.bound
    return None if largest_sum < room else "sum"


def _what_would_fit(rule: _Rule, task: Task) -> _Wrong:
    """Return what to change where that rule of the ring is broken."""
    mechanism = task.mechanism
    match rule:
        case "bound":
            fitting = _fitting_bits(task, "range", "noise", "sum")
            if fitting:
                return "fractional_bits", (
                    f"β = floor(C·2^f) = {mechanism.bound} must be from 1 to 2^25 ="
                    f" {MAX_BOUND}; {_bits_to_use(task, fitting)}"
                )
            return "privacy.client_clip", (
                "β = floor(C·2^f) must be from 1 to 2^25, and no number of"
                " fractional_bits gives that: use a clip from"
                f" 2^-{schema.MAX_FRACTIONAL_BITS} to 2^24"
            )
        case "range":
            width = _projection_width(task)
            largest_dimension = (RANGE_LIMIT - 1) // (width * mechanism.bound)
            remedy = (
                f"{width}·βd must be below 2^63; with β ="
                f" {mechanism.bound} at most d = {largest_dimension} fits: use fewer"
                " fractional_bits or a smaller model"
            )
            return "model.parameters", remedy, f"d = {mechanism.dimension}"
        case "noise":
            too_little = (
                f"the noise's standard deviation is {mechanism.noise_units:.4g} units"
                f" of the last place and must be at least {MIN_NOISE_UNITS:g}"
            )
            fitting = _fitting_bits(task)
            if fitting:
                use = _bits_to_use(task, fitting)
                return "fractional_bits", (
                    f"{too_little}; {use}, or a larger privacy.noise_multiplier"
                )
            least_multiplier = _four_digits(
                MIN_NOISE_UNITS / mechanism.sensitivity_units, up=True
            )
            return "privacy.noise_multiplier", (
                f"{too_little}, which no number of fractional_bits gives; with"
                f" {task.fractional_bits} of them use a multiplier of at least"
                f" {least_multiplier}"
            )
        case "sum":
            # n·β alone is always far below 2^62: n and β are limited themselves.
            room = SUM_LIMIT - task.enrolment.clients * mechanism.bound
            largest = room / (2 * NOISE_DEVIATIONS * mechanism.sensitivity_units)
            return "privacy.noise_multiplier", (
                f"n·β + {NOISE_DEVIATIONS:g} standard deviations of both servers' noise"
                " must be below 2^62; use a multiplier of at most"
                f" {_four_digits(largest, up=False)}"
            )


def _fitting_bits(task: Task, *others: _Rule) -> list[int]:
    """Return the fractional bits that break no rule, else none but ``others``."""
    values = {name: getattr(task, name) for name in Task.model_fields}
    # Made without checks, or a number that doesn't fit would be refused in its turn.
    broken_by_bits = {
        bits: _broken_headroom(
            Task.model_construct(**values | {"fractional_bits": bits})
        )
        for bits in range(1, schema.MAX_FRACTIONAL_BITS + 1)
    }
    fitting = [bits for bits, rule in broken_by_bits.items() if rule is None]
    return fitting or [bits for bits, rule in broken_by_bits.items() if rule in others]


def _bits_to_use(task: Task, fitting: list[int]) -> str:
    """Say which of the fitting numbers of fractional bits is nearest to the task's."""
    too_few = task.fractional_bits < fitting[0]
    return f"use at least {fitting[0]}" if too_few else f"use at most {fitting[-1]}"


def _four_digits(value: float, *, up: bool) -> str:
    """Four digits, above (or below) the exact value by up to one in the last."""
    exponent = math.floor(math.log10(value)) - 3
    digits = math.floor(value / 10.0**exponent) + (1 if up else -1)
    return f"{digits}e{exponent}"
