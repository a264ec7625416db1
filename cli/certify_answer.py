"""What each `precad certify` command answers: one document, shown as tables or JSON."""

from collections.abc import Sequence
from dataclasses import asdict, replace

import click
import numpy as np

from precad.certify import (
    Abstained,
    Direction,
    Guarantee,
    MeanInterval,
    Result,
    attack_bounds,
    average_certified_radius,
    certified_accuracy,
    certify_predictions,
    certify_smoothing,
    fewest_attackers,
    inefficacy,
    plot_certified_accuracy,
    plot_smoothing,
)
from precad.cli import (
    CertifyRequest,
    JsonObject,
    Loss,
    Prediction,
    Smoothing,
    print_json,
    require_writable,
    show_loss,
    show_prediction,
    show_smoothing,
)
from precad.cli import certify_inputs as inputs
from precad.common import Array, Booleans, Misconfiguration, say

Directions = tuple[Direction, ...]

_FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Expected losses that are shown where none is known, as shares of the loss bound B."""
_EVERY = 20
"""Up to so many attackers every number of them has its bounds."""
_SOME = 25
"""Above that, so many numbers have theirs, evenly spaced on a logarithmic scale."""
_TIMES = 100
"""The scale ends at the most attackers that are asked for, and begins at 1/100 of it.
"""
_NOTHING = 1 - 2e-6
"""Bounds so far apart say nothing; as a share of the loss bound B."""
_RADII = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10**4, 10**5, 10**6)
"""Radii at which certified accuracy is shown, in records or clients."""
_SHOWN_RADII = 9
"""As many of them as fit beside each other; the largest ones."""


def answer(request: CertifyRequest) -> None:
    """Print the answer, as tables or as one JSON document.

    Where a picture is asked for it is written too.

    Raises Misconfiguration: an option or a file is missing, wrong or doesn't fit.
    """
    require_writable("--plot", request.plot)
    match request:
        case Prediction():
            document = _prediction(request)
            parts = show_prediction(request, document)
        case Loss():
            document = _loss(request)
            parts = show_loss(request, document)
        case Smoothing():
            document = _smoothing(request)
            parts = show_smoothing(request, document)
    if request.as_json:
        print_json(document)
        return
    for part in parts:
        if isinstance(part, str):
            say(part)
        else:
            say()
            part.show()
            say()
    if request.plot is not None:
        click.echo(f"Picture: {request.plot}")


def _prediction(request: Prediction) -> JsonObject:
    """Certify the majority vote of several models, and draw the picture of it.

    Certificates are made of the guarantee that is asked for and of those to compare it
    with; the first one's are the answer.
    """
    trained = inputs.Trained.of(request)
    intervals, models, classes = inputs.vote_intervals(request, trained.runs)
    known = request.labels is not None
    correct = np.ones(len(intervals.labels), dtype=bool)
    if request.labels is not None:
        truth = inputs.true_labels(request.labels, len(correct), request.header)
        correct = np.asarray(intervals.labels == truth)
    kinds = dict.fromkeys([request.guarantee, *request.also])
    guarantees = [trained.guarantee(kind) for kind in kinds]
    directions = inputs.DIRECTIONS[trained.change]
    certificates = [
        certify_predictions(intervals, guarantee, directions)
        for guarantee in guarantees
    ]
    points = _points(certificates[0].results())
    largest = max(
        int(certificate.radius.max(where=certificate.certified, initial=0))
        for certificate in certificates
    )
    smaller = [radius for radius in _RADII if radius < largest]
    radii = [*smaller, largest][-_SHOWN_RADII:]
    if request.plot is not None:
        confidence = f"confidence {request.confidence:g}"
        plot_certified_accuracy(
            request.plot,
            certificates,
            correct,
            known=known,
            unit=trained.counted,
            title=f"{len(points):,} points, votes of {models:,} models, {confidence}",
        )
    comparison = [
        {
            "guarantee": certificate.guarantee,
            "of_true_labels": known,
            # Without true labels a share of points.
            "certified_accuracy": _accuracy(
                certificate.radius, certificate.certified & correct, radii
            ),
        }
        for certificate in certificates
    ]
    return {
        "certificate": "prediction",
        **trained.document(guarantees[0]),
        "confidence": request.confidence,
        "simultaneous": request.simultaneous,
        "models": models,
        "classes": classes,
        "abstained": int((~certificates[0].certified).sum()),
        "comparison": comparison,
        "points": points,
    }


def _points(results: list[Result]) -> list[JsonObject]:
    """Return one row a point: its label and radius, or why it abstained.

    The radii against additions and deletions alone stand in it where there are any.
    """
    rows = []
    for point, result in enumerate(results):
        row: JsonObject = {"point": point}
        if isinstance(result, Abstained):
            row["abstained"] = result.reason
        else:
            row["label"] = result.label
            row["radius"] = result.radius
            if result.additions is not None:
                row["radius_additions"] = result.additions
            if result.deletions is not None:
                row["radius_deletions"] = result.deletions
        rows.append(row)
    return rows


def _accuracy(
    radius: Array, counted: Booleans, radii: Sequence[float]
) -> list[JsonObject]:
    """Return the share of points that are certified at each of ``radii``.

    ``radius`` and ``counted`` are [points]: how far each point is certified, and
    whether it counts (certified, and right where true labels are known).
    """
    shares = certified_accuracy(radius, counted, radii).tolist()
    return [
        {"radius": at, "share": share} for at, share in zip(radii, shares, strict=True)
    ]


def _loss(request: Loss) -> JsonObject:
    """Bound the expected loss after attacks, and draw the picture of the bounds.

    Raises Misconfiguration: a τ below 1, or a picture where no loss is expected.
    """
    trained = inputs.Trained.of(request)
    if trained.owners_of_share is not None:
        request = replace(request, attackers=trained.owners_of_share)
    expected = inputs.expectation(request, trained.runs)
    guarantee = trained.guarantee(request.guarantee)
    directions = inputs.DIRECTIONS[trained.change]
    bounds = _bounds(request, expected, guarantee, directions)
    fewest = []
    if expected is not None:
        fewest = _fewest_attackers(request, expected, guarantee, directions)
    if request.plot is not None:
        if expected is None:
            raise Misconfiguration(
                "--plot",
                request.plot,
                "give --loss: one run has no expected loss to draw",
            )
        inefficacy.plot_loss_bounds(
            request.plot,
            attackers=np.array([row["attackers"] for row in bounds]),
            lower=np.array([row["lower"] for row in bounds]),
            upper=np.array([row["upper"] for row in bounds]),
            expected=expected.mean,
            unit=trained.counted,
        )
    estimated = expected is not None and expected.runs
    return {
        "certificate": "loss",
        **trained.document(guarantee),
        "bound": request.bound,
        "confidence": request.confidence if estimated else None,
        "expected_loss": None if expected is None else asdict(expected),
        "bounds": bounds,
        "fewest_attackers": fewest,
    }


def _fewest_attackers(
    request: Loss,
    expected: MeanInterval,
    guarantee: Guarantee,
    directions: Directions,
) -> list[JsonObject]:
    """Return for each τ the fewest attackers that may bring the loss down to mean/τ.

    They start from the lower confidence bound of the clean expected loss. Their number
    is None where more are needed than are searched.

    Raises Misconfiguration: a τ is below 1.
    """
    rows = []
    for tau in request.tau:
        if not tau >= 1:
            raise Misconfiguration("--tau", tau, "give a ratio of at least 1")
        goal = expected.mean / tau
        attackers = fewest_attackers(
            value=expected.lower,
            bound=request.bound,
            ratio=max(1.0, expected.lower / goal) if goal else 1.0,
            guarantee=guarantee,
            directions=directions,
        )
        rows.append({"tau": tau, "attackers": attackers})
    return rows


def _bounds(
    request: Loss,
    expected: MeanInterval | None,
    guarantee: Guarantee,
    directions: Directions,
) -> list[JsonObject]:
    """Return bounds on the loss after 0 to ``attackers`` attackers, one row for each.

    Of many attackers some numbers have bounds. The bounds widen with the number, so
    those of the numbers in between lie in between. Where no loss is expected, a few
    numbers have bounds, for several values of the clean loss.
    """
    bound = request.bound
    clean = bound * np.array(_FRACTIONS)
    # Where no attacker is, the loss lies between these.
    ends = [clean, clean]
    few = {1, 2, 5, request.attackers}
    attackers = sorted(k for k in few if 1 <= k <= request.attackers)
    if expected is not None:
        attackers = _numbers_of_attackers(request.attackers)
        clean = np.array([expected.mean])
        ends = [np.array([expected.lower]), np.array([expected.upper])]
    rows = []
    vacuous = False
    for k in attackers:
        if vacuous:
            # Bounds that say nothing of so many attackers say nothing of more, and cost
            # the more to compute.
            lower = np.zeros_like(clean)
            upper = np.full_like(clean, bound)
        else:
            after = attack_bounds(np.stack(ends), bound, guarantee, k, directions)
            lower = after.lower[0]
            upper = after.upper[1]
            vacuous = bool((upper - lower >= _NOTHING * bound).all())
        for loss, at_least, at_most in np.stack([clean, lower, upper], axis=1).tolist():
            rows.append(
                {
                    "loss": loss,
                    "attackers": k,
                    "lower": at_least,
                    "upper": at_most,
                }
            )
    return rows


def _numbers_of_attackers(most: int) -> list[int]:
    """Return the numbers of attackers, 0 to ``most``, that get bounds of their own."""
    few = range(min(most, _EVERY) + 1)
    end = max(1, most)
    spaced = np.geomspace(end / _TIMES, end, _SOME)
    many = (int(number) for number in spaced if number > _EVERY)
    return sorted({*few, most, *many})


def _smoothing(request: Smoothing) -> JsonObject:
    """Certify predictions under changed inputs, and draw the picture of it."""
    if request.data is None:
        smoothed = inputs.votes_of_file(request)
    else:
        smoothed = inputs.votes_of_model(request)
    sigma = smoothed.sigma
    shares = inputs.budget(request, *smoothed.votes.shape)
    certificates = certify_smoothing(smoothed.votes, sigma, shares, smoothed.selection)
    known = smoothed.labels is not None
    counted = certificates.certified
    if smoothed.labels is not None:
        counted = counted & (certificates.labels == smoothed.labels)
    if request.plot is not None:
        plot_smoothing(
            request.plot,
            certificates,
            counted,
            known=known,
            noise=sigma,
        )
    largest = float(certificates.radius.max(initial=0.0))
    multiples = [step * sigma for step in range(1, _SHOWN_RADII)]
    radii = [0.0, *(radius for radius in multiples if radius < largest)]
    return {
        "certificate": "smoothing",
        "sigma": sigma,
        "confidence": request.confidence,
        "simultaneous": request.simultaneous,
        "copies": int(smoothed.votes[0].sum()),
        **smoothed.facts,
        "of_true_labels": known,
        "abstained": int((~certificates.certified).sum()),
        "average_certified_radius": average_certified_radius(
            certificates.radius, counted
        ),
        "certified_accuracy": _accuracy(certificates.radius, counted, radii),
        "points": _points(certificates.results()),
    }
