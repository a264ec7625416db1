"""Filters that keep an owner's account within its limit, as it is charged by step.

An owner chooses its next task after it has seen models, so the composed (ε, δ) of what
happened to be chosen isn't a guarantee. A Rényi filter gives one: fix an order α and a
budget of ρ(α) when the account opens, and refuse whatever would pass it (Feldman and
Zrnic 2021, "Individual Privacy Accounting via a Rényi Filter", Theorem 3.3). A limit
that goes to one task alone is kept by the exact number, which admits more.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from precad.accounting.events import SampledGaussian, require_bound
from precad.common import checks
from precad.common.errors import BudgetExceeded, Misconfiguration
from precad.common.frozen import frozen_dataclass

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


def order_for(epsilon: float, delta: float, expected: SampledGaussian) -> RenyiLimit:
    """Return the limit (ε, δ) with the order at which it admits most of ``expected``.

    That is a step like those that the account is for: its first task's. Choose it by
    parameters alone, never by records. Raises Misconfiguration: a parameter is out of
    its range, the step touches nobody's data, or ε is so small that no order leaves
    anything to spend.
    """
    # NumPy and SciPy load here: a process that asks for no ε does without them.
    from precad.accounting.rdp import ORDERS  # noqa: PLC0415

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


class _Filter(ABC):
    """Base of filters: admits events while their cost together stays within a limit.

    A filter holds events alone, and no file: whoever keeps the account in a file
    charges its events again when it is read.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._charged: Counter[SampledGaussian] = Counter()

    @abstractmethod
    def _total(self, charged: Counter[SampledGaussian]) -> float:
        """Return what events cost together; the same in any order, to the bit."""

    @abstractmethod
    def _refusal(self, total: float) -> str:
        """Return words for an error: the limit, and that ``total`` would pass it."""

    def allows(self, *events: SampledGaussian) -> bool:
        """Return whether ``charge`` would admit ``events``.

        Raises Misconfiguration: as ``charge`` does.
        """
        return self._total(_after(self._charged, events)) <= self._most

    def charge(self, *events: SampledGaussian) -> None:
        """Admit ``events``, whose whole ``count`` is about to leave, or change nothing.

        Raises BudgetExceeded: the limit would be passed. Raises Misconfiguration: an
        event has no bound here.
        """
        after = _after(self._charged, events)
        total = self._total(after)
        if total > self._most:
            raise BudgetExceeded(f"the account's limit is {self._refusal(total)}")
        self._charged = after


class RenyiFilter(_Filter):
    """Filter that keeps ρ(α) of its events within a limit's budget.

    Each event may be chosen after the earlier ones' results were seen.
    """

    def __init__(self, limit: RenyiLimit) -> None:
        super().__init__(limit.budget * (1 - _ROUNDING))
        self.limit = limit
        """The limit that the account promises."""

    @property
    def spent(self) -> float:
        """Return ρ(α) of all that was charged, in nats."""
        return self._total(self._charged)

    def epsilon(self) -> float:
        """Return ε ≥ 0 of what was charged, at the limit's δ and by its order.

        It is at most the limit's ε.
        """
        spent = self.spent
        if not spent:
            return 0.0
        return max(0.0, spent + _conversion(self.limit.order, self.limit.delta))

    def _total(self, charged: Counter[SampledGaussian]) -> float:
        return math.fsum(
            count * _divergence(step, self.limit.order)
            for step, count in charged.items()
            if count
        )

    def _refusal(self, total: float) -> str:
        limit = self.limit
        return (
            f"ε = {limit.epsilon:g} at δ = {limit.delta:g}, ρ({limit.order:g}) = "
            f"{limit.budget:.6g}; with this it would be {total:.6g}"
        )


class ExactFilter(_Filter):
    """Filter that keeps the exact ε of a list of steps within a limit.

    The list was fixed beforehand, and may end early. Whoever chooses steps by what
    earlier ones showed must not ask this one, but ``RenyiFilter``. Raises
    Misconfiguration: ε or δ is out of its range.
    """

    # Why the exact ε of a prefix is a guarantee. Parameters alone fix pairs of
    # distributions (P_1, Q_1), (P_2, Q_2), … before a record is touched, and with them
    # k, the longest prefix whose product is within (ε, δ). Step t may depend on all
    # that came before, y_<t; but whatever y_<t is, (P_t, Q_t) dominates it, so it is a
    # random map, chosen by y_<t, of one sample: of P_t with the record, of Q_t without
    # (Blackwell). The whole transcript is then one such map of k samples drawn
    # beforehand, which looks at sample t when it comes to step t: post-processing of
    # the product, whoever stops, and wherever, up to k (Zhu, Dong and Wang 2022,
    # Theorem 10, for adaptive composition of dominating pairs). The argument ends where
    # a pair itself depends on y_<t: a further task, or a further release of a version,
    # is chosen by whoever has seen models. ``WholeLimit.covers`` admits neither.

    def __init__(self, epsilon: float, delta: float) -> None:
        super().__init__(
            checks.positive("epsilon", epsilon, "the limit of the account")
        )
        self._delta = checks.inside_unit_interval("delta", delta)

    def epsilon(self) -> float:
        """Return the exact ε ≥ 0 of what was charged."""
        return self._total(self._charged)

    def _total(self, charged: Counter[SampledGaussian]) -> float:
        # SciPy loads here.
        from precad.accounting.exact import epsilon_of  # noqa: PLC0415

        events = (step.times(count) for step, count in charged.items() if count)
        return epsilon_of(tuple(sorted(events, key=repr)), self._delta)

    def _refusal(self, total: float) -> str:
        return (
            f"ε = {self._most:g} at δ = {self._delta:g}; with this it would be"
            f" {total:.6g}"
        )


def _after(
    charged: Counter[SampledGaussian], events: Iterable[SampledGaussian]
) -> Counter[SampledGaussian]:
    """Return what is charged once ``events`` are, by single step, for ``_Filter``.

    Raises Misconfiguration: an event has no bound.
    """
    after = charged.copy()
    for event in events:
        require_bound(event, "filter")
        after[event.times(1)] += event.count
    return after


@lru_cache(maxsize=1024)
def _divergence(step: SampledGaussian, order: float) -> float:
    """Return ρ(α) of one step, the larger of both directions, in nats."""
    from precad.accounting.rdp import round_rdp  # noqa: PLC0415

    return 0.0 if step.silent else float(round_rdp(step, (order,))[0])


def _conversion(order: float, delta: float) -> float:
    """Return what the conversion to (ε, δ) adds to ρ(α).

    Canonne, Kamath and Steinke 2020, Proposition 12.
    """
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
