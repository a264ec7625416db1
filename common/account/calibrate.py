"""The other way round: the least noise for a wanted (ε, δ).

The answer is checked by the accountant itself: it satisfies the target.
"""

import math
from collections.abc import Callable

from scipy.optimize import brentq

from precad.common import checks
from precad.common.account.accountant import AccountantName
from precad.common.account.events import SampledGaussian
from precad.common.account.guarantees import spent
from precad.common.errors import Misconfiguration

PRECISION = 1e-4
"""Relative width at which the search ends."""

_LEAST_NOISE = 0.02
_MOST_LOG_NOISE = 12
_LARGEST = 1e12


def least_noise_multiplier(
    event_of: Callable[[float], SampledGaussian],
    *,
    epsilon: float,
    delta: float,
    accountant: AccountantName = AccountantName.EXACT,
) -> float:
    """The least noise multiplier σ for which ``event_of(σ)`` is (ε, δ)-DP.

    Args:
        event_of: the event with a given σ; ε falls as σ rises.
        epsilon: ε, 0 or above.
        delta: δ, in (0, 1).
        accountant: which ε counts.

    Returns:
        σ, about ``PRECISION`` (relative) above the least; 0.02 where that suffices.

    Raises:
        Misconfiguration: a parameter is out of its range, or no σ up to e^12 suffices.
    """
    checks.epsilon(epsilon)
    checks.inside_unit_interval("delta", delta)

    def excess(log_sigma: float) -> float:
        # Where nothing is claimed ε is infinite; the search wants a number.
        return min(spent(event_of(math.exp(log_sigma)), delta, accountant), _LARGEST) - epsilon

    low, high = math.log(_LEAST_NOISE), 0.0
    if excess(low) <= 0:
        return _LEAST_NOISE
    while excess(high) > 0:
        low, high = high, high + 1
        if high > _MOST_LOG_NOISE:
            raise Misconfiguration(
                "epsilon", epsilon, f"no noise multiplier up to e^{_MOST_LOG_NOISE} reaches it"
            )
    step = PRECISION / 2
    log_sigma = float(brentq(excess, low, high, xtol=step)) + step
    while excess(log_sigma) > 0:
        log_sigma += step
    return math.exp(log_sigma)
