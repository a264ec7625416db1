"""A person's account, by hand and by brute force: of small trainings, on grids."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm
from tests.rig.tasks import task_with

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.guarantees import EXACT, guarantees
from precad.common.mechanism import Mechanism
from precad.common.task import Task

SIGMA = 1.2
P = 0.3
DELTA = 1e-3
GRID = np.linspace(-12.0, 13.0, 2501)
WIDTH = GRID[1] - GRID[0]
Density = NDArray[np.float64]


def task_of(rounds: int) -> Task:
    return task_with(
        {
            "privacy.unit": "person",
            "privacy.most_records_per_unit": 10,
            "privacy.record_rate": P,
            "privacy.client_rate": 1.0,
            "privacy.noise_multiplier": SIGMA,
            "privacy.delta": DELTA,
            "training.rounds": rounds,
        }
    )


def stated(rounds: int) -> float:
    run = Run.of(task_of(rounds), participations=rounds)
    (found,) = guarantees(run, DELTA, (Adversary.ONE_SERVER,), EXACT)
    assert found.unit == "person"
    return found.epsilon


def seen(parts: list[float]) -> Density:
    """What one server sees of a sum of persons' parts, all 2^n samples enumerated."""
    density = np.zeros_like(GRID)
    for drawn in itertools.product((False, True), repeat=len(parts)):
        chance = np.prod([P if each else 1 - P for each in drawn])
        total = sum(part for part, each in zip(parts, drawn, strict=True) if each)
        density += chance * norm.pdf(GRID, total, SIGMA)
    return density


def delta_of(first: Density, second: Density, epsilon: float) -> float:
    """The hockey-stick divergence of one over the other, both ways, over one round."""
    ways = ((first, second), (second, first))
    return max(
        float(np.maximum(p - np.exp(epsilon) * q, 0).sum() * WIDTH) for p, q in ways
    )


def delta_of_two(first: Density, second: Density, epsilon: float) -> float:
    """The same over two rounds, on the product of both grids."""
    p = np.outer(first, first)[::2, ::2]
    q = np.outer(second, second)[::2, ::2]
    found = max(
        np.maximum(p - np.exp(epsilon) * q, 0).sum(),
        np.maximum(q - np.exp(epsilon) * p, 0).sum(),
    )
    return float(found * (2 * WIDTH) ** 2)


def test_one_round_and_two_cost_a_person_what_the_integrals_say() -> None:
    """Whose part is as long as it can be, R, whatever records it is the mean of."""
    there, gone = seen([1.0]), seen([])
    for rounds, delta in ((1, delta_of), (2, delta_of_two)):
        epsilon = stated(rounds)
        assert delta(there, gone, epsilon) <= DELTA
        assert delta(there, gone, 0.99 * epsilon) > DELTA


@settings(max_examples=30, deadline=None)
@given(
    st.floats(-1, 1),
    st.lists(st.floats(-1, 1), max_size=4),
)
def test_no_person_among_others_costs_more_than_is_stated(
    part: float, others: list[float]
) -> None:
    there, gone = seen([part, *others]), seen(others)
    assert delta_of(there, gone, stated(1)) <= DELTA * (1 + 1e-6)


def test_a_persons_numbers_are_a_records_of_the_same_task() -> None:
    """R' and p decide them, and a mean that is clipped to R has a record's R'."""
    persons = task_of(3)
    values = persons.model_dump(mode="json")
    del values["privacy"]["unit"], values["privacy"]["most_records_per_unit"]
    records = Task.parse(values)

    def numbers(mechanism: Mechanism) -> tuple[float, ...]:
        return (
            mechanism.sensitivity,
            mechanism.noise_units,
            *mechanism.unit_rates,
            mechanism.bound,
        )

    assert numbers(persons.mechanism) == numbers(records.mechanism)
    assert stated(3) == pytest.approx(
        guarantees(
            Run.of(records, participations=3), DELTA, (Adversary.ONE_SERVER,), EXACT
        )[0].epsilon
    )
