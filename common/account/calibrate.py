"""The other way round: least noise, most rounds, largest rate for a wanted (ε, δ).

Every answer is checked by the accountant itself: it satisfies the target; a value a little
further (``PRECISION`` for reals, 1 for counts) was seen not to.
"""

from collections.abc import Callable

from precad.common.account.accountant import AccountantName
from precad.common.account.events import Event
from precad.common.account.guarantees import accountant_named
from precad.common.account.parameters import require_count, require_delta, require_epsilon
from precad.common.errors import Misconfiguration

PRECISION = 1e-4
"""Relative width at which the search for a noise multiplier or a rate ends."""

_LEAST_NOISE, _MOST_NOISE = 0.02, 1e5


def _within(event: Event, epsilon: float, delta: float, name: AccountantName) -> bool:
    accountant = accountant_named(name)
    accountant.compose(event)
    return accountant.epsilon(delta) <= epsilon


def least_noise_multiplier(
    event_of: Callable[[float], Event],
    *,
    epsilon: float,
    delta: float,
    accountant: AccountantName = AccountantName.EXACT,
) -> float:
    """The least noise multiplier σ for which ``event_of(σ)`` is (ε, δ)-DP.

    Args:
        event_of: the event with a given σ; ε falls as σ rises.
        epsilon: ε, above 0.
        delta: δ, in (0, 1).
        accountant: which ε counts.

    Returns:
        σ, at most ``PRECISION`` (relative) above the least; 0.02 where that suffices.

    Raises:
        Misconfiguration: a parameter is out of its range, or no σ up to 100,000 suffices.
    """
    require_epsilon(epsilon)
    require_delta(delta)

    def enough(sigma: float) -> bool:
        return _within(event_of(sigma), epsilon, delta, accountant)

    high = 1.0
    while not enough(high):
        high *= 2
        if high > _MOST_NOISE:
            raise Misconfiguration(
                "epsilon", epsilon, f"no noise multiplier up to {_MOST_NOISE:g} reaches it"
            )
    low = high / 2
    while low >= _LEAST_NOISE and enough(low):
        low, high = low / 2, low
    if low < _LEAST_NOISE:
        return _LEAST_NOISE if enough(_LEAST_NOISE) else high
    while high / low > 1 + PRECISION:
        middle = (low * high) ** 0.5
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def most_rounds(
    event_of: Callable[[int], Event],
    *,
    epsilon: float,
    delta: float,
    ceiling: int,
    accountant: AccountantName = AccountantName.EXACT,
) -> int:
    """The most rounds n ≤ ``ceiling`` for which ``event_of(n)`` is (ε, δ)-DP; 0 if none.

    Args:
        event_of: the event with a given count; ε rises with it.
        epsilon: ε, 0 or above.
        delta: δ, in (0, 1).
        ceiling: never more than this.
        accountant: which ε counts.

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    require_epsilon(epsilon)
    require_delta(delta)
    require_count("ceiling", ceiling)
    within, beyond = 0, 1
    while beyond <= ceiling and _within(event_of(beyond), epsilon, delta, accountant):
        within, beyond = beyond, beyond * 2
    beyond = min(beyond, ceiling + 1)
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if _within(event_of(middle), epsilon, delta, accountant):
            within = middle
        else:
            beyond = middle
    return within


def largest_rate(
    event_of: Callable[[float], Event],
    *,
    epsilon: float,
    delta: float,
    accountant: AccountantName = AccountantName.EXACT,
) -> float:
    """The largest sampling rate for which ``event_of(rate)`` is (ε, δ)-DP.

    Args:
        event_of: the event with a given rate; ε rises with it.
        epsilon: ε, 0 or above.
        delta: δ, in (0, 1).
        accountant: which ε counts.

    Returns:
        A rate in [0, 1], at most ``PRECISION`` (relative) below the largest; 0 where not even
        one in a million suffices.

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    require_epsilon(epsilon)
    require_delta(delta)

    def allowed(rate: float) -> bool:
        return _within(event_of(rate), epsilon, delta, accountant)

    if allowed(1.0):
        return 1.0
    low, high = 1e-6, 1.0
    if not allowed(low):
        return 0.0
    while high / low > 1 + PRECISION:
        middle = (low * high) ** 0.5
        if allowed(middle):
            low = middle
        else:
            high = middle
    return low
