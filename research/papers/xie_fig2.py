"""Xie et al. Fig. 2: UserDP-FedAvg's four clipping rules at one noise level."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from research.algorithms.user_level import CLIPPINGS
from research.papers.xie_curves import (
    CHUNKS,
    accuracy,
    grouped,
    published_curve,
    share,
    sound_curve,
    votes,
)
from research.papers.xie_levels import (
    CIFAR_USER_SETTINGS,
    TEXT_USER_SETTINGS,
    TWEETERS,
    USER_SETTINGS,
    USERS,
    BothScales,
    Level,
)
from research.study import EXPERIMENTS, Experiment, Result, Scale, Settings, Table

LOCAL_STEPS = 1
"""The paper takes one, so that medians stay short (App. B.1.3)."""
_GROUPS = tuple(range(9))
_SHOWN = (0, 1, 2, 4)
_LEAKS = "–, the median isn't protected"


@dataclass(frozen=True, slots=True)
class ByClipping:
    """Certified accuracy by k, a line for each rule.

    Attributes:
        level: δ and mechanism of a user.
        sigma: noise multiplier.
        epsilon: as printed (Xie et al. App. B.1.3).
    """

    level: Level
    sigma: float
    epsilon: float

    def cells(self, scale: Scale) -> list[Settings]:
        """Every rule, chunk by chunk; rules that were registered in a plug-in too."""
        return [
            {
                "noise_multiplier": self.sigma,
                "clipping": clipping,
                "local_steps": LOCAL_STEPS,
                "seed": seed,
            }
            for seed in range(CHUNKS[scale])
            for clipping in CLIPPINGS
        ]

    def table(self, results: Sequence[Result]) -> Table:
        """A row for each rule."""
        rows = []
        for clipping, group in grouped(results, "clipping").items():
            printed = published_curve(group, self.epsilon, self.level.delta, _GROUPS)
            sound = (
                None
                if "median" in clipping
                else sound_curve(group, self.level, _GROUPS)
            )
            rows.append(
                [
                    clipping,
                    share(accuracy(group)),
                    *(share(printed[k]) for k in _SHOWN),
                    (
                        _LEAKS
                        if sound is None
                        else ", ".join(share(sound[k]) for k in _SHOWN)
                    ),
                ]
            )
        headings = [f"as published, k = {k}" for k in _SHOWN]
        return Table(["clipping", "accuracy", *headings, "sound, the same k"], rows)

    def plot(self, results: Sequence[Result], figure: Any) -> None:
        """Certified accuracy by k, as published; sound ones dotted."""
        axes = figure.subplots()
        for clipping, group in grouped(results, "clipping").items():
            printed = published_curve(group, self.epsilon, self.level.delta, _GROUPS)
            (line,) = axes.plot(
                _GROUPS, printed, marker=".", label=f"{clipping}, as published"
            )
            if "median" not in clipping:
                sound = sound_curve(group, self.level, _GROUPS)
                axes.plot(
                    _GROUPS,
                    sound,
                    ":",
                    color=line.get_color(),
                    label=f"{clipping}, sound",
                )
        axes.set_xlabel("k, bad users")
        axes.set_ylabel("certified accuracy")
        axes.set_ylim(-0.02, 1.02)
        axes.grid(alpha=0.3)
        axes.legend()


def _register(
    name: str, panel: str, claim: str, by: ByClipping, settings: BothScales, rounds: int
) -> None:
    EXPERIMENTS.register(name)(
        Experiment(
            paper="Xie et al.",
            figure=f"Fig. 2 ({panel})",
            claim=claim,
            does=(
                f"The four clipping rules at σ = {by.sigma:g}, one local step and"
                f" {rounds} rounds, which give the printed ε. Per-layer clipping shares"
                " S among layers, so that a user moves the sum by S; medians of norms"
                " are no part of any account, so that nothing sound is certified with"
                " them."
            ),
            settings={
                scale: {**each, "rounds": rounds} for scale, each in settings.items()
            },
            cells=by.cells,
            measure=partial(votes, by.level),
            table=by.table,
            plot=by.plot,
        )
    )


_register(
    "xie-fig2",
    "MNIST",
    "At the same ε, flat clipping certifies the most users; both medians nearly the"
    " same.",
    ByClipping(USERS, 2.3, 0.6319),
    USER_SETTINGS,
    10,
)
_register(
    "xie-fig2-cifar",
    "CIFAR",
    "On CIFAR median clipping certifies the most users; both medians nearly the same.",
    ByClipping(USERS, 3.0, 0.5346),
    CIFAR_USER_SETTINGS,
    3,
)
_register(
    "xie-fig2-text",
    "Sent140",
    "On Sent140 median clipping certifies the most users.",
    ByClipping(TWEETERS, 2.0, 0.4089),
    TEXT_USER_SETTINGS,
    2,
)
