"""An answer's document as tables for people, or as it is in JSON."""

import sys
from collections.abc import Iterable, Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import TypeAlias

import click

from precad.certify.finished_runs import Unit
from precad.cli.certify import Loss, Prediction, Request, Smoothing
from precad.cli.certify_answer import Document
from precad.cli.options import print_json
from precad.common.terminal import Table, say, upper

_CHANGES = {
    "either": "so many added, or so many deleted",
    "additions": "so many added",
    "deletions": "so many deleted",
    "replacements": "so many replaced by anything",
}
_SHOWN_POINTS = 10

Parts: TypeAlias = Iterator[str | Table]
"""Lines and tables, in order."""


def show(request: Request, found: Document) -> None:
    """Print an answer: tables, or one JSON document and nothing else on stdout."""
    if request.as_json:
        print_json(found)
        return
    match request:
        case Prediction():
            parts = _prediction(request, found)
        case Loss():
            parts = _loss(request, found)
        case Smoothing():
            parts = _smoothing(request, found)
    for part in parts:
        if isinstance(part, str):
            say(sys.stdout, part)
        else:
            say(sys.stdout)
            part.show(sys.stdout)
            say(sys.stdout)
    if request.plot is not None:
        click.echo(f"Picture: {request.plot}")


def _table(
    title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], *, words: int = 0
) -> Table:
    """A table whose first ``words`` columns are words and the others numbers."""
    headings = [name if i < words else f">{name}" for i, name in enumerate(columns)]
    table = Table(*headings, title=title)
    for row in rows:
        table.add(*row)
    return table


