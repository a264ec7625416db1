"""Xie et al. Table 9: every attack against every defence, and against PRECAD's bound and noise."""

from collections.abc import Mapping, Sequence
from typing import Any

from precad.experiments.defences import DEFENCES
from precad.experiments.papers.precad_common import SETTINGS, percent, train
from precad.experiments.poisoning import ATTACKS
from precad.experiments.study import EXPERIMENTS, Experiment, Result, Scale, Settings, Table

OURS = "precad"
_SHARED: Settings = {"defence": None, "client_rate": 1.0, "noise_multiplier": 0.0, "seed": 0}
_SETTINGS: Mapping[Scale, Settings] = {
    Scale.SMALL: {
        **SETTINGS[Scale.SMALL],
        **_SHARED,
        "rounds": 60,
        "attackers": 3,
        "learning_rate": 0.5,
    },
    Scale.PAPER: {**SETTINGS[Scale.PAPER], **_SHARED, "rounds": 500, "attackers": 10},
}
_CLIP = {Scale.SMALL: 2.0, Scale.PAPER: 20.0}
_RATE = {Scale.SMALL: 2.0, Scale.PAPER: 0.1}


def cells(scale: Scale) -> list[Settings]:
    """Every attack with every defence, those of plug-ins too."""
    ours: dict[str, Any] = {
        "algorithm": "precad",
        "noise_multiplier": 2.0,
        "client_clip": _CLIP[scale],
        "learning_rate": _RATE[scale],
    }
    arms = [*({"algorithm": "non-private", "defence": name} for name in DEFENCES), ours]
    return [{**arm, "attack": attack} for attack in ATTACKS for arm in arms]


def _grid(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for result in results:
        defence = result.settings["defence"] or OURS
        found.setdefault(defence, {})[result.settings["attack"]] = result.values["accuracy"]
    return found


def table(results: Sequence[Result]) -> Table:
    """A row for each defence, a column for each attack: accuracy on clean records."""
    attacks = list(dict.fromkeys(result.settings["attack"] for result in results))
    rows = [
        [defence, *(percent([own[attack]]) if attack in own else "–" for attack in attacks)]
        for defence, own in _grid(results).items()
    ]
    return Table(["defence", *attacks], rows)


def plot(results: Sequence[Result], figure: Any) -> None:
    """The table as colours."""
    grid = _grid(results)
    attacks = list(dict.fromkeys(result.settings["attack"] for result in results))
    axes = figure.subplots()
    values = [[own.get(attack, float("nan")) for attack in attacks] for own in grid.values()]
    shown = axes.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(attacks)), attacks, rotation=20)
    axes.set_yticks(range(len(grid)), list(grid))
    for row, own in enumerate(values):
        for column, value in enumerate(own):
            colour = "black" if value > 0.6 else "white"  # noqa: PLR2004
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour)
    figure.colorbar(shown, label="accuracy on clean held-out records")


EXPERIMENTS.register("xie-table9")(
    Experiment(
        paper="Xie et al.",
        figure="Table 9",
        claim="Training with DP withstands STAT-OPT, backdoor and label flipping about as well as "
        "robust aggregations do, and promises something besides.",
        does="Every registered attack by a tenth of the clients, all of whom take part in each "
        "round, against every registered defence without privacy, and against PRECAD. One "
        "training each, where the paper votes.",
        settings=_SETTINGS,
        cells=cells,
        measure=train,
        table=table,
        plot=plot,
    )
)
