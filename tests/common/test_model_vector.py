"""The model: its start, step, bytes and file."""

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tests.rig.refusals import refused
from tests.rig.tasks import task_with

from precad.common import errors, fixed_point
from precad.common import model as models
from precad.common.model import (
    apply_update,
    from_bytes,
    load_model,
    save_model,
    to_bytes,
)
from precad.common.task import Task

PARAMETERS = [("w.weight", [4, 25]), ("w.bias", [4]), ("norm.weight", [4])]


def task_of(**model: object) -> Task:
    parameters = [{"name": name, "shape": shape} for name, shape in PARAMETERS]
    changes = {
        "model": {"parameters": parameters, **model},
        "training.learning_rate": 6.0,
    }
    return task_with(changes)


TASK = task_of()
OLD = np.random.default_rng(4).normal(size=TASK.dimension)
THETA = OLD.astype(np.float32)
BOTH = pytest.mark.parametrize("theta", [THETA, OLD], ids=["float32", "float64"])


def test_norms_start_at_one_and_biases_at_zero() -> None:
    """Weights: tests/vectors/test_derivations.py, which has the bytes of a model
    too."""
    theta = models.initial_vector(task_of(initial="uniform", initial_seed=7).model)
    assert theta.dtype == np.float32
    assert theta[100:].tolist() == [0.0] * 4 + [1.0] * 4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(data=strategies.data(), size=strategies.integers(1, 9))
def test_bytes_come_back_as_the_vector(
    dtype: type[np.float32 | np.float64], data: strategies.DataObject, size: int
) -> None:
    number = strategies.floats(
        allow_nan=False, allow_infinity=False, width=64 if dtype is np.float64 else 32
    )
    theta: NDArray[np.floating] = np.array(
        data.draw(strategies.lists(number, min_size=size, max_size=size)), dtype
    )
    back = from_bytes(to_bytes(theta), size)
    assert (back.dtype, back.tobytes()) == (theta.dtype, theta.tobytes())
    back[0] = float("nan")
    refused("NaN", from_bytes, to_bytes(back), size)


@pytest.mark.parametrize("length", [0, 4, 7, 9, 12, 15, 17, 24])
def test_bytes_of_another_length_are_refused(length: int) -> None:
    refused(f"{length} bytes.*has 8, or 16 where", from_bytes, bytes(length), 2)


@BOTH
def test_a_step_multiplies_by_one_number_adds_and_rounds_once(
    theta: models.ModelVector,
) -> None:
    total = fixed_point.encode(np.linspace(-30, 30, TASK.dimension), 20)
    moved = apply_update(theta, total, TASK, 287.4)
    step = 6.0 / 287.4
    assert moved.dtype == np.float32
    for index in (0, 17, 107):
        stepped = float(theta[index]) + step * (int(total[index]) / 2**20)
        # struct rounds to nearest even, by itself.
        assert struct.pack("<f", moved[index]) == struct.pack("<f", stepped)
    # Halfway between two numbers: to the even one.
    halfway = np.zeros(TASK.dimension)
    halfway[:3] = [1 + 2**-24, 1 + 3 * 2**-24, -1 - 2**-24]
    moved = apply_update(halfway, np.zeros(TASK.dimension, np.int64), TASK, 1.0)
    assert moved[:3].tolist() == [1.0, 1 + 2**-22, -1.0]


@pytest.mark.parametrize(
    "denominator", [0.0, -1.0, float("nan"), float("inf"), 1e-320, 1e-30]
)
def test_a_step_past_float32_is_refused(denominator: float) -> None:
    """And one by an unusable denominator."""
    start, said = (
        (3e38, "overflows") if denominator == 1e-30 else (0.0, "denominator|finite")
    )
    theta, total = (
        np.full(TASK.dimension, start, np.float32),
        np.full(TASK.dimension, 2**60),
    )
    refused(said, apply_update, theta, total, TASK, denominator)


@BOTH
def test_a_saved_model_is_read_back(tmp_path: Path, theta: models.ModelVector) -> None:
    path = tmp_path / "model.safetensors"
    digest = save_model(path, TASK, 7, theta)
    saved, cut = load_model(path, TASK), load_file(path)
    assert (saved.version, saved.theta.dtype) == (7, theta.dtype)
    assert saved.theta.tobytes() == theta.tobytes()
    made = models.model_digest(TASK.digest, 7, TASK.model.parameters, theta)
    assert saved.digest == digest == made
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert {name: list(tensor.shape) for name, tensor in cut.items()} == dict(
        PARAMETERS
    )
    assert (
        np.concatenate([cut[name].ravel() for name, _ in PARAMETERS]) == theta
    ).all()


def test_a_file_that_is_not_whole_and_the_tasks_own_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m"
    save_model(path, TASK, 7, THETA)
    with pytest.raises(errors.TaskMismatch):
        load_model(path, task_of(initial_seed=1))
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    good = {name: tensor.copy() for name, tensor in load_file(path).items()}
    whole = path.read_bytes()
    for changed, message in (
        ({"version": "8"}, "has digest"),
        ({"version": "-7"}, "whole number"),
        ({"model": "00"}, "has digest"),
        ({"format": "other"}, "isn't a precad-model-1 file"),
    ):
        save_file(good, path, metadata | changed)
        refused(message, load_model, path, TASK)
    for bad, message in (
        (
            good | {"w.weight": good["w.weight"].T.copy()},
            r"w.weight.*\[25, 4\].*\[4, 25\]",
        ),
        (good | {"w.bias": np.zeros(4)}, "w.bias.*float64.*float32"),
        (good | {"norm.weight": np.zeros(4)}, "norm.weight.*float64.*float32"),
        (good | {"w.bias": np.zeros(4, np.float16)}, "w.bias.*float16.*float32"),
        (good | {"extra": np.zeros(1, np.float32)}, "extra"),
        ({"w.weight": good["w.weight"]}, "norm.weight.*missing"),
    ):
        save_file(bad, path, metadata)
        refused(message, load_model, path, TASK)
    path.write_bytes(whole[:-9])
    for gone in (path, tmp_path / "absent"):
        refused("can't be read", load_model, gone, TASK)


def test_a_step_and_its_file_take_no_more_than_the_next_model(tmp_path: Path) -> None:
    """A large model has room for few vectors."""
    size = 2_000_000
    task = task_of(parameters=[{"name": "w", "shape": [size]}])
    theta, total = np.zeros(size, np.float32), np.arange(size, dtype=np.int64)
    tracemalloc.start()
    stepped = apply_update(theta, total, task, 2.0)
    save_model(tmp_path / "model", task, 1, stepped)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.25 * theta.nbytes
    assert (load_model(tmp_path / "model", task).theta == stepped).all()
