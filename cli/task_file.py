"""A task file from what is wanted, with a comment at each field; and what a task guarantees."""

import json
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from precad.accounting.guarantees import ASSUMED, PrivacyStatement, planned_guarantees
from precad.cli import planning
from precad.client.own_account import OwnAccount
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.task import Task
from precad.common.task_schema import DataSection
from precad.common.terminal import upper

_MOST_OWNERS = 100_000
"""The most that a task takes."""
_PART = re.compile(r"(?:([0-9][0-9_]{0,15})\s*[xX×]\s*)?([0-9][0-9_]{0,15})")
_FORM = "like 10x6000 (ten owners of 6,000), separated by commas where they differ"
_RECORD_RATE = 0.05
_COHORT = 20
"""Owners that take part in a round, about; of fewer all do."""
_CLIP_RATIO = 10.0
_ENROL_S = 3600.0
_LARGEST_STEP = 10.0
_ROOM_IN_SIZES = 2.0
"""A data set may have grown to so many times the largest that was planned for."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What `precad task new` is told; None where an option wasn't given."""

    name: str
    records: str | None
    epsilon: float | None
    recipe: Path | None
    architecture: Literal["logistic", "mlp"] | None
    features: str | None
    classes: int | None
    hidden: int
    model: str | None
    weights: Path | None
    owners: int | None
    delta: float
    rounds: int
    record_clip: float
    client_clip: float | None
    validation: Literal["crypten", "fss"]
    objective: str | None
    input_noise: float


def planned(wishes: Wishes) -> tuple[Task, str, bool]:
    """The task, its file's text, and whether a model of one's own was tried.

    σ is the least for the ε, C and η are by rules of thumb. A file of weights is to lie beside the
    task's, under its own name.

    Raises Misconfiguration: something is missing or can't be, leaves nothing to learn, or no task
    can have it.
    """
    data = None if wishes.recipe is None else _recipe(wishes.recipe)
    shape, classes = _record(wishes, data)
    module, model = _model(wishes, shape, classes)
    sizes, epsilon = _sizes(wishes), _needed("epsilon", wishes.epsilon)
    dimension = sum(math.prod(each["shape"]) for each in model["parameters"])
    values: dict[str, Any] = {
        "name": wishes.name,
        "model": model,
        "validation": wishes.validation,
    }
    if data is not None:
        values["data"] = data.model_dump(mode="json")
    if wishes.objective is not None:
        values["objective"] = {"name": wishes.objective, "noise": wishes.input_noise}
    _plan(values, wishes, sizes, epsilon, dimension)
    made = Task.parse(values)
    tried = wishes.model is None or _tried(made, module, wishes.model, shape, classes)
    most = math.floor(made.enrolment.max_expected_records / made.privacy.record_rate)
    record = planned_guarantees(made)[0]
    owners = "" if wishes.owners is None else f"{wishes.owners}x"
    head = (
        f"Planned for owners of {owners}{wishes.records} records: ε = {upper(record.epsilon, 3)} "
        f"at δ = {wishes.delta:g} for a record against one curious server. training.learning_rate "
        "is a rule of thumb: try others on public data with precad simulate. An owner may hold up "
        f"to {most:,} records, twice the most that was planned for "
        "(enrolment.max_expected_records); one with more claims a lower record_rate. "
        "precad task show says what it guarantees. Everybody has the same file: its digest is in "
        "every message."
    )
    if wishes.weights is not None:
        values["model"]["initial_file"] = wishes.weights.name
    return made, written(Task.parse(values), head), tried


def _plan(
    values: dict[str, Any], wishes: Wishes, sizes: tuple[int, ...], epsilon: float, dimension: int
) -> None:
    rounds, record_clip = wishes.rounds, wishes.record_clip
    client_rate = min(1.0, planning.rounded(_COHORT / len(sizes), 2))
    participations = planning.participations_of(client_rate, rounds)
    sigma = planning.least_noise(epsilon, wishes.delta, _RECORD_RATE, participations)
    clip = _CLIP_RATIO * record_clip if wishes.client_clip is None else wishes.client_clip
    # A round's noise moves the model by about as much as one record in a round of its own.
    expected = client_rate * _RECORD_RATE * sum(sizes)
    step = min(_LARGEST_STEP, expected / (math.sqrt(2 * dimension) * sigma)) / record_clip
    values["privacy"] = {
        "record_clip": record_clip,
        "client_clip": clip,
        "noise_multiplier": sigma,
        "record_rate": _RECORD_RATE,
        "client_rate": client_rate,
        "delta": wishes.delta,
        "epsilon_limit": epsilon,
    }
    values["training"] = {"learning_rate": planning.rounded(step, 2), "rounds": rounds}
    values["enrolment"] = {
        "clients": len(sizes),
        "min_clients": math.ceil(len(sizes) / 2),
        "max_expected_records": max(1.0, _ROOM_IN_SIZES * _RECORD_RATE * max(sizes)),
    }
    values["deadlines"] = {"enrol": _ENROL_S}
    values["fractional_bits"] = planning.fractional_bits(clip)


