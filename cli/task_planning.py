"""A task's numbers from what is wanted, for `precad plan` and `precad task new`; and its file."""

import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from precad.accounting import guarantees
from precad.accounting.adversaries import Adversary, Run, planned_participations
from precad.accounting.events import SampledGaussian
from precad.cli.command_options import Wishes
from precad.cli.local_deployment import toml_value
from precad.cli.main import refuse_given
from precad.cli.report_page import longer_update_passes
from precad.client.own_account import OwnAccount
from precad.client.owner_settings import own_model
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.mechanism import LocalTraining, Mechanism, Unit
from precad.common.ring import WORD_BYTES
from precad.common.roster import most_records
from precad.common.task import MAX_BOUND, Task
from precad.common.task_schema import DataSection
from precad.common.terminal import upper
from precad.norm_check.proof_submission import body_layout

MOST_EPSILON = 100.0
"""An ε beyond it protects nothing and leaves floating point."""
MOVES = {"classes": 0.3, "classes, hidden layers": 0.2, "regression": 0.07}
"""How far the noise alone moves a weight over the whole training, by what is learnt.
These, and C's numbers below, are the best of a comparison:
benchmarks/results/default_settings.json."""


def default_rate(largest: int) -> float:
    """Return p where nobody chose it: a record a round of the largest owner, and .05 at least.

    Who samples nothing in most rounds weighs less than a bad owner, who sends C in
    each.
    """
    return max(0.05, rounded(1 / largest, 2, up=True))


def cohort_rate(owners: int) -> float:
    """Return q: about 20 owners take part in a round, or all."""
    return min(1.0, rounded(20 / owners, 2))


def default_clip(record_clip: float, largest: int, record_rate: float) -> float:
    """Return C where nobody chose it: R·1.5·√(p·|D|) of the largest owner, and 2·R at least.

    Never more than an owner can sample, times R: beyond that it arms attackers alone. A
    sum of n gradients rarely is longer than a few √n; one that is keeps its direction.
    """
    wanted = max(2.0, 1.5 * math.sqrt(record_rate * largest))
    return rounded(
        record_clip * min(wanted, most_records(largest, record_rate)), 2, up=False
    )


def default_step(
    *,
    expected_records: float,
    noise_multiplier: float,
    rounds: int,
    record_clip: float,
    kind: str,
) -> float:
    """Return η where nobody chose it: so that noise moves a weight by ``MOVES[kind]`` in all.

    At most 10/R. T rounds of both servers' noise over the S = q·p·N records that are
    expected, by which the sum is divided, are a walk of η·R·σ·√(2T)/S.
    """
    walk = noise_multiplier * math.sqrt(2 * rounds) / expected_records
    return rounded(min(10.0, MOVES[kind] / walk) / record_clip, 2)


_MOST_OWNERS = 100_000
"""The most that a task takes."""
_PART = re.compile(r"(?:([0-9][0-9_]{0,15})\s*[xX×]\s*)?([0-9][0-9_]{0,15})")
_FORM = "like 10x6000 (ten owners of 6,000), separated by commas where they differ"
_ENROL_S = 3600.0
ROOM_IN_SIZES = 2.0
"""A data set may have grown to so many times the largest that was planned for."""

Shape: TypeAlias = tuple[int, ...] | None
ClipFor: TypeAlias = Callable[[float, float, float, int], tuple[float, float]]
"""From R, σ, q and T: C for what attackers may do, and σ, which it may need larger."""


