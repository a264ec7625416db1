"""What must hold for every parameter, and formulas against mpmath."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from research.printed.fixed_size import mironov_epsilon
from research.printed.printed_privacy import precad_case_2_by_pld
from tests.rig.accounts import composed, delta_of_round
from tests.rig.certified import theorem_2

from precad.accounting import gdp
from precad.accounting.events import AccountantName, SampledGaussian, poisson_gaussian
from precad.accounting.losses import SampledRound, one_round
from precad.accounting.rdp import ORDERS, RdpAccountant, mixture_rdp

mp.dps = 40

RATES = st.floats(0.01, 0.9)
SIGMAS = st.floats(0.4, 8.0)
COUNTS = st.integers(1, 400)
EVENTS = st.builds(poisson_gaussian, rate=RATES, noise_multiplier=SIGMAS, count=COUNTS)
DELTAS = st.sampled_from([1e-3, 1e-5, 1e-8])
NAMES = st.sampled_from(list(AccountantName))
# The exact accountant's grid may add this much, and differs between parameters.
GRID = 1.002


def spent(name: AccountantName, event: SampledGaussian, delta: float) -> float:
    return composed(event, by=name).epsilon(delta)


@settings(max_examples=15)
@given(NAMES, EVENTS, DELTAS)
def test_epsilon_rises_with_rounds_and_rate_and_falls_with_noise_and_delta(
    name: AccountantName, event: SampledGaussian, delta: float
) -> None:
    base, noise = spent(name, event, delta), event.noise_multiplier
    dearer = (
        replace(event, count=event.count * 2),
        replace(event, rate=event.rate * 1.1),
        replace(event, noise_multiplier=noise * 0.9),
    )
    for other in dearer:
        assert base <= spent(name, other, delta) * GRID
    assert spent(name, event, delta * 2) <= base


@settings(max_examples=15)
@given(EVENTS, DELTAS, st.floats(0.05, 1.0))
def test_exact_is_at_least_as_good_as_rdp_and_the_tight_conversion_as_mironovs(
    step: SampledGaussian, delta: float, coin: float
) -> None:
    for event in (step, replace(step, participation=coin)):
        accountant = composed(event, by=AccountantName.RDP)
        assert isinstance(accountant, RdpAccountant)
        rdp, mironov = accountant.epsilon(delta), mironov_epsilon(accountant, delta)[0]
        assert spent(AccountantName.EXACT, event, delta) / GRID <= rdp <= mironov


@settings(max_examples=10)
@given(st.floats(0.02, 0.5), SIGMAS, st.integers(5, 400), st.floats(0.05, 0.95))
def test_the_atom_mixture_lies_between_rate_qp_and_every_round(
    rate: float, sigma: float, count: int, coin: float
) -> None:
    step = poisson_gaussian(rate=rate, noise_multiplier=math.sqrt(2) * sigma)
    mixture = spent(
        AccountantName.EXACT, replace(step, participation=coin, count=count), 1e-5
    )
    printed = precad_case_2_by_pld(
        record_rate=rate,
        client_rate=coin,
        noise_multiplier=sigma,
        rounds=count,
        delta=1e-5,
    )
    every = spent(AccountantName.EXACT, step.times(count), 1e-5)
    assert printed.value / GRID <= mixture <= every * GRID


@settings(max_examples=15)
@given(st.floats(0.01, 0.99), SIGMAS, st.floats(0.0, 3.0))
def test_exact_stays_just_above_the_definition(
    rate: float, sigma: float, epsilon: float
) -> None:
    found = composed(poisson_gaussian(rate=rate, noise_multiplier=sigma)).delta(epsilon)
    step = SampledRound(rate, sigma, 1.0)
    truth = float(
        max(delta_of_round(step, epsilon, reverse=way) for way in (False, True))
    )
    assert truth <= found == pytest.approx(truth, rel=5e-3, abs=1e-6)


@settings(max_examples=30)
@given(
    st.floats(0.001, 0.999),
    st.floats(0.3, 8.0),
    st.sampled_from([1.0, 0.3]),
    st.floats(-3, 3),
    st.sampled_from([0, 1]),
)
def test_one_rounds_lattice_dominates_in_each_direction_at_every_real_epsilon(
    rate: float, sigma: float, coin: float, share: float, direction: int
) -> None:
    one = SampledRound(rate, sigma, coin)
    losses = one_round(one)[direction]
    epsilon = share * rate / sigma
    for held in (losses, losses.on(32 * losses.cell)):
        gains = np.maximum(0.0, -np.expm1(epsilon - held.losses))
        stated = float(np.exp(held.log_masses) @ gains) + held.infinite
        truth = float(delta_of_round(one, epsilon, reverse=bool(direction)))
        assert stated >= truth * (1 - 1e-12)
        coarse = 1 if held is losses else 32
        assert stated <= truth * 1.02 + coarse * losses.cell / 4


@settings(max_examples=30)
@given(st.floats(0.05, 30.0), st.floats(0.0, 40.0))
def test_gdp_delta_matches_mpmath(mu: float, epsilon: float) -> None:
    m, e = mpf(mu), mpf(epsilon)
    truth = mp.ncdf(-e / m + m / 2) - mp.exp(e) * mp.ncdf(-e / m - m / 2)
    assert gdp.delta_of_epsilon(mu, epsilon) == pytest.approx(
        float(truth), rel=1e-6, abs=1e-14
    )


def test_a_huge_mu_still_has_an_epsilon_above_the_truth() -> None:
    for mu in (1e5, 1e6, 1e7):
        assert mu**2 / 2 < gdp.epsilon_of_delta(mu, 1e-5) <= mu**2 / 2 + 5 * mu
    assert gdp.epsilon_of_delta(1e25, 1e-5) == pytest.approx(5e49)
    assert gdp.epsilon_of_delta(math.inf, 1e-5) == math.inf


@settings(max_examples=30)
@given(st.floats(0.05, 0.95), st.floats(0.5, 20.0), st.floats(0.05, 3.0))
def test_the_loss_bound_is_the_numeric_optimum_over_all_real_epsilon(
    share: float, bound: float, group: float
) -> None:
    bounds = theorem_2(share * bound, bound, 1, group)
    lower, upper = float(bounds.lower), float(bounds.upper)
    # The optimum is at |ε| ≤ μ·|Φ⁻¹(share)| + μ²/2, and the grid as fine as μ is small.
    span = 2 * group + group**2
    epsilons = np.linspace(-span, span, 4801)
    deltas = np.array([gdp.delta_of_epsilon(group, float(e)) for e in epsilons])
    loss = share * bound
    # Restricted to ε ≥ 0, as PRECAD prints it, the bound is never better.
    printed = (np.exp(epsilons) * loss + bound * deltas)[epsilons >= 0].min()
    assert printed >= upper - 1e-9 * bound
    assert upper == pytest.approx(
        (np.exp(epsilons) * loss + bound * deltas).min(), rel=1e-4
    )
    assert lower == pytest.approx(
        (np.exp(-epsilons) * (loss - bound * deltas)).max(), rel=1e-4, abs=1e-5 * bound
    )
    assert 0 <= lower <= loss <= upper <= bound


@given(st.floats(0.001, 0.999), st.floats(1e-6, 50.0), st.floats(1.01, 100.0))
def test_mixture_rdp_matches_its_definition(
    coin: float, divergence: float, alpha: float
) -> None:
    mixed = mixture_rdp(np.array([divergence]), coin, (alpha,))[0]
    a = mpf(alpha)
    truth = mp.log(1 - mpf(coin) + mpf(coin) * mp.exp((a - 1) * mpf(divergence))) / (
        a - 1
    )
    assert mixed == pytest.approx(float(truth), rel=1e-7)
    assert mixed <= divergence * (1 + 1e-12)


@settings(max_examples=30)
@given(st.floats(1e-3, 1.0), st.floats(0.3, 20.0), st.integers(1, 20_000), DELTAS)
def test_no_order_at_either_end_binds(
    rate: float, sigma: float, count: int, delta: float
) -> None:
    whole, without_ends = RdpAccountant(), RdpAccountant(ORDERS[1:-1])
    for accountant in (whole, without_ends):
        accountant.compose(
            poisson_gaussian(rate=rate, noise_multiplier=sigma, count=count)
        )
    assert whole.epsilon(delta) == without_ends.epsilon(delta)
