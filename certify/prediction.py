"""Certified prediction: the largest k for which A stays ahead of every other label.

``lower_k(p_A) > upper_k(p_B)``, strictly, for additions and for deletions (Xie Thm 1,
2; Liu Thm 10 with ADP or RDP, votes or scores). Curves are monotone in k, so the
largest k is found by doubling and bisection; each group size's curves are made once for
all points.

What certifying a point can say is `Certified` or `Abstained`: never a radius of −1.
Test-time certificates by randomised smoothing (Cohen et al. 2019; DP-CERT eq. 6, 14)
say it too.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from precad.certify.guarantee import (
    BOTH,
    LARGEST_GROUP,
    Booleans,
    Direction,
    Floats,
    GaussianDP,
    Guarantee,
    Integers,
    probabilities,
    require_guarantee,
)
from precad.certify.intervals import (
    ConfidenceBudget,
    Intervals,
    clopper_pearson_lower,
    vote_counts,
)
from precad.common.checks import count, positive
from precad.common.errors import Misconfiguration

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """The prediction stays ``label`` after any change of at most ``radius``.

    That is a number of records or clients (test-time: an ℓ2 distance); beside it what
    holds against ``additions`` and ``deletions`` alone, where asked.
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


def _results(
    why: str, sure: Booleans, columns: Mapping[str, npt.NDArray[Any]]
) -> list[Result]:
    """One result a point, from columns of ``Certified``'s fields."""
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [
        Certified(**dict(zip(columns, row, strict=True))) if ok else Abstained(why)
        for row, ok in zip(rows, sure, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionCertificates:
    """Certificates of many points, as arrays of [points]; `results` gives them one by one.

    ``radii`` are by direction, and meaningful where ``certified``; elsewhere the point
    abstains.
    """

    guarantee: str
    labels: Integers
    certified: Booleans
    radii: dict[Direction, Integers]

    @property
    def radius(self) -> Integers:
        """[points] int64: the least over directions."""
        return np.asarray(np.min(list(self.radii.values()), axis=0), dtype=np.int64)

    def results(self) -> list[Result]:
        """One `Certified` or `Abstained` a point, in order."""
        absent = np.full(len(self.labels), None)
        additions, deletions = (self.radii.get(each, absent) for each in BOTH)
        columns = {
            "label": self.labels,
            "radius": self.radius,
            "additions": additions,
            "deletions": deletions,
        }
        reason = "the confidence bounds do not separate the top label from the next"
        return _results(reason, self.certified, columns)


def largest_group(
    holds: Callable[[int, Integers], Booleans], points: int, limit: int = LARGEST_GROUP
) -> Integers:
    """For each point the largest k ≤ ``limit`` with ``holds``, which is monotone in k.

    ``holds`` tells the answers of (k, indices of points); all of the [points] hold at k
    = 0.
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

    Raises Misconfiguration.
    """
    require_guarantee(guarantee)
    if not directions:
        raise Misconfiguration(
            "directions", directions, "give additions, deletions or both"
        )
    count("limit", limit)
    p_a = probabilities("p_a", intervals.p_a)
    p_b = probabilities("p_b", intervals.p_b)
    certified = p_a > p_b
    # Few distinct pairs among many points: each is searched once.
    pairs, back = np.unique(
        np.stack([p_a, p_b], axis=1)[certified], axis=0, return_inverse=True
    )
    radii = {direction: np.zeros(len(p_a), dtype=np.int64) for direction in directions}
    for direction, radius in radii.items():

        def holds(k: int, i: Integers, direction: Direction = direction) -> Booleans:
            return guarantee.curves(k, direction).separates(pairs[i, 0], pairs[i, 1])

        radius[certified] = largest_group(holds, len(pairs), limit)[back.ravel()]
    return PredictionCertificates(
        guarantee=guarantee.name,
        labels=intervals.labels,
        certified=certified,
        radii=radii,
    )


def counted_radii(radius: npt.ArrayLike, counted: npt.ArrayLike) -> Floats:
    """The radii where ``counted`` holds.

    Raises Misconfiguration: other shapes, or no points.
    """
    radius = np.asarray(radius, dtype=np.float64)
    counted = np.asarray(counted, dtype=bool)
    if radius.shape != counted.shape or not radius.size:
        remedy = f"same shape as the mask {counted.shape}, not 0"
        raise Misconfiguration("radius", radius.shape, remedy)
    return np.asarray(radius[counted])


def certified_accuracy(
    radius: npt.ArrayLike, counted: npt.ArrayLike, at: npt.ArrayLike
) -> Floats:
    """Share of points ``counted`` (certified, and right where known) that hold at each radius."""
    held = np.sort(counted_radii(radius, counted))
    at = np.atleast_1d(np.asarray(at, dtype=np.float64))
    return np.asarray(
        (len(held) - np.searchsorted(held, at, side="left")) / np.size(radius)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothingCertificates:
    """ℓ2 radii of many inputs; all are [points]."""

    labels: Integers
    certified: Booleans
    radius: Floats
    """In the inputs' units; 0 where the point abstains."""
    p_a: Floats
    """Lower bound on the top class's probability under noise."""

    def results(self) -> list[Result]:
        """One `Certified` or `Abstained` a point, in order."""
        reason = "the top class isn't more likely than all others together"
        columns = {"label": self.labels, "radius": self.radius}
        return _results(reason, self.certified, columns)


def certify_smoothing(
    counts: npt.ArrayLike,
    noise: float,
    budget: ConfidenceBudget,
    selection: npt.ArrayLike | None = None,
) -> SmoothingCertificates:
    """Cohen's CERTIFY for many inputs: a radius of σ·Φ⁻¹(p_A).

    ``counts`` are [points, classes], the predictions under input noise N(0, σ²I), σ =
    ``noise``. ``selection``, alike, are independent predictions that choose the label:
    then one interval is paid for at the whole budget; without, the label comes from the
    same votes and every class pays (α/L). Raises Misconfiguration: bad counts, other
    shapes, σ not above 0.
    """
    array = vote_counts(counts)
    total = int(array[0].sum())
    budget.require_classes(array.shape[1])
    if selection is None:
        labels = np.argmax(array, axis=1)
        error = budget.per_interval
    else:
        chosen = vote_counts(selection)
        if chosen.shape != array.shape:
            remedy = f"same shape as the votes {array.shape}"
            raise Misconfiguration("selection", chosen.shape, remedy)
        labels = np.argmax(chosen, axis=1)
        error = (1 - budget.confidence) / budget.points
    p_a = clopper_pearson_lower(array[np.arange(len(array)), labels], total, error)
    certified = p_a > 1 - p_a
    # `GaussianDP` with μ = 1/σ and p_B = 1 − p_A; negative below one half.
    cohen = GaussianDP(1 / positive("sigma", noise)).radius(p_a, 1 - p_a)
    radius = np.where(certified, cohen, 0.0)
    return SmoothingCertificates(
        labels=labels.astype(np.int64),
        certified=certified,
        radius=radius,
        p_a=p_a,
    )


def average_certified_radius(radius: npt.ArrayLike, counted: npt.ArrayLike) -> float:
    """ACR (DP-CERT eq. 6): what isn't ``counted`` has radius 0, over all points."""
    return float(counted_radii(radius, counted).sum() / np.size(radius))


# Pictures: certified accuracy by radius.

COLOURS = ("#1b5e8c", "#c8553d", "#3a7d44", "#7d5ba6", "#8a6d3b", "#444444")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))


@contextmanager
def picture(
    path: Path,
    *,
    title: str,
    x: str,
    y: str,
) -> Iterator["Axes"]:
    """Axes to draw on; the picture, its format by suffix, is written when the block ends."""
    # Slow to import, and needed only here.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    yield axes
    axes.set_xlim(left=0)
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _share_name(*, known: bool) -> str:
    return "certified accuracy, %" if known else "points certified, %"


def plot_certified_accuracy(
    path: Path,
    certificates: list[PredictionCertificates],
    correct: Booleans,
    *,
    known: bool,
    unit: str,
    title: str,
) -> None:
    """One line a guarantee: the share of points certified at each radius.

    ``correct`` is [points] bool, True everywhere where true labels aren't ``known``.
    """
    name = _share_name(known=known)
    with picture(
        path,
        title=title,
        x=f"radius: {unit} added or deleted",
        y=name,
    ) as axes:
        for i, one in enumerate(certificates):
            counted = one.certified & correct
            highest = int(one.radius[counted].max()) if counted.any() else 0
            radii = np.unique(np.linspace(0, highest + 1, 2000).astype(np.int64))
            largest = f"largest {highest}" if counted.any() else "nothing certified"
            share = 100 * certified_accuracy(one.radius, counted, radii)
            (line,) = axes.step(
                radii, share, where="post", label=f"{one.guarantee}, {largest}"
            )
            line.set(
                color=COLOURS[i % len(COLOURS)], linestyle=_STYLES[i % len(_STYLES)]
            )
            line.set_linewidth(1.5 if i else 3.0)
        axes.set_ylim(0, 102)


def plot_smoothing(
    path: Path,
    certificates: SmoothingCertificates,
    counted: Booleans,
    *,
    known: bool,
    noise: float,
) -> None:
    """Certified accuracy by ℓ2 radius; ``counted`` as in ``certified_accuracy``."""
    title = f"Randomised smoothing, σ = {noise:g}"
    x = "radius: ℓ2 distance of the input"
    with picture(
        path,
        title=title,
        x=x,
        y=_share_name(known=known),
    ) as axes:
        radii = np.linspace(0, 1.05 * float(certificates.radius.max(initial=0.1)), 1000)
        share = 100 * certified_accuracy(certificates.radius, counted, radii)
        axes.plot(radii, share, color=COLOURS[0], linewidth=1.8)
        axes.set_ylim(0, 102)
