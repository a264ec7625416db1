"""Pictures of certificates: certified accuracy by radius, and loss bounds by attackers."""

from pathlib import Path

import numpy as np

from precad.common.certify.inputs import Booleans, Floats
from precad.common.certify.prediction import PredictionCertificates, certified_accuracy
from precad.common.certify.smoothing import SmoothingCertificates

_COLOURS = ("#1b5e8c", "#c8553d", "#3a7d44", "#7d5ba6", "#8a6d3b", "#444444")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))


def plot_certified_accuracy(
    path: Path,
    certificates: list[PredictionCertificates],
    correct: Booleans | None,
    unit: str,
    title: str,
) -> None:
    """One line a guarantee: the share of points certified at each radius.

    Args:
        path: the picture, its format by suffix.
        certificates: one a line, of the same points.
        correct: [points] bool where true labels are known, else None.
        unit: "records" or "clients", for the axis.
        title: one line.
    """
    # Slow to import, and needed only here.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    for i, one in enumerate(certificates):
        counted = one.certified if correct is None else one.certified & correct
        highest = int(one.radius[counted].max()) if counted.any() else 0
        radii = np.unique(np.linspace(0, highest + 1, 2000).astype(np.int64))
        share = 100 * certified_accuracy(one.radius, counted, radii)
        label = one.guarantee + (f", largest {highest}" if counted.any() else ", nothing certified")
        axes.step(
            radii,
            share,
            where="post",
            label=label,
            linewidth=3.0 if i == 0 else 1.5,
            color=_COLOURS[i % len(_COLOURS)],
            linestyle=_STYLES[i % len(_STYLES)],
        )
    axes.set_xlabel(f"radius: {unit} added or deleted")
    axes.set_ylabel("certified accuracy, %" if correct is not None else "points certified, %")
    axes.set_ylim(0, 102)
    axes.set_xlim(left=0)
    axes.set_title(title, fontsize=11, loc="left")
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def plot_loss_bounds(
    path: Path,
    *,
    attackers: Floats,
    lower: Floats,
    upper: Floats,
    expected: float,
    unit: str,
    title: str,
) -> None:
    """The band in which the expected loss stays, by number of attackers.

    Args:
        path: the picture, its format by suffix.
        attackers: [n].
        lower: [n].
        upper: [n].
        expected: the clean expected loss.
        unit: "records" or "clients", for the axis.
        title: one line.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.fill_between(attackers, lower, upper, color=_COLOURS[0], alpha=0.15, linewidth=0)
    axes.plot(attackers, upper, color=_COLOURS[1], label="at most")
    axes.plot(attackers, lower, color=_COLOURS[0], label="at least")
    axes.axhline(expected, color="#444444", linewidth=1, linestyle=":", label="clean")
    axes.set_xlabel(f"attackers: {unit} added or deleted")
    axes.set_ylabel("expected loss")
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def plot_smoothing(
    path: Path, certificates: SmoothingCertificates, counted: Booleans, *, known: bool, noise: float
) -> None:
    """Certified accuracy by ℓ2 radius.

    Args:
        path: the picture, its format by suffix.
        certificates: of all points.
        counted: [points] bool, certified and (where true labels are known) right.
        known: whether they are.
        noise: σ.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    radii = np.linspace(0, 1.05 * float(certificates.radius.max(initial=0.1)), 1000)
    share = 100 * certified_accuracy(certificates.radius, counted, radii)
    axes.plot(radii, share, color=_COLOURS[0], linewidth=1.8)
    axes.set_xlabel("radius: ℓ2 distance of the input")
    axes.set_ylabel("certified accuracy, %" if known else "points certified, %")
    axes.set_ylim(0, 102)
    axes.set_xlim(left=0)
    axes.set_title(f"Randomised smoothing, σ = {noise:g}", fontsize=11, loc="left")
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
