"""The exact accountant where a plain Fourier transform holds nothing, against other truths."""

import contextlib
import math

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import binom, norm
from tests.rig.accounts import composed, delta_of_round

from precad.accounting import composition, gdp
from precad.accounting.events import (
    Accountant,
    BeyondReach,
    SampledGaussian,
    poisson_gaussian,
)
from precad.accounting.exact import group_profiles
from precad.accounting.loss_lattice import UNIT, split
from precad.accounting.losses import SampledRound, group_shift, one_round

Numbers = tuple[float, float, int, float]
"""Of an event: rate, σ, rounds and the chance to take part."""


def made(*events: Numbers) -> list[SampledGaussian]:
    return [
        poisson_gaussian(
            rate=rate, noise_multiplier=sigma, count=count, participation=share
        )
        for rate, sigma, count, share in events
    ]


def account_of(*events: Numbers) -> Accountant:
    return composed(*made(*events))


def convolved(delta: float, step: float, size: int, *events: SampledGaussian) -> float:
    """ε of removing a record, by a plain transform of losses spread linearly onto a grid."""
    product = np.ones(size // 2 + 1, dtype=complex)
    for event in events:
        sigma = event.effective_noise_multiplier
        x = np.linspace(-9 * sigma, 1 + 9 * sigma, 200_001)
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
        return (
            float((masses[above] * -np.expm1(candidate - losses[above])).sum()) - delta
        )

    return float(brentq(excess, 0.0, float(losses[-1])))


@pytest.mark.parametrize("delta", [1e-5, 1e-10, 1e-15])
@pytest.mark.parametrize(
    ("sigma", "count"), [(1.0, 1), (3.0, 100), (30.0, 10_000), (3000.0, 10**7)]
)
def test_small_deltas_and_ten_million_rounds_stay_just_above_the_closed_form(
    sigma: float, count: int, delta: float
) -> None:
    # A rate that is composed like any other and has the truth of the Gaussian.
    accountant = account_of((1 - 1e-12, sigma, count, 1.0))
    truth = gdp.epsilon_of_delta(math.sqrt(count) / sigma, delta)
    assert truth <= accountant.epsilon(delta) <= truth * 1.001


def test_events_of_every_size_are_near_a_finer_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = [10 ** (-4 + 3.7 * ((3 * i) % 40) / 40) for i in range(40)]
    sigmas = [10 ** (-0.2 + 1.9 * ((7 * i) % 40) / 40) for i in range(40)]
    events = [(rates[i], sigmas[i], 1 + (11 * i) % 300, 1.0) for i in range(40)]
    usual = account_of(*events).epsilon(1e-15)
    monkeypatch.setattr(
        composition, "_ADDED_VARIANCE", composition._ADDED_VARIANCE / 64
    )
    finer = account_of(*events).epsilon(1e-15)
    assert finer <= usual <= finer * 1.01


OF_ONE_OWNER = [(0.05, 1.0, 100, 1.0), (0.2, 2.0, 60, 1.0), (0.01, 0.8, 400, 1.0)]
OF_ONE_OWNER += [(0.1, 4.0, 1000, 0.3), (0.5, 6.0, 20, 1.0)]


@pytest.mark.parametrize(
    ("events", "delta", "step"),
    [
        ([(1e-6, 1.0, 10**6, 1.0)], 1e-5, 4e-8),
        ([(1e-3, 1.0, 5000, 1.0)], 1e-5, 4e-6),
        ([(0.01, 0.7, 1000, 1.0)], 1e-5, 4e-5),
        (OF_ONE_OWNER, 1e-8, 1e-4),
    ],
)
def test_tiny_rates_and_many_tasks_are_near_an_independent_transform_and_never_below(
    events: list[Numbers], delta: float, step: float
) -> None:
    truth = convolved(delta, step, 2**20, *made(*events))
    assert truth * (1 - 1e-4) <= account_of(*events).epsilon(delta) <= truth * 1.003


@pytest.mark.parametrize("event", [(0.01, 0.8, 4000, 1.0), (0.3, 0.02, 3, 1.0)])
def test_epsilon_and_delta_agree_at_every_delta(event: Numbers) -> None:
    accountant = account_of(event)
    for delta in (0.1, 1e-6, 1e-15):
        at = accountant.epsilon(delta)
        assert accountant.delta(at) <= delta * 1.01
        assert at <= 0 or accountant.delta(at * 0.99) > delta


def delta_of_two(
    epsilon: float, first: SampledRound, second: SampledRound, *, reverse: bool
) -> float:
    """δ(ε) of two rounds: the second's closed form at what the first leaves, integrated."""
    p, w = mpf(first.rate), mpf(first.noise_multiplier)

    def integrand(x: mpf) -> mpf:
        more = 1 + p * mp.expm1((2 * x - 1) / (2 * w * w))
        left = mpf(epsilon) + mp.log(more) * (1 if reverse else -1)
        closed_form = delta_of_round(second, left, reverse=reverse)
        return mp.npdf(x, 0, w) * (1 if reverse else more) * closed_form

    return float(mp.quad(integrand, [w * k for k in range(-14, 20, 2)]))


@pytest.mark.parametrize(
    "second", [SampledRound(0.4, 0.8, 1.0), SampledRound(1.0, 2.0, 1.0)]
)
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 3.0, 6.0, 12.0])
def test_delta_of_mixed_rounds_is_an_integral_of_a_closed_form(
    epsilon: float, second: SampledRound
) -> None:
    rounds = SampledRound(0.1, 1.0, 1.0), second
    accountant = account_of(
        *((one.rate, one.noise_multiplier, 1, 1.0) for one in rounds)
    )
    with mp.workdps(40):
        truth = max(
            delta_of_two(epsilon, *rounds, reverse=reverse) for reverse in (False, True)
        )
    assert truth <= accountant.delta(epsilon) <= truth * 1.01 + 1e-31


