"""Calibration: the answer holds, and a little further doesn't."""

import pytest

from precad.common.account.accountant import AccountantName
from precad.common.account.calibrate import PRECISION, least_noise_multiplier
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


@pytest.mark.parametrize("name", list(AccountantName))
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_least_noise(name: AccountantName, epsilon: float) -> None:
    sigma = least_noise_multiplier(with_noise, epsilon=epsilon, delta=DELTA, accountant=name)
    assert spent(with_noise(sigma), name) <= epsilon
    assert spent(with_noise(sigma * (1 - 5 * PRECISION)), name) > epsilon


def test_a_target_that_everything_meets_gives_the_end_of_the_range() -> None:
    sigma = least_noise_multiplier(with_noise, epsilon=1e6, delta=DELTA)
    assert sigma == pytest.approx(0.02)


def test_a_target_that_nothing_meets_is_a_clear_error() -> None:
    always = poisson_gaussian(rate=1.0, noise_multiplier=1.0)
    with pytest.raises(Misconfiguration, match="no noise multiplier"):
        least_noise_multiplier(lambda _: always, epsilon=0.1, delta=DELTA)


def test_a_wrong_target_is_named() -> None:
    with pytest.raises(Misconfiguration, match="delta"):
        least_noise_multiplier(with_noise, epsilon=1.0, delta=0.0)
    with pytest.raises(Misconfiguration, match="epsilon"):
        least_noise_multiplier(with_noise, epsilon=-1.0, delta=DELTA)
