"""How far k records or clients shift one round's noisy sum."""

import math
from dataclasses import dataclass

import numpy as np

from precad.certify.inputs import Floats
from precad.common.checks import count


@dataclass(frozen=True, slots=True)
class Shift:
    """Distribution of the shift of one round's sum, in contribution bounds.

    Attributes:
        sizes: [m] float64, increasing, at least 0.
        log_weights: [m] float64, natural logarithms of the probabilities.
        dropped: probability of shifts that were left out; the user of this class must count that
            much mass as telling the two cases apart with certainty.
    """

    sizes: Floats
    log_weights: Floats
    dropped: float = 0.0


def log_ratio(x: Floats, shift: Shift, noise: float) -> Floats:
    """[n] float64: L(x) = ln Σ_i w_i e^{(2ix − i²)/(2σ²)}, the log-ratio of P to Q at ``x`` [n].

    P = Σ w_i N(i, σ²) is one round's sum with the group, Q = N(0, σ²) without; L is increasing.
    """
    exponents = _exponents(x, shift, noise)
    top = exponents.max(axis=1)
    return np.asarray(top + np.log(np.exp(exponents - top[:, None]).sum(axis=1)))


def log_ratio_slope(x: Floats, shift: Shift, noise: float) -> tuple[Floats, Floats]:
    """L(x) as `log_ratio` gives it, and its derivative; both [n] float64."""
    exponents = _exponents(x, shift, noise)
    top = exponents.max(axis=1)
    weights = np.exp(exponents - top[:, None])
    total = weights.sum(axis=1)
    return top + np.log(total), (weights @ shift.sizes) / (total * noise**2)


def _exponents(x: Floats, shift: Shift, noise: float) -> Floats:
    scaled = np.outer(x / noise**2, shift.sizes)
    scaled += shift.log_weights - shift.sizes**2 / (2 * noise**2)
    return scaled


def log_binomial(k: int, probability: float) -> Floats:
    """[k + 1] float64: log Pr[Bin(k, probability) = i]."""
    count("k", k)
    if probability in (0.0, 1.0):
        weights = np.full(k + 1, -np.inf)
        weights[round(k * probability)] = 0.0
        return weights
    # Sums of the ratios' logarithms, outwards from the mode: near it every weight is right to
    # rounding, and T rounds multiply what isn't (gammaln would cost four digits at k = 500).
    i = np.arange(k, dtype=np.float64)
    ratios = np.log((k - i) / (i + 1)) + (math.log(probability) - math.log1p(-probability))
    mode = min(int((k + 1) * probability), k)
    below = np.cumsum(-ratios[:mode][::-1])[::-1]
    weights = np.concatenate([below, [0.0], np.cumsum(ratios[mode:])])
    return np.asarray(weights - math.log(float(np.exp(weights).sum())))


def group_shift(k: int, probability: float, drop_below: float = -46.0) -> Shift:
    """Bin(k, q) unit contributions: k records of one direction, each drawn alone (Ganesh 2024).

    Shifts whose log-probability is under ``drop_below`` are left out and counted in ``dropped``.
    """
    log_weights = log_binomial(k, probability)
    kept = log_weights >= drop_below
    dropped = float(np.exp(log_weights[~kept]).sum()) if not kept.all() else 0.0
    return Shift(np.flatnonzero(kept).astype(np.float64), log_weights[kept], dropped)


def single_shift(probability: float) -> Shift:
    """One contribution with the given probability, else none."""
    if probability in (0.0, 1.0):
        return Shift(np.array([probability]), np.zeros(1))
    return Shift(np.array([0.0, 1.0]), np.array([math.log1p(-probability), math.log(probability)]))
