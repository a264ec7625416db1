"""Lower bounds of ε from one training with many canaries, each put in by a fair coin.

An adversary guesses some of the coins. If the mechanism were as private as stated, more correct
guesses than counted would be rare, however the adversary guesses: whatever holds of the training,
the model or the scores, a bound that passes the stated ε refutes the statement.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from precad.common import checks
from precad.common.errors import Misconfiguration

TradeOff = Callable[[float], float]
"""f: least false negative rate by false positive rate, both in [0, 1]; convex and symmetric."""

_NORMAL = NormalDist()

_EPSILONS = (
    *(0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 1.7),
    *(1.9, 2.1, 2.3, 2.6, 2.9, 3.2, 3.5, 3.8, 4.2, 4.6, 5.0, 5.5, 6.0, 6.5, 7.0, 8.0, 10.0),
)


def gaussian(mu: float) -> TradeOff:
    """Trade-off of N(0, 1) against N(μ, 1); Dong, Roth and Su 2022, eq. (6)."""
    checks.positive("mu", mu, "distance in standard deviations")

    def f(alpha: float) -> float:
        if not 0.0 < alpha < 1.0:
            return 1.0 if alpha <= 0.0 else 0.0
        return _NORMAL.cdf(-_NORMAL.inv_cdf(alpha) - mu)

    return f


def from_profile(profile: dict[float, float]) -> TradeOff:
    """Trade-off of all (ε, δ) statements at once: the largest of their trade-offs, pointwise.

    ``profile`` has δ by ε ≥ 0. Fewer or larger ones give a smaller f: an audit refutes less.
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


_STEPS = 24


@dataclass(frozen=True, slots=True)
class Guesses:
    """How an adversary did.

    Attributes:
        canaries: m, each of which was in or out by a fair coin.
        made: r, how many coins it guessed; fixed before the scores were seen.
        correct: c, how many of the guesses were right.

    Raises Misconfiguration: 0 ≤ c ≤ r ≤ m and 1 ≤ r don't hold.
    """

    canaries: int
    made: int
    correct: int

    def __post_init__(self) -> None:
        checks.count("canaries", self.canaries, 1)
        if not 1 <= checks.count("guesses made", self.made) <= self.canaries:
            raise Misconfiguration(
                "guesses made", self.made, f"must be from 1 to the {self.canaries} canaries"
            )
        if checks.count("correct guesses", self.correct) > self.made:
            raise Misconfiguration("correct guesses", self.correct, f"only {self.made} were made")


def refutes(f: TradeOff, guesses: Guesses, significance: float) -> bool:
    """Whether so many correct guesses have a probability below ``significance`` under f-DP.

    Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run",
    Algorithm 3 for coins (k = 2). f, of one canary in or out, is what is stated; symmetric.
    """
    checks.inside_unit_interval("significance", significance)
    m, made, correct = guesses.canaries, guesses.made, guesses.correct
    right, wrong = significance * correct / m, significance * (made - correct) / m
    for i in range(correct - 1, -1, -1):
        # The inverse of 1 − f at `right`: by symmetry f(1 − right).
        allowed = max(wrong, f(1.0 - right))
        if allowed == wrong:
            break  # nor does anything move further down
        right = min(1.0, right + i / (made - i) * (allowed - wrong))
        wrong = allowed
    return right + wrong > made / m


def lower_bound(
    family: Callable[[float], TradeOff],
    guesses: Guesses,
    significance: float,
    most: float,
    *,
    least: float = 0.0,
    steps: int = _STEPS,
) -> float:
    """The largest parameter that is refuted, to within 2^−steps of the range; ``least`` if none is.

    ``family`` has f by its parameter, between ``least`` and ``most``, and falls as it grows: less
    private. ``significance`` is 1 − confidence; the range is halved ``steps`` times.
    """
    low, high = least, most
    if refutes(family(most), guesses, significance):
        return most
    for _ in range(steps):
        middle = (low + high) / 2
        if refutes(family(middle), guesses, significance):
            low = middle
        else:
            high = middle
    return low