def test_a_loss_between_two_points_of_a_coarser_lattice_is_never_told_as_less() -> None:
    """Split onto both neighbours it has the same δ at the lower one, to the last bit or above."""
    fine, coarse, masses = 2.0**-10, 2.0**-6, np.linspace(0.01, 1.0, 15)
    for place in range(1, 16):
        for mass in masses:
            points, both = split(
                np.array([48 + place]), np.array([mass]), fine=fine, coarse=coarse
            )
            assert points.tolist() == [3, 4]
            with mp.workdps(40):
                inside = mpf(place) * mpf(fine)
                assert mpf(both[1]) * -mp.expm1(-mpf(coarse)) >= mpf(mass) * -mp.expm1(
                    -inside
                )
                assert mpf(both[0]) + mpf(both[1]) >= mpf(mass)


NEXT_TO_NO_LOSS = [(0.2, 2 * 2**0.5 * 8.5, 60, 1.0)]


@pytest.mark.parametrize("epsilon", [3.0, 5.0, 7.0, 10.0, 40.0, 1e3, 1e6])
@pytest.mark.parametrize(
    "events",
    [
        [(0.1, 2.0, 30, 1.0), (0.01, 1.0, 300, 1.0)],
        [(0.05, 1.0, 100, 1.0), (1.0, 10.0, 5, 1.0)],
        [(1e-9, 5.0, 10**6, 1e-9), (0.2, 2.0, 60, 0.3)],
        NEXT_TO_NO_LOSS,
    ],
)
def test_delta_falls_and_agrees_with_epsilon(
    epsilon: float, events: list[Numbers]
) -> None:
    accountant = account_of(*events)
    found = accountant.delta(epsilon)
    assert 0 <= found <= accountant.delta(epsilon - 1) < 1
    if found > 1e-28:
        assert accountant.epsilon(found) == pytest.approx(epsilon, rel=2e-3)
    else:
        assert found < 1e-25


@pytest.mark.parametrize(
    ("rate", "sigma", "count"),
    [(0.5, 0.02, 10**9), (0.1, 0.01, 10**9), (1e-3, 0.05, 10**7)],
)
def test_what_loses_beyond_all_measure_ends(
    rate: float, sigma: float, count: int
) -> None:
    accountant = account_of((rate, sigma, count, 1.0))
    assert accountant.delta(1.0) == 1
    with contextlib.suppress(BeyondReach):
        assert accountant.epsilon(1e-5) > 1e4
    # Nor is a δ answered that arithmetic can't hold.
    with pytest.raises(BeyondReach, match="RDP"):
        account_of((0.1, 1.0, 100, 1.0)).epsilon(1e-40)


@pytest.mark.parametrize(("k", "sigma"), [(2, 1.0), (60, 0.7), (500, 3.0)])
def test_what_rounding_takes_of_a_groups_masses_is_given_back(
    k: int, sigma: float
) -> None:
    one = SampledRound(0.2, sigma, 1.0, k)
    most = group_shift(one).sizes[-1]
    largest = most * (most + 24 * sigma) / sigma**2
    for direction in one_round(one):
        whole = float(np.exp(direction.log_masses).sum()) + direction.infinite
        assert 2 * UNIT * largest < whole - 1 < 1e-7


@pytest.mark.parametrize(
    ("rate", "sigma", "group"),
    [(0.05, 1.0, 6), (0.01, 8.0, 100), (0.3, 4.0, 6), (1e-3, 0.5, 3), (0.5, 30.0, 40)],
)
def test_a_groups_profile_dominates_the_mixture_of_gaussians_and_stays_near(
    rate: float, sigma: float, group: int
) -> None:
    """One round, in both directions, against the definition at the threshold on x."""
    sizes = np.arange(group + 1)
    weights = binom.pmf(sizes, group, rate)
    x = np.linspace(-4 * sigma, float(sizes @ weights) + 6 * sigma, 60)
    terms = np.log(weights) + (2 * np.outer(x, sizes) - sizes**2) / (2 * sigma**2)
    losses = logsumexp(terms, axis=1)
    moved = (x[:, None] - sizes) / sigma
    with_group, without = norm.sf(moved) @ weights, norm.sf(x / sigma)
    below_with, below_without = norm.cdf(moved) @ weights, norm.cdf(x / sigma)
    forward, reverse = group_profiles(
        poisson_gaussian(rate=rate, noise_multiplier=sigma), group
    )
    for (epsilons, deltas), at, truth in (
        (forward, losses, with_group - np.exp(losses) * without),
        (reverse, -losses, below_without - np.exp(-losses) * below_with),
    ):
        # δ is convex in e^ε, so between two points of the profile the chord is above
        # it.
        stated = np.interp(np.exp(at), np.exp(epsilons), deltas, left=1.0)
        assert (stated >= truth - 1e-12).all()
        assert (stated <= truth + 1e-3).all()


@pytest.mark.parametrize("move", [512, 1024, 2048])
def test_a_discrete_gaussian_of_least_deviation_costs_what_a_continuous_one_does(
    move: int,
) -> None:
    """docs/privacy-accounting.md: within a relative 1e-6, at 1,024 units."""
    units = np.arange(-20_000, 20_001)
    without, moved = (
        np.exp(-((units - at) ** 2) / (2 * 1024.0**2)) for at in (0, move)
    )
    for epsilon in (0.1, 0.5, 1.0, 2.0, 4.0):
        discrete = np.maximum(moved - np.exp(epsilon) * without, 0).sum()
        continuous = gdp.delta_of_epsilon(move / 1024, epsilon)
        assert discrete / without.sum() <= continuous * (1 + 1e-6)
