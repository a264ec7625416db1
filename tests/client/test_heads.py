"""A head on frozen features: ridge, from one release of sums, as a model of its own."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from tests.rig.documents import Document
from tests.rig.heads import DATA, HEAD, WIDTH, drawn, table_of, task_of

from precad.client import TrainedModel
from precad.client.answers import answers_of, cell_deviation
from precad.client.answers_of_rows import constant_of
from precad.client.asked_records import asked_records
from precad.client.gradients.evaluation import Applied
from precad.client.gradients.torch_models import build
from precad.client.trained_heads import model_for_inputs
from precad.common.arrays import Floats
from precad.common.errors import Misconfiguration
from precad.common.fixed_point import decode
from precad.common.model import model_digest
from precad.common.task import Task


def answered(
    task: Task, table: dict[str, list[str]], noises: float = 1.0
) -> TrainedModel:
    """What owners hold in the end: the sum and both servers' noise."""
    total = asked_records(table, task).total()
    noise = noises * math.sqrt(2.0) * task.mechanism.noise_units
    draw = np.random.default_rng(0)
    total = total + np.rint(draw.normal(0.0, noise, total.size)).astype(np.int64)
    theta = decode(total, task.fractional_bits)
    parameters = task.mechanism.parameters
    digest = model_digest(task.digest, 1, parameters, theta)
    return TrainedModel(task=task, version=1, theta=theta, digest=digest)


def outputs_of(model: TrainedModel, features: Floats) -> Floats:
    inputs = torch.tensor((features - 1.0) / 2.0, dtype=torch.float32)
    applied = Applied(build(model.task.model), model.task)
    return np.asarray(applied.outputs(model.theta, inputs), np.float64)


def test_without_noise_it_is_ridge_of_the_cut_rows() -> None:
    features, classes = drawn(400, 2)
    task = task_of()
    [block] = task.blocks
    found = model_for_inputs(answered(task, table_of(features, classes), noises=0.0))
    rows = np.column_stack(
        [np.full(400, constant_of(block)), (features - 1.0) / 2.0],
    )
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), block.length)
    # Half of what the noise's largest eigenvalue would be.
    penalty = 0.5 * math.sqrt(2 * (WIDTH + 1)) * cell_deviation(task, block)
    exact = Ridge(alpha=penalty, fit_intercept=False).fit(rows, np.eye(3)[classes])
    new, _ = drawn(200, 3)
    whole = np.column_stack([np.full(200, constant_of(block)), (new - 1.0) / 2.0])
    said = outputs_of(found, new)
    # Softmax's slope at equal shares: 9/2 of three.
    assert said == pytest.approx(4.5 * exact.predict(whole), abs=0.01)


def test_a_release_with_noise_still_tells_the_classes_apart() -> None:
    features, classes = drawn(3000, 4)
    task = task_of(sigma=3.7, largest=3000)
    found = model_for_inputs(answered(task, table_of(features, classes)))
    new, truth = drawn(2000, 5)
    right = outputs_of(found, new).argmax(axis=1) == truth
    assert right.mean() > 0.85


def test_no_record_adds_more_than_its_norm_and_unlisted_ones_only_that_they_are() -> (
    None
):
    features, classes = drawn(40, 6)
    features[:20] *= 1e6
    features[20:30] = 1.0
    task = task_of()
    table = table_of(features, classes)
    table["kind"][39] = "another"
    found = asked_records(table, task)
    most = task.mechanism.sensitivity_units
    for place in range(40):
        vector = found.of_units(np.array([place])).total()
        assert np.linalg.norm(vector.astype(np.float64)) <= most
        if place == 39:
            [missing] = np.flatnonzero(vector)
            assert missing == vector.size - 1
    parts = np.array_split(np.arange(40), 3)
    sums = [found.of_units(part).total() for part in parts]
    assert np.array_equal(np.sum(sums, axis=0), found.total())


def test_how_well_a_head_does_is_asked_as_of_a_trained_model() -> None:
    """By its answers' digest, and of other records; whoever gives the model as it is."""
    features, classes = drawn(400, 2)
    task = task_of()
    head = answered(task, table_of(features, classes), noises=0.0)
    evaluation: Document = {
        "name": "how well",
        "kind": "evaluation",
        "column": "kind",
        "model": str(head.digest),
    }
    asked = task_of(evaluation)
    new, truth = drawn(400, 8)
    total = asked_records(table_of(new, truth), asked, evaluated=head).total()
    answers = answers_of(asked, decode(total, asked.fractional_bits), 400)
    [accuracy] = [each.value for each in answers if each.of == "accuracy"]
    right = outputs_of(model_for_inputs(head), new).argmax(axis=1) == truth
    assert accuracy == pytest.approx(right.mean(), abs=1e-3)
    assert accuracy > 0.85


def test_of_a_single_level_a_head_says_that_level() -> None:
    features, _ = drawn(50, 2)
    target = {"name": "kind", "kind": "categorical", "levels": ["a"]}
    task = task_of(data={**DATA, "target": target})
    table = table_of(features, np.zeros(50, np.int64))
    said = outputs_of(model_for_inputs(answered(task, table)), features)
    assert said.shape == (50, 1)
    assert np.isfinite(said).all()


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"column": "f1"}, "query head, column"),
        ({"by": "kind"}, "query head, column"),
        ({"inputs": ["f1"]}, "query head, inputs"),
    ],
)
def test_a_head_is_of_the_recipes_target_and_inputs(
    query: Document, field: str
) -> None:
    with pytest.raises(Misconfiguration) as refused:
        task_of(HEAD | query)
    assert refused.value.field == field


def test_answers_without_a_head_are_no_model() -> None:
    task = task_of({"name": "all", "kind": "count"})
    features, classes = drawn(20, 7)
    with pytest.raises(Misconfiguration, match="precad ask answer"):
        model_for_inputs(answered(task, table_of(features, classes)))
