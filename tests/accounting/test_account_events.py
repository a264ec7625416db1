"""Events say everything and refuse what can't hold; calibration finds the least noise that does."""

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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rate", -0.1),
        ("rate", 1.1),
        ("rate", float("nan")),
        ("noise_multiplier", 0.0),
        ("noise_multiplier", -1.0),
        ("noise_multiplier", float("inf")),
        ("sensitivity", 0.0),
        ("count", -1),
        ("count", 1.5),
        ("count", True),
        ("participation", 1.5),
        ("participation", -0.1),
        ("denominator", Denominator.DATA_DEPENDENT),
    ],
)
def test_a_value_out_of_range_is_named_with_its_remedy(field: str, value: object) -> None:
    with pytest.raises(Misconfiguration) as refused:
        SampledGaussian(**WHOLE | {field: value})
    assert refused.value.field == field
    assert refused.value.remedy


@pytest.mark.parametrize(
    "change",
    [
        {"sampling": Sampling.FIXED_SIZE, "adjacency": Adjacency.REPLACE_ONE},
        {"sampling": Sampling.FIXED_SIZE},
        {"adjacency": Adjacency.REPLACE_ONE},
    ],
)
def test_one_clip_is_refused_where_two_can_move(change: dict[str, Any]) -> None:
    with pytest.raises(Misconfiguration) as refused:
        SampledGaussian(**WHOLE | change)
    assert refused.value.field == "sensitivity"
    assert (
        SampledGaussian(**WHOLE | change | {"sensitivity": 2.0}).effective_noise_multiplier == 0.5
    )


# --- calibration ---------------------------------------------------------------------------------


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
