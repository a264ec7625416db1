"""An answer of `precad certify` as sentences and tables, for people."""

from collections.abc import Iterable, Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from precad.cli import JsonObject, Loss, Prediction, Smoothing
from precad.common import AlignedTable, assumed_of_claims, between, upper

Parts = Iterator[str | AlignedTable]
"""Lines and tables, in the order in which they are shown."""

_CHANGES = {
    "either": "so many added, or so many deleted",
    "additions": "so many added",
    "deletions": "so many deleted",
    "replacements": "so many replaced by anything",
}
"""What a radius or a number of attackers counts, by the name of the change."""
_SHOWN_POINTS = 10
"""So many points are shown one by one."""


def show_prediction(request: Prediction, document: JsonObject) -> Parts:
    """Yield the certificates of a majority vote: what was trained, accuracy, points."""
    yield _training(document)
    scope = "all points together" if request.simultaneous else "each point"
    yield (
        f"{document['models']:,} models voted on {len(document['points']):,} points,"
        f" {document['classes']} classes; confidence {request.confidence:g} for"
        f" {scope}. Radius: {_change(document)}."
    )
    if "gdp" in (request.guarantee, *request.also):
        yield "GDP-CLT is a limit for many rounds: its radii are not guaranteed."
    units = document["counted"]
    share = "Points certified" if request.labels is None else "Certified accuracy"
    comparison = document["comparison"]
    radii = [f"{at['radius']:,}" for at in comparison[0]["certified_accuracy"]]
    rows = [
        [row["guarantee"], *_percentages(row["certified_accuracy"])]
        for row in comparison
    ]
    yield _table(
        f"{share}, in %, at a radius of so many {units}",
        ["guarantee", *radii],
        rows,
        words=1,
    )
    yield from _first_points(document["points"], f"radius ({units})")
    yield from _privacy_cost(document)


def _percentages(accuracy: list[JsonObject]) -> list[str]:
    """Return the shares of points that are certified, in %, radius by radius."""
    return [f"{100 * at['share']:.1f}" for at in accuracy]


def _table(
    title: str,
    columns: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    words: int = 0,
) -> AlignedTable:
    """Return a table whose first ``words`` columns are words and the others numbers."""
    headings = [
        name if index < words else f">{name}" for index, name in enumerate(columns)
    ]
    table = AlignedTable(*headings, title=title)
    for row in rows:
        table.add(*row)
    return table


def _rounded_bound(bound: float, decimals: int, *, up: bool = False) -> str:
    """Return a bound with so few decimals that still holds: rounded down, or up."""
    rounding = ROUND_CEILING if up else ROUND_FLOOR
    # More digits than a float has: nothing else is rounded.
    context = Context(prec=400, rounding=rounding)
    last_place = Decimal(1).scaleb(-decimals)
    return str(context.quantize(Decimal(repr(float(bound))), last_place))


def _change(document: JsonObject) -> str:
    """Say what is certified against: the change, absent clients, coins drawn again.

    And what is assumed of claims.
    """
    change = _CHANGES[document["change"]]
    if document["absent"]:
        change += f", beside {document['absent']:,} honest ones absent"
    if document["data_share"] is not None:
        change += f", which claim {document['data_share']:.3g} of all records at most"
    redrawn = document["redrawn_coins"]
    if redrawn:
        change += f", and with {redrawn:,} coins that were drawn again"
    return change + assumed_of_claims(document["planned_units"])


def _training(document: JsonObject) -> str:
    """Say how the models were trained, and whether options or ledgers told it."""
    mechanism = document["mechanism"]
    participation = mechanism["participation"]
    share = "" if participation == 1 else f" in a share {participation:g} of rounds"
    source = "from the runs' ledgers" if document["runs"] else "as given"
    return (
        f"Trained with Poisson sampling at rate {mechanism['sampling_rate']:g}{share},"
        f" noise multiplier {mechanism['noise_multiplier']:.4g},"
        f" {mechanism['rounds']:,} rounds ({source}); attackers are counted in"
        f" {document['counted']}."
    )


def _first_points(points: list[JsonObject], radius_name: str) -> Parts:
    """Yield a table of the first points, and a line where there are more."""
    rows = []
    for point in points[:_SHOWN_POINTS]:
        radius = point.get("radius", "abstained")
        if isinstance(radius, float):
            radius = _rounded_bound(radius, 4)
        elif isinstance(radius, int):
            radius = f"{radius:,}"
        rows.append([str(point["point"]), str(point.get("label", "–")), radius])
    yield _table(
        f"First {len(rows)} of {len(points):,} points",
        ["point", "label", radius_name],
        rows,
    )
    if len(points) > _SHOWN_POINTS:
        yield "All points are in the document that --json prints."


