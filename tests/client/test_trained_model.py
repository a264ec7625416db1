"""A model goes from a task's vector into a module and a file, and what doesn't fit is refused.

Predictions of a trained one by commands: tests/integration/deployment/test_model_comes_home.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.rig.commands import precad
from tests.rig.tasks import logistic as logistic_changes
from tests.rig.tasks import task_with
from torch import nn
from torch.nn import functional

from precad.cli.local_deployment import task_to_toml
from precad.client import TrainedModel, load_vector, model_section
from precad.client.gradients.evaluation import Applied
from precad.client.gradients.torch_models import build, logistic, mlp
from precad.client.participation import Participation
from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration, TaskMismatch
from precad.common.model import initial_vector, model_digest
from precad.common.task_schema import ModelSection

FEATURES, CLASSES = 3, 2
TASK = task_with(logistic_changes(FEATURES, CLASSES))
THETA = np.linspace(-1, 1, TASK.dimension)
MODEL = TrainedModel(TASK, 3, THETA, model_digest(TASK.digest, 3, TASK.model.parameters, THETA))


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    MODEL.save(tmp_path / "m.safetensors")
    again = TrainedModel.load(tmp_path / "m.safetensors", TASK)
    assert again == MODEL
    assert again.theta.tobytes() == THETA.tobytes()
    assert set(again.weights) == {"1.weight", "1.bias"}
    with pytest.raises(TaskMismatch):
        TrainedModel.load(tmp_path / "m.safetensors", task_with({"name": "other"}))
    with pytest.raises(Misconfiguration, match="can't be written"):
        MODEL.save(tmp_path / "nowhere" / "m.safetensors")
    with pytest.raises(Misconfiguration, match="before a model was seen"):
        Participation().save(tmp_path / "m.safetensors")


def test_buffers_stay_and_parameters_of_another_name_or_shape_are_refused() -> None:
    module = logistic(FEATURES, CLASSES)
    module.register_buffer("scale", torch.full((FEATURES,), 7.0))
    loaded = MODEL.load_into(module)
    assert dict(loaded.named_buffers())["scale"].tolist() == [7.0] * FEATURES
    for other in (nn.Linear(FEATURES, CLASSES), logistic(FEATURES + 1, CLASSES)):
        with pytest.raises(Misconfiguration, match="parameter 0"):
            MODEL.load_into(other)


APPLIED = Applied(build(TASK.model), TASK.model.parameters)


def test_a_model_is_the_same_on_records_in_chunks_and_alone() -> None:
    x = np.random.default_rng(1).normal(size=(150, FEATURES)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    gaps: list[None] = []
    module = MODEL.load_into(build(TASK.model))
    with torch.no_grad():
        outputs = module(torch.from_numpy(x))
        expected = float(functional.cross_entropy(outputs, torch.from_numpy(y)))
    found = APPLIED.evaluate(THETA, as_records((x, y)), lambda: gaps.append(None))
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.accuracy == float((outputs.argmax(dim=1).numpy() == y).mean())
    assert len(gaps) == 6, "it can be held before each chunk"


def test_records_that_the_model_cannot_take_are_named() -> None:
    with pytest.raises(Misconfiguration, match=r"records 0 to 1.*can't take them"):
        APPLIED.outputs(THETA, torch.zeros(2, FEATURES + 1))
    records = as_records((np.zeros((2, FEATURES)), np.array([0, CLASSES])))
    with pytest.raises(Misconfiguration, match="targets from record 0"):
        APPLIED.evaluate(THETA, records)


def section(module: nn.Module, architecture: str, initial: str = "zeros") -> ModelSection:
    return ModelSection.model_validate(model_section(module, architecture, initial))


@pytest.mark.parametrize(
    ("module", "architecture", "dimension"),
    [(logistic(64, 10), "logistic", 650), (mlp(30, 8, 2), "mlp", 30 * 8 + 8 + 16 + 2)],
)
def test_a_built_in_model_is_rebuilt_from_its_description(
    module: nn.Module, architecture: str, dimension: int
) -> None:
    described = section(module, architecture)
    again = build(described)
    assert section(again, architecture) == described
    assert sum(p.size for p in described.parameters) == dimension
    x = torch.zeros(3, described.parameters[0].shape[1])
    assert again(x).shape == module(x).shape


@pytest.mark.parametrize(
    ("module", "architecture", "said"),
    [
        (logistic(2, 2), "resnet", "give the model yourself"),
        (nn.Sequential(*(nn.Linear(3, 3) for _ in range(3))), "mlp", "don't belong to mlp"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(6, 3)),
            "mlp",
            r"3.weight\[3, 5\]",
        ),
    ],
)
def test_what_is_not_built_in_is_refused(module: nn.Module, architecture: str, said: str) -> None:
    with pytest.raises(Misconfiguration, match=said):
        build(section(module, architecture))


def test_a_vector_becomes_the_models_parameters_in_order() -> None:
    module = mlp(3, 2, 2)
    theta = np.arange(14, dtype=np.float64)
    load_vector(module, theta)
    flat = torch.cat([p.detach().ravel() for p in module.parameters()])
    assert flat.tolist() == theta.tolist()
    with pytest.raises(Misconfiguration, match=r"must be \[14\]"):
        load_vector(module, theta[:-1])
    # A network that starts uniform has unequal hidden units.
    start = initial_vector(section(module, "mlp", "uniform"))
    assert start[:3].tolist() != start[3:6].tolist()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    MODEL.save(tmp_path / "model.safetensors")
    (tmp_path / "task.toml").write_text(task_to_toml(TASK), encoding="utf-8")
    np.savez(tmp_path / "data.npz", x=np.ones((4, FEATURES), np.float32), y=np.zeros(4, int))
    return tmp_path


def run(command: str, files: Path, *more: object) -> Any:
    places = ("--task", files / "task.toml", "--model-file", files / "model.safetensors")
    return precad(command, files / "data.npz", *places, *more)


def test_raw_outputs_are_the_models(files: Path) -> None:
    said = run("predict", files, "--raw", "--out", files / "raw.npy")
    assert said.exit_code == 0, said.output
    module = MODEL.load_into(build(TASK.model))
    with torch.no_grad():
        expected = module(torch.ones(4, FEATURES)).numpy()
    assert (np.load(files / "raw.npy") == expected).all()
    (header, *rows) = run("predict", files, "--raw").stdout.splitlines()
    assert (header, len(rows)) == ("record,output_0,output_1", 4)


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        (("--out", "p.xlsx"), 2, ".csv or .npy"),
        (("--out", "/nowhere/p.csv"), 2, "no such folder"),
        (("--model", "nowhere:Net"), 2, "can't be loaded"),
        (("--model-file", "absent.safetensors"), 2, "can't be read"),
        (("--task", "other.toml"), 1, "task digest differs"),
    ],
)
def test_what_is_wrong_with_a_prediction_is_one_line(
    files: Path, more: tuple[str, str], status: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    other = task_with({**logistic_changes(FEATURES, CLASSES), "name": "other"})
    (files / "other.toml").write_text(task_to_toml(other), encoding="utf-8")
    result = run("predict", files, *more)
    assert (result.exit_code, result.stdout) == (status, "")
    assert words in result.stderr
