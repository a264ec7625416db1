"""Settings that are trained beside each other: the models of `simulate`, with the same
samples and noise."""

import numpy as np
import pytest
from benchmarks.linear_side_by_side import LinearSideBySide
from numpy.typing import NDArray
from tests.rig.documents import Document
from tests.rig.tasks import task_with
from torch import nn
from torch.nn import functional

import precad
from precad.client.gradients.torch_models import logistic, model_section
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.task import Task, with_objective
from precad.simulation import SimulatedTraining, search
from precad.simulation.search import SideBySide
from precad.simulation.virtual_owners import Owners

FEATURES, CLASSES, SEED = 6, 3, 5
Data = tuple[NDArray[np.float32], NDArray[np.int64]]


def tried(changes: Document | None = None) -> Task:
    usual: Document = {
        "model": model_section(logistic(FEATURES, CLASSES), architecture="logistic"),
        "training": {"learning_rate": 1.0, "rounds": 4},
        "enrolment.clients": 4,
        "privacy.client_clip": 4.0,
        "privacy.record_rate": 0.5,
        "privacy.client_rate": 0.7,
    }
    return task_with(usual | (changes or {}))


def shares() -> dict[str, Data]:
    rng = np.random.default_rng(1)
    found = {}
    for name, count in {"east": 9, "north": 1, "south": 5, "west": 12}.items():
        x = rng.normal(size=(count, FEATURES)).astype(np.float32)
        found[name] = (x, rng.integers(0, CLASSES, count))
    return found


TASKS = (
    tried(),
    tried({"privacy.client_clip": 1.0}),
    tried({"privacy.record_rate": 0.2, "privacy.client_rate": 1.0}),
    tried({"training": {"learning_rate": 8.0, "rounds": 6}}),
    tried({"privacy.noise_multiplier": 3.0, "privacy.record_clip": 0.5}),
)


def simulated(task: Task, data: dict[str, Data]) -> SimulatedTraining:
    """As `simulate` plays it, with the draws of the settings beside each other."""
    names = list(data)
    counts = [len(y) for _, y in data.values()]
    starts = dict(zip(names, np.cumsum([0, *counts]), strict=False))

    def drawn(version: int) -> tuple[NDArray[np.float64], ...]:
        rng = np.random.default_rng([SEED, version])
        coins, draws = rng.random(len(names)), rng.random(sum(counts))
        return coins, draws, rng.standard_normal(task.dimension)

    def cohort(version: int, clients: tuple[str, ...], rate: float) -> list[str]:
        coins = drawn(version)[0]
        return [c for c, coin in zip(clients, coins, strict=True) if coin < rate]

    def sampler(version: int, name: str, count: int, rate: float) -> NDArray[np.int64]:
        mine = slice(starts[name], starts[name] + count)
        return np.flatnonzero(drawn(version)[1][mine] < rate)

    def noise(server: Role, version: int, _: int) -> NDArray[np.int64]:
        whole = drawn(version)[2] * 2**0.5 * task.mechanism.noise_units
        return np.rint(whole * (server is Role.SERVER_A)).astype(np.int64)

    return precad.simulate(
        task, data, seed=SEED, cohort=cohort, sampler=sampler, noise=noise
    )


@pytest.mark.parametrize("training", [SideBySide, LinearSideBySide])
@pytest.mark.parametrize("together", [2**23, 1])
def test_each_model_is_the_one_that_simulate_gives(
    training: type[SideBySide], together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many records go into one batch."""
    monkeypatch.setattr(search, "_NUMBERS", together)
    data = shares()
    side_by_side = training(
        TASKS,
        Owners(data, None, TASKS[0], SEED),
        model=logistic(FEATURES, CLASSES),
        loss=functional.cross_entropy,
        seed=SEED,
    )
    thetas = side_by_side.train()
    for task, theta, taken in zip(TASKS, thetas, side_by_side.taken, strict=True):
        alone = simulated(task, data)
        assert np.abs(theta - alone.theta).max() < 1e-4 * np.abs(theta).max()
        assert taken.max() == alone.rounds[-1].participations


def test_the_same_samples_and_noise_go_to_all_and_another_seed_has_others() -> None:
    held_out = shares()["west"]
    found = list(
        search.search(
            [TASKS[0], TASKS[0], TASKS[1]],
            shares(),
            seeds=range(2),
            test=held_out,
        )
    )
    for first, again, other in found:
        assert first == again != other
    assert found[0][0] != found[1][0]


def test_an_owner_at_its_limit_takes_part_no_more() -> None:
    long: Document = {
        "training": {"learning_rate": 1.0, "rounds": 40},
        "privacy.client_rate": 1.0,
    }
    limited = tried(long | {"privacy.epsilon_limit": 6.0})
    tasks = [limited, tried(long)]
    (trials,) = search.search(tasks, shares(), seeds=[1], test=shares()["west"])
    alone = precad.simulate(limited, shares(), seed=1)
    taken = [trial.participations for trial in trials]
    assert taken == [alone.rounds[-1].participations, 40]
    assert taken[0] < 40


def test_a_record_without_a_usable_gradient_counts_as_zero() -> None:
    """As of a number whose gradient overflows."""
    data = shares()
    data["west"][0][3] = 3e38
    side_by_side = SideBySide(
        TASKS[:2],
        Owners(data, None, TASKS[0], SEED),
        model=logistic(FEATURES, CLASSES),
        loss=functional.cross_entropy,
        seed=SEED,
    )
    thetas = side_by_side.train()
    for task, theta in zip(TASKS[:2], thetas, strict=True):
        assert np.abs(theta - simulated(task, data).theta).max() < 1e-4


def test_any_model_is_taken_and_records_must_be_held_out() -> None:
    module = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    section = model_section(module, architecture="custom", initial="uniform")
    task = tried({"model": section})
    held_out = shares()["west"]
    (trials,) = search.search([task], shares(), module, seeds=[1], test=held_out)
    assert "accuracy" in trials[0].scores
    with pytest.raises(Misconfiguration, match="records to compare settings on"):
        next(search.search([task], shares(), module, seeds=[1]))
    assert search.fits([task], clients=4)
    assert not search.fits([task], clients=10**8)
    assert not search.fits([with_objective(task, "dp-gaussian")], clients=4)
