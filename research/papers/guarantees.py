"""Certified accuracy of the same votes under every guarantee: users, and records."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from precad.accounting.events import SampledGaussian
from precad.certify.group_guarantees import ExactGroups, RenyiGroups
from precad.certify.guarantee import Direction, GaussianDP, Guarantee, Replacements
from precad.certify.intervals import ConfidenceBudget, simuem
from precad.certify.prediction import certified_accuracy, certify_predictions
from precad.common.arrays import Floats
from research.papers.general_groups import RenyiDP
from research.papers.liu_fig1 import DELTA
from research.papers.liu_fig1 import SETTINGS as RECORD_SETTINGS
from research.papers.liu_votes import CONFIDENCE
from research.papers.liu_votes import measure as measure_records
from research.papers.liu_votes import mechanism as of_record
from research.papers.xie_curves import share
from research.papers.xie_curves import votes as measure_users
from research.papers.xie_levels import USER_SETTINGS, USERS
from research.study import (
    EXPERIMENTS,
    Experiment,
    Result,
    Scale,
    Settings,
    Surroundings,
    Table,
)

MODELS = 200
SHOWN = (0, 1, 2, 4, 8)
REPLACED = (1, 2, 4)
_MOST = 40
"""Groups are searched up to this."""
_LIMIT = "GDP by the central limit: no guarantee"


def cells(scale: Scale) -> list[Settings]:
    """Users whose updates are clipped, and records whose gradients are."""
    return [
        {
            **USER_SETTINGS[scale],
            "level": "users",
            "models": MODELS,
            "noise_multiplier": sigma,
        }
        for sigma in (1.0, 3.0)
    ] + [
        {
            **RECORD_SETTINGS[scale],
            "level": "records",
            "models": MODELS,
            "noise_multiplier": sigma,
        }
        for sigma in (2.0, 4.0)
    ]


def measure(settings: Settings, around: Surroundings) -> dict[str, Any]:
    """Votes of each held-out record by label, and which label is right."""
    if settings["level"] == "users":
        found = measure_users(USERS, settings, around)
        right = np.array(found["right"])
        counts = np.stack([right, settings["models"] - right], axis=1)
        # Column 0 is the right label.
        return {
            "votes": counts.tolist(),
            "labels": [0] * len(right),
            "records": len(right),
        }
    found = measure_records({**settings, "arm": "dp"}, around)
    return {name: found[name] for name in ("votes", "labels", "records")}


def _mechanism(result: Result) -> SampledGaussian:
    by_user = result.settings["level"] == "users"
    return USERS.mechanism(result.settings) if by_user else of_record(result)


def guarantees(one: SampledGaussian) -> Mapping[str, Guarantee]:
    """Every kind there is of one mechanism."""
    exact, groups = ExactGroups(one), RenyiGroups(one)
    single = np.maximum(*groups.divergences(1))
    mu = one.rate * math.sqrt(
        one.count * math.expm1(one.effective_noise_multiplier**-2)
    )
    return {
        "exact": exact,
        "RDP of the group": groups,
        "RDP, general groups": RenyiDP(groups.orders, tuple(single.tolist())),
        "ADP, best ε": exact.as_approximate(),
        f"ADP, δ = {DELTA:g}": exact.as_approximate(DELTA),
        _LIMIT: GaussianDP(mu, asymptotic=True),
    }


def _curve(
    result: Result,
    guarantee: Guarantee,
    directions: tuple[Direction, ...],
    at: Sequence[int],
) -> Floats:
    counts = np.array(result.values["votes"])
    budget = ConfidenceBudget(
        confidence=CONFIDENCE, classes=counts.shape[1], strict=True
    )
    intervals = simuem(counts, budget)
    found = certify_predictions(intervals, guarantee, directions, limit=_MOST)
    counted = found.certified & (intervals.labels == np.array(result.values["labels"]))
    return np.asarray(certified_accuracy(found.radius, counted, at))


def _changed(result: Result, guarantee: Guarantee, at: Sequence[int]) -> Floats:
    """Added, or deleted."""
    return _curve(result, guarantee, tuple(Direction), at)


def _replaced(result: Result, guarantee: Guarantee, at: Sequence[int]) -> Floats:
    return _curve(result, Replacements(guarantee), (Direction.ADDITIONS,), at)


def table(results: Sequence[Result]) -> Table:
    """A row for each ensemble and guarantee."""
    rows = []
    for result in results:
        what = (
            f"{result.settings['level']}, σ = {result.settings['noise_multiplier']:g}"
        )
        for name, guarantee in guarantees(_mechanism(result)).items():
            changed = _changed(result, guarantee, SHOWN)
            replaced = _replaced(result, guarantee, REPLACED)
            rows.append(
                [what, name, *map(share, changed), ", ".join(map(share, replaced))]
            )
    headings = ["of", "guarantee", *(f"{k} added or deleted" for k in SHOWN)]
    return Table([*headings, f"{', '.join(map(str, REPLACED))} replaced"], rows)


def plot(results: Sequence[Result], figure: Any) -> None:
    """A panel for each ensemble."""
    panels = figure.subplots(1, max(1, len(results)), sharey=True, squeeze=False)[0]
    at = range(13)
    for axes, result in zip(panels, results, strict=False):
        for name, guarantee in guarantees(_mechanism(result)).items():
            style = ":" if name == _LIMIT else "-"
            axes.plot(
                at, _changed(result, guarantee, at), style, marker=".", label=name
            )
        sigma = result.settings["noise_multiplier"]
        axes.set_title(f"{result.settings['level']}, σ = {sigma:g}", fontsize="medium")
        axes.set_xlabel("k, added or deleted")
        axes.set_ylim(-0.02, 1.02)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("certified accuracy")
    lines, names = panels[0].get_legend_handles_labels()
    if lines:
        figure.legend(
            lines, names, fontsize="small", loc="outside lower center", ncols=3
        )


EXPERIMENTS.register("guarantees")(
    Experiment(
        paper="Xie et al., Liu et al.",
        figure="every guarantee on the same votes",
        claim=(
            "Each paper certifies by its own kind of privacy: ADP, RDP, or groups of"
            " their own."
        ),
        does=(
            "200 models with noise for users, and 200 with noise for records, certified"
            " by every guarantee there is here: added, deleted or replaced, 99.9 %"
            " confidence a point."
        ),
        settings={
            scale: {"data": USER_SETTINGS[scale]["data"], "seed": 0} for scale in Scale
        },
        cells=cells,
        measure=measure,
        table=table,
        plot=plot,
    )
)
