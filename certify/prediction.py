"""Certified prediction: the largest k for which A stays ahead of every other label.

``lower_k(p_A) > upper_k(p_B)``, strictly, for additions and for deletions (Xie Thm 1,
2; Liu Thm 10 with ADP or RDP, votes or scores). Curves are monotone in k, so the
largest k is found by doubling and bisection; each group size's curves are made once for
all points.

What certifying a point can say is `Certified` or `Abstained`: never a radius of −1.
Test-time certificates by randomised smoothing (Cohen et al. 2019; DP-CERT eq. 6, 14)
say it too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from precad.certify import (
    BOTH,
    LARGEST_GROUP,
    ConfidenceBudget,
    Direction,
    GaussianDP,
    Guarantee,
    Intervals,
    clopper_pearson_lower,
    probabilities,
    require_guarantee,
    vote_counts,
)
from precad.common import (
    Booleans,
    Floats,
    Integers,
    Misconfiguration,
    frozen_dataclass,
    frozen_kw_only_dataclass,
)
from precad.common.checks import positive

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@frozen_kw_only_dataclass
class Certified:
    """The prediction stays ``label`` after any change of at most ``radius``."""

    label: int
    radius: int | float
    """A number of records or clients; at test time an ℓ2 distance."""
    additions: int | None = None
    """The radius against additions alone, where these were asked for."""
    deletions: int | None = None
    """The radius against deletions alone, where these were asked for."""


@frozen_dataclass
class Abstained:
    """Nothing is certified at this point, not even the clean prediction."""

    reason: str
    """Why, for people."""


Result = Certified | Abstained
"""What certifying one point can say."""


@frozen_kw_only_dataclass
class PredictionCertificates:
    """Certificates of many points, as arrays of [points].

    `results` gives them one by one.
    """

    guarantee: str
    """The guarantee's name."""
    labels: Integers
    """The predicted labels."""
    certified: Booleans
    """Where the radii are meaningful; elsewhere the point abstains."""
    radii: dict[Direction, Integers]
    """The certified radii by direction, where that was asked for."""

    @property
    def radius(self) -> Integers:
        """Return the least radius over directions, [points] int64."""
        return np.asarray(np.min(list(self.radii.values()), axis=0), np.int64)

    def results(self) -> list[Result]:
        """Return one `Certified` or `Abstained` a point, in order."""
        reason = "the confidence bounds do not separate the top label from the next"
        against = {direction.value: radii for direction, radii in self.radii.items()}
        return _results(self, reason, **against)