def planned(
    wishes: Wishes,
    name: str,
    more: Mapping[str, Any] | None = None,
    *,
    dimension: int | None = None,
    clip_for: ClipFor | None = None,
) -> tuple[Task, int, bool]:
    """Return a task of this name and ``more`` of its sections, and what was found on the way.

    That is an owner's most records, and whether a model of one's own was tried on
    made-up ones. ``dimension`` is in a model's place; ``clip_for`` chooses C where it
    wasn't asked for. Raises Misconfiguration: something is missing or can't be, or
    leaves nothing to learn.
    """
    data = None if wishes.recipe is None else _recipe(wishes.recipe)
    shape, classes = _record(wishes, data)
    module: Any = None
    model: dict[str, Any] = {
        "parameters": [{"name": "parameters", "shape": [dimension]}]
    }
    if dimension is None:
        module, model = _model(wishes, shape, classes)
    sizes = _sizes(wishes)
    values = {
        "name": name,
        "model": model,
        "validation": wishes.validation,
        **(more or {}),
    }
    if data is not None:
        values["data"] = data.model_dump(mode="json")
    matrices = sum(len(each["shape"]) > 1 for each in model["parameters"])
    kind = "classes" if matrices <= 1 else "classes, hidden layers"
    values |= _numbers(wishes, sizes, "regression" if classes == 1 else kind, clip_for)
    made = Task.parse(values)
    tried = True
    if wishes.model is not None:
        tried = _tried(
            made,
            module,
            wishes.model,
            shape,
            classes,
        )
    if wishes.weights is not None:
        # It is to lie beside the task's file, under its own name.
        model["initial_file"] = wishes.weights.name
        made = Task.parse(values)
    return made, max(sizes), tried


def _numbers(
    wishes: Wishes,
    sizes: Sequence[int],
    kind: str,
    clip_for: ClipFor | None,
) -> dict[str, Any]:
    def given(value: Any, otherwise: Any) -> Any:
        return otherwise if value is None else value

    record_clip = given(wishes.record_clip, 1.0)
    rounds = given(wishes.rounds, 200)
    checks.positive("record_clip", record_clip, "R")
    rate = given(wishes.record_rate, default_rate(max(sizes)))
    client_rate = given(wishes.client_rate, cohort_rate(len(sizes)))
    delta = given(wishes.delta, 1e-5)
    sigma = wishes.noise_multiplier
    epsilon = wishes.epsilon
    clip = wishes.client_clip
    if (sigma is None) == (epsilon is None):
        raise Misconfiguration(
            "epsilon", epsilon, "give --epsilon or --noise-multiplier"
        )
    taken = participations_of(client_rate, rounds)
    if sigma is None:
        sigma = least_noise(
            epsilon=epsilon or 0.0,
            delta=delta,
            unit_rate=rate,
            participations=taken,
        )
    else:
        steps = steps_seen_by_a_server(
            noise_multiplier=sigma,
            unit_rate=rate,
            participations=taken,
        )
        epsilon = float(upper(guarantees.spent(steps, delta)))
    if clip is None and clip_for is not None:
        clip, raised = clip_for(record_clip, sigma, client_rate, rounds)
        # A σ that was given stays: then C is no less than R, and the plan says what
        # that bounds.
        sigma = raised if wishes.noise_multiplier is None else sigma
    clip = given(clip, default_clip(record_clip, max(sizes), rate))
    expected = client_rate * rate * sum(sizes)
    known = {"record_clip": record_clip, "kind": kind}
    step = default_step(
        expected_records=expected,
        noise_multiplier=sigma,
        rounds=rounds,
        **known,
    )
    return {
        "privacy": {
            "record_clip": record_clip,
            "client_clip": clip,
            "noise_multiplier": sigma,
            "record_rate": rate,
            "client_rate": client_rate,
            "delta": delta,
            "epsilon_limit": epsilon,
        },
        "training": {"learning_rate": step, "rounds": rounds},
        "enrolment": {
            "clients": len(sizes),
            "min_clients": math.ceil(len(sizes) / 2),
            "max_expected_records": ROOM_IN_SIZES * rate * max(sizes),
            "planned_units": sum(sizes),
        },
        "deadlines": {"enrol": _ENROL_S},
        "fractional_bits": fractional_bits(clip),
    }


def _recipe(path: Path) -> DataSection:
    values = checks.read_toml("recipe", path)
    try:
        return DataSection.model_validate(values.get("data", values))
    except ValidationError as error:
        missing = f"is required in {path}"
        unknown = f"unknown key in {path}"
        remedies = {"extra_forbidden": unknown, "missing": missing}
        raise checks.refusal(error, remedies) from None


_SHAPE = re.compile(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){0,7}")


def _record(wishes: Wishes, data: DataSection | None) -> tuple[Shape, int | None]:
    """Shape of a record's input and number of classes, from the recipe or as they were given."""
    features = wishes.features
    classes = wishes.classes
    if data is not None:
        refuse_given(
            asdict(wishes),
            ("features", "classes"),
            why="the recipe says it",
            by="--recipe",
        )
        return (data.features,), len(data.target.levels) or 1
    if features is None:
        return None, classes
    if not _SHAPE.fullmatch(features) or (wishes.model is None and "x" in features):
        remedy = "give a whole number, or with --model a shape like 3x32x32"
        raise Misconfiguration("features", features, remedy)
    return tuple(map(int, features.split("x"))), classes


