"""The exact accountant where a plain Fourier transform holds nothing, against other truths."""

import math

import numpy as np
import pytest

from precad.common.account import composition, gdp
from precad.common.account.accountant import BeyondReach
from precad.common.account.events import SampledGaussian, poisson_gaussian
from precad.common.account.exact import ExactAccountant
from precad.common.account.losses import discounted

NOBODY_LEFT_OUT = 1 - 1e-12
"""A rate that is composed like any other and has the truth of the Gaussian."""


def test_discounted_sums_are_the_recurrence() -> None:
    values = np.random.default_rng(3).random(1000)
    expected, last = [], 0.0
    for value in values.tolist():
        last = value + 0.998 * last
        expected.append(last)
    assert discounted(values, 0.998) == pytest.approx(np.array(expected), rel=1e-14)


def epsilon(delta: float, *events: SampledGaussian) -> float:
    accountant = ExactAccountant()
    for event in events:
        accountant.compose(event)
    return accountant.epsilon(delta)


def convolved(delta: float, step: float, size: int, *events: SampledGaussian) -> float:
    """ε of removing a record, by a plain transform of losses spread linearly onto a grid."""
    product = np.ones(size // 2 + 1, dtype=complex)
    for event in events:
        sigma = event.effective_noise_multiplier
        x = np.linspace(-9 * sigma, 1 + 9 * sigma, 400_001)
        base = np.exp(-0.5 * (x / sigma) ** 2)
        moved = np.exp(-0.5 * ((x - 1) / sigma) ** 2)
        with_record = (1 - event.rate) * base + event.rate * moved
        loss = np.log1p(event.rate * np.expm1((2 * x - 1) / (2 * sigma**2)))
        weights = with_record / with_record.sum()
        below = np.floor(loss / step).astype(np.int64)
        part = loss / step - below
        spread = np.concatenate([weights * (1 - part), weights * part])
        places = np.concatenate([below, below + 1]) % size
        masses = np.bincount(places, spread, size).astype(np.float64)
        coin = event.participation
        product *= (1 - coin + coin * np.fft.rfft(masses)) ** event.count
    masses = np.fft.irfft(product, size)
    masses = np.roll(masses, size // 4)
    losses = (np.arange(size) - size // 4) * step

    def excess(candidate: float) -> float:
        above = losses > candidate
        return float((masses[above] * -np.expm1(candidate - losses[above])).sum()) - delta

    low, high = 0.0, float(losses[-1])
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


@pytest.mark.parametrize("delta", [1e-5, 1e-10, 1e-15])
@pytest.mark.parametrize(
    ("sigma", "count"), [(1.0, 1), (3.0, 100), (30.0, 10_000), (3000.0, 10**7)]
)
def test_small_deltas_and_ten_million_rounds_stay_just_above_the_closed_form(
    sigma: float, count: int, delta: float
) -> None:
    one = poisson_gaussian(rate=NOBODY_LEFT_OUT, noise_multiplier=sigma, count=count)
    truth = gdp.epsilon_of_delta(math.sqrt(count) / sigma, delta)
    assert truth <= epsilon(delta, one) <= truth * 1.001


@pytest.mark.parametrize("delta", [1e-5, 1e-15])
def test_three_hundred_different_events_stay_just_above_the_closed_form(delta: float) -> None:
    sigmas = np.geomspace(0.8, 400, 300)
    counts = [1 + (7 * i) % 50 for i in range(300)]
    events = [
        poisson_gaussian(rate=NOBODY_LEFT_OUT, noise_multiplier=float(s), count=n)
        for s, n in zip(sigmas, counts, strict=True)
    ]
    mu = math.sqrt(math.fsum(n / s**2 for s, n in zip(sigmas.tolist(), counts, strict=True)))
    truth = gdp.epsilon_of_delta(mu, delta)
    assert truth <= epsilon(delta, *events) <= truth * 1.005


def test_sampled_events_of_every_size_are_within_a_percent_of_a_finer_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = [
        poisson_gaussian(
            rate=10 ** (-4 + 3.7 * ((3 * i) % 40) / 40),
            noise_multiplier=10 ** (-0.2 + 1.9 * ((7 * i) % 40) / 40),
            count=1 + (11 * i) % 300,
        )
        for i in range(40)
    ]
    for delta in (1e-5, 1e-15):
        usual = epsilon(delta, *events)
        with monkeypatch.context() as finer:
            finer.setattr(composition, "_ADDED_VARIANCE", composition._ADDED_VARIANCE / 64)
            assert epsilon(delta, *events) <= usual <= epsilon(delta, *events) * 1.01


@pytest.mark.parametrize(
    ("rate", "sigma", "count", "step", "size"),
    [
        (1e-6, 1.0, 10**6, 1e-8, 2**22),
        (1e-3, 1.0, 5000, 1e-6, 2**22),
        (0.01, 0.7, 1000, 2e-5, 2**21),
    ],
)
def test_tiny_rates_are_near_an_independent_transform_and_never_below(
    rate: float, sigma: float, count: int, step: float, size: int
) -> None:
    event = poisson_gaussian(rate=rate, noise_multiplier=sigma, count=count)
    truth = convolved(1e-5, step, size, event)
    assert truth * (1 - 1e-4) <= epsilon(1e-5, event) <= truth * 1.003


def test_rare_large_losses_are_found_beside_common_small_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    event = poisson_gaussian(rate=1e-5, noise_multiplier=0.5, count=10_000)
    apart = epsilon(1e-6, event)
    with monkeypatch.context() as whole:
        # Composed whole, on a lattice as fine as its common losses want it.
        whole.setattr(composition, "_MOST_LEVEL", 2**62)
        whole.setattr(composition, "_MOST_POINTS", 2**24)
        assert apart == pytest.approx(epsilon(1e-6, event), rel=2e-3)


def test_an_owners_five_tasks_cost_what_an_independent_composition_says() -> None:
    tasks = [
        poisson_gaussian(rate=0.05, noise_multiplier=1.0, count=100),
        poisson_gaussian(rate=0.2, noise_multiplier=2.0, count=60),
        poisson_gaussian(rate=0.01, noise_multiplier=0.8, count=400),
        poisson_gaussian(rate=0.1, noise_multiplier=4.0, count=1000, participation=0.3),
        poisson_gaussian(rate=0.5, noise_multiplier=6.0, count=20),
    ]
    for delta in (1e-5, 1e-8):
        truth = convolved(delta, 1e-4, 2**20, *tasks)
        assert truth * (1 - 1e-4) <= epsilon(delta, *tasks) <= truth * 1.003


@pytest.mark.parametrize(
    "event",
    [
        poisson_gaussian(rate=0.01, noise_multiplier=0.8, count=4000),
        poisson_gaussian(rate=1e-5, noise_multiplier=50.0, count=10**6),
        poisson_gaussian(rate=0.3, noise_multiplier=0.02, count=3),
    ],
)
def test_epsilon_and_delta_agree_at_every_delta(event: SampledGaussian) -> None:
    accountant = ExactAccountant()
    accountant.compose(event)
    for delta in (0.1, 1e-6, 1e-15):
        at = accountant.epsilon(delta)
        assert accountant.delta(at) <= delta * 1.01
        if at > 0:
            assert accountant.delta(at * 0.99) > delta


def test_a_delta_that_arithmetic_cannot_hold_is_beyond_reach_and_not_an_answer() -> None:
    with pytest.raises(BeyondReach, match="RDP"):
        epsilon(1e-40, poisson_gaussian(rate=0.1, noise_multiplier=1.0, count=100))


def test_an_epsilon_that_next_to_no_loss_reaches_is_bounded_without_a_warning() -> None:
    accountant = ExactAccountant()
    accountant.compose(poisson_gaussian(rate=0.2, noise_multiplier=2 * 2**0.5 * 8.5, count=60))
    assert 0.0 <= accountant.delta(8.0) <= 1e-30
