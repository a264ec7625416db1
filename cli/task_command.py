"""`precad task new`, `check` and `show`, and `precad plan`: make and explain tasks."""

import filecmp
import json
import shutil
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import click

from precad.cli import (
    ARGUMENT,
    AsJson,
    PlanRequest,
    Wishes,
    command,
    print_json,
    require_writable,
)
from precad.client.asked_records import asked_records, require_unset
from precad.client.check_before_enrolling import Kind, look_at_columns, look_at_owner
from precad.client.owner_settings import own_model, own_object
from precad.client.records import ColumnNotes
from precad.client.records.read_records import read_records
from precad.common import (
    ClientId,
    Enrolment,
    Misconfiguration,
    Task,
    Unit,
    excess_of_clip,
    initial_vector,
    say,
    trained_model,
)
from precad.common.terminal import warn

TaskFile = Annotated[Path, "The task file.", ARGUMENT]
"""The argument of commands that read a task."""


@click.group()
def task() -> None:
    """Make a task from what is wanted, check it, say what it guarantees."""


@command(task)
def new(
    *,
    wishes: Wishes,
    out: Annotated[Path, "The file to write; it must not exist.", ARGUMENT],
    objective: Annotated[
        str | None,
        "What a record's gradient is of, for a model that is smoothed when it is used: "
        "dp-gaussian or another of docs/robustness.md; costs no ε.",
    ],
    input_noise: Annotated[
        float, "With --objective: σ of the copies and of the smoothing."
    ] = 0.25,
    start: Annotated[
        Literal["module"] | None,
        "With --model: start from the module's own weights, written beside the task.",
    ],
    name: Annotated[str | None, "By default the file's name."],
) -> None:
    """Write a task that gives the privacy that is wanted, with a comment at each field.

    σ is the least that gives the ε, exactly; precad plan says the same of the same
    words. p is 1/|D| of the largest owner, and .05 at least, more for a large ε in few
    rounds; every owner takes part in every round, unless there are so many that one
    takes over a minute. C and the step are those that came within 2 points of the best
    in a comparison of trainings; precad simulate --try tries others. Next month,
    --continue starts from this month's model.

    \b
        precad task new task.toml --architecture logistic --features 784 \\
          --classes 10 --records 10x6000 --epsilon 3
        precad task new task.toml --model wards:Net --owners 5 \\
          --records 1200 --epsilon 2 --rounds 200
        precad task new task.toml --recipe columns.toml --architecture logistic \\
          --records 3x400 --epsilon 3
    """  # noqa: D301 -- click reads the control character
    require_writable("out", out)
    from precad.cli import (  # noqa: PLC0415
        by_class,
        cost_of_rates,
        described,
        planned,
        round_in_words,
        written,
    )

    name = name or out.stem.lower().replace("_", "-").replace(" ", "-")
    sections = {}
    if objective is not None:
        sections["objective"] = {"name": objective, "noise": input_noise}
    try:
        with ExitStack() as undone:
            if start is not None:
                wishes = replace(wishes, weights=_module_weights(wishes, out, undone))
            planned_task, most_records, tried = planned(wishes, name, sections)
            undone.pop_all()
        first_weights = wishes.weights
        copied = None
        if first_weights is not None:
            copied = out.parent / first_weights.name
            if not copied.exists():
                shutil.copyfile(first_weights, copied)
            elif not filecmp.cmp(copied, first_weights, shallow=False):
                raise Misconfiguration(
                    "--continue",
                    first_weights,
                    f"is copied beside the task, where {copied} is another file: name a"
                    " task in another folder, or rename one of the two",
                )
        text = written(planned_task, described(planned_task, wishes))
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Misconfiguration(
            "out", out, f"can't be written ({error.strerror}); name another place"
        ) from None
    click.echo(f"{out}: task {planned_task.name}, digest {planned_task.digest}")
    click.echo(round_in_words(planned_task))
    if planned_task.training.class_weights:
        click.echo(by_class(planned_task, planned_task.training.class_weights))
    if copied is not None:
        click.echo(f"{copied}: the weights that it starts from; both go together")
    warn_of_clip(planned_task, most_records)
    warn(cost_of_rates(planned_task, most_records))
    _warn_of_target(planned_task)
    trained = {} if first_weights is None else trained_model(first_weights)
    if trained:
        warn(
            f"{first_weights} was trained on owners' records (task"
            f" {trained['task_name']}), and this task's ε is of the second training"
            " alone: who took part there has both trainings in one account once its"
            " settings name that account (precad setup --accounts RUN, or account ="
            ' "…"); the step is a tenth of what it is from the start'
        )
        weights = json.loads(trained.get("class_weights", "null"))
        if weights and planned_task.training.class_weights is None:
            counts = ",".join(f"{1e4 / weight:.0f}" for weight in weights)
            warn(
                f"task {trained['task_name']} weighed its classes by {weights}, and this"
                f" one doesn't: to keep that, give --balance {counts}"
            )
    if not tried:
        warn(
            "the model wasn't tried, as a record's shape isn't known: give --features,"
            " like 784 or 3x32x32"
        )


