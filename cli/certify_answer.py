"""What each request's answer is: one document, and the same as tables for people."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, TypeAlias

import click
import numpy as np

from precad.certify import inefficacy, prediction
from precad.certify.finished_runs import Unit
from precad.certify.guarantee import Booleans, Direction, Guarantee
from precad.certify.inefficacy import MeanInterval, attack_bounds, fewest_attackers
from precad.cli import certify_inputs as inputs
from precad.cli.command_options import CertifyRequest, Loss, Prediction, Smoothing
from precad.cli.main import print_json, require_writable
from precad.common.errors import Misconfiguration
from precad.common.npy import Array
from precad.common.terminal import AlignedTable, say, upper

Document: TypeAlias = dict[str, Any]
Directions: TypeAlias = tuple[Direction, ...]

_FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Of B: the expected losses shown where none is known."""
_EVERY, _SOME, _TIMES = 20, 25, 100
"""Up to so many attackers every number has its bounds; above, so many numbers of a
range."""
_NOTHING = 1e-6
"""Of B: a bound so near to its end says nothing."""
_RADII = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10**4, 10**5, 10**6)


def answer(request: CertifyRequest) -> None:
    """Print the answer, as tables or as one JSON document, and draw the picture if it is wanted."""
    require_writable("--plot", request.plot)
    match request:
        case Prediction():
            found = _prediction(request)
            parts = _show_prediction(request, found)
        case Loss():
            found = _loss(request)
            parts = _show_loss(request, found)
        case Smoothing():
            found = _smoothing(request)
            parts = _show_smoothing(request, found)
    if request.as_json:
        print_json(found)
        return
    for part in parts:
        if isinstance(part, str):
            say(sys.stdout, part)
        else:
            say(sys.stdout)
            part.show(sys.stdout)
            say(sys.stdout)
    if request.plot is not None:
        click.echo(f"Picture: {request.plot}")


def _prediction(request: Prediction) -> Document:
    trained = inputs.Trained.of(request)
    intervals, models, classes = inputs.vote_intervals(request, trained.runs)
    known = request.labels is not None
    correct = np.ones(len(intervals.labels), dtype=bool)
    if request.labels is not None:
        truth = inputs.true_labels(request.labels, len(correct), request.header)
        correct = np.asarray(intervals.labels == truth)
    # The first one's certificates are the answer.
    kinds = dict.fromkeys([request.guarantee, *request.also])
    guarantees = [trained.guarantee(kind, request) for kind in kinds]
    directions = inputs.DIRECTIONS[trained.change(request)]
    certificates = [
        prediction.certify_predictions(intervals, g, directions) for g in guarantees
    ]
    points = _points(certificates[0].results())
    highest = max(
        int(one.radius.max(where=one.certified, initial=0)) for one in certificates
    )
    radii = [*(radius for radius in _RADII if radius < highest), highest][-9:]
    if request.plot is not None:
        confidence = f"confidence {request.confidence:g}"
        unit = trained.unit.plural
        title = f"{len(points):,} points, votes of {models:,} models, {confidence}"
        prediction.plot_certified_accuracy(
            request.plot,
            certificates,
            correct,
            known=known,
            unit=unit,
            title=title,
        )
    return {
        "certificate": "prediction",
        **trained.document(request, guarantees[0]),
        "confidence": request.confidence,
        "simultaneous": request.simultaneous,
        "models": models,
        "classes": classes,
        "abstained": int((~certificates[0].certified).sum()),
        "comparison": [
            {
                "guarantee": one.guarantee,
                "of_true_labels": known,
                # Without true labels a share of points.
                "certified_accuracy": _accuracy(
                    one.radius, one.certified & correct, radii
                ),
            }
            for one in certificates
        ],
        "points": points,
    }


def _points(results: list[prediction.Result]) -> list[Document]:
    """Each point's ``label`` and ``radius``, or why it ``abstained``."""
    names = {"reason": "abstained"} | {
        of: f"radius_{of}" for of in ("additions", "deletions")
    }
    rows = (asdict(result).items() for result in results)
    return [
        {"point": i}
        | {names.get(of, of): value for of, value in row if value is not None}
        for i, row in enumerate(rows)
    ]


