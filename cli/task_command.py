"""`precad task new`, `check`, `show` and `reference`."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from precad.cli.options import PATH, json_option, print_json
from precad.common.errors import Misconfiguration

if TYPE_CHECKING:
    from precad.common.task import Task
    from precad.common.task_schema import DataSection

file_argument = click.argument("file", type=PATH, help="The task file.")


@click.group()
def task() -> None:
    """Make a task from what is wanted, check it, say what it guarantees."""


@task.command()
@click.argument("out", type=PATH, help="The file to write; it must not exist.")
@click.option("--records", help="m: records of each owner, like 10x6000 or 3x500,1200,6x40.")
@click.option("--epsilon", type=float, help="ε of a record; enforced as the limit too.")
@click.option(
    "--recipe",
    type=PATH,
    help="How the owners' tables become numbers: a file with the task's [data] section.",
)
@click.option("--architecture", type=click.Choice(["logistic", "mlp"]), help="A built-in model.")
@click.option("--features", type=int, help="Numbers in one record's input.")
@click.option("--classes", type=int, help="How many labels there are.")
@click.option("--hidden", type=int, default=32, help="Hidden units of an mlp.")
@click.option(
    "--model", help="Or a model of your own, MODULE:NAME, which is called without arguments."
)
@click.option("--owners", type=int, help="n, where --records gives one size for all.")
@click.option("--delta", type=float, default=1e-5, help="δ, like 1e-5.")
@click.option("--rounds", type=int, default=200, help="T: rounds.")
@click.option(
    "--tolerate",
    type=int,
    help="K: owners that may submit anything; costs accuracy, see precad plan.",
)
@click.option("--record-clip", type=float, default=1.0, help="R: 1 suits inputs of about 0 to 1.")
@click.option("--client-clip", type=float, help="C; by default 10·R, or what --tolerate allows.")
@click.option(
    "--validation",
    type=click.Choice(["crypten", "fss"]),
    default="crypten",
    help="How norms are checked: fss, where a server that cheats learns no more of a "
    "record; see docs/cheating-server.md.",
)
@click.option(
    "--objective",
    help="What a record's gradient is of, for a model that is smoothed when it is used: "
    "dp-gaussian or another of docs/robustness.md; costs no ε.",
)
@click.option(
    "--input-noise",
    type=float,
    default=0.25,
    help="With --objective: σ of the copies and of the smoothing.",
)
@click.option("--name", help="By default the file's name.")
def new(
    out: Path,
    records: str | None,
    epsilon: float | None,
    recipe: Path | None,
    architecture: Literal["logistic", "mlp"] | None,
    features: int | None,
    classes: int | None,
    hidden: int,
    model: str | None,
    owners: int | None,
    delta: float,
    rounds: int,
    tolerate: int | None,
    record_clip: float,
    client_clip: float | None,
    validation: Literal["crypten", "fss"],
    objective: str | None,
    input_noise: float,
    name: str | None,
) -> None:
    """Write a task that gives the privacy that is wanted, with a comment at each field.

    On a terminal it asks for what isn't given. σ is the least that gives the
    ε, exactly (precad plan). p is .05; with at most 20 owners each takes part
    in every round, of more about 20 do.
    The one knob to try on public data is training.learning_rate.

    \b
        precad task new task.toml --architecture logistic --features 784 \\
          --classes 10 --records 10x6000 --epsilon 3
        precad task new task.toml --model wards:Net --owners 5 \\
          --records 1200 --epsilon 2 --rounds 200
        precad task new task.toml --recipe columns.toml --architecture logistic \\
          --records 3x400 --epsilon 3
    """  # noqa: D301 -- click reads the control character
    if out.exists():
        raise Misconfiguration("out", str(out), "exists already: name a new file")
    from precad.cli import task_questions as ask  # noqa: PLC0415
    from precad.cli.task_file import written  # noqa: PLC0415
    from precad.cli.task_questions import sizes_text, statements  # noqa: PLC0415

    if recipe is None and architecture is None and model is None:
        recipe = ask.recipe()
    data = None if recipe is None else _recipe(recipe)
    if architecture is None and model is None:
        architecture, model = ask.model()
    if data is None and architecture is not None:
        features, classes = ask.sizes(features, classes)
    records = ask.needed("records", records)
    epsilon = float(ask.needed("epsilon", epsilon))
    held = _sizes(records, owners)
    section = _section(architecture, model, _shape(data, features, classes), hidden)
    made = _planned(
        {
            "name": name or out.stem.lower().replace("_", "-").replace(" ", "-"),
            "model": section,
            "validation": validation,
        }
        | ({} if data is None else {"data": data.model_dump(mode="json")})
        | ({} if objective is None else {"objective": {"name": objective, "noise": input_noise}}),
        held,
        (epsilon, delta),
        (rounds, (record_clip, client_clip), tolerate),
    )
    planned = statements(made)[0]
    head = (
        f"Planned for owners of {sizes_text(held)} records: ε = {planned.epsilon:.3g} at "
        f"δ = {delta:g} for a record against one curious server. training.learning_rate is a rule "
        "of thumb: try others on public data with precad simulate. An owner may hold up "
        f"to {_most_records(made):,} records, twice the most that was planned for "
        "(enrolment.max_expected_records); one with more claims a lower record_rate. "
        "precad task show says what it guarantees. Everybody has the same file: its digest is in "
        "every message."
    )
    try:
        out.write_text(written(made, head), encoding="utf-8")
    except OSError as error:
        raise Misconfiguration(
            "out", str(out), f"can't be written ({error.strerror}); name another place"
        ) from None
    click.echo(f"{out}: task {made.name}, digest {made.digest}")


@task.command()
@file_argument
@click.option("--data", type=PATH, help="And with records: a .csv, .parquet or .npz file.")
@click.option("--model", help="Your model, MODULE:NAME, where the task's isn't built in.")
@click.option("--loss", help="Your loss, MODULE:NAME; cross-entropy unless given.")
def check(file: Path, data: Path | None, model: str | None, loss: str | None) -> None:
    """Say what is wrong with a task file, or its digest; and with records for it.

    Nothing is sent anywhere. precad doctor looks at everything else.
    """
    made = _loaded(file)
    click.echo(f"{file}: a task that servers take; digest {made.digest}")
    if data is not None:
        from precad.cli.task_questions import said_of  # noqa: PLC0415 -- torch: seconds

        click.echo(f"{data}: {said_of(made, data, model, loss)}")
    for field, value in (("model", model), ("loss", loss)):
        if data is None and value is not None:
            raise Misconfiguration(field, value, "is tried on records: give --data too")


@task.command()
@file_argument
@json_option
def show(file: Path, as_json: bool) -> None:
    """Say what a task guarantees, in words."""
    made = _loaded(file)
    from precad.cli.task_questions import sentences, statements  # noqa: PLC0415

    if as_json:
        found = [each.to_json() for each in statements(made)]
        print_json({"name": made.name, "digest": str(made.digest), "statements": found}, indent=2)
        return
    click.echo(f"Task {made.name}, digest {made.digest}\n")
    for each in sentences(made):
        click.echo(f"- {each}")


@task.command()
def reference() -> None:
    """Print the reference of every field, as Markdown."""
    from precad.cli.task_file import reference as text  # noqa: PLC0415

    click.echo(text(), nl=False)


def _most_records(made: "Task") -> int:
    """|D_i| that may enrol at the task's p."""
    return math.floor(made.enrolment.max_expected_records / made.privacy.record_rate)


