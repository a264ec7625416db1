"""The papers' algorithms, and their printed numbers beside what holds."""

import math
from dataclasses import replace
from typing import Any

import pytest
from published.algorithms import (
    ParallelAccount,
    dopamine,
    insdp_fedsgd,
    userdp_fedavg,
)
from published.attained import attained_epsilon
from published.printed_privacy import xie_proposition_1, xie_table

from precad.common.account.events import SampledGaussian, Sampling, poisson_gaussian
from precad.common.account.exact import ExactAccountant
from precad.common.account.fixed_size import (
    fixed_size_rdp,
    fixed_size_rdp_curve,
)
from precad.common.account.rdp import Conversion, RdpAccountant
from precad.common.errors import Misconfiguration

DELTA = 1e-5


def rdp(event: SampledGaussian) -> float:
    accountant = RdpAccountant()
    accountant.compose(event)
    return accountant.epsilon(DELTA)


def exact(event: SampledGaussian) -> float:
    accountant = ExactAccountant()
    accountant.compose(event)
    return accountant.epsilon(DELTA)


def test_userdp_fedavg_costs_what_its_sampling_costs() -> None:
    step: dict[str, Any] = {"user_rate": 0.1, "noise_multiplier": 1.0, "rounds": 3}
    poisson = userdp_fedavg(sampling=Sampling.POISSON, **step)
    fixed = userdp_fedavg(sampling=Sampling.FIXED_SIZE, **step)
    assert poisson.effective_noise_multiplier == 1.0
    assert fixed.effective_noise_multiplier == 0.5
    attained = attained_epsilon(rate=0.1, clip_noise_multiplier=1.0, steps=3, delta=DELTA)
    printed = xie_table(rate=0.1, noise_multiplier=1.0, steps=3, delta=DELTA)
    assert exact(poisson) < printed.value < attained.lower <= rdp(fixed)


def test_insdp_fedsgd_as_printed_is_below_what_holds_and_dopamine_above() -> None:
    common: dict[str, Any] = {
        "batch_rate": 0.4,
        "users_per_round": 10,
        "noise_multiplier": 3.0,
        "rounds": 200,
    }
    printed = xie_proposition_1(**common, user_rate=1 / 3, delta=DELTA)
    ours = insdp_fedsgd(**common, sampling=Sampling.POISSON, users=30)
    theirs = dopamine(**common, sampling=Sampling.POISSON)
    assert ours.noise_multiplier == pytest.approx(3 * math.sqrt(10))
    assert exact(ours) < exact(theirs)
    fixed = insdp_fedsgd(**common, sampling=Sampling.FIXED_SIZE, users=30)
    assert printed.value < rdp(fixed)
    assert "drawn together" in printed.flaw


def test_insdp_fedsgd_needs_no_more_users_than_there_are() -> None:
    with pytest.raises(Misconfiguration, match="users_per_round"):
        insdp_fedsgd(
            sampling=Sampling.POISSON,
            batch_rate=0.1,
            users=5,
            users_per_round=6,
            noise_multiplier=1.0,
            rounds=1,
        )


def test_insdp_fedavg_is_the_maximum_over_users_and_spends_only_on_who_ran() -> None:
    step = poisson_gaussian(rate=0.04, noise_multiplier=2.0)
    account = ParallelAccount()
    assert account.epsilon(DELTA) == 0
    account.charge("a", step.times(25))
    account.charge("b", step.times(25))
    account.charge("b", step.times(25))
    by_user = account.epsilon_by_user(DELTA)
    assert by_user == {"a": exact(step.times(25)), "b": exact(step.times(50))}
    assert account.epsilon(DELTA) == by_user["b"]


def test_insdp_fedavg_keeps_no_trace_of_a_refused_charge() -> None:
    account = ParallelAccount()
    fixed = userdp_fedavg(
        sampling=Sampling.FIXED_SIZE, user_rate=0.1, noise_multiplier=1.0, rounds=1
    )
    with pytest.raises(Misconfiguration):
        account.charge("a", fixed)
    assert account.epsilon_by_user(DELTA) == {}


def test_the_fixed_size_bound_is_never_above_no_sampling_and_reaches_it_at_rate_1() -> None:
    for order in (2, 8, 64, 500):
        assert fixed_size_rdp(1.0, 0.7, order) == pytest.approx(order / (2 * 0.7**2))
        assert fixed_size_rdp(0.3, 0.7, order) <= order / (2 * 0.7**2)
        assert fixed_size_rdp(0.0, 0.7, order) == 0


def test_between_whole_orders_the_fixed_size_curve_is_a_chord() -> None:
    low, middle, high = fixed_size_rdp_curve(0.1, 1.0, (4.0, 4.5, 5.0))
    assert 3.5 * middle == pytest.approx((3 * low + 4 * high) / 2)
    assert fixed_size_rdp_curve(0.1, 1.0, (1.5,))[0] == pytest.approx(fixed_size_rdp(0.1, 1.0, 2))


def test_the_tight_conversion_never_loses_to_mironovs() -> None:
    event = replace(poisson_gaussian(rate=0.2, noise_multiplier=1.3), participation=0.4, count=80)
    by = {}
    for conversion in Conversion:
        accountant = RdpAccountant(conversion=conversion)
        accountant.compose(event)
        by[conversion] = accountant.epsilon(DELTA)
    assert by[Conversion.TIGHT] < by[Conversion.MIRONOV]


def test_rdp_says_zero_where_the_total_variation_is_below_delta() -> None:
    account, plain = RdpAccountant(), RdpAccountant(conversion=Conversion.MIRONOV)
    step = poisson_gaussian(rate=1e-3, noise_multiplier=100.0, count=3)
    account.compose(step)
    plain.compose(step)
    assert account.epsilon(1e-4) == 0 < plain.epsilon(1e-4)
    assert account.epsilon(1e-5) > 0
    exact = ExactAccountant()
    exact.compose(step)
    assert exact.delta(0.0) <= account.delta(0.0) < plain.delta(0.0)
    assert account.delta(0.0) == pytest.approx(account.delta(1e-9), rel=1e-3)
