"""The models that a server offers, and what a client that asks for another one hears."""

import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from tests.rig.tasks import task_with

from precad.aggregator.training.model_store import KEPT_MODELS, ModelStore, StoredModel
from precad.common.errors import NotOnOffer, StorageFailure
from precad.common.model import model_digest, unrounded_start

TASK = task_with({}, 3)


def filled(path: Path, models: int) -> ModelStore:
    model_store = ModelStore(TASK, path)
    for number in range(1, models + 1):
        model_store.put(number, np.full(3, float(number), np.float32))
    return model_store


def vector(model: StoredModel) -> list[float]:
    """In pieces that its end doesn't fit."""
    words: list[float] = np.frombuffer(b"".join(model.pieces(7)), dtype="<f4").tolist()
    return words


def test_the_newest_models_are_on_offer(tmp_path: Path) -> None:
    model_store = filled(tmp_path / "model", 6)
    assert model_store.current.version == 6
    for number in range(7 - KEPT_MODELS, 7):
        assert vector(model_store.get(number)) == [number] * 3
    for number in (7 - KEPT_MODELS - 1, 7):
        with pytest.raises(NotOnOffer, match=f"model {number} "):
            model_store.get(number)
    # None is that can't be written.
    nowhere = ModelStore(TASK, tmp_path / "gone" / "model")
    with pytest.raises(StorageFailure, match=r"gone/model can't be written \(No such file"):
        nowhere.put(1, np.zeros(3))
    assert nowhere.current.version == 0


def test_the_newest_one_is_read_from_disk_and_no_other_file_taken_for_it(tmp_path: Path) -> None:
    path, other = tmp_path / "model", tmp_path / "other"
    filled(other, 4)
    model_store = filled(path, 3)
    assert model_store.theta().tolist() == [3.0] * 3
    # The name may go: what is on offer is open.
    path.unlink()
    assert model_store.theta().tolist() == [3.0] * 3
    again = filled(path, 3)
    path.write_bytes(other.read_bytes())
    with pytest.raises(StorageFailure, match="isn't the model 3 that this server wrote"):
        again.theta()
    path.write_bytes(b"")
    with pytest.raises(StorageFailure, match=r"model 3 can't be read: .* ends at byte 0 of 12"):
        again.theta()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux says what is open")
def test_models_on_offer_take_no_memory_and_a_descriptor_each(tmp_path: Path) -> None:
    def descriptors() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    d = 4 << 20
    model_store, theta, before = (
        ModelStore(task_with({}, d), tmp_path / "m"),
        np.ones(d, "f4"),
        descriptors(),
    )
    tracemalloc.start()
    for version in range(1, 5):
        model_store.put(version, theta)
    for version in (3, 4):
        assert sum(len(piece) for piece in model_store.get(version).pieces(1 << 17)) == 4 * d
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Two vectors were 32 MiB.
    assert held < 1 << 20
    assert descriptors() - before <= KEPT_MODELS


def test_tensors_that_another_program_wrote_in_another_order_are_read(tmp_path: Path) -> None:
    names = [{"name": name, "shape": [2]} for name in ("b", "a")]
    task = task_with({"model.parameters": names}, 4)
    path, theta = tmp_path / "model", np.arange(4.0, dtype=np.float32)
    ModelStore(task, path).put(1, theta)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    save_file({"a": theta[2:], "b": theta[:2]}, path, metadata)
    assert path.read_bytes()[-16:] != theta.tobytes()
    model_store = ModelStore(task, path)
    assert model_store.theta().tolist() == theta.tolist() == vector(model_store.current)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_model_keeps_its_kind_of_numbers(tmp_path: Path, dtype: type[np.floating[Any]]) -> None:
    path, theta = tmp_path / "model", np.array([0.1, 0.2, 0.3], dtype)
    ModelStore(TASK, path).put(1, theta)
    again = ModelStore(TASK, path)
    assert b"".join(again.current.pieces(7)) == theta.tobytes() == again.theta().tobytes()
    assert again.current.digest == model_digest(TASK.digest, 1, TASK.model.parameters, theta)


def test_a_training_that_began_at_a_float64_start_goes_on_from_it(tmp_path: Path) -> None:
    """Owners know its digest; whoever heard of it would take part no more from another."""
    drawn = {"model.initial": "uniform", "model.parameters": [{"name": "w", "shape": [2, 2]}]}
    task = task_with(drawn, 4)
    theta = unrounded_start(task.model)
    known = model_digest(task.digest, 0, task.model.parameters, theta)
    assert ModelStore(task, tmp_path / "m", known).theta().tobytes() == theta.tobytes()
    for start in (None, ModelStore(task, tmp_path / "m").current.digest):
        assert ModelStore(task, tmp_path / "m", start).theta().dtype == np.float32
