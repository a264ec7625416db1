"""The papers' algorithms, and their printed numbers beside what holds."""

from typing import Any

import pytest
from research.printed.algorithms import (
    ParallelAccount,
    attained_epsilon,
    dopamine,
    insdp_fedsgd,
    userdp_fedavg,
)
from research.printed.fixed_size import fixed_size_epsilon, mironov_epsilon
from research.printed.printed_privacy import xie_proposition_1, xie_table

from precad.accounting.events import SampledGaussian, Sampling, poisson_gaussian
from precad.accounting.exact import ExactAccountant
from precad.accounting.rdp import RdpAccountant

DELTA = 1e-5


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
    assert exact(poisson) < printed.value < attained.lower <= fixed_size_epsilon(fixed, DELTA)


def test_insdp_fedsgd_as_printed_is_below_what_holds_and_dopamine_above() -> None:
    common: dict[str, Any] = {"batch_rate": 0.4, "users_per_round": 10, "noise_multiplier": 3.0}
    common["rounds"] = 200
    printed = xie_proposition_1(**common, user_rate=1 / 3, delta=DELTA)
    poisson, fixed = (
        insdp_fedsgd(**common, sampling=sampling, users=30)
        for sampling in (Sampling.POISSON, Sampling.FIXED_SIZE)
    )
    assert poisson.noise_multiplier == pytest.approx(3 * 10**0.5)
    assert exact(poisson) < exact(dopamine(**common, sampling=Sampling.POISSON))
    assert printed.value < fixed_size_epsilon(fixed, DELTA)
    assert "drawn together" in printed.flaw


def test_insdp_fedavg_is_the_maximum_over_users_and_spends_only_on_who_ran() -> None:
    step = poisson_gaussian(rate=0.04, noise_multiplier=2.0)
    account = ParallelAccount()
    assert account.epsilon(DELTA) == 0
    for user in "abb":
        account.charge(user, step.times(25))
    by_user = account.epsilon_by_user(DELTA)
    assert by_user == {"a": exact(step.times(25)), "b": exact(step.times(50))}
    assert account.epsilon(DELTA) == by_user["b"]


def test_rdp_says_zero_where_the_total_variation_is_below_delta() -> None:
    account, exact = RdpAccountant(), ExactAccountant()
    step = poisson_gaussian(rate=1e-3, noise_multiplier=100.0, count=3)
    account.compose(step)
    exact.compose(step)
    assert account.epsilon(1e-4) == 0 < mironov_epsilon(account, 1e-4)[0]
    assert account.epsilon(1e-5) > 0
    assert exact.delta(0.0) <= account.delta(0.0) < 1e-4
    assert account.delta(0.0) == pytest.approx(account.delta(1e-9), rel=1e-3)
