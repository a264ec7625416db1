"""Certificates of one point and one loss, as the papers state them."""

import numpy as np

from precad.certify.guarantee import Direction, GaussianDP, Guarantee
from precad.certify.inefficacy import ScoreBounds, attack_bounds
from precad.certify.intervals import Intervals
from precad.certify.prediction import LARGEST_GROUP, Result, certify_predictions


def certify_prediction(
    p_a: float, p_b: float, label: int, guarantee: Guarantee, limit: int = LARGEST_GROUP
) -> Result:
    """One point from known bounds on its scores."""
    one = Intervals(np.array([label]), np.array([p_a], dtype=float), np.array([p_b], dtype=float))
    return certify_predictions(one, guarantee, limit=limit).results()[0]


def theorem_2(loss: float, bound: float, attackers: int, mu: float) -> ScoreBounds:
    """PRECAD (6), (7) with the infimum over all real ε: B·Φ(Φ⁻¹(L/B) ± Kμ).

    The paper restricts ε to at least 0, which is loose or vacuous for large L (L = 0.9, B = 1,
    Kμ = 0.3 gives 1.019; here 0.943).
    """
    return attack_bounds(loss, bound, GaussianDP(mu), attackers, (Direction.ADDITIONS,))
