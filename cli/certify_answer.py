"""What each request's answer is: one document, which `show` prints as JSON or as tables."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import numpy as np

from precad.certify import certificate_plots as plots
from precad.certify import prediction
from precad.certify.curves import Booleans
from precad.certify.guarantee import Direction, Guarantee
from precad.certify.inefficacy import MeanInterval, attack_bounds, fewest_attackers
from precad.cli import certify_inputs as inputs
from precad.cli.certify import Loss, Prediction, Request, Smoothing
from precad.cli.options import writable_picture
from precad.common.errors import Misconfiguration
from precad.common.npy import Array

Document: TypeAlias = dict[str, Any]

_FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Of B: the expected losses shown where none is known."""
_EVERY, _SOME, _TIMES = 20, 25, 100
"""Up to so many attackers every number has its bounds; above, so many numbers of a range."""
_NOTHING = 1e-6
"""Of B: a bound so near to its end says nothing."""
_RADII = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10**4, 10**5, 10**6)


def answer(request: Request) -> Document:
    """The document that answers a request; the picture, where one is asked for, is drawn too."""
    if request.plot is not None:
        writable_picture(request.plot)
    match request:
        case Prediction():
            return _prediction(request)
        case Loss():
            return _loss(request)
        case Smoothing():
            return _smoothing(request)


def _prediction(request: Prediction) -> Document:
    trained = inputs.Trained.of(request)
    intervals, models, classes = inputs.vote_intervals(request, trained.runs)
    correct, known = inputs.right(request, intervals.labels), request.labels is not None
    guarantees = [trained.guarantee(kind, request) for kind in request.kinds]
    directions = inputs.DIRECTIONS[trained.change(request)]
    certificates = [
        prediction.certify_predictions(intervals, one, directions) for one in guarantees
    ]
    points = _points(certificates[0].results())
    if request.plot is not None:
        confidence = f"confidence {request.confidence:g}"
        title = f"{len(points):,} points, votes of {models:,} models, {confidence}"
        unit = trained.unit.plural
        plots.plot_certified_accuracy(
            request.plot, certificates, correct, known=known, unit=unit, title=title
        )
    return {
        "certificate": "prediction",
        **trained.document(request, guarantees[0]),
        "confidence": request.confidence,
        "simultaneous": request.simultaneous,
        "models": models,
        "classes": classes,
        "abstained": int((~certificates[0].certified).sum()),
        "comparison": _comparison(certificates, correct, known=known),
        "points": points,
    }


def _points(results: list[prediction.Result]) -> list[Document]:
    """Each point's ``label`` and ``radius``, or why it ``abstained``."""
    rows: list[Document] = []
    for i, result in enumerate(results):
        if isinstance(result, prediction.Abstained):
            rows.append({"point": i, "abstained": result.reason})
            continue
        row = {"point": i, "label": result.label, "radius": result.radius}
        by_direction = {"additions": result.additions, "deletions": result.deletions}
        row |= {f"radius_{name}": r for name, r in by_direction.items() if r is not None}
        rows.append(row)
    return rows


def _comparison(
    certificates: list[prediction.PredictionCertificates], correct: Booleans, *, known: bool
) -> list[Document]:
    """Each guarantee's certified accuracy by radius (a share of points without true labels)."""
    highest = max(int(one.radius.max(where=one.certified, initial=0)) for one in certificates)
    radii = [*(radius for radius in _RADII if radius < highest), highest][-9:]
    return [
        {
            "guarantee": one.guarantee,
            "of_true_labels": known,
            "certified_accuracy": _accuracy(one.radius, one.certified & correct, radii),
        }
        for one in certificates
    ]


def _accuracy(radius: Array, counted: Booleans, radii: Sequence[float]) -> list[Document]:
    """The share of points that count, by radius."""
    shares = prediction.certified_accuracy(radius, counted, radii).tolist()
    return [{"radius": at, "share": share} for at, share in zip(radii, shares, strict=True)]


