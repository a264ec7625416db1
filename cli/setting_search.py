"""`precad simulate --try`: settings beside each other, and which of them to take."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from precad.accounting import Adversary, Run, epsilon_spent, planned_guarantees
from precad.cli import fractional_bits, written
from precad.common import (
    AlignedTable,
    Misconfiguration,
    Task,
    frozen_kw_only_dataclass,
    say,
    upper,
)
from precad.common.terminal import warn

if TYPE_CHECKING:
    from precad.simulation.search import Trial

_LOWER = (
    "loss",
    "Brier score",
    "mean absolute error",
    "root mean squared error",
)
"""Measures of which a lower value is better."""
_SHOWN = {
    "accuracy": "accuracy",
    "AUC": "AUC",
    "sensitivity": "sens.",
    "specificity": "spec.",
    "balanced accuracy": "balanced",
    "R²": "R²",
    "mean absolute error": "abs. error",
}
"""Headings of measures that a table has beside the one that decides; short, so that it
fits 80 columns."""
_USUAL = ("R²", "accuracy", "loss")
"""By the first that there is, settings are compared unless another is asked for."""
_WEIGHED = ("AUC", "balanced accuracy", *_USUAL)
"""So too where the task weighs its classes: accuracy is high for a model that finds
nobody of a rare class."""
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
_SHORT = {"rmse": "root-mean-squared-error", "mae": "mean-absolute-error"}
"""Measures by their short names."""
_COSTS = {"rounds", "noise_multiplier", "record_rate", "client_rate"}
"""Those by which a training has another ε."""
_FEW_SEEDS = 5
"""Fewer say little of the differences' standard errors."""
_MOST_TRIED = 100
"""Settings in one comparison."""


Values = dict[str, object]
"""A setting's values by field."""


@frozen_kw_only_dataclass
class Setting:
    """Values that are tried, and the task that has them."""

    values: Values
    task: Task


@frozen_kw_only_dataclass
class Row:
    """What a setting learnt, the mean over all seeds."""

    scores: dict[str, float]
    """By measure; NaN where a training led to no finite number."""
    error: float
    """Standard error, in the measure by which settings are compared."""
    behind: float
    """By how much the best one's mean is better, in that measure."""
    ties: bool
    """Whether that is at most two standard errors of the difference, seed by seed."""
    epsilon: float


def settings_of(task: Task, tries: Sequence[str]) -> tuple[list[Setting], list[Values]]:
    """Return the task's own setting with those to be tried beside it, and the rest.

    ``tries`` are values by field, like ``learning_rate=.25,.5``; all combinations are
    tried. Those that make no task come second: their values, and ``refused``, why.

    Raises Misconfiguration: they can't be read, or are too many.
    """
    remedy = f"give NAME=NUMBER,NUMBER,…, a name of {', '.join(TRIED)}"
    tried: dict[str, list[float]] = {}
    for words in tries:
        name, _, listed = words.partition("=")
        if name not in TRIED:
            raise Misconfiguration("--try", words, remedy)
        whole = name == "rounds"
        for text in listed.split(","):
            try:
                value = int(text) if whole else float(text)
            except ValueError:
                kind = "a whole number" if whole else "a number"
                raise Misconfiguration(
                    f"--try {name}", text, f"isn't {kind}: {remedy}"
                ) from None
            tried.setdefault(name, []).append(value)
    combinations = list(product(*tried.values()))
    if len(combinations) > _MOST_TRIED:
        raise Misconfiguration(
            "--try", len(combinations), f"at most {_MOST_TRIED} settings at a time"
        )
    plain = task.model_dump(mode="json")
    own = {name: plain[TRIED[name]][name] for name in tried}
    settings = [Setting(values=own, task=task)]
    refused: list[Values] = []
    for combination in combinations:
        values = dict(zip(tried, combination, strict=True))
        try:
            if values != own:
                settings.append(Setting(values={**values}, task=_changed(task, values)))
        except Misconfiguration as error:
            refused.append({**values, "refused": str(error)})
    return settings, refused


