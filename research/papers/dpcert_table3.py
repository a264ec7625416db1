"""DP-CERT Table 3, 4: clean accuracy of DP-Gaussian by learning rate and by clip."""

from collections.abc import Mapping, Sequence
from typing import Any

from research.papers.dpcert_models import (
    SETTINGS,
    grouped,
    method_cells,
    model_of,
    spread,
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

SIGMA = 0.25
RATES = {Scale.SMALL: (0.75, 1.5, 3.0, 6.0, 12.0), Scale.PAPER: (0.25, 0.5, 1.0)}
CLIPS = {
    Scale.SMALL: (0.1, 0.3, 1.0, 3.0, 10.0),
    Scale.PAPER: (0.01, 0.05, 0.1, 0.2, 0.5),
}
PUBLISHED: Mapping[tuple[str, float], float] = {
    ("learning rate", 0.25): 97.71,
    ("learning rate", 0.5): 98.13,
    ("learning rate", 1.0): 97.78,
    ("clip", 0.01): 94.89,
    ("clip", 0.05): 97.75,
    ("clip", 0.1): 98.13,
    ("clip", 0.2): 97.72,
    ("clip", 0.5): 96.47,
}
"""MNIST, in %."""
_SEEDS = {Scale.SMALL: 3, Scale.PAPER: 1}


def cells(scale: Scale) -> list[Settings]:
    """One of both is changed, the other stays."""

    def of(varied: str, name: str, value: float) -> list[Settings]:
        own: dict[str, Any] = {"varied": varied, name: value}
        return list(
            method_cells(scale, ("dp-gaussian",), (SIGMA,), _SEEDS[scale], **own)
        )

    rates = [
        cell
        for rate in RATES[scale]
        for cell in of("learning rate", "learning_rate", rate)
    ]
    return rates + [cell for clip in CLIPS[scale] for cell in of("clip", "clip", clip)]


def measure(settings: Settings, around: Surroundings) -> dict[str, Any]:
    """Clean accuracy."""
    model, _, _ = model_of(settings, around)
    return {"accuracy": round(model.accuracy, 5)}


def _value(result: Result) -> float:
    key = "clip" if result.settings["varied"] == "clip" else "learning_rate"
    return float(result.settings[key])


def _groups(results: Sequence[Result]) -> dict[tuple[str, float], list[Result]]:
    found: dict[tuple[str, float], list[Result]] = {}
    for (varied, *_), group in grouped(
        results, "varied", "learning_rate", "clip"
    ).items():
        found[varied, _value(group[0])] = group
    return found


def table(results: Sequence[Result]) -> Table:
    """A row for each value."""
    rows = []
    for (varied, value), group in _groups(results).items():
        printed = None
        if group[0].settings["data"] == "mnist":
            printed = PUBLISHED.get((varied, value))
        rows.append(
            [
                varied,
                f"{value:g}",
                spread(group, "accuracy", 1, 100),
                "–" if printed is None else f"{printed:.2f}",
            ]
        )
    return Table(["varied", "value", "accuracy, %", "published for it, MNIST"], rows)


def plot(results: Sequence[Result], figure: Any) -> None:
    """Accuracy by each."""
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, varied in ((left, "learning rate"), (right, "clip")):
        some = {
            value: group
            for (name, value), group in _groups(results).items()
            if name == varied
        }
        means = [
            100 * sum(result.values["accuracy"] for result in group) / len(group)
            for group in some.values()
        ]
        axes.plot(list(some), means, marker="o")
        axes.set_xscale("log")
        axes.set_xlabel(varied)
        axes.grid(alpha=0.25)
    left.set_ylabel("accuracy, %")


EXPERIMENTS.register("dpcert-table3")(
    Experiment(
        paper="DP-CERT",
        figure="Tables 3, 4",
        claim=(
            "The chosen learning rate and clip give the highest clean accuracy, and"
            " their neighbours lose little."
        ),
        does="DP-Gaussian at σ = 0.25, ε = 3, with one of both changed.",
        settings=SETTINGS,
        cells=cells,
        measure=measure,
        table=table,
        plot=plot,
    )
)