def _needed(field: str, value: Any) -> Any:
    if value is None:
        raise Misconfiguration(field, None, f"give --{field}")
    return value


def _recipe(path: Path) -> DataSection:
    """A file's [data] section, alone or in whole."""
    values = checks.read_toml("recipe", path)
    try:
        return DataSection.model_validate(values.get("data", values))
    except ValidationError as error:
        remedies = {
            "extra_forbidden": f"unknown key in {path}",
            "missing": f"is required in {path}",
        }
        raise checks.refusal(error, remedies) from None


_SHAPE = re.compile(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){0,7}")


def _record(wishes: Wishes, data: DataSection | None) -> tuple[tuple[int, ...] | None, int | None]:
    """Shape of a record's input and number of classes, from the recipe or as they were given."""
    features, classes = wishes.features, wishes.classes
    if data is not None:
        for field, value in (("features", features), ("classes", classes)):
            if value is not None:
                raise Misconfiguration(field, value, f"the recipe says it: leave --{field} out")
        return (data.features,), len(data.target.levels) or 1
    if features is None:
        return None, classes
    if not _SHAPE.fullmatch(features) or (wishes.model is None and "x" in features):
        raise Misconfiguration(
            "features", features, "give a whole number, or with --model a shape like 3x32x32"
        )
    return tuple(map(int, features.split("x"))), classes


def _model(
    wishes: Wishes, shape: tuple[int, ...] | None, classes: int | None
) -> tuple[Any, dict[str, Any]]:
    """The module, and the task's ``model`` that describes it."""
    from precad.client.gradients.own_weights import check_file  # noqa: PLC0415 -- torch
    from precad.client.gradients.torch_models import (  # noqa: PLC0415 -- torch
        logistic,
        mlp,
        model_section,
    )
    from precad.client.owner_settings import own_model  # noqa: PLC0415 -- torch

    if (wishes.architecture is None) == (wishes.model is None):
        raise Misconfiguration(
            "model",
            wishes.model,
            "give either --architecture, with --features and --classes, or --model",
        )
    initial = "zeros" if wishes.architecture == "logistic" else "uniform"
    if wishes.model is not None:
        module = own_model(wishes.model)
    else:
        sizes = (("features", shape), ("classes", classes), ("hidden", wishes.hidden))
        for field, value in sizes:
            if value is None:
                raise Misconfiguration(field, None, f"give --{field}, which --architecture needs")
        assert shape is not None
        assert classes is not None
        checks.count("classes", classes, 1)
        checks.count("hidden", wishes.hidden, 1)
        logits = wishes.architecture == "logistic"
        module = logistic(shape[0], classes) if logits else mlp(shape[0], wishes.hidden, classes)
    kind = wishes.architecture or "custom"
    section = model_section(module, kind, initial, initial_file=wishes.weights)
    if wishes.weights is not None:
        check_file(module, wishes.weights)
    return module, section


def _tried(
    made: Task, module: Any, place: str, shape: tuple[int, ...] | None, classes: int | None
) -> bool:
    """Whether a model of one's own was tried on made-up records; without a shape it may not be."""
    from precad.client.gradients.rehearsal import try_model  # noqa: PLC0415 -- torch

    outputs = try_model(module, made, shape)
    found = getattr(outputs, "shape", ())
    if classes is not None and outputs is not None and tuple(found) != (1, classes):
        raise Misconfiguration(
            "model", place, f"gives {list(found)} for one record: its target needs [1, {classes}]"
        )
    return outputs is not None


def _sizes(wishes: Wishes) -> tuple[int, ...]:
    """Records of each owner, in order."""
    text: str = _needed("records", wishes.records)
    sizes: list[int] = []
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            where = "" if part == text else f"'{part.strip()}' is no size: "
            raise Misconfiguration("records", text, f"{where}give whole numbers {_FORM}")
        owners, size = int(found[1] or "1"), int(found[2])
        if not owners or not size:
            raise Misconfiguration(
                "records", text, f"'{part.strip()}': give 1 or more, owners and records alike"
            )
        if len(sizes) + owners > _MOST_OWNERS:
            raise Misconfiguration("records", text, f"a task takes at most {_MOST_OWNERS:,} owners")
        sizes += [size] * owners
    if wishes.owners is None:
        return tuple(sizes)
    if len(sizes) > 1:
        raise Misconfiguration(
            "owners", wishes.owners, "--records counts the owners: leave --owners out"
        )
    if checks.count("owners", wishes.owners, 1) > _MOST_OWNERS:
        raise Misconfiguration("owners", wishes.owners, f"a task takes at most {_MOST_OWNERS:,}")
    return tuple(sizes * wishes.owners)


