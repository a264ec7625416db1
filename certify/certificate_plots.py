"""Pictures of certificates: certified accuracy by radius, and loss bounds by attackers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from precad.certify.curves import Booleans, Floats
from precad.certify.prediction import (
    PredictionCertificates,
    SmoothingCertificates,
    certified_accuracy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#1b5e8c", "#c8553d", "#3a7d44", "#7d5ba6", "#8a6d3b", "#444444")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))


@contextmanager
def _picture(path: Path, *, title: str, x: str, y: str) -> Iterator["Axes"]:
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
    """What a share of points is, with or without their true labels."""
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
    with _picture(path, title=title, x=f"radius: {unit} added or deleted", y=name) as axes:
        for i, one in enumerate(certificates):
            counted = one.certified & correct
            highest = int(one.radius[counted].max()) if counted.any() else 0
            radii = np.unique(np.linspace(0, highest + 1, 2000).astype(np.int64))
            largest = f"largest {highest}" if counted.any() else "nothing certified"
            axes.step(
                radii,
                100 * certified_accuracy(one.radius, counted, radii),
                where="post",
                label=f"{one.guarantee}, {largest}",
                linewidth=3.0 if i == 0 else 1.5,
                color=_COLOURS[i % len(_COLOURS)],
                linestyle=_STYLES[i % len(_STYLES)],
            )
        axes.set_ylim(0, 102)


def plot_loss_bounds(
    path: Path, attackers: Floats, lower: Floats, upper: Floats, *, expected: float, unit: str
) -> None:
    """The band in which the expected loss stays, by number of attackers; [n] float64 each."""
    title = f"What so many attackers can do to an expected loss of {expected:.3g}"
    x = f"attackers: {unit} added or deleted"
    with _picture(path, title=title, x=x, y="expected loss") as axes:
        axes.fill_between(attackers, lower, upper, color=_COLOURS[0], alpha=0.15, linewidth=0)
        axes.plot(attackers, upper, color=_COLOURS[1], label="at most")
        axes.plot(attackers, lower, color=_COLOURS[0], label="at least")
        axes.axhline(expected, color="#444444", linewidth=1, linestyle=":", label="clean")
        axes.set_ylim(bottom=0)


def plot_smoothing(
    path: Path, certificates: SmoothingCertificates, counted: Booleans, *, known: bool, noise: float
) -> None:
    """Certified accuracy by ℓ2 radius.

    ``counted`` is [points] bool: certified and, where true labels are ``known``, right.
    """
    title, x = f"Randomised smoothing, σ = {noise:g}", "radius: ℓ2 distance of the input"
    with _picture(path, title=title, x=x, y=_share_name(known=known)) as axes:
        radii = np.linspace(0, 1.05 * float(certificates.radius.max(initial=0.1)), 1000)
        share = 100 * certified_accuracy(certificates.radius, counted, radii)
        axes.plot(radii, share, color=_COLOURS[0], linewidth=1.8)
        axes.set_ylim(0, 102)
