"""A task's numbers from what is wanted, for `precad plan` and `precad task new`."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precad.accounting import (
    SampledGaussian,
    guarantees,
    planned_participations,
    poisson_gaussian,
)
from precad.cli import (
    AMPLIFIED,
    WARM_STEP,
    Wishes,
    class_weights,
    cohort_rate,
    default_clip,
    default_rate,
    default_step,
    for_whole_owners,
    given,
    refuse_given,
    round_seconds,
)
from precad.cli.default_numbers import rounded
from precad.client.owner_settings import own_model
from precad.common import (
    MAX_BOUND,
    ROOM_IN_SIZES,
    WORD_BYTES,
    DataSection,
    Misconfiguration,
    Task,
    Unit,
    check_delta,
    checks,
    recipe_digest,
    trained_model,
    upper,
)
from precad.norm_check import body_layout

if TYPE_CHECKING:
    from torch import nn

MOST_EPSILON = 100.0
"""An ε beyond it protects nothing and leaves floating point."""
_MOST_OWNERS = 100_000
"""The most owners that a task takes."""
_PART = re.compile(r"(?:([1-9][0-9_]{0,15})\s*[xX×]\s*)?([1-9][0-9_]{0,15})")
"""Owners of one size, in --records: their number, where it isn't 1, and the size."""
_FORM = "above 0, like 10x6000 (ten owners of 6,000), with commas where they differ"
_ENROL_S = 3600.0
"""Seconds that owners have to enrol."""

Shape = tuple[int, ...] | None
"""Shape of one record's input, where it is known."""
_ModelSection = dict[str, Any]
"""The ``model`` section of a task, as plain values."""


ClipRatio = Callable[[float, int], float]
"""Chooses C/(σ·R) for what attackers may do, by q and T."""


def planned(
    wishes: Wishes,
    name: str,
    more: Mapping[str, object] | None = None,
    *,
    dimension: int | None = None,
    clip_ratio: ClipRatio | None = None,
) -> tuple[Task, int, bool]:
    """Plan a task from what is wanted of it.

    Args:
        wishes: what is wanted.
        name: the task's name.
        more: further sections of the task, as plain values.
        dimension: d, in a model's place.
        clip_ratio: chooses C where it wasn't asked for, and raises σ where C would be
            below R.

    Returns:
        The task, the records of its largest owner, and whether a model of one's own
        could be tried on made-up records; True without such a model.

    Raises Misconfiguration: something is missing or can't be, or leaves nothing to
    learn.
    """
    recipe = None if wishes.recipe is None else _recipe(wishes.recipe)
    if wishes.from_statistics is not None:
        from precad.cli.recipe_from_answers import with_answers  # noqa: PLC0415

        wishes, recipe = with_answers(wishes, recipe)
    shape, classes = _record(wishes, recipe)
    module = None
    trained = {} if wishes.weights is None else _trained(wishes.weights, recipe)
    if dimension is None:
        module, model = _model(wishes, shape, classes)
    else:
        model = {"parameters": [{"name": "parameters", "shape": [dimension]}]}
    sizes = sizes_of(wishes)
    values = {
        "name": name,
        "model": model,
        "validation": wishes.validation,
        **(more or {}),
    }
    if recipe is not None:
        values["data"] = recipe.model_dump(mode="json")
    matrices = [
        parameter for parameter in model["parameters"] if len(parameter["shape"]) > 1
    ]
    kind = "classes" if len(matrices) <= 1 else "classes, hidden layers"
    if classes == 1:
        kind = "regression"
    values |= _numbers(
        wishes,
        sizes,
        kind=kind,
        warm=bool(trained),
        dimension=sum(
            math.prod(parameter["shape"]) for parameter in model["parameters"]
        ),
        clip_ratio=clip_ratio,
    )
    task = Task.parse_new(values)
    tried = True
    if wishes.model is not None:
        from precad.client.gradients import try_model  # noqa: PLC0415

        assert module is not None
        # On made-up records, where their shape is known.
        outputs = try_model(module, task, shape)
        tried = outputs is not None
        output_shape = tuple(getattr(outputs, "shape", ()))
        if tried and classes is not None and output_shape != (1, classes):
            raise Misconfiguration(
                "model",
                wishes.model,
                f"gives {list(output_shape)} for one record: its target needs"
                f" [1, {classes}]",
            )
    if module is not None and shape is not None:
        room = _time_for_work(task, module, shape, max(sizes))
        values["deadlines"] = {"enrol": task.deadlines.enrol} | room
        task = Task.parse(values)
    if wishes.weights is not None:
        # The weights are to lie beside the task's file, under their own name.
        model["initial_file"] = wishes.weights.name
        task = Task.parse(values)
    if wishes.balance is not None:
        if kind == "regression":
            raise Misconfiguration(
                "balance",
                wishes.balance,
                "is of classes, and a number has none: leave it out",
            )
        levels = () if recipe is None else recipe.target.levels
        weights = class_weights(wishes.balance, levels, classes)
        training = task.training.model_dump() | {"class_weights": weights}
        task = Task.parse(values | {"training": training})
    return task, max(sizes), tried