def _accuracy(
    radius: Array, counted: Booleans, radii: Sequence[float]
) -> list[Document]:
    shares = prediction.certified_accuracy(radius, counted, radii).tolist()
    return [
        {"radius": at, "share": share} for at, share in zip(radii, shares, strict=True)
    ]


def _loss(request: Loss) -> Document:
    inputs.group_size("attackers", request.attackers)
    trained = inputs.Trained.of(request)
    expected = inputs.expectation(request, trained.runs)
    guarantee = trained.guarantee(request.guarantee, request)
    directions = inputs.DIRECTIONS[trained.change(request)]
    bounds = _bounds(request, expected, guarantee, directions)

    def fewest(of: MeanInterval, tau: float) -> int | None:
        """For a level of mean/τ, starting from the lower confidence bound."""
        if not tau >= 1:
            raise Misconfiguration("--tau", tau, "give a ratio of at least 1")
        lower = of.lower
        level = of.mean / tau
        if lower <= level:
            return 0
        return fewest_attackers(
            value=lower,
            bound=request.bound,
            ratio=lower / level,
            guarantee=guarantee,
            directions=directions,
        )

    pairs = (
        []
        if expected is None
        else [(tau, fewest(expected, tau)) for tau in request.tau]
    )
    if request.plot is not None:
        if expected is None:
            remedy = "give --loss: one run has no expected loss to draw"
            raise Misconfiguration("--plot", str(request.plot), remedy)
        inefficacy.plot_loss_bounds(
            request.plot,
            attackers=np.array([row["attackers"] for row in bounds]),
            lower=np.array([row["lower"] for row in bounds]),
            upper=np.array([row["upper"] for row in bounds]),
            expected=expected.mean,
            unit=trained.unit.plural,
        )
    return {
        "certificate": "loss",
        **trained.document(request, guarantee),
        "bound": request.bound,
        "confidence": (
            request.confidence if expected is not None and expected.runs else None
        ),
        "expected_loss": None if expected is None else asdict(expected),
        "bounds": bounds,
        "fewest_attackers": [
            {"tau": tau, "attackers": number} for tau, number in pairs
        ],
    }


def _bounds(
    request: Loss,
    expected: MeanInterval | None,
    guarantee: Guarantee,
    directions: Directions,
) -> list[Document]:
    """Bounds for 0 to ``attackers`` attackers, of many for some; for a few without expectation.

    They widen with the number of attackers, so those in between lie in between.
    """
    if expected is None:
        counts = sorted(
            {k for k in (1, 2, 5, request.attackers) if 1 <= k <= request.attackers}
        )
        clean = least = most = request.bound * np.array(_FRACTIONS)
    else:
        few = range(min(request.attackers, _EVERY) + 1)
        some = np.geomspace(
            max(1, request.attackers) / _TIMES, max(1, request.attackers), _SOME
        )
        counts = sorted(
            {*few, request.attackers, *(int(k) for k in some if k > _EVERY)}
        )
        clean, least, most = np.array(
            [[expected.mean], [expected.lower], [expected.upper]]
        )
    rows = []
    vacuous = False
    for k in counts:
        if vacuous:
            lower = np.zeros_like(clean)
            upper = np.full_like(clean, request.bound)
        else:
            lower = attack_bounds(
                least,
                request.bound,
                guarantee,
                k,
                directions,
            ).lower
            upper = attack_bounds(
                most,
                request.bound,
                guarantee,
                k,
                directions,
            ).upper
            # Bounds that say nothing of so many say nothing of more, and cost the more
            # to make.
            little = _NOTHING * request.bound
            vacuous = bool(
                (lower <= little).all() and (upper >= request.bound - little).all()
            )
        for loss, low, up in zip(
            clean.tolist(), lower.tolist(), upper.tolist(), strict=True
        ):
            rows.append(
                {
                    "loss": loss,
                    "attackers": k,
                    "lower": low,
                    "upper": up,
                }
            )
    return rows


