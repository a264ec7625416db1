"""The owner's limit over tasks that are chosen as one goes."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from precad.accounting.events import Adjacency, Sampling, poisson_gaussian
from precad.accounting.exact import largest_count
from precad.accounting.filter import RenyiFilter, RenyiLimit, order_for
from precad.accounting.rdp import ORDERS, RdpAccountant
from precad.common.errors import BudgetExceeded, Misconfiguration

DELTA = 1e-5
STEP = poisson_gaussian(rate=0.05, noise_multiplier=1.5)
OTHER = poisson_gaussian(rate=0.2, noise_multiplier=4.0)
COIN = replace(STEP, participation=0.3)
FIXED = replace(
    STEP, sampling=Sampling.FIXED_SIZE, adjacency=Adjacency.REPLACE_ONE, sensitivity=2.0
)


def account(epsilon: float = 3.0) -> RenyiFilter:
    return RenyiFilter(order_for(epsilon, DELTA, STEP))


def test_what_is_admitted_never_passes_the_limit_and_the_next_step_would() -> None:
    admitted, chosen = account(), RdpAccountant()
    while admitted.allows(STEP.times(7)):
        admitted.charge(STEP.times(7))
        chosen.compose(STEP.times(7))
        if admitted.allows(OTHER):
            admitted.charge(OTHER)
            chosen.compose(OTHER)
    assert chosen.epsilon(DELTA) <= admitted.epsilon() <= 3.0
    with pytest.raises(BudgetExceeded, match="limit is ε = 3"):
        admitted.charge(STEP.times(7))
    chosen.compose(STEP.times(7))
    over = RdpAccountant(orders=(admitted.limit.order,))
    over.compose(STEP.times(10**6))
    assert over.epsilon(DELTA) > 3.0


def test_a_refused_event_changes_nothing_and_a_smaller_one_may_still_fit() -> None:
    nearly = account()
    while nearly.allows(STEP.times(100)):
        nearly.charge(STEP.times(100))
    before = nearly.spent
    with pytest.raises(BudgetExceeded):
        nearly.charge(STEP.times(100))
    # Nor a repeated release, which takes the place of its first.
    with pytest.raises(BudgetExceeded):
        nearly.charge(replace(STEP, noise_multiplier=0.3), instead_of=STEP)
    assert nearly.spent == before
    nearly.charge(STEP)
    assert nearly.spent > before


def test_the_spent_divergence_is_that_of_the_rdp_accountant_at_its_order() -> None:
    ours = account()
    # A fresh account has spent nothing, nor what touches nobody's data.
    never = (replace(STEP, rate=0.0), replace(STEP, participation=0.0))
    for silent in (STEP.times(0), *(each.times(10**6) for each in never)):
        assert (ours.spent, ours.epsilon()) == (0, 0)
        ours.charge(silent)
    assert (ours.spent, ours.epsilon()) == (0, 0)
    reference = RdpAccountant(orders=(ours.limit.order,))
    for event in (STEP.times(40), COIN.times(20), OTHER.times(3), STEP.times(2)):
        ours.charge(event)
        reference.compose(event)
    assert ours.epsilon() == pytest.approx(reference.epsilon(DELTA), rel=1e-12)


def test_the_order_admits_most_of_the_expected_step_among_all_orders() -> None:
    def admits(order: float) -> int:
        try:
            fresh = RenyiFilter(RenyiLimit(3.0, DELTA, order))
        except Misconfiguration:
            return 0
        return largest_count(lambda n: fresh.allows(STEP.times(n)), 2**20)

    chosen = order_for(3.0, DELTA, STEP).order
    assert admits(chosen) == max(admits(order) for order in ORDERS) > 0


def test_a_repeated_release_takes_the_place_of_its_first() -> None:
    ours, plain = account(), account()
    twice = replace(STEP, noise_multiplier=STEP.noise_multiplier / 2**0.5)
    ours.charge(STEP.times(50))
    ours.charge(twice, instead_of=STEP)
    plain.charge(STEP.times(49))
    plain.charge(twice)
    assert ours.spent == plain.spent
    with pytest.raises(Misconfiguration, match="instead_of"):
        ours.charge(twice, instead_of=OTHER)
    with pytest.raises(Misconfiguration, match="instead_of"):
        ours.allows(twice, instead_of=STEP.times(50))


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("epsilon", lambda: RenyiLimit(0.0, DELTA, 8.0)),
        ("epsilon", lambda: RenyiLimit(math.inf, DELTA, 8.0)),
        ("delta", lambda: RenyiLimit(1.0, 0.0, 8.0)),
        ("order", lambda: RenyiLimit(1.0, DELTA, 1.0)),
        ("order", lambda: RenyiLimit(1.0, DELTA, math.nan)),
        ("order", lambda: RenyiLimit(1.0, DELTA, 1.5)),
        ("sampling", lambda: account().charge(FIXED)),
        # A step that touches no data, and a limit that holds none.
        ("expected", lambda: order_for(1.0, DELTA, replace(STEP, rate=0.0))),
        ("epsilon", lambda: order_for(1e-6, DELTA, STEP)),
    ],
)
def test_what_says_nothing_is_refused(field: str, make: Callable[[], object]) -> None:
    with pytest.raises(Misconfiguration, match=field):
        make()