def _privacy_cost(document: JsonObject) -> Parts:
    """Yield a table of what finished runs cost in privacy; nothing without runs."""
    runs = document["runs"]
    if runs is None:
        return
    subject = "Privacy cost of this run"
    if runs["count"] > 1:
        subject = f"Joint privacy cost of these {runs['count']:,} runs"
    rows = []
    for statement in runs["joint_privacy_cost"]:
        epsilon = "no bound"
        if statement["epsilon"] is not None:
            epsilon = between(statement["least_epsilon"], statement["epsilon"])
        delta = f"{statement['delta']:g}"
        added = (statement["rejection_delta"] or 0.0) + (
            statement["advantage_delta"] or 0.0
        )
        if added:
            delta += f" + {upper(added, 2)}"
        rows.append(
            [
                statement["adversary"],
                statement["adjacency"] + statement["at_owners"],
                f"{statement['compositions']:,}",
                delta,
                epsilon,
            ]
        )
    columns = ("adversary", "neighbours", "compositions", "δ", "ε")
    yield _table(f"{subject}, exact", columns, rows, words=2)


def show_loss(request: Loss, document: JsonObject) -> Parts:
    """Yield the bounds on an expected loss: what was trained, and what attackers do."""
    yield _training(document)
    yield f"Attackers: {_change(document)}."
    if document["asymptotic"]:
        yield "GDP-CLT is a limit for many rounds: its bounds are not guaranteed."
    bounds = document["bounds"]
    bound = request.bound
    expected = document["expected_loss"]
    title = f"Expected loss (of at most {bound:g}) after"
    if expected is None:
        yield (
            "One run gives no expectation. Whatever the clean expected loss is, it"
            " stays inside:"
        )
        yield _by_clean_loss(f"{title} k attackers: at least – at most", bounds)
    else:
        yield f"Clean expected loss {_estimate(expected, request.confidence)}"
        rows = [
            [
                f"{row['attackers']:,}",
                _rounded_bound(row["lower"], 4),
                _rounded_bound(row["upper"], 4, up=True),
            ]
            for row in bounds
        ]
        columns = ["attackers", "at least", "at most"]
        yield _table(f"{title} so many attackers", columns, rows)
    negligible = 1e-3 * bound
    of_one = [row for row in bounds if row["attackers"] == 1]
    if of_one and all(
        row["lower"] < negligible and row["upper"] > bound - negligible
        for row in of_one
    ):
        yield (
            "At these parameters the bounds say nothing, even of one attacker: there is"
            " too little noise for what one may contribute. `precad plan --malicious`"
            " finds a client clip that says something."
        )
    vacuous = [row["attackers"] for row in bounds if row["upper"] >= bound * (1 - 1e-6)]
    if expected is not None and vacuous:
        yield f"From {vacuous[0]} attackers on the upper bound says nothing."
    if expected is not None and document["data_share"] is not None:
        last = bounds[-1]
        moved = max(
            last["upper"] - expected["lower"],
            expected["upper"] - last["lower"],
        )
        yield (
            f"Owners that claim {100 * document['data_share']:.3g} % of the data, at most"
            f" {last['attackers']:,} of them, move the loss by at most"
            f" {_rounded_bound(moved, 4, up=True)}."
        )
    for goal in document["fewest_attackers"]:
        fewest = "more than were searched"
        if goal["attackers"] is not None:
            fewest = f"at least {goal['attackers']:,}"
        yield (
            f"Attackers that it takes to lower the expected loss {goal['tau']:g}-fold:"
            f" {fewest}."
        )
    yield from _privacy_cost(document)


def _by_clean_loss(title: str, bounds: list[JsonObject]) -> AlignedTable:
    """Return a table of bounds: a clean loss a row, a number of attackers a column."""
    ranges: dict[float, list[str]] = {}
    for row in bounds:
        lowest = _rounded_bound(row["lower"], 3)
        highest = _rounded_bound(row["upper"], 3, up=True)
        ranges.setdefault(row["loss"], []).append(f"{lowest} – {highest}")
    columns = dict.fromkeys(f"k = {row['attackers']}" for row in bounds)
    rows = [[f"{loss:g}", *cells] for loss, cells in ranges.items()]
    return _table(title, ["clean", *columns], rows)


def _estimate(expected: JsonObject, confidence: float) -> str:
    """Say what the clean expected loss is: as given, or with a confidence interval."""
    if not expected["runs"]:
        return f"{expected['mean']:g}, as given."
    interval = f"[{expected['lower']:.4f}, {expected['upper']:.4f}]"
    return (
        f"{expected['mean']:.4f} over {expected['runs']:,} runs, in {interval}"
        f" with confidence {confidence:g}."
    )


def show_smoothing(request: Smoothing, document: JsonObject) -> Parts:
    """Yield the certificates of predictions under changed inputs: accuracy, points."""
    known = document["of_true_labels"]
    of_right = " (right predictions only)" if known else ""
    yield (
        f"Input noise σ = {document['sigma']:g}, {document['copies']:,} noisy copies of"
        f" each of {len(document['points']):,} inputs; confidence"
        f" {request.confidence:g}. Average certified radius"
        f" {document['average_certified_radius']:.4f}{of_right}. Abstained:"
        f" {document['abstained']:,}."
    )
    share = "Certified accuracy" if known else "Points certified"
    accuracy = document["certified_accuracy"]
    yield _table(
        f"{share}, in %, at an ℓ2 radius of",
        [f"{at['radius']:g}" for at in accuracy],
        [_percentages(accuracy)],
    )
    if "draw" in document:
        yield f"The noise can be drawn again with --draw {document['draw']}."
    yield from _first_points(document["points"], "radius (ℓ2)")
