"""Xie et al. Table 9: every attack against every defence, and against UserDP-FedAvg's vote."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from research.defences import DEFENCES
from research.papers.xie_curves import published_curve, share, sound_curve, votes
from research.papers.xie_levels import USER_SETTINGS, USERS
from research.poisoning import ATTACKS
from research.study import EXPERIMENTS, Experiment, Result, Scale, Settings, Table

NOISE = {1.8: 0.6298, 3.0: 0.2808}
"""σ of UserDP-FedAvg and ε as printed in Table 4; Table 9 has ε from .32 to .77."""
BAD = {Scale.SMALL: (10,), Scale.PAPER: (2, 3, 5, 10)}
_MODELS = {Scale.SMALL: 10, Scale.PAPER: 5}
"""Trainings of each defence, whose accuracies are averaged."""
_VOTERS = 100
_CLEAN: Settings = {"attack": "none", "bad": 0}


def cells(scale: Scale) -> list[Settings]:
    """Every attack with every defence, those of plug-ins too."""
    arms: list[dict[str, Any]] = [
        *(
            {"defence": name, "noise_multiplier": 0.0, "models": _MODELS[scale]}
            for name in DEFENCES
        ),
        *(
            {"defence": None, "noise_multiplier": sigma, "models": _VOTERS}
            for sigma in NOISE
        ),
    ]
    attacks = [
        _CLEAN,
        *(
            {"attack": name, "bad": k}
            for k in BAD[scale]
            for name in ATTACKS
            if name != "none"
        ),
    ]
    return [{**arm, **attack, "seed": 0} for attack in attacks for arm in arms]


def _arm(settings: Settings) -> str:
    sigma = settings["noise_multiplier"]
    return str(settings["defence"] or f"UserDP-FedAvg's vote, σ = {sigma:g}")


def _accuracy(result: Result) -> float:
    """Of the models' mean without privacy, of their vote with it."""
    models = result.settings["models"]
    right = np.array(result.values["right"]) / models
    return float(right.mean() if result.settings["defence"] else (right > 0.5).mean())  # noqa: PLR2004


def _grid(results: Sequence[Result]) -> dict[str, dict[tuple[str, int], Result]]:
    found: dict[str, dict[tuple[str, int], Result]] = {}
    for result in results:
        place = result.settings["attack"], result.settings["bad"]
        found.setdefault(_arm(result.settings), {})[place] = result
    return found


def _bad(results: Sequence[Result]) -> list[int]:
    return sorted({result.settings["bad"] for result in results} - {0})


def _attacks(results: Sequence[Result]) -> list[str]:
    names = dict.fromkeys(result.settings["attack"] for result in results)
    return [name for name in names if name != "none"]


def _certified(own: Mapping[tuple[str, int], Result], groups: Sequence[int]) -> str:
    clean = own.get(("none", 0))
    if clean is None or clean.settings["defence"]:
        return "–"
    epsilon = NOISE[clean.settings["noise_multiplier"]]
    printed = published_curve([clean], epsilon, USERS.delta, groups)
    sound = sound_curve([clean], USERS, groups)
    return ", ".join(
        f"{share(a)} / {share(b)}" for a, b in zip(printed, sound, strict=True)
    )


def table(results: Sequence[Result]) -> Table:
    """A row for each defence; accuracy on clean records at each k, by attack."""
    places, attacks = _bad(results), _attacks(results)
    rows = []
    for arm, own in _grid(results).items():
        clean = own.get(("none", 0))
        row = [arm, "–" if clean is None else share(_accuracy(clean))]
        for attack in attacks:
            some = [own.get((attack, k)) for k in places]
            row.append(
                ", ".join(
                    "–" if r is None else f"{100 * _accuracy(r):.1f}" for r in some
                )
            )
        rows.append([*row, _certified(own, places)] if places else row)
    headings = ["defence", "no attack", *(f"{attack}, %" for attack in attacks)]
    if places:
        named = ", ".join(map(str, places))
        headings.append(f"certified, k = {named}: as published / sound")
    return Table(headings, rows)


def plot(results: Sequence[Result], figure: Any) -> None:
    """The table as colours, a panel for each k."""
    grid, places, attacks = _grid(results), _bad(results), _attacks(results)
    panels = figure.subplots(1, max(1, len(places)), sharey=True, squeeze=False)[0]
    shown = None
    for axes, k in zip(panels, places, strict=False):
        values = [
            [_accuracy(own[a, k]) if (a, k) in own else float("nan") for a in attacks]
            for own in grid.values()
        ]
        shown = axes.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        axes.set_xticks(
            range(len(attacks)), attacks, rotation=60, ha="right", fontsize="x-small"
        )
        axes.set_yticks(range(len(grid)), list(grid), fontsize="x-small")
        axes.set_title(f"k = {k}")
        for row, own in enumerate(values):
            for column, value in enumerate(own):
                colour = "black" if value > 0.6 else "white"  # noqa: PLR2004
                place = {"ha": "center", "va": "center", "fontsize": "xx-small"}
                axes.text(column, row, f"{100 * value:.0f}", color=colour, **place)
    if shown is not None:
        figure.colorbar(shown, label="accuracy on clean held-out records")


EXPERIMENTS.register("xie-table9")(
    Experiment(
        paper="Xie et al.",
        figure="Table 9",
        claim=(
            "The vote of models by UserDP-FedAvg withstands STAT-OPT, backdoor and"
            " label flipping as well as robust aggregations do or better, and its"
            " certified accuracy stays below what is measured."
        ),
        does=(
            "Every registered attack by k of 200 users against every registered defence"
            " in FedAvg without privacy, told how many of a round's users are bad, and"
            " against the vote of 100 models by UserDP-FedAvg. Longer updates are"
            " scaled by 100."
        ),
        settings=USER_SETTINGS,
        cells=cells,
        measure=partial(votes, USERS),
        table=table,
        plot=plot,
    )
)
