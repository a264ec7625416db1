"""`precad simulate --try`: settings beside each other, and which of them to take."""

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypedDict

import numpy as np

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.exact import epsilon_spent
from precad.accounting.guarantees import planned_guarantees
from precad.cli.task_description import written
from precad.cli.task_planning import fractional_bits
from precad.common.errors import Misconfiguration
from precad.common.frozen import frozen_kw_only_dataclass
from precad.common.task import Task
from precad.common.terminal import AlignedTable, say, upper

if TYPE_CHECKING:
    from precad.simulation import SimulatedRound
    from precad.simulation.search import Trial

TRIED = {
    "learning_rate": "training",
    "rounds": "training",
    "record_clip": "privacy",
    "client_clip": "privacy",
    "noise_multiplier": "privacy",
    "record_rate": "privacy",
    "client_rate": "privacy",
}
"""By field that ``--try`` may change: the section of the task that has it."""
_COSTS = {"rounds", "noise_multiplier", "record_rate", "client_rate"}
"""Those by which a training has another ε."""
_FEW_SEEDS = 5
"""Fewer say little of the differences' standard errors."""
_MOST_TRIED = 100
"""Settings in one comparison."""


@frozen_kw_only_dataclass
class Setting:
    """Values that are tried, by field, and the task that has them."""

    values: dict[str, object]
    task: Task


class Row(TypedDict):
    """What a setting learnt, the mean over all seeds."""

    accuracy: float | None
    """None where there are no classes."""
    loss: float
    error: float
    """Standard error of the accuracy, or of the loss where there is none."""
    behind: float
    """By how much the best one's mean is better, in the same measure."""
    ties: bool
    """Whether that is at most two standard errors of the difference, seed by seed."""
    epsilon: float


def settings_of(task: Task, tries: Sequence[str]) -> list[Setting]:
    """Return the task's own setting, and then each that is to be tried beside it.

    ``tries`` are values by field, like ``learning_rate=.25,.5``; all combinations are
    tried. Raises Misconfiguration: they can't be read, are too many, or make no task.
    """
    remedy = f"give NAME=NUMBER,NUMBER,…, a name of {', '.join(TRIED)}"
    tried: dict[str, list[float]] = {}
    for words in tries:
        name, _, listed = words.partition("=")
        if name not in TRIED:
            raise Misconfiguration("--try", words, remedy)
        number = int if name == "rounds" else float
        try:
            tried[name] = [number(text) for text in listed.split(",")]
        except ValueError:
            raise Misconfiguration("--try", words, remedy) from None
    combinations = list(product(*tried.values()))
    if len(combinations) > _MOST_TRIED:
        raise Misconfiguration(
            "--try", len(combinations), f"at most {_MOST_TRIED} settings at a time"
        )
    plain = task.model_dump(mode="json")
    own = {name: plain[TRIED[name]][name] for name in tried}
    settings = [Setting(values=own, task=task)]
    for combination in combinations:
        values = dict(zip(tried, combination, strict=True))
        changed = task.model_dump(mode="json")
        for name, value in values.items():
            changed[TRIED[name]][name] = value
        if "client_clip" in values:
            # As in a task that is made for this clip.
            changed["fractional_bits"] = fractional_bits(values["client_clip"])
        if values.keys() & _COSTS and task.privacy.epsilon_limit is not None:
            # The task's own limit would end the training early, or late.
            changed["privacy"]["epsilon_limit"] = None
            planned = planned_guarantees(Task.parse(changed))[0]
            changed["privacy"]["epsilon_limit"] = float(upper(planned.epsilon))
        if values != own:
            settings.append(Setting(values={**values}, task=Task.parse(changed)))
    return settings


def rows_of(
    settings: Sequence[Setting],
    trials: "Sequence[Sequence[Trial | SimulatedRound]]",
) -> list[Row]:
    """Return a row for each setting; ``trials`` are by seed, and by setting."""
    numbers = np.array(
        [
            [(trial.accuracy, trial.loss, trial.participations) for trial in of_seed]
            for of_seed in trials
        ],
        float,
    )
    means = numbers.mean(axis=0)
    classes = bool(np.isfinite(numbers[..., 0]).all())
    scores = numbers[..., 0] if classes else -numbers[..., 1]
    best = int(np.nanargmax(scores.mean(axis=0)))
    behind = scores[:, [best]] - scores
    # Of a single seed nothing is known: only what is equal ties.
    errors, errors_behind = (
        each.std(axis=0, ddof=len(trials) > 1) / math.sqrt(len(trials))
        for each in (scores, behind)
    )
    rows: list[Row] = []
    for number, setting in enumerate(settings):
        epsilon = epsilon_spent(
            Run.of(setting.task).step(Adversary.ONE_SERVER),
            delta=setting.task.privacy.delta,
            counts={0: int(numbers[:, number, 2].max())},
        )
        mean_behind = float(behind[:, number].mean())
        row = Row(
            accuracy=float(means[number, 0]) if classes else None,
            loss=float(means[number, 1]),
            error=float(errors[number]),
            behind=mean_behind,
            ties=bool(mean_behind <= 2 * errors_behind[number]),
            epsilon=epsilon,
        )
        rows.append(row)
    return rows


