"""Whole trainings through the real client and model code, without the cryptography.

The sum is a plain one and the noise is NumPy's with a seed: this shows that the settings train,
not that anything is protected.
"""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from precad.client.train import as_records, build, load_vector, local_update, poisson_sample
from precad.common.enrolment import Enrolment, Roster
from precad.common.identifiers import ClientId
from precad.common.keystream import Keystream
from precad.common.model import apply_update, initial_vector
from precad.common.secret import Secret
from precad.common.task import Task
from precad.experiments.data import DataSet, load
from precad.experiments.defaults import demo_task
from precad.experiments.partition import shards

CLIENTS = 10


def train(data: DataSet, task: Task, seed: int) -> float:
    """Accuracy on held-out data after the task's rounds."""
    model = build(task.model)
    parts = shards(data.train_y, CLIENTS, 4, seed=1)
    owners = [as_records((data.train_x[part], data.train_y[part])) for part in parts]
    rate = task.privacy.record_rate
    claims = [Enrolment(ClientId(f"o{i}"), len(o), rate) for i, o in enumerate(owners)]
    roster = Roster({claim.client: claim for claim in claims})
    denominator = roster.denominator(task.privacy.client_rate)
    noise = np.random.default_rng(seed)
    theta = initial_vector(task.model)
    for round_number in range(task.training.rounds):
        total = np.rint(noise.normal(0, 2**0.5 * task.noise_units, task.dimension)).astype(np.int64)
        for client, records in enumerate(owners):
            stream = Keystream(Secret(bytes(32)), "test-simulation", seed, round_number, client)
            indices = poisson_sample(len(records), rate, stream)
            total += local_update(model, cross_entropy, records, indices, theta, task)
        theta = apply_update(theta, total, task, denominator)
    load_vector(model, theta)
    with torch.no_grad():
        outputs = model(torch.from_numpy(data.test_x)).argmax(dim=1).numpy()
    return float((outputs == data.test_y).mean())


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
