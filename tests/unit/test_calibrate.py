"""Calibration: the answer holds, and a little further doesn't."""

import pytest

from precad.common.account.accountant import AccountantName
from precad.common.account.calibrate import PRECISION, Target
from precad.common.account.events import SampledGaussian, poisson_gaussian
from precad.common.account.guarantees import accountant_named
from precad.common.errors import Misconfiguration

DELTA = 1e-5


def spent(event: SampledGaussian, name: AccountantName) -> float:
    accountant = accountant_named(name)
    accountant.compose(event)
    return accountant.epsilon(DELTA)


def with_noise(sigma: float) -> SampledGaussian:
    return poisson_gaussian(rate=0.2, noise_multiplier=sigma, count=60)


def with_rate(rate: float) -> SampledGaussian:
    return poisson_gaussian(rate=rate, noise_multiplier=2.0, count=60)


def with_count(count: int) -> SampledGaussian:
    return poisson_gaussian(rate=0.2, noise_multiplier=2.0, count=count)


@pytest.mark.parametrize("name", list(AccountantName))
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_least_noise(name: AccountantName, epsilon: float) -> None:
    sigma = Target(epsilon=epsilon, delta=DELTA, accountant=name).least_noise_multiplier(with_noise)
    assert spent(with_noise(sigma), name) <= epsilon
    assert spent(with_noise(sigma * (1 - 5 * PRECISION)), name) > epsilon


@pytest.mark.parametrize("name", list(AccountantName))
def test_largest_rate(name: AccountantName) -> None:
    rate = Target(epsilon=2.0, delta=DELTA, accountant=name).largest_rate(with_rate)
    assert spent(with_rate(rate), name) <= 2.0
    assert spent(with_rate(rate * (1 + 5 * PRECISION)), name) > 2.0


@pytest.mark.parametrize("name", list(AccountantName))
def test_most_rounds(name: AccountantName) -> None:
    rounds = Target(epsilon=2.0, delta=DELTA, accountant=name).most_rounds(
        with_count, ceiling=10_000
    )
    assert spent(with_count(rounds), name) <= 2.0 < spent(with_count(rounds + 1), name)


def test_a_target_that_everything_meets_gives_the_end_of_the_range() -> None:
    assert Target(epsilon=1e4, delta=DELTA).largest_rate(with_rate) == 1.0
    assert Target(epsilon=1e4, delta=DELTA).most_rounds(with_count, ceiling=7) == 7
    assert Target(epsilon=1e6, delta=DELTA).least_noise_multiplier(with_noise) == pytest.approx(
        0.02
    )


def test_a_target_that_nothing_meets_is_an_answer_or_a_clear_error() -> None:
    assert Target(epsilon=0.0, delta=DELTA).most_rounds(with_count, ceiling=9) == 0
    always = poisson_gaussian(rate=1.0, noise_multiplier=1.0)
    with pytest.raises(Misconfiguration, match="no noise multiplier"):
        Target(epsilon=0.1, delta=DELTA).least_noise_multiplier(lambda _: always)


def test_a_wrong_target_is_named() -> None:
    with pytest.raises(Misconfiguration, match="delta"):
        Target(epsilon=1.0, delta=0.0).least_noise_multiplier(with_noise)
    with pytest.raises(Misconfiguration, match="epsilon"):
        Target(epsilon=-1.0, delta=DELTA).largest_rate(with_rate)
    with pytest.raises(Misconfiguration, match="ceiling"):
        Target(epsilon=1.0, delta=DELTA).most_rounds(with_count, ceiling=-1)
