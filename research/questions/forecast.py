"""An answer's error before it is asked, and the ε for a wished error.

An interval is a function of the released sums alone. So its width at the sums of a
*guessed* table, without noise in them but with the noise stated, is the forecast. It
needs no data: guesses are the asker's, such as how many positives there are.
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from research.questions.block import Floats
from research.questions.interval import Interval
from research.questions.release import noise_multiplier

LEAST_EPSILON = 1e-3
MOST_EPSILON = 50.0

Answer = Callable[[Floats, float], Interval]
"""Makes an interval of sums, ``[1, d]``, and the noise's deviation."""


def half_width(answer: Answer, guessed: Floats, noise: float) -> float:
    """Return the forecast half width, the mean over the answer's parts.

    Args:
        answer: Makes the interval.
        guessed: The guessed table's sums, ``[d]``.
        noise: Standard deviation of the released sums.
    """
    found = answer(guessed[None, :], noise)
    return float(np.mean((found.high - found.low) / 2))


def epsilon_for(
    answer: Answer,
    guessed: Floats,
    *,
    wished: float,
    noise_at_unit: float,
    delta: float,
) -> float | None:
    """Return the least ε whose forecast half width is the wished one.

    None: no ε of at most 50 gives it.

    Args:
        answer: Makes the interval.
        guessed: The guessed table's sums, ``[d]``.
        wished: Half width, in the answer's own scale.
        noise_at_unit: Deviation of the released sums at σ = 1: √2·Δ_j/a_j.
        delta: δ.
    """

    def excess(epsilon: float) -> float:
        noise = noise_multiplier(epsilon, delta) * noise_at_unit
        return half_width(answer, guessed, noise) - wished

    if excess(MOST_EPSILON) > 0:
        return None
    if excess(LEAST_EPSILON) <= 0:
        return LEAST_EPSILON
    return float(brentq(excess, LEAST_EPSILON, MOST_EPSILON, rtol=1e-4))
