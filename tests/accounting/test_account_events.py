"""Events say everything and refuse what can't hold; calibration finds the least noise that does."""

import math
from typing import Any

import pytest

from precad.accounting.events import (
    AccountantName,
    Adjacency,
    Denominator,
    SampledGaussian,
    Sampling,
    poisson_gaussian,
)
from precad.accounting.guarantees import PRECISION, accountant_named, least_noise_multiplier
from precad.common.errors import Misconfiguration

WHOLE: dict[str, Any] = {
    "sampling": Sampling.POISSON,
    "adjacency": Adjacency.ADD_REMOVE,
    "rate": 0.1,
    "noise_multiplier": 1.0,
    "sensitivity": 1.0,
    "denominator": Denominator.FIXED,
}


@pytest.mark.parametrize("field", list(WHOLE))
def test_nothing_that_decides_the_cost_has_a_default(field: str) -> None:
    with pytest.raises(TypeError, match=field):
        SampledGaussian(**{k: v for k, v in WHOLE.items() if k != field})


TWO_CLIPS: list[dict[str, Any]] = [
    {"sampling": Sampling.FIXED_SIZE, "adjacency": Adjacency.REPLACE_ONE},
    {"sampling": Sampling.FIXED_SIZE},
    {"adjacency": Adjacency.REPLACE_ONE},
]
"""Where one record moves the sum by two."""
OUT_OF_RANGE = {
    "rate": (-0.1, 1.1, math.nan),
    "noise_multiplier": (0.0, -1.0, math.inf),
    "sensitivity": (0.0,),
    "count": (-1, 1.5, True),
    "participation": (1.5, -0.1),
    "denominator": (Denominator.DATA_DEPENDENT,),
}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        *(({field: value}, field) for field, values in OUT_OF_RANGE.items() for value in values),
        *((change, "sensitivity") for change in TWO_CLIPS),
    ],
)
def test_a_value_out_of_range_is_named_with_its_remedy(change: dict[str, Any], field: str) -> None:
    with pytest.raises(Misconfiguration) as refused:
        SampledGaussian(**WHOLE | change)
    assert refused.value.field == field
    assert refused.value.remedy


def test_two_clips_halve_the_noise() -> None:
    found = [SampledGaussian(**WHOLE | change | {"sensitivity": 2.0}) for change in TWO_CLIPS]
    assert [event.effective_noise_multiplier for event in found] == [0.5] * 3


# Calibration

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
    always = poisson_gaussian(rate=1.0, noise_multiplier=1.0)
    with pytest.raises(Misconfiguration, match="no noise multiplier"):
        least_noise_multiplier(lambda _: always, epsilon=0.1, delta=DELTA)
