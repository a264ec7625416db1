"""Intervals: by inverting an answer's own test, alone or together with others."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from research.questions.block import Floats

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An answer of each of many releases, ``[draws, …] float64`` all three."""

    estimate: Floats
    low: Floats
    high: Floats

    def covers(self, truth: Floats | float) -> Floats:
        """Return 1 where the truth is inside, else 0; shape of the answer."""
        # Rounding at an end that is the truth itself, such as 0 records.
        slack = 1e-12 * np.maximum(1.0, np.abs(truth))
        inside = (self.low - slack <= truth) & (truth <= self.high + slack)
        return inside.astype(np.float64)


def deviations(answers: int = 1, level: float = LEVEL) -> float:
    """Return z: so many answers are all inside ±z deviations with this chance at least.

    Šidák's inequality: for two-sided intervals of Gaussian noise independent answers
    are the worst case, whatever their correlation. The answers count, not the released
    numbers behind them.
    """
    return float(norm.ppf((1 + level ** (1 / answers)) / 2))


def around(
    estimate: Floats, deviation: Floats | float, *, z: float, most: float
) -> Interval:
    """Return ± z deviations of a linear answer, held to [0, most]."""
    return Interval(
        estimate=np.clip(estimate, 0, most),
        low=np.clip(estimate - z * deviation, 0, most),
        high=np.clip(estimate + z * deviation, 0, most),
    )
