"""Rényi's divergences of a group's mixture of Gaussians, in both directions.

k records that come or go together shift a round's sum by Bin(k, q) clips: P is a
mixture of Gaussians, Q one Gaussian (``losses``). Which direction is larger isn't known
for k above 1, so both are computed.
"""

import math

import numpy as np

from precad.accounting import Shift, log_ratio, log_sums
from precad.common import Floats, Integers

_MOMENT_ROUNDING = 1e-13
"""Added to every log-moment, in units of itself and of α: the rounding of a log-ratio,
which α multiplies, and of exponents, which are about as large as the moment's
logarithm."""
_MOST_POINTS = 2**20
"""Points of one grid at most."""
_MOST_WORK = 2**23
"""Points of one grid times components at most: seconds for all orders of a group."""


def mixture_divergences(
    shift: Shift,
    *,
    noise: float,
    orders: Floats,
    limit: float = math.inf,
) -> tuple[Floats, Floats]:
    """Return one round's D_α(P‖Q) and D_α(Q‖P) for P = Σ w_i N(i, σ²) and Q = N(0, σ²).

    By the trapezoid rule in the log domain, whose own error is below rounding for these
    analytic integrands; of orders whose grid would be too large, nothing is claimed.
    P's far components are left out where Minkowski's inequality says that they add
    nothing: ‖P/Q‖_α ≤ ‖P_near/Q‖_α + Σ_far w_i e^{(α−1)i²/(2σ²)}.

    Args:
        shift: The i with their weights w_i.
        noise: σ, over the sensitivity.
        orders: [a], α, each above 1.
        limit: A D_α(P‖Q) certainly above it is reported as infinite, unevaluated.

    Returns:
        [a] float64 each, in nats.
    """
    forward = np.full_like(orders, np.inf)
    reverse = np.full_like(orders, np.inf)
    # By order, how many components of P are near; 0 where D_α(P‖Q) is above the limit.
    nearest = np.zeros(len(orders), np.int64)
    squares = shift.sizes**2 / (2 * noise**2)
    for index, order in enumerate(orders):
        log_norms = shift.log_weights + (order - 1) * squares
        if order / (order - 1) * float(log_norms.max()) < limit:
            log_tails = np.logaddexp.accumulate(log_norms[::-1])[::-1]
            nearest[index] = max(int(np.searchsorted(-log_tails, 36.0)), 1)
    for block in _blocks(np.arange(len(orders))):
        reverse[block] = _reverse_divergences(shift, noise, orders[block])
    for block in _blocks(np.flatnonzero(nearest)):
        near = int(nearest[block].max())
        largest = float(orders[block].max())
        forward[block] = _divergences(
            shift,
            noise,
            orders=orders[block],
            near=near,
            exponents=orders[block],
            ends=(-12 * noise, largest * shift.sizes[near - 1] + 12 * noise),
        )
    return forward, reverse


def _blocks(indices: Integers) -> list[Integers]:
    """Return the indices of orders in blocks of at most eight neighbours.

    Neighbouring orders share one grid: the log-ratio is what costs.
    """
    return np.array_split(indices, -(-len(indices) // 8)) if len(indices) else []


def _reverse_divergences(shift: Shift, noise: float, orders: Floats) -> Floats:
    """Return D_α(Q‖P) of neighbouring orders, for ``mixture_divergences``.

    Args:
        shift: The components of P.
        noise: σ, over the sensitivity.
        orders: The α, [a].

    Returns:
        [a] float64, in nats.
    """
    # Leaving components of P out only raises the divergence of Q from P.
    first = float(shift.log_weights[0])
    kept = shift.log_weights > (first if math.isfinite(first) else 0.0) - 80
    near = int(np.flatnonzero(kept)[-1]) + 1
    mean = float(np.exp(shift.log_weights) @ shift.sizes)
    largest = float(orders.max()) - 1
    # The integrand peaks where x is −(α − 1)·E[i | x], and is at most w_0^{1−α}·Q.
    furthest = min(
        largest * mean + 12 * noise,
        noise * math.sqrt(144 - 2 * largest * first),
    )
    return _divergences(
        shift,
        noise,
        orders=orders,
        near=near,
        exponents=1 - orders,
        ends=(-furthest, 12 * noise),
    )


def _divergences(
    shift: Shift,
    noise: float,
    *,
    orders: Floats,
    near: int,
    exponents: Floats,
    ends: tuple[float, float],
) -> Floats:
    """Return ln E_Q[(P_near/Q)^exponent] / (α − 1) by the trapezoid rule.

    Args:
        shift: The components of P.
        noise: σ, over the sensitivity.
        orders: [a], α.
        near: How many components of P are taken, the first ones.
        exponents: [a], α for D_α(P‖Q), and 1 − α for D_α(Q‖P).
        ends: The x between which the integral is taken.

    Returns:
        [a] float64, in nats; infinite where the grid would be too large.
    """
    # The integrand is analytic in a strip of half-width πσ² (the zeros of P/Q), and a
    # mode's standard deviation is about σ: this step leaves both errors under 1e-14.
    step = min(noise / 8, noise**2 / 2)
    low = math.floor(ends[0] / step)
    high = math.ceil(ends[1] / step)
    if high - low > min(_MOST_POINTS, _MOST_WORK // near):
        return np.full_like(orders, np.inf)
    x = np.arange(low, high + 1, dtype=np.float64) * step
    components = Shift(shift.sizes[:near], shift.log_weights[:near])
    ratio, _ = log_ratio(x, components, noise)
    log_scale = math.log(noise * math.sqrt(2 * math.pi) / step)
    density = -((x / noise) ** 2) / 2 - log_scale
    log_moments = log_sums(exponents[:, None] * ratio + density)
    log_moments += _MOMENT_ROUNDING * (orders + np.abs(log_moments))
    return np.asarray(np.maximum(0.0, log_moments / (orders - 1)))
