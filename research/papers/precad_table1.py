"""PRECAD Table 1: the noise in a round's sum, by who adds it and how many clients there are."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from precad.simulation.datasets import shards
from research.algorithms import ALGORITHMS, Problem
from research.algorithms.learner import Reals
from research.datasets import load
from research.papers.precad_common import lines_with_spread
from research.study import (
    EXPERIMENTS,
    Experiment,
    Result,
    Scale,
    Settings,
    Surroundings,
    Table,
)

CLIENTS = {
    Scale.SMALL: (5, 10, 20, 50, 100),
    Scale.PAPER: (10, 20, 50, 100, 200, 500, 1000),
}
HONEST_PART = 2
"""τ is n over this."""
_SAID = {
    "central-dp": "σ",
    "precad": "√2·σ",
    "distributed-dp": "√(n/τ)·σ",
    "local-dp": "√n·σ",
}
_FORMULAS: dict[str, Callable[[int], float]] = {
    "central-dp": lambda _: 1.0,
    "precad": lambda _: 2**0.5,
    "distributed-dp": lambda n: (n / max(1, n // HONEST_PART)) ** 0.5,
    "local-dp": lambda n: n**0.5,
}
_SETTINGS = {
    "data": "digits",
    "model": "logistic",
    "rounds": 20,
    "learning_rate": 1.0,
    "record_clip": 1.0,
    "client_clip": None,
    "record_rate": 1e-3,
    "client_rate": 1.0,
    "noise_multiplier": 2.0,
    "delta": 1e-5,
    "seed": 0,
}


def cells(scale: Scale) -> list[Settings]:
    """Each algorithm with each number of clients."""
    return [
        {"algorithm": name, "clients": n, "non_colluding": max(1, n // HONEST_PART)}
        for n in CLIENTS[scale]
        for name in _SAID
    ]


def measure(settings: Settings, around: Surroundings) -> dict[str, Any]:
    """Standard deviation over σ·R of what moves the model: hardly a record is drawn."""
    data = load(settings["data"], around.data)
    models: list[Reals] = []

    def watch(done: int, theta: Reals) -> None:
        around.progress(done, settings["rounds"])
        models.append(theta)

    parts = shards(
        data.train_y,
        clients=settings["clients"],
        shards_per_client=1,
        seed=settings["seed"],
    )
    problem = Problem(
        data=data,
        shares=parts,
        model=settings["model"],
        seed=settings["seed"],
        watch=watch,
    )
    ALGORITHMS[settings["algorithm"]](problem, settings)
    moved = np.diff(np.array([np.zeros_like(models[0]), *models]), axis=0)
    expected = settings["record_rate"] * len(data.train_y)
    sums = moved * expected / settings["learning_rate"]
    unit = settings["noise_multiplier"] * settings["record_clip"]
    return {"deviation": float(sums.std() / unit)}


def _by_algorithm(results: Sequence[Result]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for result in results:
        own = found.setdefault(result.settings["algorithm"], {})
        own[result.settings["clients"]] = result.values["deviation"]
    return {name: dict(sorted(own.items())) for name, own in found.items()}


def table(results: Sequence[Result]) -> Table:
    """A row for each algorithm; in each cell what was measured, and what the formula says."""
    sizes = sorted({result.settings["clients"] for result in results})
    rows = [
        [
            name,
            _SAID[name],
            *(
                f"{own[size]:.2f} ({_FORMULAS[name](size):.2f})" if size in own else "–"
                for size in sizes
            ),
        ]
        for name, own in _by_algorithm(results).items()
    ]
    return Table(["algorithm", "published", *(f"n = {size}" for size in sizes)], rows)


def plot(results: Sequence[Result], figure: Any) -> None:
    """The deviation against n, on logarithmic axes, with the formulas as thin lines."""
    axes = figure.subplots()
    for name, own in _by_algorithm(results).items():
        lines_with_spread(
            axes, {n: [value] for n, value in own.items()}, name, name, 1.0
        )
        axes.plot(
            list(own), [_FORMULAS[name](n) for n in own], color="grey", linewidth=0.7
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("n, clients of a round")
    axes.set_ylabel("standard deviation of the sum's noise / σR")
    axes.grid(alpha=0.3, which="both")
    axes.legend()


EXPERIMENTS.register("precad-table1")(
    Experiment(
        paper="PRECAD",
        figure="Table 1",
        claim=(
            "For the same ε the sum's noise is σ with one trusted server, √2·σ with"
            " two, √(n/τ)·σ and √n·σ where clients add it: only those grow with n, or"
            " need τ honest ones."
        ),
        does=(
            "Rounds in which hardly a record is drawn: what moves the model is noise. "
            "τ = n/2 for distributed DP."
        ),
        settings=dict.fromkeys(Scale, _SETTINGS),
        cells=cells,
        measure=measure,
        table=table,
        plot=plot,
    )
)
