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


@pytest.mark.parametrize("near", [0.001, 0.5, 1.9, 2.0, 40.0, 1e9])
def test_a_guess_changes_no_answer(near: float) -> None:
    plain = least_noise_multiplier(with_noise, epsilon=4.0, delta=DELTA)
    guessed = least_noise_multiplier(with_noise, epsilon=4.0, delta=DELTA, near=near)
    assert guessed == pytest.approx(plain, rel=2 * PRECISION)
    assert spent(with_noise(guessed), AccountantName.EXACT) <= 4.0


def test_a_good_guess_spares_evaluations() -> None:
    def evaluations(near: float | None) -> int:
        tried: list[float] = []

        def event(sigma: float) -> SampledGaussian:
            tried.append(sigma)
            return with_noise(sigma)

        least_noise_multiplier(event, epsilon=4.0, delta=DELTA, near=near)
        return len(tried)

    assert evaluations(1.85) < 0.8 * evaluations(None)


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
