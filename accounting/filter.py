"""What keeps an owner's account within its limit, as it is charged step by step.

An owner chooses its next task after it has seen models, so the composed (ε, δ) of what
happened to be chosen isn't a guarantee. A Rényi filter is one: fix an order α and a
budget of ρ(α) when the account opens, and refuse whatever would pass it (Feldman and
Zrnic 2021, "Individual Privacy Accounting via a Rényi Filter", Theorem 3.3). A limit
that goes to one task alone is kept by the exact number, which admits more.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass

from precad.accounting.events import SampledGaussian, require_bound
from precad.common import checks
from precad.common.errors import BudgetExceeded, Misconfiguration

# Sums of ρ are rounded; the filter stops this much, relatively, before its budget.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class RenyiLimit:
    """What an account promises for good: (ε, δ), and α, which ``order_for`` picks.

    Raises Misconfiguration: a parameter is out of its range, or no budget is left at
    this order.
    """

    epsilon: float
    delta: float
    order: float

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon, "the limit of the account")
        checks.inside_unit_interval("delta", self.delta)
        if not checks.positive("order", self.order, "an order of Rényi divergence") > 1:
            raise Misconfiguration("order", self.order, "an order is above 1")
        if self.budget <= 0:
            remedy = (
                f"at ε = {self.epsilon:g} and δ = {self.delta:g} this order leaves"
                " nothing to spend; take a larger one"
            )
            raise Misconfiguration("order", self.order, remedy)

    @property
    def budget(self) -> float:
        """The most ρ(α), in nats, whose conversion is (ε, δ)."""
        return self.epsilon - _conversion(self.order, self.delta)


def order_for(epsilon: float, delta: float, expected: SampledGaussian) -> RenyiLimit:
    """The limit (ε, δ) with the order at which it admits most of ``expected``.

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
    one = expected.times(1)

    def steps(order: float) -> float:
        left = epsilon - _conversion(order, delta)
        # Where a step's ρ is below what floating point holds, the budget alone decides.
        return (
            left / max(_divergence(one, order), math.ulp(0.0))
            if left > 0
            else -math.inf
        )

    best = max(ORDERS, key=steps)
    if steps(best) == -math.inf:
        least = min(_conversion(order, delta) for order in ORDERS)
        remedy = f"give more than {least:.2g}; at δ = {delta:g} nothing fits below"
        raise Misconfiguration("epsilon", epsilon, remedy)
    return RenyiLimit(epsilon, delta, best)


class _Filter(ABC):
    """Admits events while what they cost together stays within what is allowed.

    Events in, no files: whoever keeps the account charges its events again when it is
    read.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._charged: Counter[SampledGaussian] = Counter()

    @abstractmethod
    def _total(self, charged: Counter[SampledGaussian]) -> float:
        """What events cost together; the same in any order, to the bit."""

    @abstractmethod
    def _refusal(self, total: float) -> str:
        """That ``total`` would pass the limit, in words."""

    def allows(
        self, event: SampledGaussian, *, instead_of: SampledGaussian | None = None
    ) -> bool:
        """Whether ``charge`` would admit it; Misconfiguration as there."""
        return self._total(_after(self._charged, event, instead_of)) <= self._most

    def charge(
        self, event: SampledGaussian, *, instead_of: SampledGaussian | None = None
    ) -> None:
        """Admit ``event``, what is about to leave with its whole ``count``, or change nothing.

        ``instead_of`` was charged, and ``event`` stands for it from now on: a step of
        which a lost release is repeated has σ/√(1+m) in place of σ. That a release is
        lost must not be anybody's choice after seeing later models. Raises
        BudgetExceeded: the limit would be passed; Misconfiguration: the event has no
        bound here, or ``instead_of`` was never charged.
        """
        after = _after(self._charged, event, instead_of)
        total = self._total(after)
        if total > self._most:
            raise BudgetExceeded(f"the account's limit is {self._refusal(total)}")
        self._charged = after


class RenyiFilter(_Filter):
    """Keeps ρ(α) of events that are chosen as one goes within the limit's budget."""

    def __init__(self, limit: RenyiLimit) -> None:
        super().__init__(limit.budget * (1 - _ROUNDING))
        self.limit = limit

    @property
    def spent(self) -> float:
        """ρ(α) of all that was charged, nats."""
        return self._total(self._charged)

    def epsilon(self) -> float:
        """ε ≥ 0 at the limit's δ of what was charged, by the limit's order; at most its ε."""
        spent = self.spent
        return (
            max(0.0, spent + _conversion(self.limit.order, self.limit.delta))
            if spent
            else 0.0
        )

    def _total(self, charged: Counter[SampledGaussian]) -> float:
        return math.fsum(
            n * _divergence(one, self.limit.order) for one, n in charged.items() if n
        )

    def _refusal(self, total: float) -> str:
        limit = self.limit
        return (
            f"ε = {limit.epsilon:g} at δ = {limit.delta:g}, ρ({limit.order:g}) = "
            f"{limit.budget:.6g}; with this it would be {total:.6g}"
        )


class ExactFilter(_Filter):
    """Keeps the exact ε of steps of a list that was fixed beforehand within a limit.

    Who chooses steps by what earlier ones told must not ask this, but ``RenyiFilter``.
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        super().__init__(
            checks.positive("epsilon", epsilon, "the limit of the account")
        )
        self._delta = checks.inside_unit_interval("delta", delta)

    def epsilon(self) -> float:
        """Exact ε ≥ 0 of what was charged."""
        return self._total(self._charged)

    def _total(self, charged: Counter[SampledGaussian]) -> float:
        # SciPy loads here.
        from precad.accounting.exact import ExactAccountant  # noqa: PLC0415

        accountant = ExactAccountant()
        for one, count in sorted(charged.items(), key=lambda item: repr(item[0])):
            if count:
                accountant.compose(one.times(count))
        return accountant.epsilon(self._delta)

    def _refusal(self, total: float) -> str:
        return (
            f"ε = {self._most:g} at δ = {self._delta:g}; with this it would be"
            f" {total:.6g}"
        )


def _after(
    charged: Counter[SampledGaussian],
    event: SampledGaussian,
    instead_of: SampledGaussian | None,
) -> Counter[SampledGaussian]:
    require_bound(event, "filter")
    after = charged.copy()
    if instead_of is not None:
        one = instead_of.times(1)
        if after[one] < instead_of.count:
            remedy = "give an event that this account was charged for"
            raise Misconfiguration("instead_of", instead_of, remedy)
        after[one] -= instead_of.count
    after[event.times(1)] += event.count
    return after


def _divergence(one: SampledGaussian, order: float) -> float:
    """ρ(α) of one step, the larger of both directions, nats."""
    from precad.accounting.rdp import mixture_rdp, sampled_gaussian_rdp  # noqa: PLC0415

    if one.silent:
        return 0.0
    orders = (order,)
    step = sampled_gaussian_rdp(one.rate, one.effective_noise_multiplier, orders)
    return float(mixture_rdp(step, one.participation, orders)[0])


def _conversion(order: float, delta: float) -> float:
    """What the conversion to (ε, δ) adds to ρ(α); Canonne, Kamath and Steinke 2020, Prop. 12."""
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
