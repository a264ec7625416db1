"""Certified prediction: the largest k for which A stays ahead of every other label.

``lower_k(p_A) > upper_k(p_B)``, strictly, for additions and for deletions (Xie Thm 1, 2; Liu
Thm 10 with ADP or RDP, votes or scores). Curves are monotone in k, so the largest k is found by
doubling and bisection; each group size's curves are made once for all points.

What certifying a point can say is `Certified` or `Abstained`: never a radius of −1. Test-time
certificates by randomised smoothing (Cohen et al. 2019; DP-CERT eq. 6, 14) say it too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from precad.certify.curves import Booleans, Floats, Integers, probabilities
from precad.certify.guarantee import BOTH, Direction, GaussianDP, Guarantee, require_guarantee
from precad.certify.intervals import ConfidenceBudget, Intervals, clopper_pearson_lower, vote_counts
from precad.common.checks import count, positive
from precad.common.errors import Misconfiguration

LARGEST_GROUP = 2**20
"""Groups are searched up to this size; a radius this large means "at least"."""


@dataclass(frozen=True, slots=True)
class Certified:
    """The prediction stays ``label`` after any change of at most ``radius``.

    Attributes:
        label: class index.
        radius: certified number of records or clients (test-time: an ℓ2 distance).
        additions: the radius against additions alone, where asked.
        deletions: the radius against deletions alone, where asked.
    """

    label: int
    radius: int | float
    additions: int | None = None
    deletions: int | None = None


@dataclass(frozen=True, slots=True)
class Abstained:
    """Nothing is certified at this point, not even the clean prediction."""

    reason: str


Result: TypeAlias = Certified | Abstained


def _results(reason: str, certified: Booleans, *columns: npt.NDArray[Any]) -> list[Result]:
    """Each point's row of ``columns`` where it is certified; where not, why."""
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [
        Certified(*row) if ok else Abstained(reason)
        for row, ok in zip(rows, certified, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class PredictionCertificates:
    """Certificates of many points, as arrays; `results` gives them one by one.

    Attributes:
        guarantee: the guarantee's name.
        labels: [points] int64, the clean predictions.
        certified: [points] bool; False where the point abstains.
        radii: direction → [points] int64; meaningful where ``certified``.
    """

    guarantee: str
    labels: Integers
    certified: Booleans
    radii: dict[Direction, Integers]

    @property
    def radius(self) -> Integers:
        """[points] int64: the least over directions; meaningful where ``certified``."""
        return np.asarray(np.min(list(self.radii.values()), axis=0), dtype=np.int64)

    def results(self) -> list[Result]:
        """One `Certified` or `Abstained` a point, in order."""
        absent = np.full(len(self.labels), None)
        by_direction = (self.radii.get(direction, absent) for direction in BOTH)
        reason = "the confidence bounds do not separate the top label from the next"
        return _results(reason, self.certified, self.labels, self.radius, *by_direction)


def largest_group(
    holds: Callable[[int, Integers], Booleans], points: int, limit: int = LARGEST_GROUP
) -> Integers:
    """For each point the largest k ≤ ``limit`` with ``holds``, which is monotone in k.

    ``holds`` tells the answers of (k, indices of points); all of the [points] hold at k = 0.
    """
    held = np.zeros(points, dtype=np.int64)
    failed = np.full(points, limit + 1, dtype=np.int64)
    pending = np.arange(points) if limit >= 1 else np.arange(0)
    k = 1
    while len(pending):
        answer = holds(k, pending)
        held[pending[answer]] = k
        failed[pending[~answer]] = k
        pending = pending[answer] if k < limit else pending[:0]
        k = min(2 * k, limit)
    while True:
        open_points = np.flatnonzero(failed - held > 1)
        if not len(open_points):
            return held
        middle = (held[open_points] + failed[open_points]) // 2
        for k in np.unique(middle):
            these = open_points[middle == k]
            answer = holds(int(k), these)
            held[these[answer]] = k
            failed[these[~answer]] = k


def certify_predictions(
    intervals: Intervals,
    guarantee: Guarantee,
    directions: tuple[Direction, ...] = BOTH,
    limit: int = LARGEST_GROUP,
) -> PredictionCertificates:
    """The certified radius of every point under one guarantee.

    Raises Misconfiguration: the guarantee is a reproduction, or no direction was given.
    """
    require_guarantee(guarantee)
    if not directions:
        raise Misconfiguration("directions", directions, "give additions, deletions or both")
    count("limit", limit)
    p_a, p_b = probabilities("p_a", intervals.p_a), probabilities("p_b", intervals.p_b)
    certified = p_a > p_b
    # Few distinct pairs among many points: each is searched once.
    known = np.stack([p_a, p_b], axis=1)[certified]
    pairs, back = np.unique(known, axis=0, return_inverse=True)
    radii = {direction: np.zeros(len(p_a), dtype=np.int64) for direction in directions}
    for direction, radius in radii.items():

        def holds(k: int, i: Integers, direction: Direction = direction) -> Booleans:
            return guarantee.curves(k, direction).separates(pairs[i, 0], pairs[i, 1])

        radius[certified] = largest_group(holds, len(pairs), limit)[back.ravel()]
    return PredictionCertificates(guarantee.name, intervals.labels, certified, radii)


def counted_radii(radius: npt.ArrayLike, counted: npt.ArrayLike) -> Floats:
    """[counted points] float64: the radii where the mask ``counted`` holds.

    Raises Misconfiguration: the mask has another shape, or there are no points.
    """
    radius, counted = np.asarray(radius, dtype=np.float64), np.asarray(counted, dtype=bool)
    if radius.shape != counted.shape or not radius.size:
        raise Misconfiguration(
            "radius", radius.shape, f"same shape as the mask {counted.shape}, not 0"
        )
    return np.asarray(radius[counted])


def certified_accuracy(radius: npt.ArrayLike, counted: npt.ArrayLike, at: npt.ArrayLike) -> Floats:
    """Fraction of all points that are certified, right, and hold at each given radius.

    ``counted`` are the certified points that are right, where true labels are known; ``radius`` of
    the others is ignored.
    """
    held = np.sort(counted_radii(radius, counted))
    at = np.atleast_1d(np.asarray(at, dtype=np.float64))
    return np.asarray((len(held) - np.searchsorted(held, at, side="left")) / np.size(radius))


@dataclass(frozen=True, slots=True)
class SmoothingCertificates:
    """ℓ2 radii of many inputs.

    Attributes:
        labels: [points] int64.
        certified: [points] bool.
        radius: [points] float64, in the inputs' units; 0 where the point abstains.
        p_a: [points] float64, lower bound on the top class's probability under noise.
    """

    labels: Integers
    certified: Booleans
    radius: Floats
    p_a: Floats

    def results(self) -> list[Result]:
        """One `Certified` or `Abstained` a point, in order."""
        reason = "the top class isn't more likely than all others together"
        return _results(reason, self.certified, self.labels, self.radius)


def cohen_radius(p_a: npt.ArrayLike, noise: float) -> Floats:
    """σ·Φ⁻¹(p_A): `GaussianDP` with μ = 1/σ and p_B = 1 − p_A; negative below one half."""
    p_a = probabilities("p_a", p_a)
    return GaussianDP(1 / positive("sigma", noise)).radius(p_a, 1 - p_a)


def certify_smoothing(
    counts: npt.ArrayLike,
    noise: float,
    budget: ConfidenceBudget,
    selection: npt.ArrayLike | None = None,
) -> SmoothingCertificates:
    """Cohen's CERTIFY for many inputs.

    Args:
        counts: [points, classes], the predictions under input noise N(0, σ²I), σ = ``noise``.
        budget: with ``selection``, one interval is paid for at the whole budget; without, the
            label comes from the same votes and every class pays (α/L).
        selection: [points, classes], other, independent predictions that choose the label.

    Raises Misconfiguration: bad counts, other shapes, σ not above 0.
    """
    array = vote_counts(counts)
    total = int(array[0].sum())
    budget.require_classes(array.shape[1])
    if selection is None:
        labels, error = np.argmax(array, axis=1), budget.per_interval
    else:
        chosen = vote_counts(selection)
        if chosen.shape != array.shape:
            raise Misconfiguration(
                "selection", chosen.shape, f"same shape as the votes {array.shape}"
            )
        labels, error = np.argmax(chosen, axis=1), (1 - budget.confidence) / budget.points
    p_a = clopper_pearson_lower(array[np.arange(len(array)), labels], total, error)
    certified = p_a > 1 - p_a
    radius = np.where(certified, cohen_radius(p_a, noise), 0.0)
    return SmoothingCertificates(labels.astype(np.int64), certified, radius, p_a)


def average_certified_radius(radius: npt.ArrayLike, counted: npt.ArrayLike) -> float:
    """ACR (DP-CERT eq. 6): abstentions and wrong labels count as radius 0, over all points.

    ``counted`` as in ``certified_accuracy``.
    """
    return float(counted_radii(radius, counted).sum() / np.size(radius))