def _numbers(
    wishes: Wishes,
    sizes: Sequence[int],
    *,
    kind: str,
    warm: bool,
    dimension: int,
    clip_ratio: ClipRatio | None,
) -> dict[str, object]:
    """Return the task's sections that hold numbers, chosen by the rules of this module.

    ``sizes`` are the records of each owner, ``kind`` is a key of ``MOVES``, ``warm``
    says whether the training starts from a model of such records, ``dimension`` is d.

    Raises Misconfiguration: not exactly one of ε and σ is given, or a number can't be.
    """
    owners = len(sizes)
    units = sizes
    local: dict[str, float | None] | None = None
    if wishes.unit == Unit.OWNER:
        wishes = for_whole_owners(wishes)
        units = (1,) * owners
        local = {
            "epochs": given(wishes.local_epochs, 1),
            "learning_rate": given(wishes.local_rate, 0.1),
            "batch_size": wishes.local_batch,
        }
    else:
        refuse_given(
            wishes,
            ("local_epochs", "local_rate", "local_batch"),
            why="only whole owners train by themselves",
            by="give --unit owner",
        )
    owners_per_unit = given(wishes.owners_per_unit, 1)
    largest = max(sizes)
    record_clip = given(wishes.record_clip, 1.0)
    rounds = given(wishes.rounds, 200)
    checks.positive("record_clip", record_clip, "R")
    record_rate = given(wishes.record_rate, default_rate(largest))
    checks.rate("record_rate", record_rate)
    client_rate = given(wishes.client_rate, cohort_rate(owners, dimension))
    delta = given(wishes.delta, 1e-5)
    check_delta(delta)
    sigma = wishes.noise_multiplier
    epsilon = wishes.epsilon
    if (sigma is None) == (epsilon is None):
        raise Misconfiguration(
            "epsilon", epsilon, "give --epsilon or --noise-multiplier"
        )
    participations = participations_of(client_rate, rounds)
    while sigma is None:
        least = least_noise(
            epsilon=epsilon or 0.0,
            delta=delta,
            unit_rate=record_rate,
            participations=participations,
            owners_per_unit=owners_per_unit,
        )
        if wishes.record_rate is None and least < AMPLIFIED and record_rate < 1:
            record_rate = min(1.0, rounded(1.5 * record_rate, digits=2))
        else:
            sigma = least
    if epsilon is None:
        steps = poisson_gaussian(
            rate=record_rate,
            noise_multiplier=sigma,
            count=participations,
            owners=owners_per_unit,
        )
        epsilon = float(upper(guarantees.spent(steps, delta)))
    client_clip = wishes.client_clip
    if client_clip is None and clip_ratio is not None:
        # R stands for R', which is larger: C errs on the safe side.
        ratio = clip_ratio(client_rate, rounds)
        raised = max(sigma, rounded(1 / ratio, up=True))
        largest_clip = rounded(ratio * raised * record_clip, up=False)
        client_clip = max(record_clip, largest_clip)
        # A σ that was given stays: then C is no less than R, and the plan says what
        # that bounds.
        if wishes.noise_multiplier is None:
            sigma = raised
    if client_clip is None:
        client_clip = default_clip(record_clip, largest, record_rate)
    clip: dict[str, float] | float = client_clip
    if wishes.client_clip_per_record is not None:
        clip = {"per_record": wishes.client_clip_per_record, "most": client_clip}
    learning_rate = default_step(
        expected_records=client_rate * record_rate * sum(units),
        record_rate=record_rate,
        noise_multiplier=sigma,
        rounds=rounds,
        record_clip=record_clip,
        kind=kind,
    )
    if warm:
        learning_rate = rounded(WARM_STEP * learning_rate, digits=2)
    return {
        "privacy": {
            "record_clip": record_clip,
            "client_clip": clip,
            "noise_multiplier": sigma,
            "record_rate": record_rate,
            "client_rate": client_rate,
            "delta": delta,
            "epsilon_limit": epsilon,
            "unit": wishes.unit if local is None else None,
            "most_records_per_unit": wishes.most_records_per_unit,
            "owners_per_unit": wishes.owners_per_unit,
        },
        "local": local,
        "training": {
            "learning_rate": learning_rate,
            "rounds": rounds,
            "loss": "squared-error" if kind == "regression" else None,
            "compact_release": True,
        },
        "enrolment": {
            "clients": owners,
            "min_clients": math.ceil(owners / 2),
            "max_expected_records": ROOM_IN_SIZES * record_rate * largest,
            "planned_units": sum(units),
        },
        "deadlines": {"enrol": _ENROL_S},
        "fractional_bits": fractional_bits(client_clip),
    }