def _changed(task: Task, values: dict[str, float]) -> Task:
    """Return the task with other values. Raises Misconfiguration: it can't have them."""
    changed = task.model_dump(mode="json")
    for name, value in values.items():
        changed[TRIED[name]][name] = value
    if values.get("client_clip", 0) > 0:
        # As in a task that is made for this clip.
        changed["fractional_bits"] = fractional_bits(values["client_clip"])
    rate = values.get("record_rate", 0)
    if 0 < rate <= 1:
        # Owners of the same sizes are let in.
        changed["enrolment"]["max_expected_records"] *= rate / task.mechanism.unit_rate
    if values.keys() & _COSTS and task.privacy.epsilon_limit is not None:
        # The task's own limit would end the training early, or late.
        changed["privacy"]["epsilon_limit"] = None
        planned = planned_guarantees(Task.parse(changed))[0]
        # Beside noise that covers everything there is nothing to limit.
        changed["privacy"]["epsilon_limit"] = float(upper(planned.epsilon)) or None
    return Task.parse(changed)


def rows_of(
    settings: Sequence[Setting],
    trials: "Sequence[Sequence[Trial]]",
    wanted: str | None = None,
) -> tuple[str, list[Row]]:
    """Return the measure by which settings are compared, and a row for each.

    ``trials`` are by seed, and by setting. ``wanted`` is the measure's name, also
    without blanks and capitals, such as ``auc`` or ``r2``; what fits the task unless
    given. Raises Misconfiguration: trials haven't it, or no setting has a finite value
    in every one.
    """
    names = [*dict.fromkeys(chain(*(trial.scores for trial in chain(*trials))))]
    weighs = settings[0].task.training.class_weights
    usual = [name for name in (_WEIGHED if weighs else _USUAL) if name in names]
    if wanted is not None:
        plain = _SHORT.get(_plain(wanted), _plain(wanted))
        usual = [name for name in names if _plain(name) == plain]
    if not usual:
        raise Misconfiguration(
            "--measure",
            wanted,
            f"these records have {', '.join(names)}: give one of them",
        )
    measure = usual[0]
    numbers = np.array(
        [
            [[trial.scores.get(name, math.nan) for name in names] for trial in of_seed]
            for of_seed in trials
        ]
    )
    numbers[np.isinf(numbers)] = math.nan
    means = numbers.mean(axis=0)
    scores = numbers[..., names.index(measure)] * (-1 if measure in _LOWER else 1)
    if np.isnan(scores.mean(axis=0)).all():
        raise Misconfiguration(
            "--measure",
            measure,
            "no setting leads to a finite number: try smaller steps",
        )
    best = int(np.nanargmax(scores.mean(axis=0)))
    behind = scores[:, [best]] - scores
    # Of a single seed nothing is known: only what is equal ties.
    errors, errors_behind = (
        each.std(axis=0, ddof=len(trials) > 1) / math.sqrt(len(trials))
        for each in (scores, behind)
    )
    rows = []
    for number, setting in enumerate(settings):
        epsilon = epsilon_spent(
            Run.of(setting.task).step(Adversary.ONE_SERVER),
            delta=setting.task.privacy.delta,
            counts={0: max(of_seed[number].participations for of_seed in trials)},
        )
        mean_behind = float(behind[:, number].mean())
        row = Row(
            scores=dict(zip(names, means[number].tolist(), strict=True)),
            error=float(errors[number]),
            behind=mean_behind,
            ties=bool(mean_behind <= 2 * errors_behind[number]),
            epsilon=epsilon,
        )
        rows.append(row)
    return measure, rows


def _plain(name: str) -> str:
    """Return a measure's name as it is typed."""
    return name.lower().replace(" ", "-").replace("²", "2")


def best_of(rows: Sequence[Row]) -> int:
    """Return the place of the setting that learnt most."""
    return int(np.nanargmin([row.behind for row in rows]))


