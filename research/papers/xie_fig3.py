"""Xie et al. Fig. 3: certified accuracy by how unlike each other users' records are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from research.papers.xie_curves import (
    accuracy,
    published_curve,
    share,
    sound_curve,
    votes,
)
from research.papers.xie_fig1 import PUBLISHED
from research.papers.xie_levels import (
    CIFAR_USER_SETTINGS,
    USER_SETTINGS,
    USERS,
    BothScales,
)
from research.papers.xie_table5 import PUBLISHED as ON_CIFAR
from research.study import EXPERIMENTS, Experiment, Result, Scale, Settings, Table

CHUNKS = {Scale.SMALL: 2, Scale.PAPER: 20}
ALPHAS = (None, 1.0, 0.5)
"""Of Dirichlet's distribution; None is equal parts of random records."""
GROUPS = tuple(range(13))
_SHOWN = (0, 1, 2, 4, 8)
Lines = dict[float | None, dict[float, list[Result]]]


@dataclass(frozen=True, slots=True)
class ByLikeness:
    """Certified accuracy by k, a line for each σ, for each partition.

    Attributes:
        published: ε and accuracy by σ, as printed for equal parts.
        small: σ at the small scale.
        best: at which ε the paper certifies the most users, by α.
    """

    published: Mapping[float, tuple[float, float]]
    small: Sequence[float]
    best: Mapping[float | None, str]

    def cells(self, scale: Scale) -> list[Settings]:
        """Every α and σ, part by part of all models."""
        return [
            {"alpha": alpha, "noise_multiplier": sigma, "seed": seed}
            for seed in range(CHUNKS[scale])
            for alpha in ALPHAS
            for sigma in (self.small if scale is Scale.SMALL else self.published)
        ]

    def _printed(self, group: Sequence[Result], groups: Sequence[int]) -> Any:
        epsilon = self.published[group[0].settings["noise_multiplier"]][0]
        return published_curve(group, epsilon, USERS.delta, groups)

    def table(self, results: Sequence[Result]) -> Table:
        """A row for each partition and σ."""
        rows = []
        for alpha, by_noise in _lines(results).items():
            for sigma, group in by_noise.items():
                sound = sound_curve(group, USERS, _SHOWN)
                both = zip(self._printed(group, _SHOWN), sound, strict=True)
                rows.append(
                    [
                        *(
                            _name(alpha),
                            f"{sigma:g}",
                            f"{self.published[sigma][0]:.4f}",
                        ),
                        share(accuracy(group)),
                        *(f"{share(a)} / {share(b)}" for a, b in both),
                    ]
                )
        headings = ["users' records", "σ", "ε published", "accuracy"]
        return Table(
            [*headings, *(f"k = {k}: as published / sound" for k in _SHOWN)], rows
        )

    def plot(self, results: Sequence[Result], figure: Any) -> None:
        """A column for each partition; as published above, sound below."""
        lines = _lines(results)
        panels = figure.subplots(
            2, max(1, len(lines)), sharex=True, sharey=True, squeeze=False
        )
        for (alpha, by_noise), above, below in zip(
            lines.items(), *panels, strict=False
        ):
            for sigma, group in by_noise.items():
                printed = self._printed(group, GROUPS)
                above.plot(GROUPS, printed, marker=".", label=f"σ = {sigma:g}")
                below.plot(GROUPS, sound_curve(group, USERS, GROUPS), marker=".")
            best = self.best[alpha]
            above.set_title(
                f"{_name(alpha)}; best in the paper: {best}", fontsize="small"
            )
            below.set_xlabel("k, bad users")
            below.set_xticks(GROUPS[::2])
            for axes in (above, below):
                axes.grid(alpha=0.3)
        panels[0][0].set_ylabel("as published")
        panels[1][0].set_ylabel("sound")
        panels[0][0].legend(fontsize="x-small")


def _lines(results: Sequence[Result]) -> Lines:
    found: Lines = {}
    for result in results:
        by_noise = found.setdefault(result.settings["alpha"], {})
        by_noise.setdefault(result.settings["noise_multiplier"], []).append(result)
    return found


def _name(alpha: float | None) -> str:
    return "IID" if alpha is None else f"Dir({alpha:g})"


def _register(name: str, data: str, by: ByLikeness, settings: BothScales) -> None:
    EXPERIMENTS.register(name)(
        Experiment(
            paper="Xie et al.",
            figure=f"Fig. 3 ({data})",
            claim=(
                "The less alike users' records are, the fewer bad users are certified,"
                " and the best ε moves."
            ),
            does=(
                "Fig. 1's ensembles on equal parts of random records, and on parts"
                " drawn from Dirichlet's distribution for each label with α = 1 and .5."
            ),
            settings=settings,
            cells=by.cells,
            measure=partial(votes, USERS),
            table=by.table,
            plot=by.plot,
        )
    )


_register(
    "xie-fig3",
    "MNIST",
    ByLikeness(
        PUBLISHED, (1.0, 1.8, 3.0), {None: "ε = .62", 1.0: "ε = .28", 0.5: "ε = .41"}
    ),
    USER_SETTINGS,
)
_register(
    "xie-fig3-cifar",
    "CIFAR",
    ByLikeness(
        ON_CIFAR, (1.7, 4.0, 6.0), {None: "ε = .14", 1.0: "ε = .14", 0.5: "ε = .24"}
    ),
    CIFAR_USER_SETTINGS,
)