def best_of(rows: Sequence[Row]) -> int:
    """Return the place of the setting that learnt most."""
    return min(range(len(rows)), key=lambda number: rows[number]["behind"])


def marks(rows: Sequence[Row]) -> list[str]:
    """Return what a person is told of each setting; the task's own is the first."""
    best = best_of(rows)
    told = []
    for number, row in enumerate(rows):
        words = ["the task's own"] if number == 0 else []
        if row["ties"]:
            words.append("best" if number == best else "ties")
        told.append(", ".join(words))
    return told


def compare(
    out: TextIO,
    settings: Sequence[Setting],
    rows: Sequence[Row],
    *,
    seeds: range,
    write: Path | None = None,
) -> dict[str, object]:
    """Show each setting with what it learnt and would have cost; return all as JSON.

    ``rows`` are as ``rows_of`` gives them, the task's own setting first. ``write`` is
    where the task of the best goes, or the task's own where it ties.
    """
    best = best_of(rows)
    taken = settings[0 if rows[0]["ties"] else best]
    table = AlignedTable(
        *(f">{name}" for name in taken.values),
        ">accuracy",
        ">± error",
        ">loss",
        ">ε server",
        "",
        title="simulated, not protected",
    )
    for setting, row, mark in zip(settings, rows, marks(rows), strict=True):
        accuracy = row["accuracy"]
        table.add(
            *map(str, setting.values.values()),
            "–" if accuracy is None else f"{accuracy:.1%}",
            f"{row['error']:.2g}" if accuracy is None else f"{row['error']:.1%}",
            f"{row['loss']:.4g}",
            upper(row["epsilon"]),
            mark,
        )
    table.show(out)
    say(
        out,
        f"Means over {len(seeds)} seeds from {seeds.start}, of the same samples and"
        " noise for all. What ties is behind the best by two standard errors at most,"
        " seed by seed: there the task's own setting is as good.",
    )
    if len(seeds) < _FEW_SEEDS:
        say(
            out,
            f"! {len(seeds)} seeds say little of what ties: give --seeds {_FEW_SEEDS}",
            style="yellow",
        )
    if write is not None:
        values = ", ".join(f"{name} = {value}" for name, value in taken.values.items())
        head = f"Taken of {len(rows)} settings that were simulated: {values}."
        write.write_text(written(taken.task, head), encoding="utf-8")
        say(out, f"{write}: digest {taken.task.digest}")
    return {
        "simulated": True,
        "seeds": list(seeds),
        "tried": [
            {**setting.values, **row}
            for setting, row in zip(settings, rows, strict=True)
        ],
        "taken": taken.values,
    }


def draw_settings(path: Path, settings: Sequence[Setting], rows: Sequence[Row]) -> None:
    """Write what each setting learnt as a picture: its mean and standard error."""
    # A second to import. A Figure alone needs no display and keeps no global state.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(8, 2 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    scores = [
        row["loss"] if row["accuracy"] is None else row["accuracy"] for row in rows
    ]
    axes.errorbar(
        scores,
        range(len(rows)),
        xerr=[row["error"] for row in rows],
        fmt="o",
    )
    labels = [
        ", ".join([*map(str, setting.values.values()), f"ε {upper(row['epsilon'])}"])
        + f"  {mark}"
        for setting, row, mark in zip(settings, rows, marks(rows), strict=True)
    ]
    axes.set_yticks(range(len(rows)), labels)
    measure = "loss, lower is better," if rows[0]["accuracy"] is None else "accuracy"
    axes.set_xlabel(f"{measure} on held-out records ± standard error")
    axes.set_title(f"SIMULATED: {', '.join(settings[0].values)}")
    axes.invert_yaxis()
    figure.savefig(path, dpi=120)
