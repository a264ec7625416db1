"""How DP-CERT trains for randomised smoothing; no training of this system does."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from precad.common.certify.inputs import Booleans, Floats, probabilities
from precad.common.checks import positive
from precad.common.errors import Misconfiguration


@dataclass(frozen=True, slots=True)
class Hinge:
    """MACER's robustness loss, and where it applies.

    Attributes:
        value: [points] float64, 0 where it doesn't apply.
        margin: [points] float64, Φ⁻¹(p_y) − Φ⁻¹(p_other).
        applies: [points] bool, whether the smoothed prediction is right.
    """

    value: Floats
    margin: Floats
    applies: Booleans


def macer_hinge(p_true: npt.ArrayLike, p_runner_up: npt.ArrayLike, gamma: float) -> Hinge:
    """max(0, γ − (Φ⁻¹(p_y) − Φ⁻¹(p_{ŷ≠y}))), DP-CERT eq. (14), with its mask.

    The printed equation leaves out that it is defined on right predictions only; on wrong ones
    it would reward confidence in a mistake's repair by another term's job.
    """
    p_true, p_other = probabilities("p_true", p_true), probabilities("p_runner_up", p_runner_up)
    with np.errstate(invalid="ignore"):
        margin = np.asarray(ndtri(p_true) - ndtri(p_other))
    applies = np.asarray(p_true > p_other)
    hinge = np.maximum(0.0, positive("gamma", gamma) - margin)
    return Hinge(np.where(applies, hinge, 0.0), margin, applies)


def psac_factor(gradient_norm: npt.ArrayLike, clip: float, stabiliser: float) -> Floats:
    """Per-sample adaptive clipping (DP-CERT eq. 9): C/(‖g‖ + r/(‖g‖ + r)).

    The clipped norm is below C for every gradient, so C stays the sensitivity.
    """
    norm = np.asarray(gradient_norm, dtype=np.float64)
    if not (np.isfinite(norm).all() and (norm >= 0).all()):
        raise Misconfiguration(
            "gradient_norm", "negative or NaN", "give finite norms of at least 0"
        )
    r = positive("r", stabiliser)
    return np.asarray(positive("C", clip) / (norm + r / (norm + r)))
