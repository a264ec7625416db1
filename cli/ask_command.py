"""`precad ask new`, `check` and `answer`: questions in place of a training."""

import csv
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click

from precad.cli import (
    ARGUMENT,
    REQUIRED,
    AsJson,
    OfRelease,
    command,
    print_json,
    require_writable,
)
from precad.cli.task_command import check
from precad.common import AlignedTable, Misconfiguration, Task, Unit, upper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from precad.client.results import Answer

_TOO_WIDE = 0.05
"""Survival that may be off by more is warned of beforehand."""


@click.group()
def ask() -> None:
    """Ask owners' records a question, with privacy; train nothing."""


ask.add_command(check)


@command(ask)
def new(
    *,
    questions: Annotated[
        Path, "A TOML file with [[query]] tables and columns, or [data].", ARGUMENT
    ],
    out: Annotated[Path, "The task file to write; it must not exist.", ARGUMENT],
    owners: Annotated[int, "How many owners may enrol.", REQUIRED],
    most_records: Annotated[
        int, "Records of the largest owner; more aren't enrolled.", REQUIRED
    ],
    epsilon: Annotated[float | None, "ε of a unit against one curious server."],
    unit: Annotated[
        str | None,
        "What records belong to, such as patient; each answers by its first record.",
    ],
    noise_multiplier: Annotated[float | None, "Or σ."],
    error: Annotated[
        float | None,
        "Or how far noise may move the first answer, at 95 %: a count, say.",
    ],
    account: Annotated[
        Path | None, "An owner's account folder: says what it has left, and if it fits."
    ],
    delta: Annotated[float, "δ; far below 1 over all records."] = 1e-6,
    validation: Annotated[
        Literal["crypten", "proof"], "How norms are checked; crypten needs a dealer."
    ] = "proof",
) -> None:
    """Write a question's task, and say how far noise will move each answer.

    Give one of --epsilon, --noise-multiplier and --error.

        precad ask new questions.toml task.toml --owners 3 --most-records 1200 --epsilon 1
    """
    require_writable("out", out)
    wishes = (epsilon, noise_multiplier, error)
    if sum(wish is not None for wish in wishes) != 1:
        raise Misconfiguration("--epsilon", epsilon, "give it, or σ, or an error: one")
    from precad.accounting import planned_guarantees  # noqa: PLC0415
    from precad.cli import least_noise, show_account, to_toml  # noqa: PLC0415
    from precad.client.answers import moved_by_record  # noqa: PLC0415
    from precad.client.expected_answers import expected_errors  # noqa: PLC0415
    from precad.common import read_toml  # noqa: PLC0415

    sigma = 1000.0 if noise_multiplier is None else noise_multiplier
    if epsilon is not None:
        sigma = least_noise(
            epsilon=epsilon, delta=delta, unit_rate=1.0, participations=1
        )
    privacy: dict[str, object] = {"noise_multiplier": sigma, "delta": delta}
    if unit is not None:
        privacy["unit"] = unit
    values: dict[str, object] = {
        "name": out.stem.lower(),
        "validation": validation,
        "privacy": privacy,
        "enrolment": {"clients": owners, "max_expected_records": float(most_records)},
        **read_toml("questions", questions),
    }
    task = Task.parse_new(values)
    if not task.blocks:
        raise Misconfiguration("questions", questions, "has no [[query]]")
    errors = expected_errors(task, owners * most_records)
    if error is not None:
        if not errors:
            raise Misconfiguration(
                "--error",
                error,
                "noise moves no single answer of these; give --epsilon",
            )
        # In proportion to σ, but where an interval ends at what an answer can be.
        for _ in range(3):
            sigma *= error / next(iter(errors.values()))
            privacy["noise_multiplier"] = sigma
            task = Task.parse_new(values)
            errors = expected_errors(task, owners * most_records)
    if account is not None:
        from precad.client.account_file import ACCOUNT_FILE  # noqa: PLC0415
        from precad.client.own_account import OwnAccount  # noqa: PLC0415

        show_account(account)
        room = OwnAccount(task, 1.0, None, account / ACCOUNT_FILE).rounds_left(1)
        click.echo(
            f"{account} {'has room' if room else 'lacks room (a smaller ε?)'} for this"
        )
    out.write_text(to_toml(values), encoding="utf-8")
    record = planned_guarantees(task)[0]
    whose = task.mechanism.unit
    click.echo(f"{out}: task {task.name}, digest {task.digest}")
    click.echo(
        f"ε = {upper(record.epsilon, 3)} of {whose.one} at δ = {delta:g}, against one"
        f" curious server. An owner may have {most_records:,} {whose.plural}; one with"
        " more takes part under several names, each with its own and an account."
        f" Of the purse of an account's plan it takes μ = {upper(1 / sigma, 4)}."
    )
    click.echo(
        f"If {owners} owners of {most_records:,} {whose.plural} answer, all that a where"
        " asks for, spread evenly, noise will move an answer by up to ± at 95 %:"
    )
    table = AlignedTable("query", "of", ">±", f">a bad {whose} moves counts, ranks")
    moved = {
        block.query.name: f"{moved_by_record(task, block):.3g}" for block in task.blocks
    }
    for (name, of), within in errors.items():
        table.add(name, of, f"{within:,.3g}", moved.pop(name, ""))
        if of == "survival" and within > _TOO_WIDE:
            click.echo(
                f"{name}: even if all owners come, noise will move survival by up to"
                f" {within:.2g}: too far to use; take a larger ε, or more records"
            )
    table.show()