def _model(
    wishes: Wishes, shape: Shape, classes: int | None
) -> tuple[Any, dict[str, Any]]:
    from precad.client.gradients.own_weights import check_file  # noqa: PLC0415 -- torch
    from precad.client.gradients.torch_models import logistic, mlp, model_section  # noqa: PLC0415 -- torch

    if (wishes.architecture is None) == (wishes.model is None):
        remedy = "give either --architecture, with --features and --classes, or --model"
        raise Misconfiguration("model", wishes.model, remedy)
    initial = "zeros" if wishes.architecture == "logistic" else "uniform"
    if wishes.model is not None:
        module = own_model(wishes.model)
    else:
        for field, value in (("features", shape), ("classes", classes)):
            if value is None:
                raise Misconfiguration(
                    field, None, f"give --{field}, which --architecture needs"
                )
        assert shape is not None
        assert classes is not None
        checks.count("classes", classes, 1)
        checks.count("hidden", wishes.hidden, 1)
        logits = wishes.architecture == "logistic"
        module = (
            logistic(shape[0], classes)
            if logits
            else mlp(shape[0], wishes.hidden, classes)
        )
    kind = wishes.architecture or "custom"
    section = model_section(
        module,
        architecture=kind,
        initial=initial,
        initial_file=wishes.weights,
    )
    if wishes.weights is not None:
        check_file(module, wishes.weights)
    return module, section


def _tried(
    made: Task,
    module: Any,
    place: str,
    shape: Shape,
    classes: int | None,
) -> bool:
    """Try a model of one's own on made-up records; say whether a shape was known to make them."""
    from precad.client.gradients.rehearsal import try_model  # noqa: PLC0415 -- torch

    outputs = try_model(module, made, shape)
    found = getattr(outputs, "shape", ())
    if classes is not None and outputs is not None and tuple(found) != (1, classes):
        remedy = f"gives {list(found)} for one record: its target needs [1, {classes}]"
        raise Misconfiguration("model", place, remedy)
    return outputs is not None


def _sizes(wishes: Wishes) -> tuple[int, ...]:
    text = wishes.records
    if text is None:
        raise Misconfiguration("records", None, "give --records")
    sizes: list[int] = []
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            where = "" if part == text else f"'{part.strip()}' is no size: "
            raise Misconfiguration(
                "records", text, f"{where}give whole numbers {_FORM}"
            )
        owners = int(found[1] or "1")
        size = int(found[2])
        if not owners or not size:
            remedy = f"'{part.strip()}': give 1 or more, owners and records alike"
            raise Misconfiguration("records", text, remedy)
        if len(sizes) + owners > _MOST_OWNERS:
            raise Misconfiguration(
                "records", text, f"a task takes at most {_MOST_OWNERS:,} owners"
            )
        sizes += [size] * owners
    if wishes.owners is None:
        return tuple(sizes)
    if len(sizes) > 1:
        remedy = "--records counts the owners: leave --owners out"
        raise Misconfiguration("owners", wishes.owners, remedy)
    if checks.count("owners", wishes.owners, 1) > _MOST_OWNERS:
        raise Misconfiguration(
            "owners", wishes.owners, f"a task takes at most {_MOST_OWNERS:,}"
        )
    return tuple(sizes * wishes.owners)


def steps_seen_by_a_server(
    *,
    noise_multiplier: float,
    unit_rate: float,
    participations: int,
) -> SampledGaussian:
    """Return what one curious server sees of an owner that takes part so often."""
    run = Run(
        record_rate=unit_rate,
        client_rate=1.0,
        noise_multiplier=noise_multiplier,
        rounds=participations,
        participations=participations,
    )
    return run.event(Adversary.ONE_SERVER)