def _loaded(file: Path) -> Any:
    from precad.common.task import Task  # noqa: PLC0415

    return Task.load(file)


def _sizes(records: str, owners: int | None) -> tuple[int, ...]:
    from precad.cli.task_questions import MOST_OWNERS, owners_sizes  # noqa: PLC0415
    from precad.common import checks  # noqa: PLC0415

    sizes = owners_sizes(records)
    if owners is None:
        return sizes
    if len(sizes) > 1:
        raise Misconfiguration("owners", owners, "--records counts the owners: leave --owners out")
    if checks.count("owners", owners, 1) > MOST_OWNERS:
        raise Misconfiguration("owners", owners, f"a task takes at most {MOST_OWNERS:,}")
    return sizes * owners


def _recipe(path: Path) -> "DataSection":
    """A file's [data] section, alone or in whole.

    Raises:
        Misconfiguration: it can't be read, or says something that means nothing.
    """
    from pydantic import ValidationError  # noqa: PLC0415

    from precad.common.checks import read_toml, refusal  # noqa: PLC0415
    from precad.common.task_schema import DataSection  # noqa: PLC0415

    values = read_toml("recipe", path)
    try:
        return DataSection.model_validate(values.get("data", values))
    except ValidationError as error:
        remedies = {
            "extra_forbidden": f"unknown key in {path}",
            "missing": f"is required in {path}",
        }
        raise refusal(error, remedies) from None


def _shape(
    data: "DataSection | None", features: int | None, classes: int | None
) -> tuple[int | None, int | None]:
    """Numbers in an input, and labels: what the recipe makes, or what was said."""
    if data is None:
        return features, classes
    for field, value in (("features", features), ("classes", classes)):
        if value is not None:
            raise Misconfiguration(field, value, f"the recipe says it: leave --{field} out")
    return data.features, len(data.target.levels) or 1