def largest_group(
    holds: Callable[[int, Integers], Booleans], points: int, limit: int = LARGEST_GROUP
) -> Integers:
    """Return for each point the largest k ≤ ``limit`` that holds, [points] int64.

    Args:
        holds: Tells of (k, indices of points) whether k holds at each of these points.
            It is monotone in k, and all points hold at k = 0.
        points: How many points there are.
        limit: The largest k that is asked for.
    """
    # By point, the largest k that is known to hold, and the least that doesn't.
    held = np.zeros(points, np.int64)
    failed = np.full(points, limit + 1, np.int64)
    # Points with the same k are asked together.
    while True:
        undecided = np.flatnonzero(failed - held > 1)
        if not len(undecided):
            return held
        low = held[undecided]
        high = failed[undecided]
        # Doubling until one fails, then bisection.
        doubled = np.clip(2 * low, 1, limit)
        tried = np.where(high > limit, doubled, (low + high) // 2)
        for k in np.unique(tried):
            asked = undecided[tried == k]
            answer = holds(int(k), asked)
            held[asked[answer]] = k
            failed[asked[~answer]] = k


def certify_predictions(
    intervals: Intervals,
    guarantee: Guarantee,
    directions: tuple[Direction, ...] = BOTH,
    limit: int = LARGEST_GROUP,
) -> PredictionCertificates:
    """Return the certified radius of every point under one guarantee.

    ``intervals`` bound the scores on the clean data; radii are searched up to
    ``limit``. Raises Misconfiguration: no direction, a score outside [0, 1], or a
    reproduction for a guarantee.
    """
    require_guarantee(guarantee)
    if not directions:
        raise Misconfiguration(
            "directions", directions, "give additions, deletions or both"
        )
    p_a = probabilities("p_a", intervals.p_a)
    p_b = probabilities("p_b", intervals.p_b)
    certified = p_a > p_b
    # Few distinct pairs among many points: each is searched once.
    pairs, pair_of_point = np.unique(
        np.stack([p_a, p_b], axis=1)[certified], axis=0, return_inverse=True
    )
    radii = {direction: np.zeros(len(p_a), np.int64) for direction in directions}
    for direction, radius in radii.items():

        def holds(k: int, i: Integers, direction: Direction = direction) -> Booleans:
            return guarantee.curves(k, direction).separates(pairs[i, 0], pairs[i, 1])

        of_pairs = largest_group(holds, len(pairs), limit)
        radius[certified] = of_pairs[pair_of_point.ravel()]
    return PredictionCertificates(
        guarantee=guarantee.name,
        labels=intervals.labels,
        certified=certified,
        radii=radii,
    )


def counted_radii(radius: npt.ArrayLike, counted: npt.ArrayLike) -> Floats:
    """Return the radii of the points at which ``counted`` is true, as float64.

    Raises Misconfiguration: the two have other shapes, or no points.
    """
    radius = np.asarray(radius, np.float64)
    counted = np.asarray(counted, bool)
    if radius.shape != counted.shape or not radius.size:
        raise Misconfiguration(
            "radius", radius.shape, f"same shape as the mask {counted.shape}, not 0"
        )
    return np.asarray(radius[counted])


def certified_accuracy(
    radius: npt.ArrayLike, counted: npt.ArrayLike, at: npt.ArrayLike
) -> Floats:
    """Return the share of all points that are counted and hold at each radius ``at``.

    Points are ``counted``, [points] bool, where they are certified, and right where
    true labels are known; ``radius`` is [points]. Returns [radii] float64. Raises
    Misconfiguration: as ``counted_radii``.
    """
    sorted_radii = np.sort(counted_radii(radius, counted))
    at = np.atleast_1d(np.asarray(at, np.float64))
    smaller = np.searchsorted(sorted_radii, at, side="left")
    return (len(sorted_radii) - smaller) / np.size(radius)


@frozen_kw_only_dataclass
class SmoothingCertificates:
    """ℓ2 radii of many inputs; all are [points]."""

    labels: Integers
    """The predicted labels."""
    certified: Booleans
    """Where the radius is meaningful; elsewhere the point abstains."""
    radius: Floats
    """In the inputs' units; 0 where the point abstains."""
    p_a: Floats
    """Lower bound on the top class's probability under noise."""

    def results(self) -> list[Result]:
        """Return one `Certified` or `Abstained` a point, in order."""
        reason = "the top class isn't more likely than all others together"
        return _results(self, reason)


def _results(
    certificates: PredictionCertificates | SmoothingCertificates,
    reason: str,
    **against: Integers,
) -> list[Result]:
    """Return what is said of each point, in order; ``reason`` is why points abstain.

    ``against`` are radii by further fields of ``Certified``.
    """
    fields = {
        "label": certificates.labels,
        "radius": certificates.radius,
        **against,
    }
    points = zip(*(values.tolist() for values in fields.values()), strict=True)
    return [
        Certified(**dict(zip(fields, point, strict=True)))
        if certified
        else Abstained(reason)
        for certified, point in zip(certificates.certified, points, strict=True)
    ]


def certify_smoothing(
    counts: npt.ArrayLike,
    noise: float,
    budget: ConfidenceBudget,
    selection: npt.ArrayLike | None = None,
) -> SmoothingCertificates:
    """Certify many inputs by Cohen's CERTIFY: a radius of σ·Φ⁻¹(p_A).

    Raises Misconfiguration: bad counts, other shapes, σ not above 0.

    Args:
        counts: [points, classes], the predictions under input noise N(0, σ²I).
        noise: σ, in the inputs' units.
        budget: The confidence of each statement, or of all together.
        selection: Like ``counts``, independent predictions that choose the label: then
            one interval is paid for at the whole budget. Without it the label comes
            from the same votes, and every class pays (α/L).
    """
    array = vote_counts(counts)
    votes = int(array[0].sum())
    budget.require_classes(array.shape[1])
    if selection is None:
        labels = np.argmax(array, axis=1)
        error = budget.per_interval
    else:
        choosing = vote_counts(selection)
        if choosing.shape != array.shape:
            raise Misconfiguration(
                "selection", choosing.shape, f"same shape as the votes {array.shape}"
            )
        labels = np.argmax(choosing, axis=1)
        error = (1 - budget.confidence) / budget.points
    votes_for_label = array[np.arange(len(array)), labels]
    p_a = clopper_pearson_lower(votes_for_label, votes, error)
    certified = p_a > 1 - p_a
    # `GaussianDP` with μ = 1/σ and p_B = 1 − p_A; negative below one half.
    cohen = GaussianDP(1 / positive("sigma", noise)).radius(p_a, 1 - p_a)
    return SmoothingCertificates(
        labels=labels.astype(np.int64),
        certified=certified,
        radius=np.where(certified, cohen, 0.0),
        p_a=p_a,
    )


def average_certified_radius(radius: npt.ArrayLike, counted: npt.ArrayLike) -> float:
    """Return ACR (DP-CERT eq. 6): the mean radius, 0 where a point isn't ``counted``.

    Raises Misconfiguration: as ``counted_radii``.
    """
    return float(counted_radii(radius, counted).sum() / np.size(radius))


# Pictures: certified accuracy by radius.

COLOURS = ("#1b5e8c", "#c8553d", "#3a7d44", "#7d5ba6", "#8a6d3b", "#444444")
"""Colours of lines, in the order in which they are used."""
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
"""Styles of lines, so that they differ without colours too."""


@contextmanager
def picture(
    path: Path,
    *,
    title: str,
    x: str,
    y: str,
) -> Iterator["Axes"]:
    """Yield axes to draw on; the picture is written when the block ends.

    Its format is chosen by the suffix of ``path``; ``x`` and ``y`` name the axes.
    """
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
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _accuracy_name(*, known: bool) -> str:
    """Return what a share of points is called, by whether true labels are known."""
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
    """Draw the share of points certified at each radius, one line a guarantee.

    Args:
        path: Where the picture is written; its suffix chooses the format.
        certificates: Those of one guarantee each, all of the same points.
        correct: [points] bool, True everywhere where true labels aren't known.
        known: Whether true labels are known.
        unit: What a radius counts, in the plural.
        title: The picture's title.
    """
    with picture(
        path,
        title=title,
        x=f"radius: {unit} added or deleted",
        y=_accuracy_name(known=known),
    ) as axes:
        axes.set_prop_cycle(color=COLOURS, linestyle=_STYLES)
        for i, of_guarantee in enumerate(certificates):
            counted = of_guarantee.certified & correct
            highest = 0
            largest = "nothing certified"
            if counted.any():
                highest = int(of_guarantee.radius[counted].max())
                largest = f"largest {highest}"
            radii = np.unique(np.linspace(0, highest + 1, 2000).astype(np.int64))
            share = 100 * certified_accuracy(of_guarantee.radius, counted, radii)
            axes.step(
                radii,
                share,
                where="post",
                linewidth=1.5 if i else 3.0,
                label=f"{of_guarantee.guarantee}, {largest}",
            )
        axes.set_ylim(0, 102)


def plot_smoothing(
    path: Path,
    certificates: SmoothingCertificates,
    counted: Booleans,
    *,
    known: bool,
    noise: float,
) -> None:
    """Draw certified accuracy by ℓ2 radius.

    Args:
        path: Where the picture is written; its suffix chooses the format.
        certificates: The inputs' certificates.
        counted: [points] bool, as in ``certified_accuracy``.
        known: Whether true labels are known.
        noise: σ of the input noise, in the inputs' units.
    """
    with picture(
        path,
        title=f"Randomised smoothing, σ = {noise:g}",
        x="radius: ℓ2 distance of the input",
        y=_accuracy_name(known=known),
    ) as axes:
        radii = np.linspace(0, 1.05 * float(certificates.radius.max(initial=0.1)), 1000)
        share = 100 * certified_accuracy(certificates.radius, counted, radii)
        axes.plot(radii, share, color=COLOURS[0], linewidth=1.8)
        axes.set_ylim(0, 102)
