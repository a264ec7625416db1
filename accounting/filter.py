"""The limit of an owner's account, which is charged by step.

An owner chooses its next task after it has seen models, so the composed (ε, δ) of what
happened to be chosen isn't a guarantee. A Rényi filter gives one: fix an order α and a
budget of ρ(α) when the account opens, and refuse whatever would pass it (Feldman and
Zrnic 2021, "Individual Privacy Accounting via a Rényi Filter", Theorem 3.3). A limit
that goes to one task alone is kept by the exact number, which admits more.
"""

import math
from collections import Counter
from functools import lru_cache

from precad.accounting import SampledGaussian, require_bound
from precad.common import Misconfiguration, checks, frozen_dataclass

Steps = Counter[SampledGaussian]
"""How often each step was taken, which itself says once."""
_ROUNDING = 1e-12
"""Sums of ρ are rounded; the filter stops this much, relatively, before its budget."""


@frozen_dataclass
class RenyiLimit:
    """The (ε, δ) that an account promises for good, and the order that keeps it.

    Raises Misconfiguration: a parameter is out of its range, or no budget is left at
    this order.
    """

    epsilon: float
    delta: float
    order: float
    """α > 1, as ``order_for`` picks it."""

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon, "the limit of the account")
        checks.inside_unit_interval("delta", self.delta)
        if not checks.positive("order", self.order, "an order of Rényi divergence") > 1:
            raise Misconfiguration("order", self.order, "an order is above 1")
        if self.budget <= 0:
            raise Misconfiguration(
                "order",
                self.order,
                f"at ε = {self.epsilon:g} and δ = {self.delta:g} this order leaves"
                " nothing to spend; take a larger one",
            )

    @property
    def budget(self) -> float:
        """Return the most ρ(α), in nats, whose conversion is (ε, δ)."""
        return self.epsilon - _conversion(self.order, self.delta)

    def spent(self, charged: Steps) -> float:
        """Return ρ(α) of steps, in nats; the same in any order, to the bit.

        Raises Misconfiguration: a step has no bound here.
        """
        return math.fsum(
            count * _divergence(step, self.order) for step, count in charged.items()
        )

    def holds(self, charged: Steps) -> bool:
        """Return whether steps may be charged, each chosen after earlier ones' output.

        Raises Misconfiguration: as ``spent`` does.
        """
        return self.spent(charged) <= self.budget * (1 - _ROUNDING)

    def epsilon_of(self, charged: Steps) -> float:
        """Return ε ≥ 0 of steps, at the limit's δ and by its order."""
        spent = self.spent(charged)
        if not spent:
            return 0.0
        return max(0.0, spent + _conversion(self.order, self.delta))


def order_for(epsilon: float, delta: float, expected: SampledGaussian) -> RenyiLimit:
    """Return the limit (ε, δ) with the order at which it admits most of ``expected``.

    That is a step like those that the account is for: its first task's. Choose it by
    parameters alone, never by records. Raises Misconfiguration: a parameter is out of
    its range, the step touches nobody's data, or ε is so small that no order leaves
    anything to spend.
    """
    # NumPy and SciPy load here: a process that asks for no ε does without them.
    from precad.accounting import ORDERS  # noqa: PLC0415

    checks.positive("epsilon", epsilon, "the limit of the account")
    checks.inside_unit_interval("delta", delta)
    if expected.silent:
        raise Misconfiguration("expected", expected, "give a step that touches data")
    step = expected.times(1)

    def admitted_steps(order: float) -> float:
        budget = epsilon - _conversion(order, delta)
        if budget <= 0:
            return -math.inf
        # Where a step's ρ is below what floating point holds, the budget alone decides.
        return budget / max(_divergence(step, order), math.ulp(0.0))

    best = max(ORDERS, key=admitted_steps)
    if admitted_steps(best) == -math.inf:
        least = min(_conversion(order, delta) for order in ORDERS)
        raise Misconfiguration(
            "epsilon",
            epsilon,
            f"give more than {least:.2g}; at δ = {delta:g} nothing fits below",
        )
    return RenyiLimit(epsilon, delta, best)


@lru_cache(maxsize=1024)
def _divergence(step: SampledGaussian, order: float) -> float:
    """Return ρ(α) of one step, the larger of both directions, in nats."""
    from precad.accounting import round_rdp  # noqa: PLC0415

    require_bound(step, "filter")
    return 0.0 if step.silent else float(round_rdp(step, (order,))[0])


def _conversion(order: float, delta: float) -> float:
    """Return what the conversion to (ε, δ) adds to ρ(α).

    Canonne, Kamath and Steinke 2020, Proposition 12.
    """
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def exact_epsilon(charged: Steps, delta: float) -> float:
    """Return the exact ε at ``delta`` of steps; the same in any order, to the bit."""
    # SciPy loads here.
    from precad.accounting import epsilon_of  # noqa: PLC0415

    events = (step.times(count) for step, count in charged.items())
    return epsilon_of(tuple(sorted(events, key=repr)), delta)