def _smoothing(request: Smoothing) -> Document:
    votes_of = inputs.votes_of_file if request.data is None else inputs.votes_of_model
    source = votes_of(request)
    shares = inputs.budget(request, *source.votes.shape)
    found = prediction.certify_smoothing(
        source.votes, source.sigma, shares, source.selection
    )
    known = source.labels is not None
    counted = found.certified & (found.labels == source.labels if known else True)
    if request.plot is not None:
        prediction.plot_smoothing(
            request.plot,
            found,
            counted,
            known=known,
            noise=source.sigma,
        )
    highest = float(found.radius.max(initial=0.0))
    radii = [
        step * source.sigma
        for step in range(9)
        if step == 0 or step * source.sigma < highest
    ]
    return {
        "certificate": "smoothing",
        "sigma": source.sigma,
        "confidence": request.confidence,
        "simultaneous": request.simultaneous,
        "copies": int(source.votes[0].sum()),
        **source.facts,
        "of_true_labels": known,
        "abstained": int((~found.certified).sum()),
        "average_certified_radius": prediction.average_certified_radius(
            found.radius, counted
        ),
        "certified_accuracy": _accuracy(found.radius, counted, radii),
        "points": _points(found.results()),
    }


_CHANGES = {
    "either": "so many added, or so many deleted",
    "additions": "so many added",
    "deletions": "so many deleted",
    "replacements": "so many replaced by anything",
}
_SHOWN_POINTS = 10

Parts: TypeAlias = Iterator[str | AlignedTable]
"""Lines and tables, in order."""


def _table(
    title: str,
    columns: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    words: int = 0,
) -> AlignedTable:
    """A table whose first ``words`` columns are words and the others numbers."""
    headings = [name if i < words else f">{name}" for i, name in enumerate(columns)]
    table = AlignedTable(*headings, title=title)
    for row in rows:
        table.add(*row)
    return table