def _recipe(path: Path) -> DataSection:
    """Read a recipe from a file: its [data] section, or all of it.

    Raises Misconfiguration: a key is missing, unknown or has a bad value.
    """
    values = checks.read_toml("recipe", path)
    remedies = {
        "extra_forbidden": f"unknown key in {path}",
        "missing": f"is required in {path}",
    }
    return checks.parsed(DataSection, values.get("data", values), remedies)


def _trained(weights: Path, recipe: DataSection | None) -> dict[str, str]:
    """Return the metadata of weights that owners' records made; of others, none.

    Raises Misconfiguration: it is, and its task had another recipe.
    """
    trained = trained_model(weights)
    made_by = trained.get("recipe", recipe_digest(recipe))
    if made_by != recipe_digest(recipe):
        raise Misconfiguration(
            "--continue",
            weights,
            "was trained with another recipe, so its weights mean other columns: give"
            f" the recipe of task {trained['task_name']} by --recipe",
        )
    return trained


_SHAPE = re.compile(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){0,7}")
"""A shape in --features, like 30 or 3x32x32."""


def _record(wishes: Wishes, recipe: DataSection | None) -> tuple[Shape, int | None]:
    """Return the shape of a record's input and the number of classes.

    They are the recipe's, or as they were given; None where nobody says it. Raises
    Misconfiguration: both say it, or it is no shape.
    """
    features = wishes.features
    if recipe is not None:
        refuse_given(
            wishes,
            ("features", "classes"),
            why="the recipe says it",
            by="--recipe",
        )
        return (recipe.features,), len(recipe.target.levels) or 1
    if features is None:
        return None, wishes.classes
    if not _SHAPE.fullmatch(features) or (wishes.model is None and "x" in features):
        raise Misconfiguration(
            "features",
            features,
            "give a whole number, or with --model a shape like 3x32x32",
        )
    return tuple(map(int, features.split("x"))), wishes.classes


def _model(
    wishes: Wishes, shape: Shape, classes: int | None
) -> "tuple[nn.Module, _ModelSection]":
    """Return the torch module that is wanted, and the section that describes it.

    ``shape`` and ``classes`` are as ``_record`` gives them. Raises Misconfiguration:
    not exactly one of an architecture and a model of one's own is given, or what it
    needs is missing or doesn't fit.
    """
    from precad.client.gradients import (  # noqa: PLC0415
        check_file,
        logistic,
        mlp,
        model_section,
    )

    if (wishes.architecture is None) == (wishes.model is None):
        raise Misconfiguration(
            "model",
            wishes.model,
            "give either --architecture, with --features and --classes, or --model",
        )
    initial = "uniform"
    if wishes.model is not None:
        module = own_model(wishes.model)
    else:
        remedy = "give --{}, which --architecture needs"
        if shape is None:
            raise Misconfiguration("features", None, remedy.format("features"))
        if classes is None:
            raise Misconfiguration("classes", None, remedy.format("classes"))
        checks.count("classes", classes, 1)
        checks.count("hidden", wishes.hidden, 1)
        if wishes.architecture == "logistic":
            initial = "zeros"
            module = logistic(shape[0], classes)
        else:
            module = mlp(shape[0], wishes.hidden, classes)
    section = model_section(
        module,
        architecture=wishes.architecture or "custom",
        initial=initial,
        initial_file=wishes.weights,
    )
    if wishes.weights is not None:
        check_file(module, wishes.weights)
    return module, section


