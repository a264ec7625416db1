"""The closed form behind the table of trainings is the client's local update."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from research.one_process import Owner, accuracy, clipped_sum, train
from research.trainings import Trial, fill
from torch.nn.functional import cross_entropy

from precad.client.train import build, load_vector, local_update, logistic, mlp, model_section
from precad.common.encode.clip import clip_update, squared_norm
from precad.common.errors import Misconfiguration
from precad.common.model import initial_vector
from precad.common.task import Task
from precad.simulation.data import DataSet, load


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load("digits")


def made(architecture: str, data: DataSet, **privacy: float) -> Task:
    modules = {
        "logistic": logistic(data.features, data.classes),
        "mlp": mlp(data.features, 8, data.classes),
    }
    numbers = {"record_clip": 1.0, "client_clip": 20.0, "noise_multiplier": 2.0}
    return Task.parse(
        {
            "name": "closed-form",
            "model": model_section(modules[architecture], architecture, "uniform"),
            "privacy": numbers | {"record_rate": 0.2, "client_rate": 1.0} | privacy,
            "training": {"learning_rate": 3.0, "rounds": 30},
            "enrolment": {"clients": 4, "max_expected_records": 500.0},
        }
    )


@pytest.mark.parametrize("architecture", ["logistic", "mlp"])
@pytest.mark.parametrize("record_clip", [0.5, 2.0, 15.0])
def test_a_round_is_the_clients_to_the_rounding_of_single_records(
    architecture: str, record_clip: float, digits: DataSet
) -> None:
    task = made(architecture, digits, record_clip=record_clip)
    theta = initial_vector(task.model)
    some = np.arange(150)
    x, y = digits.train_x[some], digits.train_y[some]
    update = local_update(build(task.model), cross_entropy, (x, y), some, theta, task)
    closed = clip_update(clipped_sum(theta, x, y, task), task.bound, task.fractional_bits)
    assert squared_norm(update) > 0
    # Encoded record by record it is shorter by up to a unit a record; float32 adds a few more.
    assert np.abs(update - closed).max() <= 1.2 * len(some)
    assert np.abs(update).max() > 200 * len(some)


def test_the_accuracy_is_torchs(digits: DataSet) -> None:
    task = made("mlp", digits)
    theta = initial_vector(task.model)
    model = build(task.model)
    load_vector(model, theta)
    with torch.no_grad():
        right = model(torch.from_numpy(digits.test_x)).argmax(dim=1).numpy() == digits.test_y
    assert accuracy(theta, digits.test_x, digits.test_y, task) == pytest.approx(right.mean())


def test_a_training_learns_repeats_and_tells_how_far_gradients_agree(digits: DataSet) -> None:
    task = made("logistic", digits)
    parts = np.array_split(np.random.default_rng(0).permutation(len(digits.train_y)), 4)
    owners = [
        Owner(digits.train_x[part].reshape(len(part), -1), digits.train_y[part]) for part in parts
    ]
    one, again = train(task, owners, 5), train(task, owners, 5)
    assert np.array_equal(one.theta, again.theta)
    assert accuracy(one.theta, digits.test_x, digits.test_y, task) > 0.85
    assert 0 < one.agreement < 1
    assert one.clipped < 0.5
    tight = train(made("logistic", digits, client_clip=1.0), owners, 5)
    assert tight.clipped == 1


def test_another_model_is_refused(digits: DataSet) -> None:
    task = made("logistic", digits)
    foreign = task.model_copy(
        update={"model": task.model.model_copy(update={"architecture": "own"})}
    )
    with pytest.raises(Misconfiguration, match="logistic, mlp"):
        train(foreign, [], 0)


def test_without_an_owner_there_is_noise_alone(digits: DataSet) -> None:
    task = made("logistic", digits, client_rate=1e-9)
    owner = Owner(digits.train_x.reshape(len(digits.train_y), -1), digits.train_y)
    trained = train(task, [owner], 1)
    assert (trained.agreement, trained.clipped) == (0.0, 0.0)
    # T rounds of √2·σ·R', stepped by η over q·p·m.
    step = 3.0 / (1e-9 * 0.2 * len(digits.train_y))
    expected = step * math.sqrt(2 * 30) * 2 * task.effective_record_clip
    start = initial_vector(task.model)
    assert np.std(trained.theta - start) == pytest.approx(expected, rel=0.1)


def test_the_table_goes_on_where_it_stopped_and_gives_the_same_again(
    tmp_path: Path, digits: DataSet
) -> None:
    def trial(rounds: int) -> Trial:
        return Trial(
            record_rate=0.2,
            client_rate=0.5,
            rounds=rounds,
            learning_rate=3.0,
            records=(300, 500),
        )

    table, again = tmp_path / "table.json", tmp_path / "again.json"
    fill(table, [trial(3)], digits)
    (first,) = json.loads(table.read_text())["settings"]
    marked = json.loads(table.read_text())
    marked["settings"][0]["seconds"] = "kept"
    table.write_text(json.dumps(marked))
    fill(table, [trial(3), trial(5)], digits)
    kept, added = json.loads(table.read_text())["settings"]
    assert (kept["seconds"], kept["rounds"], added["rounds"]) == ("kept", 3, 5)
    fill(again, [trial(3)], digits)
    (second,) = json.loads(again.read_text())["settings"]
    assert second | {"seconds": 0} == first | {"seconds": 0}
    assert json.loads(table.read_text())["hardware"]["cores"] >= 1
