"""What every accountant keeps to, whichever it is."""

from dataclasses import replace

import pytest

from precad.accounting.events import (
    Accountant,
    AccountantName,
    Adjacency,
    Denominator,
    SampledGaussian,
    Sampling,
    poisson_gaussian,
)
from precad.accounting.guarantees import accountant_named
from precad.common.errors import Misconfiguration

DELTA = 1e-5
STEP = poisson_gaussian(rate=0.1, noise_multiplier=1.5)
MIXTURE = replace(STEP, participation=0.3, count=20)
FULL = poisson_gaussian(rate=1.0, noise_multiplier=6.0, count=4)


def sampled(sampling: Sampling, adjacency: Adjacency) -> SampledGaussian:
    return SampledGaussian(
        sampling=sampling,
        adjacency=adjacency,
        rate=0.1,
        noise_multiplier=2.0,
        sensitivity=2.0,
        denominator=Denominator.FIXED,
    )


POISSON_REPLACE = sampled(Sampling.POISSON, Adjacency.REPLACE_ONE)
FIXED_REPLACE = sampled(Sampling.FIXED_SIZE, Adjacency.REPLACE_ONE)
FIXED_ADD_REMOVE = sampled(Sampling.FIXED_SIZE, Adjacency.ADD_REMOVE)


@pytest.fixture(params=list(AccountantName))
def accountant(request: pytest.FixtureRequest) -> Accountant:
    return accountant_named(request.param)


def epsilon_of(accountant: Accountant, *events: SampledGaussian) -> float:
    fresh = accountant_named(accountant.name)
    for event in events:
        fresh.compose(event)
    return fresh.epsilon(DELTA)


def test_nothing_composed_costs_nothing(accountant: Accountant) -> None:
    assert (accountant.epsilon(DELTA), accountant.delta(0.0)) == (0, 0)


@pytest.mark.parametrize(
    "event",
    [
        STEP.times(0),
        MIXTURE.times(0),
        poisson_gaussian(rate=0.0, noise_multiplier=1.0, count=9),
        replace(STEP, participation=0.0, count=9),
    ],
)
def test_what_never_touches_data_costs_nothing(
    accountant: Accountant, event: SampledGaussian
) -> None:
    accountant.compose(event)
    assert accountant.epsilon(DELTA) == 0


@pytest.mark.parametrize("event", [STEP.times(30), MIXTURE, FULL])
def test_more_rounds_cost_more(accountant: Accountant, event: SampledGaussian) -> None:
    accountant.compose(event)
    once = accountant.epsilon(DELTA)
    accountant.compose(event)
    assert 0 < once < accountant.epsilon(DELTA)


@pytest.mark.parametrize("event", [STEP, MIXTURE, FULL])
def test_a_count_is_the_same_as_repetition(accountant: Accountant, event: SampledGaussian) -> None:
    repeated = [event.times(2), event.times(3), event.times(5)]
    whole = epsilon_of(accountant, event.times(10))
    assert epsilon_of(accountant, *repeated) == pytest.approx(whole, rel=1e-9)


def test_the_order_of_events_is_no_matter(accountant: Accountant) -> None:
    forward = epsilon_of(accountant, STEP.times(30), MIXTURE, FULL)
    assert epsilon_of(accountant, FULL, MIXTURE, STEP.times(30)) == pytest.approx(forward)


def test_together_costs_more_than_each_and_at_most_the_sum(accountant: Accountant) -> None:
    parts: list[SampledGaussian] = [STEP.times(30), MIXTURE, FULL]
    alone = [epsilon_of(accountant, part) for part in parts]
    together = epsilon_of(accountant, *parts)
    assert max(alone) < together < sum(alone)


def test_a_certain_coin_is_no_coin(accountant: Accountant) -> None:
    certain = replace(STEP, participation=1.0, count=30)
    assert epsilon_of(accountant, certain) == pytest.approx(epsilon_of(accountant, STEP.times(30)))


def test_sensitivity_scales_the_noise(accountant: Accountant) -> None:
    wide = SampledGaussian(
        sampling=Sampling.POISSON,
        adjacency=Adjacency.ADD_REMOVE,
        rate=0.1,
        noise_multiplier=4.5,
        sensitivity=3.0,
        denominator=Denominator.FIXED,
        count=30,
    )
    assert epsilon_of(accountant, wide) == pytest.approx(epsilon_of(accountant, STEP.times(30)))


@pytest.mark.parametrize("event", [STEP.times(40), MIXTURE, FULL])
def test_epsilon_and_delta_agree(accountant: Accountant, event: SampledGaussian) -> None:
    accountant.compose(event)
    epsilon = accountant.epsilon(DELTA)
    assert accountant.delta(epsilon) == pytest.approx(DELTA, rel=1e-3)
    assert 0 <= accountant.delta(epsilon + 0.5) < DELTA < accountant.delta(epsilon / 2) <= 1


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


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, float("nan")])
def test_a_delta_outside_its_range_is_refused(accountant: Accountant, delta: float) -> None:
    accountant.compose(STEP)
    with pytest.raises(Misconfiguration) as refused:
        accountant.epsilon(delta)
    assert refused.value.field == "delta"


@pytest.mark.parametrize("epsilon", [-0.1, float("inf"), float("nan")])
def test_an_epsilon_outside_its_range_is_refused(accountant: Accountant, epsilon: float) -> None:
    with pytest.raises(Misconfiguration) as refused:
        accountant.delta(epsilon)
    assert refused.value.field == "epsilon"