def _safe(bound: float, decimals: int, *, up: bool = False) -> str:
    """A bound that still holds with so few decimals: down, or up."""
    holds = Context(prec=400, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    return str(
        holds.quantize(Decimal(repr(float(bound))), Decimal(1).scaleb(-decimals))
    )


def _show_prediction(request: Prediction, found: Document) -> Parts:
    yield _trained(found)
    scope = "all points together" if request.simultaneous else "each point"
    yield (
        f"{found['models']:,} models voted on {len(found['points']):,} points,"
        f" {found['classes']} classes; confidence {request.confidence:g} for {scope}."
        f" Radius: {_changed(found)}."
    )
    if "gdp" in (request.guarantee, *request.also):
        yield "GDP-CLT is a limit for many rounds: its radii are not guaranteed."
    units = Unit(found["unit"]).plural
    what = "Points certified" if request.labels is None else "Certified accuracy"
    accuracy = {
        one["guarantee"]: one["certified_accuracy"] for one in found["comparison"]
    }
    yield _table(
        f"{what}, in %, at a radius of so many {units}",
        ["guarantee", *(f"{at['radius']:,}" for at in next(iter(accuracy.values())))],
        (
            [name, *(f"{100 * at['share']:.1f}" for at in row)]
            for name, row in accuracy.items()
        ),
        words=1,
    )
    yield from _first_points(found["points"], f"radius ({units})")
    yield from _cost(found)


def _changed(found: Document) -> str:
    absent = (
        f", beside {found['absent']:,} honest ones absent" if found["absent"] else ""
    )
    redrawn = found["redrawn_coins"]
    chosen = f", and with {redrawn:,} coins that were drawn again" if redrawn else ""
    return _CHANGES[found["change"]] + absent + chosen


def _trained(found: Document) -> str:
    how = found["mechanism"]
    share = how["participation"]
    often = "" if share == 1 else f" in a share {share:g} of rounds"
    source = "from the runs' ledgers" if found["runs"] else "as given"
    return (
        f"Trained with Poisson sampling at rate {how['sampling_rate']:g}{often}, noise"
        f" multiplier {how['noise_multiplier']:.4g}, {how['rounds']:,} rounds"
        f" ({source}); one unit is a {found['unit']}."
    )


def _first_points(points: list[Document], radius_name: str) -> Parts:
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
    if found["runs"] is None:
        return
    whose = "Privacy cost of this run"
    rows = []
    if found["runs"]["count"] > 1:
        whose = f"Joint privacy cost of these {found['runs']['count']:,} runs"
    for one in found["runs"]["joint_privacy_cost"]:
        epsilon = (
            "no bound" if one["epsilon"] is None else _safe(one["epsilon"], 3, up=True)
        )
        more = (one["rejection_delta"] or 0.0) + (one["advantage_delta"] or 0.0)
        delta = f"{one['delta']:g}" + (f" + {upper(more, 2)}" if more else "")
        counts = one["adversary"], one["adjacency"], f"{one['compositions']:,}"
        rows.append([*counts, delta, epsilon])
    columns = ("adversary", "neighbours", "compositions", "δ", "ε")
    yield _table(f"{whose}, exact", columns, rows, words=2)


def _show_loss(request: Loss, found: Document) -> Parts:
    yield _trained(found)
    yield f"Attackers: {_changed(found)}."
    if found["asymptotic"]:
        yield "GDP-CLT is a limit for many rounds: its bounds are not guaranteed."
    expected = found["expected_loss"]
    bounds = found["bounds"]
    bound = request.bound
    what = f"Expected loss (of at most {bound:g}) after"
    if expected is None:
        yield (
            "One run gives no expectation. Whatever the clean expected loss is, it"
            " stays inside:"
        )
        by_loss: dict[float, dict[str, str]] = {}
        for row in bounds:
            cell = f"{_safe(row['lower'], 3)} – {_safe(row['upper'], 3, up=True)}"
            by_loss.setdefault(row["loss"], {})[f"k = {row['attackers']}"] = cell
        columns = dict.fromkeys(name for cells in by_loss.values() for name in cells)
        rows = [[f"{loss:g}", *cells.values()] for loss, cells in by_loss.items()]
        yield _table(
            f"{what} k attackers: at least – at most", ["clean", *columns], rows
        )
    else:
        estimate = f"{expected['mean']:g}, as given."
        if expected["runs"]:
            within = f"[{expected['lower']:.4f}, {expected['upper']:.4f}]"
            estimate = (
                f"{expected['mean']:.4f} over {expected['runs']:,} runs, in {within}"
                " with "
            )
            estimate += f"confidence {request.confidence:g}."
        yield f"Clean expected loss {estimate}"
        cells = ((f"{r['attackers']:,}", r["lower"], r["upper"]) for r in bounds)
        rows = [
            [k, _safe(lower, 4), _safe(most, 4, up=True)] for k, lower, most in cells
        ]
        yield _table(
            f"{what} so many attackers", ["attackers", "at least", "at most"], rows
        )
    little = 1e-3 * bound
    single = [row for row in bounds if row["attackers"] == 1]
    if single and all(
        row["lower"] < little and row["upper"] > bound - little for row in single
    ):
        yield (
            "At these parameters the bounds say nothing, even of one attacker: there is"
            " too little noise for what one may contribute. `precad plan --malicious`"
            " finds a client clip that says something."
        )
    vacuous = [row["attackers"] for row in bounds if row["upper"] >= bound * (1 - 1e-6)]
    if expected is not None and vacuous:
        yield f"From {vacuous[0]} attackers on the upper bound says nothing."
    for one in found["fewest_attackers"]:
        fewest = one["attackers"]
        least = "more than were searched" if fewest is None else f"at least {fewest:,}"
        yield (
            f"Attackers that it takes to lower the expected loss {one['tau']:g}-fold:"
            f" {least}."
        )
    yield from _cost(found)


def _show_smoothing(request: Smoothing, found: Document) -> Parts:
    known = found["of_true_labels"]
    yield (
        f"Input noise σ = {found['sigma']:g}, {found['copies']:,} noisy copies of each"
        f" of {len(found['points']):,} inputs; confidence {request.confidence:g}."
        f" Average certified radius {found['average_certified_radius']:.4f}"
        + (" (right predictions only)." if known else ".")
        + f" Abstained: {found['abstained']:,}."
    )
    accuracy = found["certified_accuracy"]
    yield _table(
        f"{'Certified accuracy' if known else 'Points certified'}, in %, at an ℓ2"
        " radius of",
        [f"{at['radius']:g}" for at in accuracy],
        [[f"{100 * at['share']:.1f}" for at in accuracy]],
    )
    if "draw" in found:
        yield f"The noise can be drawn again with --draw {found['draw']}."
    yield from _first_points(found["points"], "radius (ℓ2)")
