"""The one certifier: guarantees as curves, and what follows from them (docs/certificates.md).

A guarantee (exact, Rényi, (ε, δ), Gaussian) bounds any score after k additions or deletions.
`certify_predictions`, `attack_bounds`, `fewest_attackers` and `certify_smoothing` are all that is
built on it. Pure mathematics: arrays and parameters in, arrays and results out.
"""

from precad.common.certify.approximate import ApproximateDP, xie_theorem_2
from precad.common.certify.exact import ExactGroups
from precad.common.certify.gaussian import GaussianDP
from precad.common.certify.guarantee import (
    BOTH,
    BestOf,
    Curves,
    Direction,
    Guarantee,
    Iterated,
    Replacements,
    ValidationAllowance,
    mixed,
)
from precad.common.certify.inefficacy import (
    attack_bounds,
    expected_loss,
    fewest_attackers,
    theorem_2,
)
from precad.common.certify.intervals import (
    ConfidenceBudget,
    Intervals,
    ScoreBound,
    score_intervals,
    simuem,
    votes_of,
)
from precad.common.certify.prediction import (
    PredictionCertificates,
    certified_accuracy,
    certify_prediction,
    certify_predictions,
)
from precad.common.certify.renyi import RenyiDP, RenyiGroups
from precad.common.certify.result import Abstained, Certified, Result
from precad.common.certify.smoothing import (
    average_certified_radius,
    certify_smoothing,
    cohen_radius,
    macer_hinge,
    psac_factor,
)

__all__ = [
    "BOTH",
    "Abstained",
    "ApproximateDP",
    "BestOf",
    "Certified",
    "ConfidenceBudget",
    "Curves",
    "Direction",
    "ExactGroups",
    "GaussianDP",
    "Guarantee",
    "Intervals",
    "Iterated",
    "PredictionCertificates",
    "RenyiDP",
    "RenyiGroups",
    "Replacements",
    "Result",
    "ScoreBound",
    "ValidationAllowance",
    "attack_bounds",
    "average_certified_radius",
    "certified_accuracy",
    "certify_prediction",
    "certify_predictions",
    "certify_smoothing",
    "cohen_radius",
    "expected_loss",
    "fewest_attackers",
    "macer_hinge",
    "mixed",
    "psac_factor",
    "score_intervals",
    "simuem",
    "theorem_2",
    "votes_of",
    "xie_theorem_2",
]
