"""An answer's document as tables for people, or as it is in JSON."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from precad.cli.certify.request import GuaranteeKind, Loss, Prediction, Request, Smoothing
from precad.common.certify.runs import Unit

_CHANGES = {
    "either": "so many added, or so many deleted",
    "additions": "so many added",
    "deletions": "so many deleted",
    "replacements": "so many replaced by anything",
}
_SHOWN_POINTS = 10

Document: TypeAlias = dict[str, Any]
Parts: TypeAlias = Iterator[str | Table]
"""Lines and tables, in order."""


def show(request: Request, found: Document) -> None:
    """Print an answer: tables, or one JSON document and nothing else on stdout."""
    if request.as_json:
        typer.echo(json.dumps(_plain(found), allow_nan=False))
        return
    match request:
        case Prediction():
            parts = _prediction(request, found)
        case Loss():
            parts = _loss(request, found)
        case Smoothing():
            parts = _smoothing(request, found)
    console = Console()
    for part in parts:
        console.print(part)
    if request.plot is not None:
        typer.echo(f"Picture: {request.plot}")


def _plain(value: object) -> object:
    """The same for JSON, which has no infinities: null."""
    match value:
        case dict():
            return {key: _plain(inner) for key, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
        case float() if not np.isfinite(value):
            return None
    return value


def _table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], words: int) -> Table:
    """A table whose first ``words`` columns are words and the others numbers."""
    table = Table(title=title)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < words else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _prediction(request: Prediction, found: Document) -> Parts:
    yield _trained(found)
    scope = "all points together" if request.simultaneous else "each point"
    yield (
        f"{found['models']:,} models voted on {len(found['points']):,} points, {found['classes']} "
        f"classes; confidence {request.confidence:g} for {scope}. Radius: "
        f"{_CHANGES[request.change]}."
    )
    if GuaranteeKind.GDP in request.kinds:
        yield "GDP-CLT is a limit for many rounds: its radii are not guaranteed."
    units, compared = Unit(found["unit"]).plural, found["comparison"]
    what = "Certified accuracy" if compared[0]["of_true_labels"] else "Points certified"
    yield _table(
        f"{what}, in %, at a radius of so many {units}",
        ["guarantee", *(f"{at['radius']:,}" for at in compared[0]["certified_accuracy"])],
        (
            [one["guarantee"], *(f"{100 * at['share']:.1f}" for at in one["certified_accuracy"])]
            for one in compared
        ),
        words=1,
    )
    yield from _points(found["points"], f"radius ({units})")
    yield from _cost(found)


def _trained(found: Document) -> str:
    how = found["mechanism"]
    share = how["participation"]
    often = "" if share == 1 else f" in a share {share:g} of rounds"
    source = "from the runs' ledgers" if found["runs"] else "as given"
    return (
        f"Trained with Poisson sampling at rate {how['sampling_rate']:g}{often}, noise multiplier "
        f"{how['noise_multiplier']:.4g}, {how['rounds']:,} rounds ({source}); one unit is "
        f"a {found['unit']}."
    )


def _points(points: list[Document], radius_name: str) -> Parts:
    """The first points, one a line."""
    rows = []
    for point in points[:_SHOWN_POINTS]:
        radius = point.get("radius", "abstained")
        if not isinstance(radius, str):
            radius = f"{radius:.4f}" if isinstance(radius, float) else f"{radius:,}"
        rows.append([str(point["point"]), str(point.get("label", "–")), radius])
    title = f"First {len(rows)} of {len(points):,} points"
    yield _table(title, ["point", "label", radius_name], rows, words=0)
    if len(points) > _SHOWN_POINTS:
        yield "All points are in the document that --json prints."


def _cost(found: Document) -> Parts:
    """What the ensemble cost in privacy."""
    runs = found["runs"]
    if runs is None:
        return
    whose = "Privacy cost of this run"
    if runs["count"] > 1:
        whose = f"Joint privacy cost of these {runs['count']:,} runs"
    yield _table(
        f"{whose}, exact",
        ["adversary", "neighbours", "compositions", "δ", "ε"],
        (
            [
                one["adversary"],
                one["adjacency"],
                f"{one['compositions']:,}",
                f"{one['delta']:g}",
                f"{one['epsilon']:.3f}" if np.isfinite(one["epsilon"]) else "no bound",
            ]
            for one in runs["joint_privacy_cost"]
        ),
        words=2,
    )


def _loss(request: Loss, found: Document) -> Parts:
    yield _trained(found)
    yield f"Attackers: {_CHANGES[request.change]}."
    if found["asymptotic"]:
        yield "GDP-CLT is a limit for many rounds: its bounds are not guaranteed."
    expected, bounds, bound = found["expected_loss"], found["bounds"], request.bound
    if expected is None:
        yield "One run gives no expectation. Whatever the clean expected loss is, it stays inside:"
        yield _functions(bounds, bound)
    else:
        yield (
            f"Clean expected loss {expected['mean']:.4f} over {expected['runs']:,} runs, in "
            f"[{expected['lower']:.4f}, {expected['upper']:.4f}] with confidence "
            f"{request.confidence:g}."
            if expected["runs"]
            else f"Clean expected loss {expected['mean']:g}, as given."
        )
        yield _table(
            f"Expected loss (of at most {bound:g}) after so many attackers",
            ["attackers", "at least", "at most"],
            (
                [f"{row['attackers']:,}", f"{row['lower']:.4f}", f"{row['upper']:.4f}"]
                for row in bounds
            ),
            words=0,
        )
    little = 1e-3 * bound
    single = [row for row in bounds if row["attackers"] == 1]
    if single and all(row["lower"] < little and row["upper"] > bound - little for row in single):
        yield (
            "At these parameters the bounds say nothing, even of one attacker: there is too little "
            "noise for what one may contribute. `precad plan` finds parameters that say something."
        )
    if expected is not None:
        vacuous = (row["attackers"] for row in bounds if row["upper"] >= bound * (1 - 1e-6))
        first = next(vacuous, None)
        if first is not None:
            yield f"From {first} attackers on the upper bound says nothing."
    for one in found["fewest_attackers"]:
        tau, fewest = one["tau"], one["attackers"]
        if fewest is None:
            yield f"No number of attackers searched can lower the loss {tau:g}-fold."
        else:
            yield f"To lower the expected loss {tau:g}-fold takes at least {fewest:,} attackers."
    yield from _cost(found)


def _functions(bounds: list[Document], bound: float) -> Table:
    """One row a clean expected loss, one column a number of attackers."""
    counts = sorted({row["attackers"] for row in bounds})
    by_loss: dict[float, list[str]] = {}
    for row in bounds:
        by_loss.setdefault(row["loss"], []).append(f"{row['lower']:.3f} – {row['upper']:.3f}")
    return _table(
        f"Expected loss (of at most {bound:g}) after k attackers: at least – at most",
        ["clean", *(f"k = {k}" for k in counts)],
        ([f"{loss:g}", *cells] for loss, cells in by_loss.items()),
        words=0,
    )


def _smoothing(request: Smoothing, found: Document) -> Parts:
    yield (
        f"Input noise σ = {request.sigma:g}, {found['copies']:,} noisy copies of each of "
        f"{len(found['points']):,} inputs; confidence {request.confidence:g}. Average certified "
        f"radius {found['average_certified_radius']:.4f}"
        + ("." if request.labels is None else " (right predictions only).")
    )
    yield from _points(found["points"], "radius (ℓ2)")
