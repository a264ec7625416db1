"""Lower bounds of ε: never above the truth more often than stated, and near published figures."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from precad.common.account import gdp
from precad.common.account.events import poisson_gaussian
from precad.common.account.exact import ExactAccountant
from precad.common.errors import Misconfiguration
from precad.experiments.audit.one_run import (
    Guesses,
    epsilon_by_counts,
    epsilon_by_trade_off,
    lower_bound,
    p_value,
    refutes,
)
from precad.experiments.audit.power import guess
from precad.experiments.audit.trade_off import approximate, from_profile, gaussian, of_statement

DELTA = 1e-5


def played(canaries: int, mu: float, made: int, seed: int) -> Guesses:
    """Of a plain Gaussian with distance μ, guessed as well as can be."""
    generator = np.random.default_rng(seed)
    coins = generator.random(canaries) < 1 / 2
    scores = (coins - 0.5) * mu + generator.standard_normal(canaries)
    return guess(scores, coins, made)


def test_ten_thousand_canaries_of_a_plain_gaussian_bound_epsilon_as_the_papers_do() -> None:
    # True ε 4.38 at δ = 1e-5. With all coins guessed the two methods' bounds are poor, and with
    # the surest 400 the first one comes within a quarter.
    truth = gdp.epsilon_of_delta(1.0, DELTA)
    assert truth == pytest.approx(4.38, abs=0.01)
    one = played(10_000, 1.0, 400, 1)
    by_trade_off = gdp.epsilon_of_delta(lower_bound(gaussian, one, 0.05, 8.0), DELTA)
    by_counts = epsilon_by_counts(one, DELTA, 0.05)
    assert 2.19 < by_trade_off < truth
    assert 1.09 < by_counts < by_trade_off


def test_bounds_of_a_sound_mechanism_rarely_pass_the_truth() -> None:
    refuted = sum(refutes(gaussian(0.5), played(300, 0.5, 60, seed), 0.05) for seed in range(200))
    assert refuted <= binom.ppf(0.9999, 200, 0.05)


def test_a_mechanism_that_shows_everything_is_refuted_at_any_epsilon() -> None:
    all_right = Guesses(1000, 1000, 1000)
    assert refutes(approximate(4.0, 1e-9), all_right, 1e-4)
    assert epsilon_by_counts(all_right, 1e-9, 1e-4) > 4.0


@given(st.integers(1, 200), st.data())
def test_more_correct_guesses_never_bound_less(made: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, made - 1))
    fewer, more = Guesses(400, made, correct), Guesses(400, made, correct + 1)
    assert p_value(more, 1.0, DELTA) <= p_value(fewer, 1.0, DELTA) + 1e-12
    for bound in (epsilon_by_counts, epsilon_by_trade_off):
        assert bound(more, DELTA, 0.05) >= bound(fewer, DELTA, 0.05) - 1e-6


def test_without_delta_the_p_value_is_the_binomial_tail() -> None:
    assert p_value(Guesses(50, 30, 25), 1.0, 0.0) == pytest.approx(
        binom.sf(24, 30, 1 / (1 + math.exp(-1.0)))
    )


@given(st.floats(0.05, 3.0), st.floats(1e-3, 1 - 1e-3))
def test_a_trade_off_from_a_profile_lies_below_the_gaussians_own(mu: float, alpha: float) -> None:
    accountant = ExactAccountant()
    accountant.compose(poisson_gaussian(rate=1.0, noise_multiplier=1 / mu))
    true = float(norm.cdf(norm.isf(alpha) - mu))
    found = of_statement(accountant.delta)(alpha)
    assert found <= true + 1e-9
    assert found >= true - 0.05


@given(st.floats(0.0, 5.0), st.floats(0.0, 0.5), st.floats(0.0, 1.0))
def test_trade_offs_are_symmetric(epsilon: float, delta: float, alpha: float) -> None:
    f = from_profile({epsilon: delta, 0.0: 0.6})
    beta = f(alpha)
    assert 0.0 <= beta <= 1.0 - alpha + 1e-12
    assert f(beta) <= alpha + 1e-9


@pytest.mark.parametrize("numbers", [(0, 1, 1), (10, 11, 1), (10, 0, 0), (10, 5, 6)])
def test_impossible_counts_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(Misconfiguration):
        Guesses(*numbers)
