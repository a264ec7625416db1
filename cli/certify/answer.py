"""What each request's answer is: one document, which `show` prints as JSON or as tables."""

from dataclasses import asdict
from typing import Any

import numpy as np

from precad.cli.certify.read import expectation, read_array, true_labels, vote_intervals
from precad.cli.certify.request import Loss, Prediction, Request, Smoothing
from precad.cli.certify.trained import DIRECTIONS, Trained
from precad.common.certify import (
    Certified,
    ConfidenceBudget,
    Guarantee,
    PredictionCertificates,
    Result,
    attack_bounds,
    average_certified_radius,
    certified_accuracy,
    certify_predictions,
    certify_smoothing,
    fewest_attackers,
)
from precad.common.certify.inefficacy import MeanInterval
from precad.common.certify.inputs import Booleans
from precad.common.certify.intervals import vote_counts
from precad.common.certify.plot import plot_certified_accuracy, plot_loss_bounds, plot_smoothing
from precad.common.errors import Misconfiguration

_FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Of B: the expected losses shown where none is known."""


def answer(request: Request) -> dict[str, Any]:
    """The document that answers a request; the picture, where one is asked for, is drawn too.

    Raises:
        Misconfiguration: what a request says, or what its files hold, can't be certified.
    """
    match request:
        case Prediction():
            return _prediction(request)
        case Loss():
            return _loss(request)
        case Smoothing():
            return _smoothing(request)


def _prediction(request: Prediction) -> dict[str, Any]:
    trained = Trained.of(request)
    intervals, models, classes = vote_intervals(request, trained.runs)
    truth = true_labels(request.labels, len(intervals.labels))
    correct = None if truth is None else intervals.labels == truth
    guarantees = [trained.guarantee(kind, request) for kind in request.kinds]
    directions = DIRECTIONS[request.change]
    certificates = [certify_predictions(intervals, one, directions) for one in guarantees]
    points = _points(certificates[0].results())
    if request.plot is not None:
        plot_certified_accuracy(
            request.plot,
            certificates,
            correct,
            trained.unit.plural,
            f"{len(points):,} points, votes of {models:,} models, "
            f"confidence {request.confidence:g}",
        )
    return {
        "certificate": "prediction",
        "guarantee": request.guarantee.value,
        "asymptotic": guarantees[0].asymptotic,
        "change": request.change,
        "confidence": request.confidence,
        "simultaneous": request.simultaneous,
        "strict": request.strict,
        "models": models,
        "classes": classes,
        **trained.document(),
        "abstained": int((~certificates[0].certified).sum()),
        "comparison": _comparison(certificates, correct),
        "points": points,
    }


def _points(results: list[Result]) -> list[dict[str, Any]]:
    """Each point's ``label`` and ``radius``, or why it ``abstained``."""
    rows: list[dict[str, Any]] = []
    for i, result in enumerate(results):
        if isinstance(result, Certified):
            row = {
                "label": result.label,
                "radius": result.radius,
                "radius_additions": result.additions,
                "radius_deletions": result.deletions,
            }
            rows.append({"point": i} | {k: v for k, v in row.items() if v is not None})
        else:
            rows.append({"point": i, "abstained": result.reason})
    return rows


def _comparison(
    certificates: list[PredictionCertificates], correct: Booleans | None
) -> list[dict[str, Any]]:
    """Each guarantee's certified accuracy by radius (a share of points without true labels)."""
    highest = max(
        (int(one.radius[one.certified].max()) for one in certificates if one.certified.any()),
        default=0,
    )
    steps = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10**4, 10**5, 10**6]
    radii = sorted({*(step for step in steps if step < highest), highest})[-9:]
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


def _loss(request: Loss) -> dict[str, Any]:
    trained = Trained.of(request)
    expected = expectation(request, trained.runs)
    guarantee = trained.guarantee(request.guarantee, request)
    bounds = _bounds(request, expected, guarantee)
    estimated = expected is not None and expected.runs
    fewest = [
        {"tau": tau, "attackers": _fewest(request, expected, tau, guarantee)}
        for tau in (request.tau or [] if expected else [])
    ]
    if request.plot is not None:
        if expected is None:
            raise Misconfiguration(
                "--plot", str(request.plot), "give --loss: one run has no expected loss to draw"
            )
        plot_loss_bounds(
            request.plot,
            *(np.array([row[name] for row in bounds]) for name in ("attackers", "lower", "upper")),
            expected=expected.mean,
            unit=trained.unit.plural,
        )
    return {
        "certificate": "loss",
        "guarantee": request.guarantee.value,
        "asymptotic": guarantee.asymptotic,
        "change": request.change,
        "bound": request.bound,
        "confidence": request.confidence if estimated else None,
        **trained.document(),
        "expected_loss": expected and asdict(expected),
        "bounds": bounds,
        "fewest_attackers": fewest,
    }


def _bounds(
    request: Loss, expected: MeanInterval | None, guarantee: Guarantee
) -> list[dict[str, Any]]:
    """Bounds for 0 to ``attackers`` attackers; for a few of them where nothing is expected."""
    if expected is None:
        counts = sorted({k for k in (1, 2, 5, request.attackers) if 1 <= k <= request.attackers})
        clean = least = most = request.bound * np.array(_FRACTIONS)
    else:
        counts = list(range(request.attackers + 1))
        clean, least, most = np.array([[expected.mean], [expected.lower], [expected.upper]])
    rows = []
    for k in counts:
        lower, upper = (
            attack_bounds(start, request.bound, guarantee, k, DIRECTIONS[request.change])
            for start in (least, most)
        )
        for loss, low, up in zip(clean.tolist(), lower.lower, upper.upper, strict=True):
            rows.append({"loss": loss, "attackers": k, "lower": float(low), "upper": float(up)})
    return rows


def _fewest(
    request: Loss, expected: MeanInterval, ratio: float, guarantee: Guarantee
) -> int | None:
    """Attackers for a level of mean/τ, starting from the lower confidence bound."""
    if not ratio >= 1:
        raise Misconfiguration("--tau", ratio, "give a ratio of at least 1")
    level = expected.mean / ratio
    if expected.lower <= level:
        return 0
    return fewest_attackers(
        expected.lower,
        request.bound,
        expected.lower / level,
        guarantee,
        DIRECTIONS[request.change],
    )


def _smoothing(request: Smoothing) -> dict[str, Any]:
    counts = vote_counts(read_array("votes", request.votes))
    points, classes = counts.shape
    budget = ConfidenceBudget(request.confidence, classes, points if request.simultaneous else 1)
    other = None if request.selection is None else read_array("selection", request.selection)
    certificates = certify_smoothing(counts, request.sigma, budget, other)
    truth = true_labels(request.labels, points)
    counted = certificates.certified
    if truth is not None:
        counted = counted & (certificates.labels == truth)
    if request.plot is not None:
        plot_smoothing(
            request.plot, certificates, counted, known=truth is not None, noise=request.sigma
        )
    return {
        "certificate": "smoothing",
        "sigma": request.sigma,
        "confidence": request.confidence,
        "simultaneous": request.simultaneous,
        "copies": int(counts[0].sum()),
        "abstained": int((~certificates.certified).sum()),
        "average_certified_radius": average_certified_radius(certificates.radius, counted),
        "points": _points(certificates.results()),
    }