def marks(rows: Sequence[Row]) -> list[str]:
    """Return what a person is told of each setting; the task's own is the first."""
    best = best_of(rows)
    told = []
    for number, row in enumerate(rows):
        words = ["the task's own"] if number == 0 else []
        if row.ties:
            words.append("best" if number == best else "ties")
        if math.isnan(row.behind):
            words.append("no finite number")
        told.append(", ".join(words))
    return told


def compare(
    out: TextIO,
    settings: Sequence[Setting],
    rows: Sequence[Row],
    *,
    refused: Sequence[Values],
    measure: str,
    seeds: range,
    write: Path | None = None,
) -> dict[str, object]:
    """Show each setting with what it learnt and would have cost; return all as JSON.

    ``measure`` and ``rows`` are as ``rows_of`` gives them, the task's own setting
    first; ``refused`` are what wasn't trained. ``write`` is where the task of the best
    goes, or the task's own where it ties.
    """
    best = 0 if rows[0].ties else best_of(rows)
    taken = settings[best]
    shown = [name for name in _SHOWN if name in rows[0].scores and name != measure]
    table = AlignedTable(
        *(f">{name}" for name in taken.values),
        f">{measure}",
        ">± error",
        *(f">{_SHOWN[name]}" for name in shown),
        ">ε server",
        "",
        title=f"simulated, not protected; compared by {measure}{_direction(measure)}",
    )
    for setting, row, mark in zip(settings, rows, marks(rows), strict=True):
        table.add(
            *map(str, setting.values.values()),
            f"{row.scores[measure]:.4g}",
            f"{row.error:.2g}",
            *(f"{row.scores[name]:.4g}" for name in shown),
            upper(row.epsilon),
            mark,
        )
    for values in refused:
        *cells, reason = map(str, values.values())
        blanks = [""] * (len(shown) + 3)
        table.add(*cells, *blanks, f"impossible: {reason}")
    table.show(out)
    say(
        f"Means over {len(seeds)} seeds from {seeds.start}, of the same samples and"
        " noise for all. What ties is behind the best by two standard errors at most,"
        " seed by seed: where the task's own setting ties or is best, keep it.",
        out=out,
    )
    if len(seeds) < _FEW_SEEDS:
        warn(
            f"{len(seeds)} seeds say little of what ties: give --seeds {_FEW_SEEDS}",
            out,
        )
    if write is not None:
        named = ", ".join(f"{name} = {value}" for name, value in taken.values.items())
        write.write_text(
            written(
                taken.task,
                f"Taken by {measure} of {len(rows)} simulated settings: {named}.",
            ),
            encoding="utf-8",
        )
        say(f"{write}: digest {taken.task.digest}", out=out)
    return {
        "simulated": True,
        "measure": measure,
        "seeds": list(seeds),
        "tried": [
            {**setting.values, **(plain := asdict(row)).pop("scores"), **plain}
            for setting, row in zip(settings, rows, strict=True)
        ]
        + [*refused],
        "taken": taken.values,
    }


def _direction(measure: str) -> str:
    """Return what to add where a lower value is better."""
    return ", lower is better" if measure in _LOWER else ""


def draw_settings(
    path: Path,
    settings: Sequence[Setting],
    rows: Sequence[Row],
    *,
    measure: str,
) -> None:
    """Write what each setting learnt as a picture: its mean and standard error."""
    # A second to import. A Figure alone needs no display and keeps no global state.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(8, 2 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(
        [row.scores[measure] for row in rows],
        range(len(rows)),
        xerr=[row.error for row in rows],
        fmt="o",
    )
    labels = [
        ", ".join([*map(str, setting.values.values()), f"ε {upper(row.epsilon)}"])
        + f"  {mark}"
        for setting, row, mark in zip(settings, rows, marks(rows), strict=True)
    ]
    axes.set_yticks(range(len(rows)), labels)
    axes.set_xlabel(
        f"{measure}{_direction(measure)}, on held-out records ± standard error"
    )
    axes.set_title(f"SIMULATED: {', '.join(settings[0].values)}")
    axes.invert_yaxis()
    figure.savefig(path, dpi=120)
