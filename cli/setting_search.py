"""`precad simulate --try`: settings beside each other, and which of them to take."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.exact import epsilon_spent
from precad.cli.main import json_of, print_json
from precad.cli.task_description import written
from precad.cli.task_planning import (
    fractional_bits,
    least_noise,
    participations_of,
    planned_epsilon,
)
from precad.common.errors import Misconfiguration
from precad.common.task import Task
from precad.common.terminal import AlignedTable, say, upper

if TYPE_CHECKING:
    from precad.cli.simulate_command import SimulationRequest
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
_COST_EPSILON = {"rounds", "record_rate", "client_rate"}
"""Fields that change ε, where σ stays."""
_MOST_TRIED = 100
"""Settings in one comparison."""
Learnt: TypeAlias = Union["Trial", "SimulatedRound"]
"""What a setting learnt with one seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Values that are tried, by field, and the task that has them."""

    values: dict[str, object]
    task: Task

    @property
    def words(self) -> list[str]:
        """The values as they are shown, in their order."""
        return [
            f"{value:g}" if isinstance(value, float) else str(value)
            for value in self.values.values()
        ]


def settings_of(task: Task, tries: Sequence[str]) -> list[Setting]:
    """Return the task's own setting, and then each that is to be tried beside it.

    ``tries`` are values by field, like ``learning_rate=.25,.5``; all combinations are
    tried. With other rounds or rates, and no σ among what is tried, σ is what gives the
    task's ε. Raises Misconfiguration: they can't be read, are too many, or make no
    task.
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
        values: dict[str, object] = dict(zip(tried, combination, strict=True))
        if values != own:
            settings.append(Setting(values=values, task=_changed(task, values)))
    return settings


