"""Test-time certificates by randomised smoothing (Cohen et al. 2019; DP-CERT eq. 6, 14)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from precad.certify.closed_form import GaussianDP
from precad.certify.curves import Booleans, Floats, Integers, probabilities
from precad.certify.intervals import ConfidenceBudget, clopper_pearson_lower, vote_counts
from precad.certify.prediction import Abstained, Certified, Result, counted_radii
from precad.common.checks import positive
from precad.common.errors import Misconfiguration


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
        return [
            Certified(int(label), float(radius))
            if ok
            else Abstained("the top class isn't more likely than all others together")
            for label, ok, radius in zip(self.labels, self.certified, self.radius, strict=True)
        ]


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
        counts: [points, classes], the predictions under input noise N(0, σ²I).
        noise: σ.
        budget: with ``selection``, one interval is paid for at the whole budget; without, the
            label comes from the same votes and every class pays (α/L).
        selection: [points, classes], other, independent predictions that choose the label.

    Raises:
        Misconfiguration: bad counts, other shapes, σ not above 0.
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

    Args:
        radius: [points]; ignored where not counted.
        counted: [points] bool, certified and right.
    """
    return float(counted_radii(radius, counted).sum() / np.size(radius))
