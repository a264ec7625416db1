"""Rényi divergences against 60 digits: never below; and the owner's limit, which is kept by them.

At orders near 1, of hardly any loss, and over tasks that are chosen as one goes.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from mpmath import mp, mpf
from tests.rig.accounts import RenyiFilter, composed, delta_of_round

from precad.accounting.events import (
    AccountantName,
    Adjacency,
    Sampling,
    poisson_gaussian,
)
from precad.accounting.exact import largest_count
from precad.accounting.filter import RenyiLimit, order_for
from precad.accounting.losses import SampledRound
from precad.accounting.rdp import (
    ORDERS,
    RdpAccountant,
    mixture_rdp,
    sampled_gaussian_rdp,
)
from precad.common.errors import BudgetExceeded, Misconfiguration

DIGITS = 60
RATES = (1e-9, 1e-6, 1e-3, 0.1, 0.7, 1 - 1e-12)
SIGMAS = (0.05, 0.3, 1.0, 3.0, 100.0, 1e6)
SLACK = 4e-12  # What is given to rounding, relatively


def of_whole_order(rate: float, sigma: float, alpha: int) -> mpf:
    """The binomial sum: Mironov, Talwar and Zhang 2019, Section 3.3."""
    q, s = mpf(rate), mpf(sigma)
    terms = (
        mp.binomial(alpha, k)
        * (1 - q) ** (alpha - k)
        * q**k
        * mp.exp(mpf(k * k - k) / (2 * s * s))
        for k in range(alpha + 1)
    )
    return mp.log(mp.fsum(terms)) / (alpha - 1)


def by_integral(rate: float, sigma: float, order: float) -> mpf:
    q, s, a = mpf(rate), mpf(sigma), mpf(order)

    def integrand(x: mpf) -> mpf:
        more = q * mp.expm1((2 * x - 1) / (2 * s * s))
        return mp.npdf(x, 0, s) * ((1 + more) ** a - 1 - a * more)

    places = {-17 * s, -6 * s, 0, mpf(1) / 2, 1, 6 * s, a, a + 6 * s, a + 17 * s}
    return mp.log1p(mp.quad(integrand, sorted(places))) / (a - 1)


@pytest.mark.parametrize("rate", RATES)
def test_a_divergence_is_the_closed_form_and_never_below(rate: float) -> None:
    orders = (2, 3, 11, 64)
    with mp.workdps(DIGITS):
        for sigma in SIGMAS:
            ours = sampled_gaussian_rdp(rate, sigma, tuple(map(float, orders)))
            for order, found in zip(orders, ours.tolist(), strict=True):
                assert 0 <= mpf(found) / of_whole_order(rate, sigma, order) - 1 < SLACK


@pytest.mark.parametrize(
    ("rate", "sigma"), [(1e-9, 1e6), (1e-6, 3.0), (1e-3, 0.3), (0.1, 1.0), (0.9, 100.0)]
)
@pytest.mark.parametrize("order", [ORDERS[0], 1.05, 3.7, ORDERS[89]])
def test_a_fractional_orders_divergence_is_the_integral(
    rate: float, sigma: float, order: float
) -> None:
    with mp.workdps(DIGITS):
        truth = by_integral(rate, sigma, order)
        found = mpf(sampled_gaussian_rdp(rate, sigma, (order,))[0].item())
        assert 0 <= found / truth - 1 < SLACK
        share = mpf(0.1)
        mixed = mp.log1p(share * mp.expm1((mpf(order) - 1) * found)) / (mpf(order) - 1)
        coin = mixture_rdp(sampled_gaussian_rdp(rate, sigma, (order,)), 0.1, (order,))[
            0
        ].item()
        assert abs(mpf(coin) / mixed - 1) < SLACK / 10
        spent = RenyiFilter(RenyiLimit(100.0, 1 - 1e-9, order))
        spent.charge(poisson_gaussian(rate=rate, noise_multiplier=sigma))
        assert 0 <= mpf(spent.spent) / truth - 1 < SLACK


@pytest.mark.parametrize("rate", [*RATES, 0.01])
def test_the_row_of_one_step_holds_at_every_delta(rate: float) -> None:
    for sigma in SIGMAS:
        step = poisson_gaussian(rate=rate, noise_multiplier=sigma)
        accountant, one = (
            composed(step, by=AccountantName.RDP),
            SampledRound(rate, sigma, 1.0),
        )
        for delta in (1e-15, 1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-3, 0.1):
            epsilon = accountant.epsilon(delta)
            with mp.workdps(DIGITS):
                for reverse in (False, True):
                    assert delta_of_round(one, epsilon, reverse=reverse) <= delta


def test_ten_million_tiny_steps_are_not_free() -> None:
    steps = poisson_gaussian(rate=1e-6, noise_multiplier=3.0, count=10**7)
    # Exactly .002974, or more.
    assert 0.002974 < composed(steps, by=AccountantName.RDP).epsilon(1e-6) < 0.04


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
        for event in (STEP.times(7), OTHER):
            if admitted.allows(event):
                admitted.charge(event)
                chosen.compose(event)
    assert chosen.epsilon(DELTA) <= admitted.epsilon() <= 3.0
    with pytest.raises(BudgetExceeded):
        admitted.charge(STEP.times(7))
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
    # Nor several at once, of which each alone would fit.
    with pytest.raises(BudgetExceeded):
        nearly.charge(STEP.times(50), STEP.times(50))
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
