"""The model's master copy: its start, step, bytes and file."""

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.rig.tasks import task_with

from precad.common.encode import encode
from precad.common.errors import Misconfiguration, TaskMismatch
from precad.common.model import (
    apply_update,
    from_bytes,
    initial_vector,
    load_model,
    model_digest,
    save_model,
    tensors,
    to_bytes,
)
from precad.common.task import Task

PARAMETERS = [("w.weight", [4, 25]), ("w.bias", [4]), ("norm.weight", [4])]


def task_of(**model: Any) -> Task:
    parameters = [{"name": name, "shape": shape} for name, shape in PARAMETERS]
    changes = {"model": {"parameters": parameters, **model}, "training.learning_rate": 6.0}
    return task_with(changes)


TASK = task_of()
THETA = np.random.default_rng(4).normal(size=TASK.dimension)


def test_a_uniform_start_fills_plus_minus_one_over_root_fan_in() -> None:
    theta = initial_vector(task_of(initial="uniform", initial_seed=7).model)
    weight = theta[:100]
    assert np.abs(weight).max() <= 1 / 5
    assert np.abs(weight).max() > 0.19
    assert abs(weight.mean()) < 0.2 / np.sqrt(3) / 10 * 4
    assert theta[100:104].tolist() == [0.0] * 4
    assert theta[104:].tolist() == [1.0] * 4


def test_bytes_are_little_endian_doubles() -> None:
    assert to_bytes(np.array([1.0, -2.5])) == struct.pack("<2d", 1.0, -2.5)
    assert (from_bytes(to_bytes(THETA), THETA.size) == THETA).all()


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0], [1.0, float("nan")]])
def test_bytes_of_another_length_or_with_nan_are_refused(values: list[float]) -> None:
    with pytest.raises(Misconfiguration, match="model"):
        from_bytes(to_bytes(np.array(values)), 2)


def test_tensors_are_cut_in_the_tasks_order() -> None:
    named = tensors(THETA, TASK.model.parameters)
    assert list(named) == ["w.weight", "w.bias", "norm.weight"]
    assert named["w.weight"].shape == (4, 25)
    assert (np.concatenate([t.ravel() for t in named.values()]) == THETA).all()


def test_a_step_multiplies_by_one_number_and_adds() -> None:
    total = encode(np.linspace(-30, 30, TASK.dimension), 20)
    moved = apply_update(THETA, total, TASK, 287.4)
    step = 6.0 / 287.4
    for index in (0, 17, 107):
        assert moved[index] == THETA[index] + step * (int(total[index]) / 2**20)


@pytest.mark.parametrize("denominator", [0.0, -1.0, float("nan"), float("inf"), 1e-320])
def test_a_step_by_an_unusable_denominator_is_refused(denominator: float) -> None:
    total = np.full(TASK.dimension, 2**60)
    with pytest.raises(Misconfiguration):
        apply_update(THETA, total, TASK, denominator)


def test_a_saved_model_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    digest = save_model(path, TASK, 7, THETA)
    saved = load_model(path, TASK)
    assert saved.version == 7
    assert (saved.theta == THETA).all()
    assert saved.digest == digest == model_digest(TASK.digest, 7, TASK.model.parameters, THETA)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert load_file(path)["w.weight"].shape == (4, 25)


def rewritten(path: Path, **changed: str) -> Path:
    """The saved file with other metadata."""
    save_model(path, TASK, 7, THETA)
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    metadata = json.loads(data[8 : 8 + length])["__metadata__"] | changed
    save_file({k: v.copy() for k, v in load_file(path).items()}, path, metadata)
    return path


def test_a_model_of_another_task_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path / "m", TASK, 7, THETA)
    with pytest.raises(TaskMismatch):
        load_model(tmp_path / "m", task_of(initial_seed=1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"version": "8"}, "has digest"),
        ({"version": "-7"}, "whole number"),
        ({"model": "00"}, "has digest"),
        ({"format": "other"}, "isn't a precad-model-1 file"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    tmp_path: Path, changed: dict[str, str], message: str
) -> None:
    with pytest.raises(Misconfiguration, match=message):
        load_model(rewritten(tmp_path / "m", **changed), TASK)


def test_other_tensors_than_the_tasks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m"
    metadata = {"format": "precad-model-1", "task": str(TASK.digest), "version": "1", "model": ""}
    good = {name: t.copy() for name, t in tensors(THETA, TASK.model.parameters).items()}
    for bad, message in (
        (good | {"w.weight": good["w.weight"].T.copy()}, r"w.weight.*\[25, 4\].*\[4, 25\]"),
        (good | {"w.bias": np.zeros(4, np.float32)}, "w.bias.*float32"),
        (good | {"extra": np.zeros(1)}, "extra"),
        ({"w.weight": good["w.weight"]}, "norm.weight.*missing"),
    ):
        save_file(bad, path, metadata)
        with pytest.raises(Misconfiguration, match=message):
            load_model(path, TASK)


def test_a_file_that_is_cut_or_absent_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m"
    save_model(path, TASK, 1, THETA)
    path.write_bytes(path.read_bytes()[:-9])
    for file in (path, tmp_path / "absent"):
        with pytest.raises(Misconfiguration, match="can't be read"):
            load_model(file, TASK)


def test_a_step_and_its_file_take_no_more_than_the_next_model(tmp_path: Path) -> None:
    """A large model has room for few vectors."""
    size = 2_000_000
    task = task_of(parameters=[{"name": "w", "shape": [size]}])
    theta, total = np.zeros(size), np.arange(size, dtype=np.int64)
    tracemalloc.start()
    try:
        stepped = apply_update(theta, total, task, 2.0)
        save_model(tmp_path / "model", task, 1, stepped)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.25 * theta.nbytes
    assert (load_model(tmp_path / "model", task).theta == stepped).all()
