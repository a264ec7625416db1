"""Certificates as tables for people and as one JSON document."""

import json
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from precad.common.certify import (
    Certified,
    PredictionCertificates,
    SubsampledGaussian,
    certified_accuracy,
)
from precad.common.certify.result import Result
from precad.common.certify.runs import Ensemble, PrivacyCost, Unit

CHANGES = {
    "either": "so many added, or so many deleted",
    "additions": "so many added",
    "deletions": "so many deleted",
    "replacements": "so many replaced by anything",
}
"""A change in words, by its option's name."""

_SHOWN_POINTS = 10


def units_of(unit: Unit) -> str:
    """What a radius counts, in the plural."""
    return "clients" if unit is Unit.CLIENT else "records"


def print_json(document: dict[str, Any]) -> None:
    """One JSON document on stdout, and nothing else there; infinities become null."""
    print(json.dumps(_plain(document), allow_nan=False))  # noqa: T201


def _plain(value: object) -> object:
    match value:
        case dict():
            return {key: _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case np.generic():
            return _plain(value.item())
        case float() if not np.isfinite(value):
            return None
        case _:
            return value


def points_json(results: list[Result]) -> list[dict[str, Any]]:
    """Each point's ``label`` and ``radius``, or why it ``abstained``."""
    rows: list[dict[str, Any]] = []
    for i, result in enumerate(results):
        if isinstance(result, Certified):
            row: dict[str, Any] = {"point": i, "label": result.label, "radius": result.radius}
            if result.additions is not None:
                row["radius_additions"] = result.additions
            if result.deletions is not None:
                row["radius_deletions"] = result.deletions
            rows.append(row)
        else:
            rows.append({"point": i, "abstained": result.reason})
    return rows


def comparison_json(
    certificates: list[PredictionCertificates],
    correct: np.ndarray[Any, np.dtype[np.bool_]] | None,
) -> list[dict[str, Any]]:
    """Each guarantee's certified accuracy by radius (a share of points without true labels)."""
    radii = radii_to_show(certificates)
    rows = []
    for one in certificates:
        counted = one.certified if correct is None else one.certified & correct
        shares = certified_accuracy(one.radius, counted, radii).tolist()
        rows.append(
            {
                "guarantee": one.guarantee,
                "of_true_labels": correct is not None,
                "certified_accuracy": [
                    {"radius": radius, "share": share}
                    for radius, share in zip(radii, shares, strict=True)
                ],
            }
        )
    return rows


def mechanism_json(mechanism: SubsampledGaussian) -> dict[str, Any]:
    """The certified mechanism's parameters."""
    return {
        "sampling": getattr(mechanism.sampling, "value", mechanism.sampling),
        "sampling_rate": mechanism.rate,
        "noise_multiplier": mechanism.noise_multiplier,
        "rounds": mechanism.rounds,
        "participation": mechanism.participation,
    }


def runs_json(runs: Ensemble | None, cost: tuple[PrivacyCost, ...]) -> dict[str, Any] | None:
    """The runs' task and joint privacy cost."""
    if runs is None:
        return None
    return {
        "count": len(runs.runs),
        "task_digest": runs.inputs.task_digest,
        "joint_privacy_cost": [
            {
                "adversary": one.adversary,
                "adjacency": one.adjacency,
                "compositions": one.compositions,
                "delta": one.delta,
                "epsilon": one.epsilon,
            }
            for one in cost
        ],
    }


def show_mechanism(console: Console, mechanism: SubsampledGaussian, unit: str, source: str) -> None:
    """What was run, in one line."""
    often = (
        "" if mechanism.participation == 1 else f" in a share {mechanism.participation:g} of rounds"
    )
    console.print(
        f"Trained with Poisson sampling at rate {mechanism.rate:g}{often}, noise multiplier "
        f"{mechanism.noise_multiplier:.4g}, {mechanism.rounds:,} rounds ({source}); one unit is "
        f"a {unit}."
    )


def _cost_title(runs: int) -> str:
    if runs == 1:
        return "Privacy cost of this run, exact"
    return f"Joint privacy cost of these {runs:,} runs, exact"


def show_cost(console: Console, runs: Ensemble, cost: tuple[PrivacyCost, ...]) -> None:
    """What the ensemble cost in privacy."""
    table = Table(title=_cost_title(len(runs.runs)))
    for name in ("adversary", "neighbours", "compositions", "δ", "ε"):
        table.add_column(name, justify="left" if name in ("adversary", "neighbours") else "right")
    for one in cost:
        epsilon = f"{one.epsilon:.3f}" if np.isfinite(one.epsilon) else "no bound"
        table.add_row(
            one.adversary, one.adjacency, f"{one.compositions:,}", f"{one.delta:g}", epsilon
        )
    console.print(table)


def radii_to_show(certificates: list[PredictionCertificates]) -> list[int]:
    """A handful of radii from 0 to the largest certified."""
    highest = max(
        (int(one.radius[one.certified].max()) for one in certificates if one.certified.any()),
        default=0,
    )
    steps = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10**4, 10**5, 10**6]
    return sorted({*(step for step in steps if step < highest), highest})[-9:]


def show_accuracy(
    console: Console,
    certificates: list[PredictionCertificates],
    correct: np.ndarray[Any, np.dtype[np.bool_]] | None,
    units: str,
) -> None:
    """Certified accuracy by radius, one row a guarantee."""
    radii = radii_to_show(certificates)
    what = "Certified accuracy" if correct is not None else "Points certified"
    table = Table(title=f"{what}, in %, at a radius of so many {units}")
    table.add_column("guarantee")
    for radius in radii:
        table.add_column(f"{radius:,}", justify="right")
    for one in certificates:
        counted = one.certified if correct is None else one.certified & correct
        shares = certified_accuracy(one.radius, counted, radii)
        table.add_row(one.guarantee, *(f"{100 * share:.1f}" for share in shares))
    console.print(table)


def show_points(console: Console, results: list[Result], radius_name: str) -> None:
    """The first points, one a line."""
    table = Table(title=f"First {min(_SHOWN_POINTS, len(results))} of {len(results):,} points")
    for name in ("point", "label", radius_name):
        table.add_column(name, justify="right")
    for i, result in enumerate(results[:_SHOWN_POINTS]):
        if isinstance(result, Certified):
            radius = (
                f"{result.radius:,}" if isinstance(result.radius, int) else f"{result.radius:.4f}"
            )
            table.add_row(str(i), str(result.label), radius)
        else:
            table.add_row(str(i), "–", "abstained")
    console.print(table)
    if len(results) > _SHOWN_POINTS:
        console.print("All points are in the document that --json prints.")