def _module_weights(wishes: Wishes, out: Path, undone: ExitStack) -> Path:
    """Write the weights of one's own module beside the task ``out``; return the file.

    ``undone`` removes it. Raises Misconfiguration: there is no such module, other
    weights are wanted, or the file is there already.
    """
    if wishes.model is None or wishes.weights is not None:
        raise Misconfiguration(
            "start",
            "module",
            "goes with --model, and without --from, which names other weights",
        )
    from safetensors.torch import save  # noqa: PLC0415 -- torch

    path = out.with_suffix(".safetensors")
    if path.exists():
        raise Misconfiguration("start", path, "exists already: remove or rename it")
    named = own_model(wishes.model).named_parameters()
    undone.callback(path.unlink, missing_ok=True)
    weights = {name: tensor.detach().clone().contiguous() for name, tensor in named}
    path.write_bytes(save(weights))
    return path


@command(task)
def check(
    file: TaskFile,
    data: Annotated[Path | None, "And with records: a .csv, .parquet or .npz file."],
    model: Annotated[
        str | None, "Your model, MODULE:NAME, where the task's isn't built in."
    ],
    loss: Annotated[str | None, "Your loss, MODULE:NAME; the task's unless given."],
) -> None:
    """Say what is wrong with a task file, or its digest; and with records for it.

    Nothing is sent anywhere. precad doctor looks at everything else.
    """
    for field, value in (("model", model), ("loss", loss)):
        if data is None and value is not None:
            raise Misconfiguration(field, value, "is tried on records: give --data too")
    loaded = Task.load(file)
    if loaded.model.initial_file is not None:
        initial_vector(loaded.model)
    click.echo(f"{file}: a task that servers take; digest {loaded.digest}")
    warn_of_clip(loaded)
    _warn_of_target(loaded)
    if loaded.privacy.epsilon_limit is not None:
        _warn_of_limit(loaded)
    if data is not None:
        click.echo(f"{data}: {_tried(loaded, data, model=model, loss=loss)}")


@command(task)
def show(file: TaskFile, as_json: AsJson) -> None:
    """Say what a task guarantees, in words."""
    loaded = Task.load(file)
    from precad.accounting import planned_guarantees  # noqa: PLC0415
    from precad.cli import sentences  # noqa: PLC0415

    if as_json:
        statements = [statement.to_json() for statement in planned_guarantees(loaded)]
        document = {
            "name": loaded.name,
            "digest": str(loaded.digest),
            "statements": statements,
        }
        print_json(document, indent=2)
        return
    click.echo(f"Task {loaded.name}, digest {loaded.digest}\n")
    for sentence in sentences(loaded):
        click.echo(f"- {sentence}")
    warn_of_clip(loaded)


def _warn_of_limit(task: Task) -> None:
    """Warn on stderr where the task's limit ends owners before the last round."""
    from precad.accounting import cap_of  # noqa: PLC0415 -- SciPy

    mechanism = task.mechanism
    end = int(cap_of(task) / mechanism.owner_rate)
    if end < mechanism.releases:
        warn(
            f"privacy.epsilon_limit is expected to end owners before round {end} of"
            f" {mechanism.releases} (the first is 0): from then on they don't count,"
            " and a round without anybody is noise alone; raise"
            " privacy.noise_multiplier or the limit, or plan fewer rounds"
        )


def _warn_of_target(task: Task) -> None:
    """Warn on stderr where a number is learned as it stands."""
    target = task.target
    learned = task.data is not None and task.query is None and not target.levels
    if learned and (target.centre, target.scale) == (0.0, 1.0):
        warn(
            f"target {target.name} has neither centre nor scale, and is learned as it"
            " stands: the clip and the step are for numbers within a few of 0. Give it"
            " in [data], from public knowledge, centre = its usual value and scale ="
            " how far most lie from that (docs/regression.md). If its numbers stand for"
            ' classes: kind = "categorical" and levels'
        )


