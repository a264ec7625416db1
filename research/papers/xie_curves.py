"""What Xie et al.'s figures of certified accuracy share: votes, and what they prove."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precad.certify.group_guarantees import ExactGroups
from precad.certify.guarantee import Direction, Replacements
from precad.certify.intervals import ConfidenceBudget, hoeffding_half_width, simuem
from precad.certify.prediction import certified_accuracy, certify_predictions
from research.algorithms.instance_level import exact_epsilon
from research.papers.xie_levels import BINARY, Level
from research.study import Result, Scale, Settings, Surroundings, Table

CONFIDENCE = 0.99
CHUNKS = {Scale.SMALL: 5, Scale.PAPER: 20}
"""Cells a setting; the paper has 1,000 models for each."""


def votes(level: Level, settings: Settings, around: Surroundings) -> dict[str, Any]:
    """How many models of the cell named each held-out record right, and their mean accuracy."""
    right = level.train(settings, around).right()
    return {
        "right": right.sum(axis=0).tolist(),
        "accuracy": round(float(right.mean()), 4),
    }


def grouped(results: Sequence[Result], by: str) -> dict[Any, list[Result]]:
    """Results of all cells with the same value of ``by``."""
    found: dict[Any, list[Result]] = {}
    for result in results:
        found.setdefault(result.settings[by], []).append(result)
    return found


def accuracy(group: Sequence[Result]) -> float:
    """Mean over all models."""
    return float(np.mean([each.values["accuracy"] for each in group]))


def sound_curve(
    group: Sequence[Result], level: Level, groups: Sequence[int]
) -> NDArray[np.float64]:
    """Certified accuracy for each number of users, or records, that are replaced, by the votes.

    Exact, with Clopper and Pearson's bounds at 99 % a point.
    """
    right, models = _votes(group)
    # Column 0 is the right label: a point that is certified for it is right.
    counts = np.stack([right, models - right], axis=1)
    intervals = simuem(
        counts,
        ConfidenceBudget(confidence=CONFIDENCE, classes=BINARY, strict=True),
    )
    guarantee = Replacements(ExactGroups(level.mechanism(group[0].settings)))
    found = certify_predictions(
        intervals, guarantee, (Direction.ADDITIONS,), limit=groups[-1]
    )
    counted = found.certified & (intervals.labels == 0)
    return np.asarray(certified_accuracy(found.radius, counted, groups))


def published_curve(
    group: Sequence[Result],
    epsilon: float,
    delta: float,
    groups: Sequence[int],
    *,
    confidence: bool = False,
) -> NDArray[np.float64]:
    """The same as the paper computes it (Theorem 2), which certifies nothing.

    ε is the printed one, and what is bad is added. Shares of votes count as if they
    were known; with ``confidence`` less Hoeffding's width at ψ = .01, as in Fig. 8.
    """
    right, models = _votes(group)
    width = hoeffding_half_width(models, 1 - CONFIDENCE) if confidence else 0.0
    ahead, behind = right / models - width, 1 - right / models + width
    with np.errstate(divide="ignore", invalid="ignore"):
        radius = (
            np.log(np.maximum(ahead, 0) * np.expm1(epsilon) + delta)
            - np.log(np.minimum(behind, 1) * np.expm1(epsilon) + delta)
        ) / (2 * epsilon)
    return np.array([float((radius > k).mean()) for k in groups])


def _votes(group: Sequence[Result]) -> tuple[NDArray[np.int64], int]:
    right = np.sum([each.values["right"] for each in group], axis=0)
    return np.asarray(right, np.int64), sum(each.settings["models"] for each in group)


def share(value: float) -> str:
    """In percent."""
    return f"{100 * value:.1f} %"


@dataclass(frozen=True, slots=True)
class ByNoise:
    """Certified accuracy by k, a line for each σ: cells, table and picture.

    Attributes:
        level: users or records.
        published: ε and accuracy by σ, as printed.
        where: on which data those were measured.
        groups: k on the x axis.
        shown: k in the table.
    """

    level: Level
    published: Mapping[float, tuple[float, float]]
    where: str
    groups: Sequence[int]
    shown: Sequence[int]

    def cells(self, scale: Scale) -> list[Settings]:
        """One part of all models for every σ, then the next part."""
        return [
            {"noise_multiplier": sigma, "seed": seed}
            for seed in range(CHUNKS[scale])
            for sigma in self.published
        ]

    def measure(self, settings: Settings, around: Surroundings) -> dict[str, Any]:
        """See ``votes``."""
        return votes(self.level, settings, around)

    def _curves(
        self, group: Sequence[Result], groups: Sequence[int]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """As published, the same at 99 %, and sound."""
        epsilon, _ = self.published[group[0].settings["noise_multiplier"]]
        printed = [
            published_curve(
                group, epsilon, self.level.delta, groups, confidence=confidence
            )
            for confidence in (False, True)
        ]
        return printed[0], printed[1], sound_curve(group, self.level, groups)

    def table(self, results: Sequence[Result]) -> Table:
        """A row for each σ: ε, clean accuracy, and certified accuracy by each convention."""
        rows = []
        for sigma, group in grouped(results, "noise_multiplier").items():
            epsilon, clean = self.published[sigma]
            exact = exact_epsilon(
                self.level.mechanism(group[0].settings), self.level.delta
            )
            kinds = zip(*self._curves(group, self.shown), strict=True)
            rows.append(
                [
                    *(f"{sigma:g}", f"{epsilon:.4f}", f"{exact:.4f}", share(clean)),
                    share(accuracy(group)),
                    *(" / ".join(map(share, three)) for three in kinds),
                ]
            )
        headings = [
            "σ",
            "ε published",
            "ε exact, here",
            f"accuracy published, {self.where}",
        ]
        certified = [f"k = {k}: as published / at 99 % / sound" for k in self.shown]
        return Table([*headings, "accuracy", *certified], rows)

    def plot(self, results: Sequence[Result], figure: Any) -> None:
        """Certified accuracy by k: as published, with confidence, and sound."""
        panels = figure.subplots(1, 3, sharey=True)
        for sigma, group in grouped(results, "noise_multiplier").items():
            for axes, curve in zip(
                panels, self._curves(group, self.groups), strict=True
            ):
                axes.plot(self.groups, curve, marker=".", label=f"σ = {sigma:g}")
        titles = (
            "as published",
            "as published, 99 % (Fig. 8)",
            "sound: replaced, 99 %",
        )
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title)
            axes.set_xlabel(f"k, {self.level.bad}")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set_ylim(-0.02, 1.02)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("certified accuracy")
        panels[2].legend(fontsize="small")