def _loss(request: Loss) -> Document:
    inputs.group_size("attackers", request.attackers)
    trained = inputs.Trained.of(request)
    expected = inputs.expectation(request, trained.runs)
    guarantee = trained.guarantee(request.guarantee, request)
    directions = inputs.DIRECTIONS[trained.change(request)]
    bounds = _bounds(request, expected, guarantee, directions)
    fewest = [
        {"tau": tau, "attackers": _fewest(request, expected, tau, guarantee, directions)}
        for tau in request.tau
        if expected is not None
    ]
    if request.plot is not None:
        if expected is None:
            raise Misconfiguration(
                "--plot", str(request.plot), "give --loss: one run has no expected loss to draw"
            )
        curves = (
            np.array([row[name] for row in bounds]) for name in ("attackers", "lower", "upper")
        )
        unit = trained.unit.plural
        plots.plot_loss_bounds(request.plot, *curves, expected=expected.mean, unit=unit)
    return {
        "certificate": "loss",
        **trained.document(request, guarantee),
        "bound": request.bound,
        "confidence": request.confidence if expected is not None and expected.runs else None,
        "expected_loss": None if expected is None else asdict(expected),
        "bounds": bounds,
        "fewest_attackers": fewest,
    }


def _bounds(
    request: Loss,
    expected: MeanInterval | None,
    guarantee: Guarantee,
    directions: tuple[Direction, ...],
) -> list[Document]:
    """Bounds for 0 to ``attackers`` attackers, of many for some; for a few without expectation.

    They widen with the number of attackers, so those in between lie in between.
    """
    if expected is None:
        counts = sorted({k for k in (1, 2, 5, request.attackers) if 1 <= k <= request.attackers})
        clean = least = most = request.bound * np.array(_FRACTIONS)
    else:
        few = range(min(request.attackers, _EVERY) + 1)
        some = np.geomspace(max(1, request.attackers) / _TIMES, max(1, request.attackers), _SOME)
        counts = sorted({*few, request.attackers, *(int(k) for k in some if k > _EVERY)})
        clean, least, most = np.array([[expected.mean], [expected.lower], [expected.upper]])
    rows = []
    vacuous = False
    for k in counts:
        if vacuous:
            lower, upper = np.zeros_like(clean), np.full_like(clean, request.bound)
        else:
            lower = attack_bounds(least, request.bound, guarantee, k, directions).lower
            upper = attack_bounds(most, request.bound, guarantee, k, directions).upper
            # Bounds that say nothing of so many say nothing of more, and cost the more to make.
            little = _NOTHING * request.bound
            vacuous = bool((lower <= little).all() and (upper >= request.bound - little).all())
        for loss, low, up in zip(clean.tolist(), lower.tolist(), upper.tolist(), strict=True):
            rows.append({"loss": loss, "attackers": k, "lower": low, "upper": up})
    return rows


def _fewest(
    request: Loss,
    expected: MeanInterval,
    ratio: float,
    guarantee: Guarantee,
    directions: tuple[Direction, ...],
) -> int | None:
    """Attackers for a level of mean/τ, starting from the lower confidence bound."""
    if not ratio >= 1:
        raise Misconfiguration("--tau", ratio, "give a ratio of at least 1")
    lower, level = expected.lower, expected.mean / ratio
    if lower <= level:
        return 0
    return fewest_attackers(lower, request.bound, lower / level, guarantee, directions)


def _smoothing(request: Smoothing) -> Document:
    source = (
        inputs.votes_of_model(request)
        if request.data is not None
        else inputs.votes_of_file(request)
    )
    shares = inputs.budget(request, *source.votes.shape)
    found = prediction.certify_smoothing(source.votes, source.sigma, shares, source.selection)
    known = source.labels is not None
    counted = found.certified & (found.labels == source.labels if known else True)
    if request.plot is not None:
        plots.plot_smoothing(request.plot, found, counted, known=known, noise=source.sigma)
    highest = float(found.radius.max(initial=0.0))
    radii = [step * source.sigma for step in range(9) if step == 0 or step * source.sigma < highest]
    return {
        "certificate": "smoothing",
        "sigma": source.sigma,
        "confidence": request.confidence,
        "simultaneous": request.simultaneous,
        "copies": int(source.votes[0].sum()),
        **source.facts,
        "of_true_labels": known,
        "abstained": int((~found.certified).sum()),
        "average_certified_radius": prediction.average_certified_radius(found.radius, counted),
        "certified_accuracy": _accuracy(found.radius, counted, radii),
        "points": _points(found.results()),
    }