def _section(
    architecture: str | None,
    model: str | None,
    shape: tuple[int | None, int | None],
    hidden: int,
) -> dict[str, Any]:
    """The task's ``model``."""
    if (architecture is None) == (model is None):
        raise Misconfiguration(
            "model", model, "give either --architecture, with --features and --classes, or --model"
        )
    from precad.client.gradients.torch_models import logistic, mlp, model_section  # noqa: PLC0415 -- torch: seconds
    from precad.client.owner_settings import own_model  # noqa: PLC0415
    from precad.common import checks  # noqa: PLC0415

    features, classes = shape
    if model is not None:
        made = own_model(model)
        if features is not None:
            _try(made, model, features, classes)
        return model_section(made, "custom", "uniform")
    for field, value in (("features", features), ("classes", classes), ("hidden", hidden)):
        if value is None:
            raise Misconfiguration(field, None, f"give --{field}, which --architecture needs")
        checks.count(field, value, 1)
    assert features is not None
    assert classes is not None
    if architecture == "logistic":
        return model_section(logistic(features, classes), "logistic")
    return model_section(mlp(features, hidden, classes), "mlp", "uniform")


def _try(module: Any, place: str, features: int, classes: int | None) -> None:
    """Whether a model of one's own takes what the recipe makes."""
    import torch  # noqa: PLC0415

    try:
        with torch.no_grad():
            outputs = module(torch.zeros(1, features))
    except Exception as error:  # whatever a model's operations raise
        raise Misconfiguration(
            "model", place, f"takes no record of {features} numbers, as the recipe makes ({error})"
        ) from error
    found = getattr(outputs, "shape", ())
    if classes is not None and tuple(found) != (1, classes):
        raise Misconfiguration(
            "model",
            place,
            f"gives {list(found)} for one record: the recipe's target needs [1, {classes}]",
        )


_RECORD_RATE = 0.05
_COHORT = 20
"""Owners that take part in a round, about; of fewer all do."""
_CLIP_RATIO = 10.0
_ENROL_S = 3600.0
_LARGEST_STEP = 10.0
_MOST_NOISE_OVER_SIGNAL = 5.0
"""With more nothing is learnt: at 2.1 a linear model on MNIST reached 82 %, of 92 %."""


def _planned(
    described: dict[str, Any],
    sizes: tuple[int, ...],
    privacy: tuple[float, float],
    wishes: tuple[int, tuple[float, float | None], int | None],
) -> "Task":
    """The task of this model with σ for the ε, C, and η by rules of thumb.

    Raises:
        Misconfiguration: what is asked leaves nothing to learn, or no task can have it.
    """
    from precad.cli import planning  # noqa: PLC0415
    from precad.common.task import Task  # noqa: PLC0415

    (epsilon, delta), (rounds, (record_clip, client_clip), tolerate) = privacy, wishes
    client_rate = min(1.0, planning.rounded(_COHORT / len(sizes), 2))
    sigma = planning.least_noise(
        epsilon, delta, _RECORD_RATE, planning.participations_of(client_rate, rounds)
    )
    dimension = sum(math.prod(p["shape"]) for p in described["model"]["parameters"])
    clip = _CLIP_RATIO * record_clip if client_clip is None else client_clip
    if tolerate is not None:
        robustness = planning.Robustness(malicious=tolerate)
        drowned = robustness.noise_over_signal(dimension, len(sizes))
        if drowned > _MOST_NOISE_OVER_SIGNAL:
            raise Misconfiguration(
                "tolerate",
                tolerate,
                f"the noise would be {drowned:.2g} times the signal: enrol more owners, "
                "tolerate fewer, or train fewer parameters",
            )
        tight, sigma = robustness.clip_and_noise(record_clip, sigma, client_rate, rounds)
        clip = min(clip, tight) if client_clip is None else clip
    # A round's noise moves the model by about as much as one record in a round of its own.
    expected = client_rate * _RECORD_RATE * sum(sizes)
    step = min(_LARGEST_STEP, expected / (math.sqrt(2 * dimension) * sigma)) / record_clip
    values = planning.template_of(dimension, delta) | described
    values["privacy"] |= {
        "record_clip": record_clip,
        "client_clip": clip,
        "noise_multiplier": sigma,
        "record_rate": _RECORD_RATE,
        "client_rate": client_rate,
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
    return Task.parse(values)


_ROOM_IN_SIZES = 2.0
"""A data set may have grown to so many times the largest that was planned for."""
