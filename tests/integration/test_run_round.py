"""A whole round against the plain sum: exact without noise, whatever the clients send."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.rig.corpus import honest, multiple, too_long, unit, wrapping
from tests.rig.rounds import no_noise, play_round, roster_of

from precad.aggregator import release
from precad.aggregator.rounds.states import Finished
from precad.aggregator.validate import check_with_dealer
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.model import apply_update, model_digest, to_bytes
from precad.common.ring import clip_update, squared_norm
from precad.common.roster import Roster
from precad.common.task import Task

pytestmark = pytest.mark.usefixtures("either_kernel")

D = 6
CHECKS = ("crypten", "proof")
Maker = Callable[..., Task]
Updates = dict[ClientId, NDArray[np.int64]]


PART = {Role.SERVER_A: 1_000_003, Role.SERVER_B: 2_000_029}


def fixed_noise(role: Role) -> Any:
    """Not zero, so that what a round releases can be seen to hold both servers' parts."""
    return SimpleNamespace(draw=lambda dimension: np.full(dimension, PART[role]))


def roster(task: Task) -> Roster:
    return roster_of(ClientId(f"c{i}") for i in range(task.enrolment.clients))


def theta(task: Task) -> NDArray[np.float64]:
    return np.linspace(-1, 1, task.dimension)


def play(task: Task, updates: Updates, noise: Callable[[Role], Any] = no_noise) -> Finished:
    """One round; what both servers end with is checked to be the same, to the byte."""
    enrolled, before = roster(task), theta(task)
    a, b = play_round(task, updates, roster=enrolled, theta=before, noise=noise)
    assert (a.opened, a.valid, a.rejections) == (b.opened, b.valid, b.rejections)
    assert (a.noisy_sum == b.noisy_sum).all()
    assert (to_bytes(a.theta), a.model) == (to_bytes(b.theta), b.model)
    # θ_{t+1} and its digest are what the sum says.
    stepped = apply_update(theta(task), a.noisy_sum, task, roster(task).denominator(1.0))
    assert to_bytes(a.theta) == to_bytes(stepped)
    assert a.model == model_digest(task.digest, 1, task.model.parameters, stepped)
    # Everybody is drawn at q = 1, and accounted for; absent is who sent nothing.
    assert set(a.opened.counted) == set(a.valid) | set(a.rejections) == set(roster(task))
    assert not set(a.valid) & set(a.rejections)
    absent = {client for client, why in a.rejections.items() if why is Rejection.ABSENT}
    assert absent == set(roster(task)) - set(updates)
    return a


def refused(finished: Finished) -> dict[ClientId, Rejection]:
    """Whose submissions were rejected; the absent sent none."""
    return {c: why for c, why in finished.rejections.items() if why is not Rejection.ABSENT}


def integer_sum(updates: Updates, dimension: int) -> list[int]:
    return [sum(int(x[j]) for x in updates.values()) for j in range(dimension)]


def named(vectors: Sequence[NDArray[Any]]) -> Updates:
    return {ClientId(f"c{i}"): np.asarray(x, dtype=np.int64) for i, x in enumerate(vectors)}


def extremes(task: Task) -> list[NDArray[np.int64]]:
    """Valid vectors at the border: norm exactly β, which 3-4-5 keeps whole."""
    beta, d = task.bound, task.dimension
    pythagoras = unit(d, 3 * (beta // 5)) + unit(d, -4 * (beta // 5), at=1)
    return [unit(d, beta), unit(d, -beta, at=d - 1), pythagoras, unit(d, 0)]


def bad(task: Task) -> list[NDArray[np.int64]]:
    d = task.dimension
    return [*wrapping(d), *too_long(d, task.bound), multiple(d, 0, np.random.default_rng(5))]


@settings(max_examples=8)
@given(st.data(), st.sampled_from(CHECKS))
def test_without_noise_the_sum_is_exact(make_task: Maker, data: st.DataObject, check: str) -> None:
    task = make_task(D, {"validation": check})
    clipped = st.integers(0, 2**32).map(lambda seed: honest(task, np.random.default_rng(seed)))
    update = clipped | st.sampled_from(extremes(task))
    updates = named(data.draw(st.lists(update, max_size=6)))
    finished = play(task, updates)
    assert finished.valid == tuple(updates)
    assert finished.noisy_sum.tolist() == integer_sum(updates, D)


def test_extreme_updates_add_up_exactly(make_task: Maker) -> None:
    task = make_task(D, {"privacy.client_clip": 32.0})
    assert task.bound == 2**25
    one_side = named([unit(D, task.bound)] * 10)
    finished = play(task, one_side)
    assert (finished.noisy_sum.tolist(), len(finished.valid)) == ([10 * 2**25, 0, 0, 0, 0, 0], 10)


@pytest.mark.parametrize("check", CHECKS)
def test_the_rejected_do_not_touch_the_sum(make_task: Maker, check: str) -> None:
    task = make_task(D, {"enrolment.clients": 20, "validation": check})
    good, vectors = extremes(task), bad(task)
    # Good and bad in turns, so that places matter.
    mixed = [x for pair in zip(vectors, good, strict=False) for x in pair] + vectors[len(good) :]
    updates = named(mixed)
    finished = play(task, updates)
    valid = {c: x for c, x in updates.items() if squared_norm(x) <= task.bound**2}
    assert (len(valid), finished.valid) == (len(good), tuple(sorted(valid)))
    assert finished.noisy_sum.tolist() == integer_sum(valid, D)
    assert set(refused(finished).values()) == {Rejection.NORM_EXCEEDED}


@pytest.mark.parametrize("check", CHECKS)
def test_a_body_of_the_wrong_length_is_nobody_elses_affair(make_task: Maker, check: str) -> None:
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
    task = make_task(D, {"enrolment.clients": 20})
    good, rejected = named(extremes(task) * 2), named(bad(task))
    for updates, valid in (({}, {}), (rejected, {}), (good, good)):
        finished = play(task, updates, noise=fixed_noise)
        assert finished.valid == tuple(valid)
        noisy = [s + sum(PART.values()) for s in integer_sum(valid, D)]
        assert finished.noisy_sum.tolist() == noisy


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("clients", [1, 3, 7])
def test_a_round_of_several_batches_is_the_same_round(
    make_task: Maker, monkeypatch: pytest.MonkeyPatch, clients: int, check: str
) -> None:
    for module in (release, check_with_dealer):
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
        clip_update(random.integers(-(2**20), 2**20, d, dtype=np.int64), task.bound, 20)
        for _ in range(2)
    ]
    updates = named([*vectors, np.full(d, 2**32)])
    finished = play(task, updates)
    assert refused(finished) == {ClientId("c2"): Rejection.NORM_EXCEEDED}
    assert (finished.noisy_sum == vectors[0] + vectors[1]).all()
