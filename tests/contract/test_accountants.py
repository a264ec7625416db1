"""What every accountant keeps to, whichever it is."""

from dataclasses import replace

import pytest
from tests.rig.accounts import composed

from precad.accounting import events
from precad.accounting.events import (
    Accountant,
    AccountantName,
    SampledGaussian,
    poisson_gaussian,
)
from precad.accounting.guarantees import accountant_named
from precad.common.errors import Misconfiguration

DELTA = 1e-5
STEP = poisson_gaussian(rate=0.1, noise_multiplier=1.5)
MIXTURE = replace(STEP, participation=0.3, count=20)
FULL = poisson_gaussian(rate=1.0, noise_multiplier=6.0, count=4)
PARTS = [STEP.times(30), MIXTURE, FULL]
POISSON_REPLACE = replace(STEP, adjacency=events.Adjacency.REPLACE_ONE, sensitivity=2.0)
FIXED_REPLACE = replace(POISSON_REPLACE, sampling=events.Sampling.FIXED_SIZE)
FIXED_ADD_REMOVE = replace(STEP, sampling=events.Sampling.FIXED_SIZE, sensitivity=2.0)


@pytest.fixture(params=list(AccountantName))
def accountant(request: pytest.FixtureRequest) -> Accountant:
    return accountant_named(request.param)


def epsilon_of(accountant: Accountant, *events: SampledGaussian) -> float:
    return composed(*events, by=accountant.name).epsilon(DELTA)


@pytest.mark.parametrize(
    "event",
    [
        STEP.times(0),
        MIXTURE.times(0),
        poisson_gaussian(rate=0.0, noise_multiplier=1.0, count=9),
        replace(STEP, participation=0.0, count=9),
    ],
)
def test_what_touches_no_data_costs_nothing(
    accountant: Accountant, event: SampledGaussian
) -> None:
    assert (accountant.epsilon(DELTA), accountant.delta(0.0)) == (0, 0)
    accountant.compose(event)
    assert accountant.epsilon(DELTA) == 0


@pytest.mark.parametrize("event", [STEP, MIXTURE, FULL])
def test_a_count_is_the_same_as_repetition(
    accountant: Accountant, event: SampledGaussian
) -> None:
    repeated = [event.times(2), event.times(3), event.times(5)]
    whole = epsilon_of(accountant, event.times(10))
    assert epsilon_of(accountant, *repeated) == pytest.approx(whole, rel=1e-9)


def test_together_costs_more_than_each_and_less_than_the_sum_in_any_order(
    accountant: Accountant,
) -> None:
    alone = [epsilon_of(accountant, part) for part in PARTS]
    together = epsilon_of(accountant, *PARTS)
    assert max(alone) < together < sum(alone)
    assert epsilon_of(accountant, *PARTS[::-1]) == pytest.approx(together)


@pytest.mark.parametrize(
    "same",
    [
        # A certain coin is no coin; sensitivity scales the noise.
        replace(STEP, participation=1.0, count=30),
        replace(STEP, noise_multiplier=4.5, sensitivity=3.0, count=30),
    ],
)
def test_the_same_said_otherwise_costs_the_same(
    accountant: Accountant, same: SampledGaussian
) -> None:
    assert epsilon_of(accountant, same) == pytest.approx(
        epsilon_of(accountant, PARTS[0])
    )


@pytest.mark.parametrize("event", PARTS)
def test_epsilon_and_delta_agree_and_rounds_cost(
    accountant: Accountant, event: SampledGaussian
) -> None:
    accountant.compose(event)
    epsilon = accountant.epsilon(DELTA)
    assert accountant.delta(epsilon) == pytest.approx(DELTA, rel=1e-3)
    assert (
        0
        <= accountant.delta(epsilon + 0.5)
        < DELTA
        < accountant.delta(epsilon / 2)
        <= 1
    )
    accountant.compose(event)
    assert 0 < epsilon < accountant.epsilon(DELTA)


@pytest.mark.parametrize(
    "event", [POISSON_REPLACE, FIXED_ADD_REMOVE, FIXED_REPLACE, "a step"], ids=str
)
def test_an_event_that_is_not_understood_is_refused_and_changes_nothing(
    accountant: Accountant, event: SampledGaussian
) -> None:
    accountant.compose(STEP.times(30))
    before = accountant.epsilon(DELTA)
    with pytest.raises(Misconfiguration):
        accountant.compose(event)
    if isinstance(event, SampledGaussian):
        with pytest.raises(Misconfiguration):
            accountant.compose(replace(event, participation=0.5, count=3))
    assert accountant.epsilon(DELTA) == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("delta", value) for value in (0.0, 1.0, -1e-5, 2.0, float("nan"))),
        *(("epsilon", value) for value in (-0.1, float("inf"), float("nan"))),
    ],
)
def test_an_epsilon_or_delta_out_of_range_is_refused(
    accountant: Accountant, field: str, value: float
) -> None:
    accountant.compose(STEP)
    with pytest.raises(Misconfiguration) as refused:
        (accountant.epsilon if field == "delta" else accountant.delta)(value)
    assert refused.value.field == field
