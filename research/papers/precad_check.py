"""PRECAD Sec.

4.3: an update whose square wraps around, by the paper's check and by ours.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from precad.common.fixed_point import squared_norm
from precad.simulation import View, simulate
from precad.simulation.datasets import shards
from precad.simulation.rounds import Forgery, forged_update
from precad.simulation.virtual_owners import Matrix
from research.algorithms import Problem
from research.algorithms.learner import Learner
from research.algorithms.start import model_and_section
from research.algorithms.sums import Sums, task_of
from research.datasets import load
from research.papers.precad_common import (
    SETTINGS,
    SHARDS_PER_CLIENT,
    lines_with_spread,
    percent,
)
from research.study import (
    EXPERIMENTS,
    Experiment,
    Result,
    Scale,
    Settings,
    Surroundings,
    Table,
)

CHECKS = ("published", "precad")
SEEDS = 3
_COLOURS = {"published": "local-dp", "precad": "precad"}

_SHOWN = 20


def cells(scale: Scale) -> list[Settings]:
    """Each check without and with one bad client."""
    own = {"algorithm": "precad", "noise_multiplier": 1.5, "client_clip": _clip(scale)}
    return [
        {**own, "check": check, "attackers": bad, "seed": seed}
        for seed in range(SEEDS)
        for check in CHECKS
        for bad in (0, 1)
    ]


def _clip(scale: Scale) -> float:
    return 5.0 if scale is Scale.SMALL else 30.0


def published_check(update: Matrix, bound: int) -> bool:
    """Whether Σ x² mod 2^64, as shares of it are opened, looks like at most β²."""
    with np.errstate(over="ignore"):
        wrapped = int((update * update).sum(dtype=np.int64))
    return 0 <= wrapped <= bound * bound


def measure(settings: Settings, around: Surroundings) -> dict[str, Any]:
    """Accuracy by round; how many forged updates there were and how many counted."""
    data = load(settings["data"], around.data)
    parts = shards(
        data.train_y,
        clients=settings["clients"],
        shards_per_client=SHARDS_PER_CLIENT,
        seed=settings["seed"],
    )
    problem = Problem(
        data=data, shares=parts, model=settings["model"], seed=settings["seed"]
    )
    task = task_of(problem, Sums.of(settings))
    module, _ = model_and_section(problem)
    learner = Learner(module)
    notes: dict[str, Any] = {} if around.checkpoint is None else around.checkpoint.notes
    every = max(1, settings["rounds"] // _SHOWN)
    waiting: list[Matrix] = []

    def attack(honest: Matrix, view: View) -> Any:
        bad = np.array(
            [forged_update(Forgery.WRAPAROUND, view.task, row) for row in honest]
        )
        # Signs by the run's own seed, so that it repeats.
        bad = np.abs(bad) * view.generator.choice(np.array([-1, 1]), size=bad.shape)
        notes["submitted"] = notes.get("submitted", 0) + len(bad)
        if settings["check"] == "precad":
            # The simulation's own rule: what the two servers' range test and norm check
            # decide.
            passing = [
                row for row in bad if squared_norm(row) <= view.task.mechanism.bound**2
            ]
            notes["counted"] = notes.get("counted", 0) + len(passing)
            return bad
        passing = [
            row for row in bad if published_check(row, view.task.mechanism.bound)
        ]
        notes["counted"] = notes.get("counted", 0) + len(passing)
        waiting.extend(passing)
        return np.zeros_like(bad)

    def aggregate(updates: Matrix, view: View) -> Matrix:
        total = updates.sum(axis=0, dtype=np.int64)
        # What the published check lets through is added modulo 2^64, as the servers'
        # shares are.
        for row in waiting:
            total += row
        waiting.clear()
        del view
        return np.asarray(total, np.int64)

    def on_round(played: Any, theta: Any) -> None:
        around.progress(played.number, settings["rounds"])
        if played.number % every == 0:
            accuracy = round(learner.accuracy(theta, data.test_x, data.test_y), 4)
            notes.setdefault("curve", []).append(accuracy)

    bad = settings["attackers"]
    simulate(
        task,
        [(data.train_x[mine], data.train_y[mine]) for mine in parts],
        module,
        seed=settings["seed"],
        attack=attack if bad else None,
        attackers=bad or None,
        aggregate=aggregate,
        on_round=on_round,
        checkpoint=around.checkpoint,
    )
    forged = {name: notes.get(name, 0) for name in ("submitted", "counted")}
    return {"accuracy": notes["curve"][-1], "curve": notes["curve"], **forged}


def _groups(results: Sequence[Result]) -> dict[tuple[str, int], list[Result]]:
    found: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        key = result.settings["check"], result.settings["attackers"]
        found.setdefault(key, []).append(result)
    return found


def table(results: Sequence[Result]) -> Table:
    """A row for each check and number of bad clients."""
    rows = []
    for (check, bad), group in _groups(results).items():
        submitted = sum(each.values["submitted"] for each in group)
        counted = sum(each.values["counted"] for each in group)
        accuracy = percent([each.values["accuracy"] for each in group])
        said = "is rejected" if bad else "–"
        rows.append([check, str(bad), said, f"{counted} of {submitted}", accuracy])
    return Table(
        ["check", "bad clients", "published: it", "forged that counted", "accuracy"],
        rows,
    )


def plot(results: Sequence[Result], figure: Any) -> None:
    """Accuracy by round."""
    axes = figure.subplots()
    for (check, bad), group in _groups(results).items():
        rounds = group[0].settings["rounds"]
        every = max(1, rounds // _SHOWN)
        points = {
            every * (place + 1): [each.values["curve"][place] for each in group]
            for place in range(len(group[0].values["curve"]))
        }
        name = f"{check} check, {bad} bad"
        lines_with_spread(axes, points, name, _COLOURS[check], 2.0 if not bad else 1.0)
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy on held-out records")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend()


EXPERIMENTS.register("precad-check")(
    Experiment(
        paper="PRECAD",
        figure="Sec. 4.3",
        claim=(
            "The servers' secure validation finds every update that is longer than C."
        ),
        does=(
            "One client submits multiples of 2^32, whose square is 0 modulo 2^64: under"
            " the paper's check, which opens a comparison of the norm in the ring, and"
            " under this project's, which bounds projections first (docs/soundness.md)."
        ),
        settings=SETTINGS,
        cells=cells,
        measure=measure,
        table=table,
        plot=plot,
    )
)