def _changed(task: Task, values: dict[str, object]) -> Task:
    """Return the task with other values of these fields."""
    changed = task.model_dump(mode="json")
    privacy = changed["privacy"]
    old_rate = privacy["record_rate"]
    for name, value in values.items():
        changed[TRIED[name]][name] = value
    if "client_clip" in values:
        # As in a task that is made for this clip.
        changed["fractional_bits"] = fractional_bits(privacy["client_clip"])
    # Owners may hold as many records as before.
    room = privacy["record_rate"] / old_rate
    changed["enrolment"]["max_expected_records"] *= room
    with_rates = Task.parse(changed)
    if _COST_EPSILON.isdisjoint(values) or "noise_multiplier" in values:
        return with_rates
    mechanism = with_rates.mechanism
    privacy["noise_multiplier"] = least_noise(
        epsilon=planned_epsilon(task),
        delta=privacy["delta"],
        unit_rate=mechanism.unit_rate,
        participations=participations_of(mechanism.owner_rate, mechanism.releases),
        owners_per_unit=mechanism.owners_per_unit,
    )
    return Task.parse(changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A setting with what it learnt, the mean over all seeds."""

    setting: Setting
    accuracy: float | None
    """None where there are no classes."""
    loss: float
    error: float
    """Standard error of the accuracy, or of the loss where there is none."""
    behind: float
    """By how much the best one's mean is better, in the same measure."""
    by_chance: float
    """How much of that may be chance: Student's t with 95 % confidence, seed by seed,
    as samples and noise are the same."""
    epsilon: float

    @property
    def ties(self) -> bool:
        """Whether the best may be ahead by chance."""
        return self.behind <= self.by_chance

    @property
    def learnt(self) -> str:
        """The mean and its standard error, in words."""
        if self.accuracy is None:
            return f"{self.loss:.4g} ± {self.error:.2g}"
        return f"{self.accuracy:.1%} ± {self.error:.1%}"

    def to_json(self) -> dict[str, object]:
        """Return the row as a flat object."""
        numbers = asdict(self)
        del numbers["setting"]
        return {**self.setting.values, **numbers, "ties": self.ties}


def rows_of(
    settings: Sequence[Setting], trials: Sequence[Sequence[Learnt]]
) -> list[Row]:
    """Return a row for each setting; ``trials`` are by seed, and by setting."""
    losses = np.array([[trial.loss for trial in of_seed] for of_seed in trials], float)
    accuracies = np.array(
        [[trial.accuracy for trial in of_seed] for of_seed in trials], float
    )
    classes = bool(np.isfinite(accuracies).all())
    scores = accuracies if classes else -losses
    best = int(np.nanargmax(scores.mean(axis=0)))
    behind = scores[:, [best]] - scores
    # Of a single seed nothing is known: only what is equal ties.
    confident = float(t.ppf(0.975, max(1, len(trials) - 1)))
    rows = []
    for number, setting in enumerate(settings):
        taken = max(of_seed[number].participations for of_seed in trials)
        epsilon = epsilon_spent(
            Run.of(setting.task).step(Adversary.ONE_SERVER),
            delta=setting.task.privacy.delta,
            participations=taken,
        )
        row = Row(
            setting=setting,
            accuracy=float(accuracies[:, number].mean()) if classes else None,
            loss=float(losses[:, number].mean()),
            error=_standard_error(scores[:, number]),
            behind=float(behind[:, number].mean()),
            by_chance=confident * _standard_error(behind[:, number]),
            epsilon=epsilon,
        )
        rows.append(row)
    return rows


def _standard_error(values: NDArray[np.float64]) -> float:
    """Return the standard error of the mean of values, ``[n]``; 0 of a single one."""
    if len(values) == 1:
        return 0.0
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def compare(
    out: TextIO,
    request: "SimulationRequest",
    rows: Sequence[Row],
    *,
    seeds: range,
) -> None:
    """Show each setting with what it learnt and would have cost, as the request wants.

    ``rows`` are as ``rows_of`` gives them, the task's own setting first. They become a
    table on ``out``, the files of ``--save``, ``--plot`` and ``--write``, and with
    ``--json`` a document on stdout.
    """
    own = rows[0]
    best = min(rows, key=lambda row: row.behind)
    taken = own if own.ties else best
    table = AlignedTable(
        *(f">{name}" for name in own.setting.values),
        ">loss" if own.accuracy is None else ">accuracy",
        ">ε server",
        "",
        title="simulated, not protected",
    )
    for row in rows:
        mark = "tie" if row.ties else ""
        if row is best:
            mark = "best"
        if row is own:
            mark = f"the task's own {mark}"
        table.add(
            *row.setting.words,
            row.learnt,
            upper(row.epsilon),
            mark,
        )
    table.show(out)
    say(
        out,
        f"Mean ± standard error over {len(seeds)} seeds from {seeds.start}, with the"
        " same samples and noise for all settings. Chance may explain what a tie is"
        " behind the best (Student's t, 95 %): take the task's own where it ties.",
    )
    document = {
        "simulated": True,
        "seeds": list(seeds),
        "tried": [row.to_json() for row in rows],
        "taken": taken.setting.values,
    }
    if request.plot is not None:
        draw_settings(request.plot, rows)
    if request.write is not None:
        head = f"Taken of {len(rows)} settings that were simulated: {taken.learnt}."
        text = written(taken.setting.task, head)
        request.write.write_text(text, encoding="utf-8")
        say(out, f"{request.write}: digest {taken.setting.task.digest}")
    if request.save is not None:
        request.save.write_text(json_of(document, indent=1) + "\n", encoding="utf-8")
    if request.as_json:
        print_json(document)


def draw_settings(path: Path, rows: Sequence[Row]) -> None:
    """Write what each setting learnt as a picture: mean, standard error, and ties."""
    # A second to import. A Figure alone needs no display and keeps no global state.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(8, 1.5 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        axes.errorbar(
            row.loss if row.accuracy is None else row.accuracy,
            place,
            xerr=row.error,
            fmt="o",
            color="tab:blue" if row.ties else "tab:gray",
        )
    labels = [", ".join(row.setting.words) for row in rows]
    labels[0] += " (the task's own)"
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()
    measure = "loss" if rows[0].accuracy is None else "accuracy"
    axes.set_xlabel(f"{measure} on held-out records, ± standard error; blue ties")
    axes.set_title(f"SIMULATED: {', '.join(rows[0].setting.values)}", loc="left")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