# --- the file ----------------------------------------------------------------------------------

_WIDTH = 98


def written(made: Task, head: str) -> str:
    """The file's text; ``Task.parse`` of it gives the task.

    Args:
        made: what to write.
        head: the comment above everything.
    """
    values = made.model_dump(mode="json")
    blocks = [_comment(head), *_tables(Task, values, "")]
    return "\n\n".join(blocks) + "\n"


def meaning(field: FieldInfo) -> str:
    """The text under a field in the schema, in one line."""
    return " ".join(str(field.description).split())


def table_of(annotation: Any) -> type[BaseModel] | None:
    """The table that a field is, or holds many of."""
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None


def _tables(model: type[BaseModel], values: dict[str, Any], section: str) -> Iterator[str]:
    """A table's own fields, each with its comment, and then the tables in it."""
    inner = {
        name: found
        for name, field in model.model_fields.items()
        if (found := table_of(field.annotation)) and not isinstance(values[name], list)
    }
    lines = [f"[{section}]"] if section else []
    for name, field in model.model_fields.items():
        if name not in inner:
            lines += [_comment(meaning(field)), _assigned(name, values[name])]
    yield "\n".join(lines)
    for name, table in inner.items():
        if values[name] is not None:
            yield from _tables(table, values[name], f"{section}.{name}".lstrip("."))


def _comment(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _assigned(name: str, value: Any) -> str:
    if value is None:
        return f"# {name} ="
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "\n".join([f"{name} = [", *(f"  {_row(each)}," for each in value), "]"])
    return f"{name} = {json.dumps(value)}"


def _row(values: dict[str, Any]) -> str:
    """A table in a line; what is as it is without saying so is left out."""
    said = {key: value for key, value in values.items() if value not in (None, [])}
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in said.items()) + " }"


# --- what it guarantees ------------------------------------------------------------------------

_NO_PROTECTION = 20.0


def sentences(made: Task) -> list[str]:
    """What holds for records and owners, and what is asked of an owner."""
    privacy, training, enrolment = made.privacy, made.training, made.enrolment
    record, other, whole, *cheating = planned_guarantees(made)
    limit = privacy.epsilon_limit
    stop = (
        "nothing stops an owner at any ε"
        if limit is None
        else f"both servers stop counting an owner at ε = {limit:g}"
    )
    found = [
        (
            f"{enrolment.min_clients:,} to {enrolment.clients:,} owners train {made.dimension:,} "
            f"parameters ({made.model.architecture}) over {training.rounds:,} rounds. Each is "
            f"drawn in a round with probability {privacy.client_rate:g}, then each of its records "
            f"with at most {privacy.record_rate:g}."
        ),
        (
            f"Planned for a record, against one curious server: ε = {upper(record.epsilon, 3)} at "
            f"δ = {record.delta:g}, if its owner takes part {record.compositions:,} times; {stop}."
        ),
        _against_a_cheating_server(cheating, made),
        f"Planned for a record, against other owners only: ε = {upper(other.epsilon, 3)}.",
        f"Planned for a whole owner, both servers honest: ε = {upper(whole.epsilon, 3)}"
        + (", which protects nobody." if whole.epsilon > _NO_PROTECTION else "."),
        (
            f"A record's gradient is cut to a norm of {privacy.record_clip:g}, an owner's update "
            f"to {privacy.client_clip:g}. The servers check that; a longer update passes with "
            f"probability 2^−{made.projections}."
        ),
        f"An owner uploads {8 * made.dimension + 32:,} bytes each time that it takes part"
        + (", and as much when it isn't drawn." if privacy.cover_uploads else "."),
    ]
    alone = upper(record.epsilon)
    ample = max(float(alone), OwnAccount(made, privacy.record_rate, None, None).ample())
    found.append(
        f"An owner that sets an epsilon_limit of its own takes part to the end with {alone} or "
        f"more; for other tasks under the same limit, {ample:g} or more."
    )
    if limit is None:
        found.append("Set privacy.epsilon_limit to have an ε enforced.")
    return found


def _against_a_cheating_server(at_cap: Sequence[PrivacyStatement], made: Task) -> str:
    """Which check of norms the task has decides it."""
    if not at_cap:
        return (
            f'Nothing is claimed against a server that cheats: validation = "{made.validation}" '
            "holds against one that follows the protocol."
        )
    (record,) = at_cap
    # A task says how many attempts it has, so both terms are known.
    added = (record.rejection_delta or 0.0) + (record.advantage_delta or 0.0)
    return (
        f'For a record, against {record.against}, as validation = "{made.validation}": '
        f"ε = {upper(record.epsilon, 3)}, at {record.compositions:,} participations, the most that "
        f"count, with δ and {added:.0e} more ({ASSUMED}); who is counted, availability, whole "
        "owners and robustness aren't claimed against it."
    )
