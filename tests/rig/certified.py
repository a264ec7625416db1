"""Certificates of one point and one loss, as the papers state them; what runs say for them."""

import numpy as np

from precad.certify import inefficacy, prediction
from precad.certify.guarantee import LARGEST_GROUP, Direction, GaussianDP, Guarantee
from precad.certify.intervals import Intervals

RUN_INPUTS = {
    "task_digest": "ab" * 32,
    "noise_multiplier": 30.0,
    "record_clip": 1.0,
    "effective_record_clip": 1.002,
    "client_clip": 20.0,
    "client_rate": 0.2,
    "record_rate": 0.1,
    "rounds": 30,
    "delta": 1e-5,
    "clients": 10,
    "malicious_submission_soundness_bits": 40,
}  # What a finished run's summary says for certificates


def certify_prediction(
    p_a: float, p_b: float, label: int, guarantee: Guarantee, limit: int = LARGEST_GROUP
) -> prediction.Result:
    """One point from known bounds on its scores."""
    one = Intervals(
        np.array([label]), np.array([p_a], dtype=float), np.array([p_b], dtype=float)
    )
    return prediction.certify_predictions(one, guarantee, limit=limit).results()[0]


def theorem_2(
    loss: float, bound: float, attackers: int, mu: float
) -> inefficacy.ScoreBounds:
    """PRECAD (6), (7) with the infimum over all real ε: B·Φ(Φ⁻¹(L/B) ± Kμ).

    The paper restricts ε to at least 0, which is loose or vacuous for large L (L = 0.9,
    B = 1, Kμ = 0.3 gives 1.019; here 0.943).
    """
    return inefficacy.attack_bounds(
        loss, bound, GaussianDP(mu), attackers, (Direction.ADDITIONS,)
    )