def _safe(bound: float, decimals: int, *, up: bool = False) -> str:
    """A bound that still holds with so few decimals: down, or up."""
    holds = Context(prec=400, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    return str(holds.quantize(Decimal(repr(float(bound))), Decimal(1).scaleb(-decimals)))


def _prediction(request: Prediction, found: Document) -> Parts:
    yield _trained(found)
    scope = "all points together" if request.simultaneous else "each point"
    yield (
        f"{found['models']:,} models voted on {len(found['points']):,} points, {found['classes']} "
        f"classes; confidence {request.confidence:g} for {scope}. Radius: "
        f"{_changed(found)}."
    )
    if "gdp" in request.kinds:
        yield "GDP-CLT is a limit for many rounds: its radii are not guaranteed."
    units = Unit(found["unit"]).plural
    what = "Points certified" if request.labels is None else "Certified accuracy"
    accuracy = {one["guarantee"]: one["certified_accuracy"] for one in found["comparison"]}
    yield _table(
        f"{what}, in %, at a radius of so many {units}",
        ["guarantee", *(f"{at['radius']:,}" for at in next(iter(accuracy.values())))],
        ([name, *(f"{100 * at['share']:.1f}" for at in row)] for name, row in accuracy.items()),
        words=1,
    )
    yield from _points(found["points"], f"radius ({units})")
    yield from _cost(found)


def _changed(found: Document) -> str:
    """What is certified against, in words."""
    absent = f", beside {found['absent']:,} honest ones absent" if found["absent"] else ""
    redrawn = found["redrawn_coins"]
    chosen = f", and with {redrawn:,} coins that were drawn again" if redrawn else ""
    return _CHANGES[found["change"]] + absent + chosen


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
            radius = _safe(radius, 4) if isinstance(radius, float) else f"{radius:,}"
        rows.append([str(point["point"]), str(point.get("label", "–")), radius])
    title = f"First {len(rows)} of {len(points):,} points"
    yield _table(title, ["point", "label", radius_name], rows)
    if len(points) > _SHOWN_POINTS:
        yield "All points are in the document that --json prints."


def _cost(found: Document) -> Parts:
    """What the runs cost in privacy, where the answer is about runs."""
    if found["runs"] is None:
        return
    whose, rows = "Privacy cost of this run", []
    if found["runs"]["count"] > 1:
        whose = f"Joint privacy cost of these {found['runs']['count']:,} runs"
    for one in found["runs"]["joint_privacy_cost"]:
        epsilon = "no bound" if one["epsilon"] is None else _safe(one["epsilon"], 3, up=True)
        more = (one["rejection_delta"] or 0.0) + (one["advantage_delta"] or 0.0)
        compositions = f"{one['compositions']:,}"
        delta = f"{one['delta']:g}" + (f" + {upper(more, 2)}" if more else "")
        rows.append([one["adversary"], one["adjacency"], compositions, delta, epsilon])
    columns = ("adversary", "neighbours", "compositions", "δ", "ε")
    yield _table(f"{whose}, exact", columns, rows, words=2)


def _loss(request: Loss, found: Document) -> Parts:
    yield _trained(found)
    yield f"Attackers: {_changed(found)}."
    if found["asymptotic"]:
        yield "GDP-CLT is a limit for many rounds: its bounds are not guaranteed."
    expected, bounds, bound = found["expected_loss"], found["bounds"], request.bound
    what = f"Expected loss (of at most {bound:g}) after"
    if expected is None:
        yield "One run gives no expectation. Whatever the clean expected loss is, it stays inside:"
        by_loss: dict[float, dict[str, str]] = {}
        for row in bounds:
            cell = f"{_safe(row['lower'], 3)} – {_safe(row['upper'], 3, up=True)}"
            by_loss.setdefault(row["loss"], {})[f"k = {row['attackers']}"] = cell
        columns = dict.fromkeys(name for cells in by_loss.values() for name in cells)
        rows = [[f"{loss:g}", *cells.values()] for loss, cells in by_loss.items()]
        yield _table(f"{what} k attackers: at least – at most", ["clean", *columns], rows)
    else:
        estimate = f"{expected['mean']:g}, as given."
        if expected["runs"]:
            estimate = (
                f"{expected['mean']:.4f} over {expected['runs']:,} runs, in "
                f"[{expected['lower']:.4f}, {expected['upper']:.4f}] with confidence "
                f"{request.confidence:g}."
            )
        yield f"Clean expected loss {estimate}"
        rows = [
            [f"{r['attackers']:,}", _safe(r["lower"], 4), _safe(r["upper"], 4, up=True)]
            for r in bounds
        ]
        yield _table(f"{what} so many attackers", ["attackers", "at least", "at most"], rows)
    little = 1e-3 * bound
    single = [row for row in bounds if row["attackers"] == 1]
    if single and all(row["lower"] < little and row["upper"] > bound - little for row in single):
        yield (
            "At these parameters the bounds say nothing, even of one attacker: there is too little "
            "noise for what one may contribute. `precad plan --malicious` finds a client clip that "
            "says something."
        )
    vacuous = [row["attackers"] for row in bounds if row["upper"] >= bound * (1 - 1e-6)]
    if expected is not None and vacuous:
        yield f"From {vacuous[0]} attackers on the upper bound says nothing."
    for one in found["fewest_attackers"]:
        fewest = one["attackers"]
        least = "more than were searched" if fewest is None else f"at least {fewest:,}"
        yield f"Attackers that it takes to lower the expected loss {one['tau']:g}-fold: {least}."
    yield from _cost(found)


def _smoothing(request: Smoothing, found: Document) -> Parts:
    known = found["of_true_labels"]
    yield (
        f"Input noise σ = {found['sigma']:g}, {found['copies']:,} noisy copies of each of "
        f"{len(found['points']):,} inputs; confidence {request.confidence:g}. Average certified "
        f"radius {found['average_certified_radius']:.4f}"
        + (" (right predictions only)." if known else ".")
        + f" Abstained: {found['abstained']:,}."
    )
    accuracy = found["certified_accuracy"]
    yield _table(
        f"{'Certified accuracy' if known else 'Points certified'}, in %, at an ℓ2 radius of",
        [f"{at['radius']:g}" for at in accuracy],
        [[f"{100 * at['share']:.1f}" for at in accuracy]],
    )
    if "draw" in found:
        yield f"The noise can be drawn again with --draw {found['draw']}."
    yield from _points(found["points"], "radius (ℓ2)")