def _time_for_work(
    task: Task, module: "nn.Module", shape: tuple[int, ...], largest: int
) -> dict[str, float]:
    """Return deadlines of three times an update's work, where those are longer."""
    from precad.client.gradients import WORK_ROOM, made_up_work_s  # noqa: PLC0415

    work_s = rounded(WORK_ROOM * made_up_work_s(module, task, shape, largest), 2)
    usual = task.deadlines
    if work_s <= usual.work:
        return {}
    return {"work": work_s, "collect": max(usual.collect, 2 * work_s)}


def sizes_of(wishes: Wishes) -> tuple[int, ...]:
    """Return how many records each owner has, as --records and --owners say it.

    Raises Misconfiguration: they can't be read, contradict each other, or name more
    owners than a task takes.
    """
    text = wishes.records
    if text is None:
        raise Misconfiguration("records", None, "give --records")
    sizes: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise Misconfiguration(
                "records", part, f"is no size: give whole numbers {_FORM}"
            )
        owners = int(match[1] or "1")
        if len(sizes) + owners > _MOST_OWNERS:
            raise Misconfiguration(
                "records", text, f"a task takes at most {_MOST_OWNERS:,} owners"
            )
        sizes += [int(match[2])] * owners
    if wishes.owners is None:
        return tuple(sizes)
    if len(sizes) > 1:
        raise Misconfiguration(
            "owners", wishes.owners, "--records counts the owners: leave --owners out"
        )
    if checks.count("owners", wishes.owners, 1) > _MOST_OWNERS:
        raise Misconfiguration(
            "owners", wishes.owners, f"a task takes at most {_MOST_OWNERS:,}"
        )
    return tuple(sizes * wishes.owners)


def least_noise(
    *,
    epsilon: float,
    delta: float,
    unit_rate: float,
    participations: int,
    owners_per_unit: int = 1,
) -> float:
    """Return the least σ of four digits that gives a unit (ε, δ) against one server.

    It is found by the exact accountant. Raises Misconfiguration: an ε of this size
    means nothing, or can't be reached.
    """
    if checks.positive("epsilon", epsilon, "the wanted ε") > MOST_EPSILON:
        raise Misconfiguration(
            "epsilon", epsilon, f"give at most {MOST_EPSILON:g}: 10 is little already"
        )

    def steps(sigma: float) -> SampledGaussian:
        return poisson_gaussian(
            rate=unit_rate,
            noise_multiplier=sigma,
            count=participations,
            owners=owners_per_unit,
        )

    return guarantees.least_noise_multiplier(steps, epsilon=epsilon, delta=delta)


def participations_of(client_rate: float, rounds: int) -> int:
    """Return how often all but one owner in 1,000 take part at most; 1 or more."""
    return max(1, planned_participations(client_rate, rounds))


def fractional_bits(client_clip: float) -> int:
    """Return f: the most, up to 20, with β = floor(C·2^f) at most 2^25; at least 1."""
    if client_clip >= MAX_BOUND:
        return 1
    return max(1, min(20, math.floor(math.log2(MAX_BOUND / client_clip))))


def round_in_words(task: Task) -> str:
    """Return how many owners a round draws, how long it takes, and its uploads."""
    owners = task.enrolment.clients
    drawn = task.mechanism.owner_rate * owners
    seconds = round_seconds(drawn, task.dimension)
    return (
        f"A round draws {drawn:,.0f} of {owners:,} owners: about"
        f" {rounded(seconds, digits=2):g} s and {drawn * upload_bytes(task) / 1e6:,.1f}"
        " MB of uploads (servers of two cores, 100 Mbit/s)."
    )


def upload_bytes(task: Task) -> int:
    """Return the bytes that an owner uploads to take part once.

    Some hundred bytes of headers come on top.
    """
    prefix, words = body_layout(task)
    return prefix + words * WORD_BYTES