@command(ask)
def answer(
    *,
    asked: OfRelease,
    records: Annotated[
        int | None, "How many records count, where the file doesn't say it."
    ],
    bad_owners: Annotated[
        float,
        "How many of the largest owners may be bad, or below 1 which share of all"
        " records: what they may have moved.",
    ] = 0.0,
    pictures: Annotated[Path | None, "Folder for a picture of each query."],
    as_csv: Annotated[bool, "Print CSV.", "--csv"],
    as_json: AsJson,
) -> None:
    """Show what was answered, with how far noise may have moved it.

    A 95 % interval of each, and one that holds with all others at once.
    """
    from precad.cli import files_of  # noqa: PLC0415
    from precad.client.answers import answers_of  # noqa: PLC0415
    from precad.client.results import Answer, Answered  # noqa: PLC0415
    from precad.common import load_model, trained_model  # noqa: PLC0415

    task_file, model_file, _ = files_of(asked)
    task = Task.load(task_file)
    released = load_model(model_file, task)
    if not (task.blocks and released.version):
        raise Misconfiguration("model file", model_file, "holds no answer")
    facts = trained_model(model_file)
    counted = json.loads(facts.get("answered", "{}"))
    total = records or sum(counted.values()) or None
    largest = sorted(counted.values(), reverse=True)
    of_records = total and 0.0 < bad_owners < 1.0
    if not of_records and bad_owners not in range(len(largest) + 1):
        remedy = f"give 1 to {len(counted)}, or a share of known records below 1"
        raise Misconfiguration("--bad-owners", bad_owners, remedy)
    bad = sum(largest[: int(bad_owners)]) + math.ceil(bad_owners % 1 * (total or 0))
    answers = answers_of(task, released.theta, total, bad_records=bad)
    if pictures is not None:
        from precad.cli.answer_pictures import draw  # noqa: PLC0415 -- matplotlib

        draw(pictures, task.blocks, answers)
    if as_json:
        said = Answered(
            task=str(task.digest),
            counted=counted,
            queries=task.query or (),
            answers=answers,
        )
        print_json(said.model_dump(mode="json", exclude_unset=True))
        return
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(Answer.model_fields)
        writer.writerows(each.model_dump().values() for each in answers)
        return
    names = ", ".join(
        f"{name} ({number:,})" for name, number in sorted(counted.items())
    )
    unit = task.mechanism.unit
    by_first = "" if unit == Unit.RECORD else f" Of {unit.one} it is the first record."
    whose = f"{names}, whom both servers counted" if names else "unnamed owners"
    click.echo(
        f"Over the {unit.plural} of {whose}: of these, with values cut as asked, not of"
        f" others.{by_first}"
        " The intervals are of the noise of two honest servers. One bad owner of b"
        " records moves a count by at most b times the last column."
        f" {facts.get('guarantee', '')}\n"
    )
    show(answers)
    if any(block.query.kind == "head" for block in task.blocks):
        click.echo("\nThe head is a model: precad predict and evaluate take this run.")


def show(answers: "Sequence[Answer]") -> None:
    """Print answers as a table."""
    table = AlignedTable(
        "query",
        "of",
        "measure",
        ">value",
        ">95 %",
        ">95 % of all at once",
        ">without bad owners",
        ">moved",
    )
    for each in answers:
        form = ",.0f" if each.measure == "count" else ".4g"
        moved = each.moved_by_record
        table.add(
            f"{each.query} {each.group}".strip(),
            each.of,
            each.measure,
            format(each.value, form),
            _between(each.low, each.high, form),
            _between(each.low_together, each.high_together, form),
            _between(each.low_without_bad, each.high_without_bad, form),
            "" if moved is None else f"{moved:.3g}",
        )
    table.show()
    if any(
        (each.measure == "count" and each.value < 0.0)
        or (each.of == "standard deviation" and not each.low)
        for each in answers
    ):
        click.echo(
            "\nCounts below 0, and standard deviations that may be 0, are noise: their"
            " intervals hold."
        )


def _between(low: float | None, high: float | None, form: str) -> str:
    """Return an interval in words; nothing where there is none, as of a p-value."""
    return "" if low == high or low is None else f"{low:{form}} to {high:{form}}"
