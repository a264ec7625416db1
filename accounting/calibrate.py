"""What one event costs, and the other way round: the least noise for a wanted (ε, δ).

The answer is checked by the accountant itself: it satisfies the target.
"""

import math
from collections.abc import Callable
from functools import cache

from scipy.optimize import brentq

from precad.accounting.events import Accountant, AccountantName, SampledGaussian
from precad.accounting.exact import ExactAccountant
from precad.accounting.gdp import GdpCltAccountant
from precad.accounting.rdp import RdpAccountant
from precad.common import checks
from precad.common.errors import Misconfiguration

PRECISION = 1e-4
"""Relative width at which the search ends."""

_LEAST_NOISE = 0.02
_MOST_LOG_NOISE = 12
_LARGEST = 1e12


def accountant_named(name: AccountantName) -> Accountant:
    """A fresh accountant."""
    kinds: tuple[Callable[[], Accountant], ...] = ExactAccountant, RdpAccountant, GdpCltAccountant
    return next(made for kind in kinds if (made := kind()).name is name)


def spent(
    event: SampledGaussian, delta: float, name: AccountantName = AccountantName.EXACT
) -> float:
    """ε at ``delta`` of one event alone."""
    accountant = accountant_named(name)
    accountant.compose(event)
    return accountant.epsilon(delta)


def least_noise_multiplier(
    event_of: Callable[[float], SampledGaussian],
    *,
    epsilon: float,
    delta: float,
    accountant: AccountantName = AccountantName.EXACT,
) -> float:
    """The least noise multiplier σ for which ``event_of(σ)`` is (ε, δ)-DP.

    About ``PRECISION`` (relative) above it; 0.02 where that suffices.

    Raises Misconfiguration: a parameter is out of its range, or no σ up to e^12 suffices.
    """
    checks.epsilon(epsilon)
    checks.inside_unit_interval("delta", delta)

    def excess(log_sigma: float) -> float:
        # Where nothing is claimed ε is infinite; the search wants a number.
        return min(spent(event_of(math.exp(log_sigma)), delta, accountant), _LARGEST) - epsilon

    remembered = cache(excess)
    low, high = _bracket(remembered)
    if low >= _MOST_LOG_NOISE:
        raise Misconfiguration(
            "epsilon", epsilon, f"no noise multiplier up to e^{_MOST_LOG_NOISE} reaches it"
        )
    if low == high:
        return _LEAST_NOISE
    step = PRECISION / 2
    log_sigma = float(brentq(remembered, low, high, xtol=step)) + step
    while remembered(log_sigma) > 0:
        log_sigma += step
    return math.exp(log_sigma)


def _bracket(excess: Callable[[float], float]) -> tuple[float, float]:
    """A ln σ that is too little and one that suffices.

    Twice the least one's where that suffices; 12 and more where none up to 12 does.
    """
    least = math.log(_LEAST_NOISE)
    low, high, step = 0.0, 0.0, 1.0
    if excess(high) > 0:
        while excess(high) > 0 and low < _MOST_LOG_NOISE:
            low, high, step = high, min(high + step, _MOST_LOG_NOISE + 1), 2 * step
        return low, high
    while excess(low) <= 0 and low > least:
        low, high, step = max(least, low - step), low, 2 * step
    return (least, least) if excess(low) <= 0 else (low, high)
