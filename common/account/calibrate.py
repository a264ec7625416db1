"""The other way round: least noise, most rounds, largest rate for a wanted (ε, δ).

Every answer is checked by the accountant itself: it satisfies the target.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.optimize import brentq

from precad.common import checks
from precad.common.account.accountant import AccountantName
from precad.common.account.events import SampledGaussian
from precad.common.account.guarantees import spent
from precad.common.account.participations import largest_count
from precad.common.errors import Misconfiguration

PRECISION = 1e-4
"""Relative width at which the search for a noise multiplier or a rate ends."""

_LEAST_NOISE = 0.02
_LEAST_RATE = 1e-6
_MOST_LOG_NOISE = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a mechanism shall cost at most.

    Attributes:
        epsilon: ε, 0 or above.
        delta: δ, in (0, 1).
        accountant: which ε counts.

    Raises:
        Misconfiguration: a parameter is out of its range.
    """

    epsilon: float
    delta: float
    accountant: AccountantName = AccountantName.EXACT

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon)
        checks.inside_unit_interval("delta", self.delta)

    def _excess(self, event: SampledGaussian) -> float:
        return spent(event, self.delta, self.accountant) - self.epsilon

    def least_noise_multiplier(self, event_of: Callable[[float], SampledGaussian]) -> float:
        """The least noise multiplier σ for which ``event_of(σ)`` is (ε, δ)-DP.

        Args:
            event_of: the event with a given σ; ε falls as σ rises.

        Returns:
            σ, about ``PRECISION`` (relative) above the least; 0.02 where that suffices.

        Raises:
            Misconfiguration: no σ up to e^12 suffices.
        """

        def excess(log_sigma: float) -> float:
            return self._excess(event_of(math.exp(log_sigma)))

        low, high = math.log(_LEAST_NOISE), 0.0
        if excess(low) <= 0:
            return _LEAST_NOISE
        while excess(high) > 0:
            low, high = high, high + 1
            if high > _MOST_LOG_NOISE:
                raise Misconfiguration(
                    "epsilon",
                    self.epsilon,
                    f"no noise multiplier up to e^{_MOST_LOG_NOISE} reaches it",
                )
        step = PRECISION / 2
        log_sigma = float(brentq(excess, low, high, xtol=step)) + step
        while excess(log_sigma) > 0:
            log_sigma += step
        return math.exp(log_sigma)

    def most_rounds(self, event_of: Callable[[int], SampledGaussian], ceiling: int) -> int:
        """The most rounds n ≤ ``ceiling`` for which ``event_of(n)`` is (ε, δ)-DP; 0 if none.

        Args:
            event_of: the event with a given count; ε rises with it.
            ceiling: never more than this.

        Raises:
            Misconfiguration: the ceiling isn't a count.
        """
        return largest_count(lambda n: self._excess(event_of(n)) <= 0, ceiling)

    def largest_rate(self, event_of: Callable[[float], SampledGaussian]) -> float:
        """The largest sampling rate for which ``event_of(rate)`` is (ε, δ)-DP.

        Args:
            event_of: the event with a given rate; ε rises with it.

        Returns:
            A rate in [0, 1], at most ``PRECISION`` (relative) below the largest; 0 where not even
            one in a million suffices.
        """
        steps = 1 + math.ceil(math.log(1 / _LEAST_RATE) / math.log1p(PRECISION))

        def rate(step: int) -> float:
            """Step 1 is the least rate, the last one 1, equally wide on a logarithmic scale."""
            return _LEAST_RATE ** ((steps - step) / (steps - 1)) if step else 0.0

        return rate(self.most_rounds(lambda step: event_of(rate(step)), steps))
