"""Trade-off functions: the best errors with which an adversary tells two neighbours apart."""

import math
from collections.abc import Callable
from statistics import NormalDist

from precad.common import checks

TradeOff = Callable[[float], float]
"""f: least false negative rate by false positive rate, both in [0, 1]; convex and symmetric."""

_NORMAL = NormalDist()

_EPSILONS = (
    *(0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 1.7),
    *(1.9, 2.1, 2.3, 2.6, 2.9, 3.2, 3.5, 3.8, 4.2, 4.6, 5.0, 5.5, 6.0, 6.5, 7.0, 8.0, 10.0),
)


def gaussian(mu: float) -> TradeOff:
    """Trade-off of N(0, 1) against N(μ, 1); Dong, Roth and Su 2022, eq. (6).

    Raises:
        Misconfiguration: μ isn't positive.
    """
    checks.positive("mu", mu, "distance in standard deviations")

    def f(alpha: float) -> float:
        if not 0.0 < alpha < 1.0:
            return 1.0 if alpha <= 0.0 else 0.0
        return _NORMAL.cdf(-_NORMAL.inv_cdf(alpha) - mu)

    return f


def approximate(epsilon: float, delta: float) -> TradeOff:
    """Trade-off of an (ε, δ) statement alone; Dong, Roth and Su 2022, eq. (5)."""
    return from_profile({epsilon: delta})


def from_profile(profile: dict[float, float]) -> TradeOff:
    """Trade-off of all (ε, δ) statements at once: the largest of their trade-offs, pointwise.

    Args:
        profile: δ by ε ≥ 0, each an upper bound. Fewer or larger ones give a smaller f, so that an
            audit against it refutes less, never more.

    Raises:
        Misconfiguration: an ε is negative or not finite.
    """
    lines = []
    for epsilon, delta in profile.items():
        checks.epsilon(epsilon)
        kept = 1.0 - min(max(delta, 0.0), 1.0)
        lines += [(kept, math.exp(epsilon)), (math.exp(-epsilon) * kept, math.exp(-epsilon))]

    def f(alpha: float) -> float:
        return max(0.0, *(height - slope * alpha for height, slope in lines))

    return f


def of_statement(delta_of_epsilon: Callable[[float], float]) -> TradeOff:
    """Trade-off of a mechanism whose δ at any ε an accountant bounds."""
    return from_profile({epsilon: delta_of_epsilon(epsilon) for epsilon in _EPSILONS})