def least_noise(
    *,
    epsilon: float,
    delta: float,
    unit_rate: float,
    participations: int,
) -> float:
    """Return the least σ, to four digits, that gives a unit (ε, δ) against a server, exactly.

    Raises Misconfiguration: no such ε means anything, or none can be reached.
    """
    if checks.positive("epsilon", epsilon, "the wanted ε") > MOST_EPSILON:
        remedy = f"give at most {MOST_EPSILON:g}: 10 is little already"
        raise Misconfiguration("epsilon", epsilon, remedy)

    def steps(sigma: float) -> SampledGaussian:
        return steps_seen_by_a_server(
            noise_multiplier=sigma,
            unit_rate=unit_rate,
            participations=participations,
        )

    exact = guarantees.least_noise_multiplier(steps, epsilon=epsilon, delta=delta)
    return rounded(exact, up=True)


def participations_of(client_rate: float, rounds: int) -> int:
    """Return how often all but one owner in 1,000 take part at most; at least once."""
    return max(1, planned_participations(client_rate, rounds))


def fractional_bits(client_clip: float) -> int:
    """Return f: the most, up to 20, with β = floor(C·2^f) at most 2^25; at least 1."""
    fitting = (
        math.floor(math.log2(MAX_BOUND / client_clip)) if client_clip < MAX_BOUND else 1
    )
    return max(1, min(20, fitting))


def rounded(value: float, digits: int = 4, *, up: bool | None = None) -> float:
    """Return ``value`` to so many digits: the nearest, or up, or down."""
    exponent = math.floor(math.log10(value)) - digits + 1
    scaled = value / 10.0**exponent
    # What is a rounding away from such a number already stays.
    if up is None or abs(scaled - round(scaled)) < 1e-9:
        whole = round(scaled)
    else:
        whole = math.ceil(scaled) if up else math.floor(scaled)
    return float(f"{whole}e{exponent}")


def upload_bytes(task: Task) -> int:
    """Return what an owner uploads to take part once, but for some hundred bytes of headers."""
    prefix, words = body_layout(task)
    return prefix + words * WORD_BYTES


_WIDTH = 98
_NO_PROTECTION = 20.0


def described(made: Task, wishes: Wishes) -> str:
    """What was planned, for the head of the file."""
    most = math.floor(made.enrolment.max_expected_records / made.mechanism.unit_rate)
    record = guarantees.planned_guarantees(made)[0]
    owners = "" if wishes.owners is None else f"{wishes.owners}x"
    return (
        f"Planned for owners of {owners}{wishes.records} records: ε ="
        f" {upper(record.epsilon, 3)} at δ = {made.privacy.delta:g} for a record"
        " against one curious server. training.learning_rate and privacy.client_clip"
        " suit most tasks (docs/simulate.md): try others on public data with precad"
        f" simulate --try. An owner may hold up to {most:,} records, {ROOM_IN_SIZES:g}"
        " times the most that was planned for (enrolment.max_expected_records); one"
        " with more claims a lower record_rate. The sum is divided by the number that"
        " was planned (enrolment.planned_units). precad task show says what it"
        " guarantees. Everybody has the same file: its digest is in every message."
    )


def written(made: Task, head: str) -> str:
    """The file's text with this comment as its head; ``Task.parse`` of it gives the task."""
    return (
        "\n\n".join([_comment(head), *_tables(Task, made.model_dump(mode="json"), "")])
        + "\n"
    )


def meaning(field: FieldInfo) -> str:
    """The text under a field in the schema, in one line."""
    return " ".join(str(field.description).split())


def table_of(annotation: Any) -> type[BaseModel] | None:
    """The table that a field is, or holds many of."""
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None


def _tables(
    model: type[BaseModel], values: dict[str, Any], section: str
) -> Iterator[str]:
    """A table's own fields, each with its comment, and then the tables in it."""
    inner = {
        name: found
        for name, field in model.model_fields.items()
        if (found := table_of(field.annotation)) and not isinstance(values[name], list)
    }
    lines = [f"[{section}]"] if section else []
    for name, field in model.model_fields.items():
        if name in inner:
            continue
        value = values[name]
        if isinstance(value, list) and value and isinstance(value[0], dict):
            # Without what is as it is without saying so.
            value = [
                {k: v for k, v in row.items() if v not in (None, [])} for row in value
            ]
        assigned = f"# {name} =" if value is None else f"{name} = {toml_value(value)}"
        lines += [_comment(meaning(field)), assigned]
    yield "\n".join(lines)
    for name, table in inner.items():
        if values[name] is not None:
            yield from _tables(table, values[name], f"{section}.{name}".lstrip("."))


