"""A round's noise by a keyed sampler; by the system's: soak/test_further_inputs.py."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.rig.noise_fit import Bins, Tally
from tests.rig.rounds import no_noise, play_round, roster_of

from precad.aggregator.noise import DiscreteGaussian
from precad.common.identifiers import ClientId, Role, Secret
from precad.common.ring import Keystream
from precad.common.task import Task

SAMPLES = 40_000
# A right sampler fails for one key in a million; σ wrong by 5 % always (below).
LEAST_P = 1e-6
A, B = Role.SERVER_A, Role.SERVER_B


def sampler(deviation: float, key: int = 1) -> DiscreteGaussian:
    return DiscreteGaussian(deviation, lambda: Keystream(Secret(bytes([key]) * 32), "test"))


def fit(residual: NDArray[np.int64], deviation: float) -> float:
    """The least p of all tests: of bins, signs, neighbours, moments and tails."""
    bins, tally = Bins.of(deviation), Tally(deviation)
    tally.add(residual, bins)
    return min(tally.p_values(bins).values())


def fits_only(residual: NDArray[np.int64], deviation: float) -> None:
    assert fit(residual, deviation) > LEAST_P
    # The test can fail: on a deviation that is 5 % off, and on a mean that is.
    for wrong in (0.95, 1.05):
        assert fit(residual, wrong * deviation) < LEAST_P
    assert fit(residual + round(0.1 * deviation), deviation) < LEAST_P


@pytest.fixture(scope="module")
def task(make_task: Callable[..., Task]) -> Task:
    return make_task(SAMPLES)


@pytest.mark.parametrize("noisy", [{A}, {B}, {A, B}], ids=["a", "b", "both"])
def test_a_rounds_residual_is_gaussian_at_the_stated_deviation(
    task: Task, noisy: set[Role]
) -> None:
    """Each server's part has σ·R'·2^f, R' with the rounding in it; both together √2 of that."""
    random = np.random.default_rng(8)
    names = (ClientId("a"), ClientId("b"))
    updates = {name: random.integers(-(2**15), 2**15, task.dimension) for name in names}

    def noise(role: Role) -> Any:
        return sampler(task.noise_units, 1 + (role is A)) if role in noisy else no_noise(role)

    finished, _ = play_round(task, updates, noise=noise)
    assert finished.valid == names
    residual = finished.noisy_sum - sum(updates.values())
    clip = task.privacy.client_clip
    stated = 2.0 * (1.0 + math.sqrt(task.dimension) * 2.0**-20 + clip * 2.0**-18) * 2**20
    assert task.noise_units == pytest.approx(stated, rel=1e-12)
    fits_only(residual, stated * math.sqrt(len(noisy)))


def test_a_round_draws_fresh_noise_of_the_task_unless_told_otherwise(task: Task) -> None:
    (finished, _), (again, _) = (
        play_round(task, {}, roster=roster_of([ClientId("a")])) for _ in range(2)
    )
    assert (finished.noisy_sum != again.noisy_sum).any()
    # The system's randomness: within 20 standard errors, so that no luck decides.
    drawn = np.std(finished.noisy_sum) / (math.sqrt(2) * task.noise_units)
    assert drawn == pytest.approx(1.0, abs=20 / math.sqrt(2 * SAMPLES))