def _tried(
    task: Task,
    data: Path,
    *,
    model: str | None,
    loss: str | None,
) -> str:
    """Try a task on all records of a file; return a sentence that says how that went.

    What the file's columns become is said on stderr. ``model`` and ``loss`` are the
    owner's own, MODULE:NAME; without a model, where the task's isn't built in, records
    are only read, as those that answer a question are. Raises Misconfiguration: a
    record can't be used.
    """
    from precad.client.gradients import (  # noqa: PLC0415
        BUILT_IN,
        build,
        loss_in,
    )
    from precad.client.records import as_records  # noqa: PLC0415

    if task.query is not None:
        require_unset(model=model, loss=loss)
        asked = asked_records(data, task)
        Enrolment(ClientId("check"), len(asked), task.mechanism.unit_rate).check(task)
        return f"{len(asked):,} records answer" + "".join(
            f"; {finding.text}" for finding in look_at_columns(asked.notes)
        )
    if task.data is None and data.suffix.lower() in {".csv", ".parquet"}:
        raise Misconfiguration(
            "data",
            data,
            "the task has no [data] that says what a table's columns become: give a"
            " .npz file with arrays x and y, or let precad doctor read it by the"
            " [columns] of the owner's settings",
        )
    notes: list[ColumnNotes] = []
    records = as_records(read_records(data, task.data, notes=notes))
    for finding in look_at_columns(notes):
        say(
            f"{'!' if finding.kind is Kind.NOTE else '✓'} {finding.text}",
            out=sys.stderr,
        )
    if model is None and task.model.architecture not in BUILT_IN:
        return (
            f"{len(records):,} records of shape {list(records.inputs.shape[1:])}; give"
            " --model to try them with your model"
        )
    module = build(task.model) if model is None else own_model(model)
    own_loss = own_object("loss", loss)
    findings = look_at_owner(
        task,
        ClientId("check"),
        records,
        task.mechanism.unit_rate,
        model=module,
        loss=loss_in(task, own_loss),
    )
    if findings.wrong:
        raise Misconfiguration("data", data, findings.wrong[0].text)
    return "; ".join(finding.text for finding in findings)


@command()
def plan(request: PlanRequest) -> None:
    """Say what σ gives an ε, what ε a σ gives, and how many attackers that bounds.

    Everything is PLANNED: precad ledger and precad certify say what a run gave, precad
    simulate what a setting learns.

    PRIVACY: σ is the least for which a record has (ε, δ) against one curious server,
    exactly, over as many participations as all but one owner in 1,000 will have.

    ROBUSTNESS: with K malicious owners the expected loss stays below B·Φ(Φ⁻¹(L/B) +
    2Kμ) if they replace honest ones, with Kμ if they join; μ is the central limit
    theorem's. C is chosen by that. Beside it stands how many owners, and how many
    records, are certified exactly.

    With --records everything is as precad task new would write it, of the same words.
    With --task its numbers are taken, and --epsilon gives another σ for it. Without
    both all numbers are to be given.

    For example:

    \b
        precad plan --records 3x400 --epsilon 3 --architecture logistic \\
          --features 30 --classes 2
        precad plan --epsilon 3 --delta 1e-5 --record-rate 0.05 \\
          --client-rate 1 --rounds 200 --record-clip 1 --client-clip 10 \\
          --dimension 7850
        precad plan --epsilon 2 --delta 1e-5 --record-rate 0.1 \\
          --client-rate 0.1 --rounds 200 --record-clip 1 --malicious 1 \\
          --owners 1000 --dimension 7850
        precad plan --task task.toml --epsilon 2
    """  # noqa: D301 -- click reads the control character
    from precad.cli import Plan, cost_of_rates  # noqa: PLC0415

    answer = Plan.of(request)
    if request.as_json:
        print_json(answer.document(), indent=2)
        return
    answer.show()
    if answer.whole:
        warn_of_clip(answer.task)
        if answer.claims:
            most = max(claim.records for claim in answer.claims)
            warn(cost_of_rates(answer.task, most))


def warn_of_clip(task: Task, records: int | None = None) -> None:
    """Warn on stderr where C lets bad owners weigh far more than honest ones.

    And of noise that covers what there is to learn; where whole owners are protected,
    always.

    ``records`` is how many the largest owner holds; what the task admits unless given.
    """
    from precad.cli import excess_of_noise, noise_over_signal  # noqa: PLC0415

    if task.mechanism.unit == Unit.OWNER:
        warn(
            "to protect whole owners a round's noise is"
            f" {noise_over_signal(task):.2g} of the sum of all updates, if all agreed:"
            " hundreds of owners, small models and few rounds make it less"
        )
        return
    warn(excess_of_clip(task, records))
    warn(excess_of_noise(task))
