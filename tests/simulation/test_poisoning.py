"""What bad clients submit really is bad; what registered attacks and defences do."""

from collections.abc import Callable

import numpy as np
import pytest
from examples.demo.demo_task import demo_task
from numpy.typing import NDArray
from research.algorithms import ALGORITHMS, Problem, Trained
from research.defences import DEFENCES
from research.poisoning import ATTACKS, Scene
from tests.rig.documents import Document

from precad.common import ring
from precad.common.errors import Misconfiguration
from precad.common.fixed_point import squared_norm
from precad.common.task import Task
from precad.simulation.datasets import load, shards
from precad.simulation.rounds import Forgery, forged_update

TASK = Task.parse(demo_task(load("breast-cancer"), "logistic", 10))
UPDATE = np.random.default_rng(2).integers(-(2**15), 2**15, TASK.dimension)


@pytest.mark.parametrize("kind", Forgery)
@pytest.mark.parametrize("honest", [UPDATE, np.zeros_like(UPDATE)])
def test_every_forgery_is_longer_than_beta(
    kind: Forgery, honest: ring.RingVector
) -> None:
    forged = forged_update(kind, TASK, honest)
    assert (forged.shape, forged.dtype) == (honest.shape, np.dtype(np.int64))
    assert squared_norm(forged) > TASK.mechanism.bound**2


def test_the_wraparound_passes_in_the_ring_and_the_oversize_fits_the_range_test() -> (
    None
):
    forged = forged_update(Forgery.WRAPAROUND, TASK, UPDATE)
    assert ring.dot(forged, forged) <= TASK.mechanism.bound**2
    assert (forged != 0).all()
    # The other keeps its direction.
    forged = forged_update(Forgery.OVERSIZE, TASK, UPDATE)
    norm = np.sqrt(squared_norm(forged))
    assert norm == pytest.approx(2 * TASK.mechanism.bound, rel=1e-3)
    cosine = float(forged @ UPDATE.astype(float)) / norm / np.sqrt(squared_norm(UPDATE))
    assert cosine == pytest.approx(1, abs=1e-6)


HONEST = np.random.default_rng(1).normal(1.0, 0.1, (10, 6))
SCENE = Scene(
    theta=np.zeros(6),
    others=HONEST,
    step=0.5,
    bound=10.0,
    learn=lambda _number, _rate, _steps: np.ones(6),
    numbers=(0, 1),
    generator=np.random.default_rng(2),
)


def test_models_are_replaced_labels_flipped_and_updates_scaled() -> None:
    submitted = ATTACKS["pixel-backdoor"]().submit(HONEST[:2], SCENE)
    assert submitted.shape == (2, 6)
    np.testing.assert_allclose(SCENE.step * submitted.sum(axis=0), np.ones(6))
    scaled = ATTACKS["scaled-label-flipping"](gamma=7.0).submit(HONEST[:2], SCENE)
    np.testing.assert_allclose(scaled, 7 * HONEST[:2])
    x, y = np.zeros((2, 64), np.float32), np.array([3, 9])
    assert ATTACKS["label-flipping"]().poison(x, y, 0, 10)[1].tolist() == [4, 0]


def test_a_backdoors_records_are_there_with_and_without_the_pattern() -> None:
    x, y = np.zeros((2, 64), np.float32), np.array([3, 0])
    attack = ATTACKS["pixel-backdoor"]()
    poisoned, labels = attack.poison(x, y, 0, 10)
    assert labels.tolist() == [3, 0, 0, 0]
    assert not poisoned[:2].any()
    assert np.flatnonzero(poisoned[2]).tolist() == [54, 55, 62, 63]
    # A zero is a zero without any backdoor.
    aimed = attack.goal(x, y, 10)
    assert aimed is not None
    assert (aimed[0].shape, aimed[1].tolist()) == ((1, 64), [0])
    # Parts of a distributed pattern make the whole.
    image, label = np.zeros((1, 1, 28, 28), np.float32), np.array([3])
    parts, whole = (
        ATTACKS["distributed-backdoor"](),
        attack.poison(image, label, 0, 10)[0][1],
    )
    one, other = (parts.poison(image, label, number, 10)[0][1] for number in (0, 1))
    assert not (one * other).any()
    np.testing.assert_array_equal(one + other, whole)


@pytest.mark.parametrize(("name", "of"), [("min-max", np.max), ("min-sum", np.sum)])
def test_stat_opt_goes_as_far_as_honest_updates_lie_apart(
    name: str, of: Callable[[NDArray[np.float64]], float]
) -> None:
    one, other = ATTACKS[name]().submit(HONEST[:2], SCENE)
    np.testing.assert_array_equal(one, other)
    known = np.concatenate([HONEST, HONEST[:2]])
    among = ((known[:, None] - known) ** 2).sum(axis=2)
    most = among.max() if name == "min-max" else among.sum(axis=1).max()
    own = of(((known - one) ** 2).sum(axis=1))
    assert 0.999 * most <= own <= most
    assert (one < known.mean(axis=0)).all()


@pytest.mark.parametrize("name", sorted(set(DEFENCES) - {"mean"}))
def test_a_defence_withstands_what_the_mean_does_not(name: str) -> None:
    updates = np.concatenate([HONEST, np.full((2, 6), -1000.0)])
    assert np.abs(DEFENCES["mean"](updates, 2) - 1).max() > 100
    assert np.abs(DEFENCES[name](updates, 2) - 1).max() < 0.35


def test_defences_count_as_their_papers_do() -> None:
    # n − f − 2 = 1 neighbour: the pair that lies closest wins. With n − f it would be 0
    # or 1.
    updates = np.array([[-1.0], [1.0], [2.4], [2.5], [9.0]])
    assert DEFENCES["krum"](updates, 2).item() in {2.4, 2.5}
    assert DEFENCES["multi-krum"](updates, 2).item() == pytest.approx(
        (2.4 + 2.5 + 1.0) / 3
    )
    # RFA is the point of least distance.
    corners = np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 3.0], [0.0, 3.0]])
    np.testing.assert_allclose(DEFENCES["rfa"](corners, 0), [2.0, 1.5], atol=1e-6)
    for name in ("krum", "multi-krum", "bulyan", "trimmed-mean"):
        with pytest.raises(Misconfiguration, match="at least"):
            DEFENCES[name](HONEST[:4], 2)


SETTINGS = {"rounds": 3, "learning_rate": 1.0, "record_clip": 1.0, "client_clip": 5.0}
SETTINGS |= {"noise_multiplier": 1.5, "record_rate": 0.3, "client_rate": 1.0}
# What users need besides who noise their own gradients.
SETTINGS |= {"users_per_round": 4, "clip": 0.7, "batch_rate": 0.5, "local_rate": 0.5}


def play(name: str, attackers: int, seed: int = 3) -> Trained:
    data, attack = load("digits"), ATTACKS["pixel-backdoor"]()
    given: Document = {
        "data": data,
        "shares": shards(data.train_y, clients=6, shards_per_client=4, seed=0),
        "seed": seed,
    }
    problem = Problem(model="logistic", attack=attack, attackers=attackers, **given)
    return ALGORITHMS[name](problem, SETTINGS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_repeats_to_the_bit_and_its_attackers_matter(name: str) -> None:
    once, again, attacked = play(name, 0), play(name, 0), play(name, 2)
    np.testing.assert_array_equal(once.theta, again.theta)
    assert not np.array_equal(once.theta, play(name, 0, seed=4).theta)
    assert np.linalg.norm(once.theta - attacked.theta) > 0.01
    assert bool(once.epsilon) == (name != "non-private")
