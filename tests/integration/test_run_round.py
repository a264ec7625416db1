"""A whole round against the plain sum: exact without noise, whatever the clients send;
and its noise by a keyed sampler. By the system's: soak/test_further_inputs.py.
"""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.rig.corpus import honest, multiple, too_long, unit, wrapping
from tests.rig.noise_fit import Bins, Tally
from tests.rig.rounds import no_noise, play_round, roster_of

from precad.aggregator import release, validate
from precad.aggregator.attempt_states import Finished
from precad.aggregator.noise import DiscreteGaussian, NoiseSource
from precad.common.errors import Rejection
from precad.common.fixed_point import clip_update, squared_norm
from precad.common.identifiers import ClientId, Role, Secret
from precad.common.model import apply_update, model_digest, to_bytes
from precad.common.ring import Keystream
from precad.common.task import Task

pytestmark = pytest.mark.usefixtures("either_kernel")

D = 6
CHECKS = ("crypten", "proof")
Maker = Callable[..., Task]
Updates = dict[ClientId, NDArray[np.int64]]


A, B = Role.SERVER_A, Role.SERVER_B
PART = {A: 1_000_003, B: 2_000_029}
"""Noise that isn't zero, so that what a round releases can be seen to hold both
servers' parts."""


def play(
    task: Task, updates: Updates, noise: Callable[[Role], NoiseSource] = no_noise
) -> Finished:
    """One round; what both servers end with is checked to be the same, to the byte."""
    enrolled = roster_of(ClientId(f"c{i}") for i in range(task.enrolment.clients))
    theta = np.linspace(-1, 1, task.dimension)
    a, b = play_round(task, updates, roster=enrolled, theta=theta.copy(), noise=noise)
    assert (a.opened, a.valid, a.rejections) == (b.opened, b.valid, b.rejections)
    assert (a.noisy_sum == b.noisy_sum).all()
    assert (to_bytes(a.theta), a.model) == (to_bytes(b.theta), b.model)
    # θ_{t+1} and its digest are what the sum says.
    stepped = apply_update(
        theta, a.noisy_sum, task, task.mechanism.denominator(enrolled.values())
    )
    assert to_bytes(a.theta) == to_bytes(stepped)
    assert a.model == model_digest(task.digest, 1, task.model.parameters, stepped)
    # Everybody is drawn at q = 1, and accounted for; absent is who sent nothing.
    assert set(a.opened.counted) == set(a.valid) | set(a.rejections) == set(enrolled)
    assert not set(a.valid) & set(a.rejections)
    absent = {client for client, why in a.rejections.items() if why is Rejection.ABSENT}
    assert absent == set(enrolled) - set(updates)
    return a


def refused(finished: Finished) -> dict[ClientId, Rejection]:
    """Whose submissions were rejected; the absent sent none."""
    return {
        c: why for c, why in finished.rejections.items() if why is not Rejection.ABSENT
    }


def integer_sum(updates: Updates, dimension: int) -> list[int]:
    return [sum(int(x[j]) for x in updates.values()) for j in range(dimension)]


def named(vectors: Sequence[NDArray[np.integer]]) -> Updates:
    return {
        ClientId(f"c{i}"): np.asarray(x, dtype=np.int64) for i, x in enumerate(vectors)
    }


