"""The demo's settings train, by simulation: nothing is protected here."""

import pytest

import precad
from precad.common.task import Task
from precad.experiments.data import DataSet, load
from precad.experiments.defaults import demo_task
from precad.experiments.partition import shards

CLIENTS = 10


def train(data: DataSet, task: Task, seed: int) -> float:
    """Accuracy on held-out data after the task's rounds."""
    parts = shards(data.train_y, CLIENTS, 4, seed=1)
    owners = [(data.train_x[part], data.train_y[part]) for part in parts]
    found = precad.simulate(task, owners, seed=seed, test=(data.test_x, data.test_y))
    assert found.accuracy is not None
    return found.accuracy


@pytest.mark.parametrize(
    ("name", "model", "least"),
    [
        ("digits", "logistic", 0.90),
        ("digits", "mlp", 0.88),
        ("breast-cancer", "logistic", 0.92),
        ("breast-cancer", "mlp", 0.92),
    ],
)
def test_the_demos_settings_train(name: str, model: str, least: float) -> None:
    data = load(name)
    task = Task.parse(demo_task(data, model, CLIENTS))
    assert train(data, task, seed=0) >= least


def test_the_default_task_is_the_one_that_was_tried() -> None:
    task = Task.parse(demo_task(load("digits"), "logistic", CLIENTS))
    privacy = task.privacy
    assert (privacy.record_clip, privacy.client_clip, privacy.noise_multiplier) == (1.0, 20.0, 2.0)
    assert (privacy.record_rate, privacy.client_rate, privacy.delta) == (0.2, 1.0, 1e-5)
    assert (task.training.learning_rate, task.training.rounds) == (6.0, 60)
    assert (task.dimension, task.fractional_bits) == (650, 20)


@pytest.mark.parametrize("clients", [1, 2, 3, 7, 33, 250, 1000])
def test_any_number_of_clients_gives_a_valid_task(clients: int) -> None:
    for model in ("logistic", "mlp"):
        task = Task.parse(demo_task(load("digits"), model, clients, rounds=3, client_rate=0.5))
        assert task.enrolment.clients == clients
        assert task.training.rounds == 3
        assert task.enrolment.max_expected_records >= 0.2 * 1438 / clients
