"""Xie et al. Fig. 2: UserDP-FedAvg's four clipping rules at one noise level."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from precad.experiments.algorithms.user_level import CLIPPINGS
from precad.experiments.papers.xie_curves import (
    CHUNKS,
    accuracy,
    grouped,
    published_curve,
    share,
    sound_curve,
    votes,
)
from precad.experiments.papers.xie_fig1 import FIGURE, PUBLISHED
from precad.experiments.papers.xie_levels import USER_SETTINGS, USERS
from precad.experiments.study import EXPERIMENTS, Experiment, Result, Scale, Settings, Table

SIGMA = 2.3
LOCAL_STEPS = 1
"""The paper takes one, so that medians stay short (App. B.1.3)."""
_SHOWN = (0, 1, 2, 4)
_LEAKS = "–, the median isn't protected"


def cells(scale: Scale) -> list[Settings]:
    """Every rule, chunk by chunk; rules that were registered in a plug-in too."""
    return [
        {
            "noise_multiplier": SIGMA,
            "clipping": clipping,
            "local_steps": LOCAL_STEPS,
            "seed": seed,
        }
        for seed in range(CHUNKS[scale])
        for clipping in CLIPPINGS
    ]


def table(results: Sequence[Result]) -> Table:
    """A row for each rule."""
    rows = []
    for clipping, group in grouped(results, "clipping").items():
        printed = published_curve(group, PUBLISHED[SIGMA][0], USERS.delta, FIGURE.groups)
        sound = None if "median" in clipping else sound_curve(group, USERS, FIGURE.groups)
        rows.append(
            [
                clipping,
                share(accuracy(group)),
                *(share(printed[k]) for k in _SHOWN),
                _LEAKS if sound is None else ", ".join(share(sound[k]) for k in _SHOWN),
            ]
        )
    headings = [f"as published, k = {k}" for k in _SHOWN]
    return Table(["clipping", "accuracy", *headings, "sound, the same k"], rows)


def plot(results: Sequence[Result], figure: Any) -> None:
    """Certified accuracy by k, as published; sound ones dotted."""
    axes = figure.subplots()
    for clipping, group in grouped(results, "clipping").items():
        printed = published_curve(group, PUBLISHED[SIGMA][0], USERS.delta, FIGURE.groups)
        (line,) = axes.plot(FIGURE.groups, printed, marker=".", label=f"{clipping}, as published")
        if "median" not in clipping:
            sound = sound_curve(group, USERS, FIGURE.groups)
            axes.plot(FIGURE.groups, sound, ":", color=line.get_color(), label=f"{clipping}, sound")
    axes.set_xlabel("k, bad users")
    axes.set_ylabel("certified accuracy")
    axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.3)
    axes.legend()


EXPERIMENTS.register("xie-fig2")(
    Experiment(
        paper="Xie et al.",
        figure="Fig. 2 (a)",
        claim="At the same ε, flat clipping certifies the most users.",
        does="The four clipping rules at σ = 2.3, one local step. Per-layer clipping shares S "
        "among layers, so that a user moves the sum by S; medians of norms are no part of any "
        "account, so that nothing sound is certified with them.",
        settings=USER_SETTINGS,
        cells=cells,
        measure=partial(votes, USERS),
        table=table,
        plot=plot,
    )
)