def extremes(task: Task) -> list[NDArray[np.int64]]:
    """Valid vectors at the border: norm exactly β, which 3-4-5 keeps whole."""
    beta, d = task.mechanism.bound, task.dimension
    pythagoras = unit(d, 3 * (beta // 5)) + unit(d, -4 * (beta // 5), at=1)
    return [unit(d, beta), unit(d, -beta, at=d - 1), pythagoras, unit(d, 0)]


def bad(task: Task) -> list[NDArray[np.int64]]:
    d = task.dimension
    return [
        *wrapping(d),
        *too_long(d, task.mechanism.bound),
        multiple(d, 0, np.random.default_rng(5)),
    ]


@settings(max_examples=8)
@given(st.data(), st.sampled_from(CHECKS))
def test_without_noise_the_sum_is_exact(
    make_task: Maker, data: st.DataObject, check: str
) -> None:
    task = make_task(D, {"validation": check})
    clipped = st.integers(0, 2**32).map(
        lambda seed: honest(task, np.random.default_rng(seed))
    )
    update = clipped | st.sampled_from(extremes(task))
    updates = named(data.draw(st.lists(update, max_size=6)))
    finished = play(task, updates)
    assert finished.valid == tuple(updates)
    assert finished.noisy_sum.tolist() == integer_sum(updates, D)


@pytest.mark.parametrize("check", CHECKS)
def test_the_rejected_do_not_touch_the_sum(make_task: Maker, check: str) -> None:
    task = make_task(D, {"enrolment.clients": 20, "validation": check})
    good, vectors = extremes(task), bad(task)
    # Good and bad in turns, so that places matter.
    mixed = [x for pair in zip(vectors, good, strict=False) for x in pair] + vectors[
        len(good) :
    ]
    updates = named(mixed)
    finished = play(task, updates)
    valid = {
        c: x for c, x in updates.items() if squared_norm(x) <= task.mechanism.bound**2
    }
    assert (len(valid), finished.valid) == (len(good), tuple(sorted(valid)))
    assert finished.noisy_sum.tolist() == integer_sum(valid, D)
    assert set(refused(finished).values()) == {Rejection.NORM_EXCEEDED}


@pytest.mark.parametrize("check", CHECKS)
def test_a_body_of_the_wrong_length_is_nobody_elses_affair(
    make_task: Maker, check: str
) -> None:
    task = make_task(D, {"validation": check})
    good = extremes(task)[0]
    shortest = 0 if task.proof is None else 1
    ones = [np.ones(d, dtype=np.int64) for d in (D + 1, D - 1, shortest)]
    updates = named([good, *ones, good])
    finished = play(task, updates)
    assert finished.valid == (ClientId("c0"), ClientId("c4"))
    reasons = (Rejection.MALFORMED, Rejection.TRUNCATED, Rejection.TRUNCATED)
    assert tuple(refused(finished)[ClientId(f"c{n}")] for n in (1, 2, 3)) == reasons
    assert (finished.noisy_sum == 2 * good).all()


def test_each_servers_noise_is_added_once_also_to_nothing(make_task: Maker) -> None:
    task = make_task(D, {"enrolment.clients": 20, "privacy.client_clip": 32.0})

    def fixed_noise(role: Role) -> NoiseSource:
        draw = lambda dimension: np.full(dimension, PART[role])  # noqa: E731
        return cast("NoiseSource", SimpleNamespace(draw=draw))

    # Extreme ones add up, all on one side too.
    good, one_side = (
        named(extremes(task) * 2),
        named([unit(D, task.mechanism.bound)] * 10),
    )
    for updates, valid in (
        ({}, {}),
        (named(bad(task)), {}),
        (good, good),
        (one_side, one_side),
    ):
        finished = play(task, updates, noise=fixed_noise)
        assert finished.valid == tuple(valid)
        noisy = [s + sum(PART.values()) for s in integer_sum(valid, D)]
        assert finished.noisy_sum.tolist() == noisy


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("clients", [1, 3, 7])
def test_a_round_of_several_batches_is_the_same_round(
    make_task: Maker, monkeypatch: pytest.MonkeyPatch, clients: int, check: str
) -> None:
    for module in (release, validate.check_with_dealer):
        monkeypatch.setattr(module, "MAX_BATCH_CLIENTS", clients)
    task = make_task(D, {"validation": check})
    updates = named([*extremes(task), unit(D, 2**32), *extremes(task)[:2]])
    finished = play(task, updates)
    assert finished.valid == tuple(c for c in updates if c != ClientId("c4"))
    valid = {c: x for c, x in updates.items() if c in finished.valid}
    assert finished.noisy_sum.tolist() == integer_sum(valid, D)


@pytest.mark.parametrize("check", CHECKS)
def test_a_vector_longer_than_a_block_and_a_frame(make_task: Maker, check: str) -> None:
    """140,000 words: several frames for each body, many blocks of rows."""
    d = 140_000
    task = make_task(d, {"validation": check})
    random = np.random.default_rng(6)
    vectors = [
        clip_update(
            random.integers(-(2**20), 2**20, d, dtype=np.int64),
            task.mechanism.bound,
            20,
        )
        for _ in range(2)
    ]
    updates = named([*vectors, np.full(d, 2**32)])
    finished = play(task, updates)
    assert refused(finished) == {ClientId("c2"): Rejection.NORM_EXCEEDED}
    assert (finished.noisy_sum == vectors[0] + vectors[1]).all()


SAMPLES = 40_000
# A right sampler fails for one key in a million; σ wrong by 5 % always (below).
LEAST_P = 1e-6


def fit(residual: NDArray[np.int64], deviation: float) -> float:
    bins, tally = Bins.of(deviation), Tally(deviation)
    tally.add(residual, bins)
    return min(tally.p_values(bins).values())


@pytest.mark.parametrize("noisy", [{A}, {B}, {A, B}], ids=["a", "b", "both"])
def test_the_noise_is_gaussian_at_the_stated_deviation(
    make_task: Maker, noisy: set[Role]
) -> None:
    """Each server's part has σ·R'·2^f, R' with the rounding in it; both together √2 of
    that."""
    task, random = make_task(SAMPLES), np.random.default_rng(8)
    names = (ClientId("a"), ClientId("b"))
    updates = {name: random.integers(-(2**15), 2**15, task.dimension) for name in names}

    def noise(role: Role) -> NoiseSource:
        key = Secret(bytes([1 + (role is A)]) * 32)
        sampler = DiscreteGaussian(
            task.mechanism.noise_units, lambda: Keystream(key, "test")
        )
        return sampler if role in noisy else no_noise(role)

    finished, _ = play_round(task, updates, noise=noise)
    assert finished.valid == names
    residual = finished.noisy_sum - sum(updates.values())
    clip = task.privacy.most_client_clip
    stated = (
        2.0 * (1.0 + math.sqrt(task.dimension) * 2.0**-20 + clip * 2.0**-18) * 2**20
    )
    assert task.mechanism.noise_units == pytest.approx(stated, rel=1e-12)
    deviation = stated * math.sqrt(len(noisy))
    assert fit(residual, deviation) > LEAST_P
    # The test can fail: on a deviation that is 5 % off, and on a mean that is.
    for wrong in (0.95, 1.05):
        assert fit(residual, wrong * deviation) < LEAST_P
    assert fit(residual + round(0.1 * deviation), deviation) < LEAST_P


def test_a_round_draws_fresh_noise_of_the_task_unless_told_otherwise(
    make_task: Maker,
) -> None:
    task = make_task(SAMPLES)
    (finished, _), (again, _) = (
        play_round(task, {}, roster=roster_of([ClientId("a")])) for _ in range(2)
    )
    assert (finished.noisy_sum != again.noisy_sum).any()
    # The system's randomness: within 20 standard errors, so that no luck decides.
    drawn = np.std(finished.noisy_sum) / (math.sqrt(2) * task.mechanism.noise_units)
    assert drawn == pytest.approx(1.0, abs=20 / math.sqrt(2 * SAMPLES))