def _comment(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def sentences(made: Task) -> list[str]:
    """Say what holds for units and owners, and what is asked of an owner: `precad task show`."""
    mechanism = made.mechanism
    enrolment = made.enrolment
    by_server, by_owners, whole_owner, *cheating = guarantees.planned_guarantees(made)
    limit = made.privacy.epsilon_limit
    if limit is None:
        stop = "nothing stops an owner at any ε"
    else:
        stop = f"both servers stop counting an owner at ε = {limit:g}"
    alone = upper(by_server.epsilon)
    account = OwnAccount(made, mechanism.unit_rate, None, None)
    beside_others = max(float(alone), account.ample())
    undrawn = ", and as much when it isn't drawn" if mechanism.hides_coin else ""
    unit = "a record" if mechanism.unit is Unit.RECORD else "an owner"
    lines = [
        (
            f"{enrolment.min_clients:,} to {enrolment.clients:,} owners train"
            f" {mechanism.dimension:,} parameters ({made.model.architecture}) over"
            f" {mechanism.releases:,} rounds. Each is drawn in a round with probability"
            f" {mechanism.owner_rate:g}, {_what_a_drawn_owner_does(mechanism)}."
        ),
        (
            f"Planned for {unit}, against one curious server: ε ="
            f" {upper(by_server.epsilon, 3)} at δ = {by_server.delta:g}, if its owner"
            f" takes part {by_server.compositions:,} times; {stop}."
        ),
        _against_a_cheating_server(cheating, made),
        (
            f"Planned for {unit}, against other owners only: ε ="
            f" {upper(by_owners.epsilon, 3)}."
        ),
    ]
    if mechanism.unit is not Unit.OWNER:
        useless = whole_owner.epsilon > _NO_PROTECTION
        nobody = ", which protects nobody" if useless else ""
        lines.append(
            "Planned for a whole owner, both servers honest: ε ="
            f" {upper(whole_owner.epsilon, 3)}{nobody}."
        )
    lines += [
        (
            f"{_what_is_clipped(mechanism)} The servers check that; a longer update"
            f" passes with probability {longer_update_passes(made)}."
        ),
        f"A round's sum is divided by {mechanism.divided_by}.",
        (
            f"An owner uploads {upload_bytes(made):,} bytes each time that it takes"
            f" part{undrawn}."
        ),
        (
            "An owner that sets an epsilon_limit of its own takes part to the end with"
            f" {alone} or more; for other tasks under the same limit,"
            f" {beside_others:g} or more."
        ),
    ]
    if limit is None:
        lines.append("Set privacy.epsilon_limit to have an ε enforced.")
    return lines


def _what_a_drawn_owner_does(mechanism: Mechanism) -> str:
    """Say what an owner samples or trains once it is drawn."""
    if isinstance(mechanism.contribution, LocalTraining):
        epochs = mechanism.contribution.epochs
        often = "once" if epochs == 1 else f"{epochs} times"
        return f"then goes {often} through all its records"
    return f"then each of its records with at most {mechanism.unit_rate:g}"


def _what_is_clipped(mechanism: Mechanism) -> str:
    """Say which norms are bounded, and by what."""
    if mechanism.unit is Unit.OWNER:
        return f"An owner's whole update is cut to a norm of {mechanism.owner_clip:g}."
    return (
        f"A record's gradient is cut to a norm of {mechanism.unit_clip:g}, an owner's"
        f" update to {mechanism.owner_clip:g}."
    )


def _against_a_cheating_server(
    at_cap: Sequence[guarantees.PrivacyStatement], made: Task
) -> str:
    """Which check of norms the task has decides it."""
    if not at_cap:
        return (
            "Nothing is claimed against a server that cheats: validation ="
            f' "{made.validation}" holds against one that follows the protocol.'
        )
    (record,) = at_cap
    added = upper(record.added_delta or 0.0, 2)
    return (
        f'For a record, against {record.against}, as validation = "{made.validation}":'
        f" ε = {upper(record.epsilon, 3)}, at {record.compositions:,} participations,"
        f" the most that count, with δ and {added} more ({guarantees.ASSUMED}); who is"
        " counted, availability, whole owners and robustness aren't claimed"
        " against it."
    )
