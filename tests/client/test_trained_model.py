"""A model goes from a task's vector into a module and a file, and what doesn't fit is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.conftest import TaskMaker
from torch import nn
from torch.nn import functional

from precad.cli.local_deployment import task_to_toml
from precad.cli.main import app
from precad.client import TrainedModel, load_vector, model_section
from precad.client.gradients.torch_models import Applied, build, logistic, mlp
from precad.client.participation import Participation
from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration, TaskMismatch
from precad.common.model import initial_vector, model_digest
from precad.common.task import Task
from precad.common.task_schema import ModelSection

FEATURES, CLASSES = 3, 2


@pytest.fixture
def task(make_task: TaskMaker) -> Task:
    section = model_section(logistic(FEATURES, CLASSES), "logistic")
    changes: dict[str, Any] = {f"model.{name}": value for name, value in section.items()}
    return make_task(8, changes)


@pytest.fixture
def model(task: Task) -> TrainedModel:
    theta = np.linspace(-1, 1, task.dimension)
    digest = model_digest(task.digest, 3, task.model.parameters, theta)
    return TrainedModel(task, 3, theta, digest)


def test_what_is_saved_is_what_is_loaded(model: TrainedModel, tmp_path: Path) -> None:
    model.save(tmp_path / "m.safetensors")
    again = TrainedModel.load(tmp_path / "m.safetensors", model.task)
    assert again == model
    assert again.theta.tobytes() == model.theta.tobytes()
    assert set(again.weights) == {"1.weight", "1.bias"}


def test_buffers_stay_and_parameters_of_another_name_or_shape_are_refused(
    model: TrainedModel,
) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("1", nn.Linear(FEATURES, CLASSES))
            self.register_buffer("scale", torch.full((FEATURES,), 7.0))

    loaded = model.load_into(Scaled())
    assert dict(loaded.named_buffers())["scale"].tolist() == [7.0] * FEATURES
    for other in (nn.Linear(FEATURES, CLASSES), logistic(FEATURES + 1, CLASSES)):
        with pytest.raises(Misconfiguration, match="parameter 0"):
            model.load_into(other)


def test_a_model_is_the_same_on_records_in_chunks_and_alone(model: TrainedModel) -> None:
    x = np.random.default_rng(1).normal(size=(150, FEATURES)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    gaps: list[None] = []
    applied = Applied(build(model.task.model), model.task.model.parameters)
    module = model.load_into(build(model.task.model))
    with torch.no_grad():
        outputs = module(torch.from_numpy(x))
        expected = float(functional.cross_entropy(outputs, torch.from_numpy(y)))
    found = applied.evaluate(model.theta, as_records((x, y)), lambda: gaps.append(None))
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.accuracy == float((outputs.argmax(dim=1).numpy() == y).mean())
    assert len(gaps) == 6, "it can be held before each chunk"


def test_records_that_the_model_cannot_take_are_named(model: TrainedModel) -> None:
    applied = Applied(build(model.task.model), model.task.model.parameters)
    with pytest.raises(Misconfiguration, match=r"records 0 to 1.*can't take them"):
        applied.outputs(model.theta, torch.zeros(2, FEATURES + 1))
    labels = np.array([0, CLASSES])
    with pytest.raises(Misconfiguration, match="targets from record 0"):
        applied.evaluate(model.theta, as_records((np.zeros((2, FEATURES)), labels)))


# --- built-in models -----------------------------------------------------------------------------


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


def test_a_network_that_starts_uniform_has_unequal_hidden_units() -> None:
    theta = initial_vector(section(mlp(3, 2, 2), "mlp", "uniform"))
    assert theta[:3].tolist() != theta[3:6].tolist()


# --- the commands ------------------------------------------------------------------------------


@pytest.fixture
def files(model: TrainedModel, tmp_path: Path) -> Path:
    model.save(tmp_path / "model.safetensors")
    (tmp_path / "task.toml").write_text(task_to_toml(model.task), encoding="utf-8")
    np.savez(tmp_path / "data.npz", x=np.ones((4, FEATURES), np.float32), y=np.zeros(4, int))
    return tmp_path


def run(command: str, files: Path, *more: object) -> Any:
    places = ("--task", files / "task.toml", "--model-file", files / "model.safetensors")
    arguments = [command, files / "data.npz", *places, *more]
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_raw_outputs_are_the_models(files: Path, model: TrainedModel) -> None:
    said = run("predict", files, "--raw", "--out", files / "raw.npy")
    assert said.exit_code == 0, said.output
    module = model.load_into(build(model.task.model))
    with torch.no_grad():
        expected = module(torch.ones(4, FEATURES)).numpy()
    assert (np.load(files / "raw.npy") == expected).all()
    (header, *rows) = run("predict", files, "--raw").stdout.splitlines()
    assert header == "record,output_0,output_1"
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--out", "p.xlsx"), ".csv or .npy"),
        (("--out", "/nowhere/p.csv"), "no such folder"),
        (("--model", "nowhere:Net"), "can't be loaded"),
        (("--model-file", "absent.safetensors"), "can't be read"),
    ],
)
def test_what_is_wrong_with_a_prediction_is_one_line(
    files: Path, more: tuple[str, str], words: str
) -> None:
    result = run("predict", files, *more)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_a_model_of_another_task_is_not_applied(
    files: Path, model: TrainedModel, make_task: TaskMaker
) -> None:
    other = make_task(8, {"name": "other", "model": model.task.model.model_dump(mode="json")})
    (files / "task.toml").write_text(task_to_toml(other), encoding="utf-8")
    result = run("evaluate", files)
    assert result.exit_code == 1
    assert "task digest differs" in result.stderr
    with pytest.raises(TaskMismatch):
        TrainedModel.load(files / "model.safetensors", other)


def test_a_place_that_cannot_be_written_is_named(model: TrainedModel, tmp_path: Path) -> None:
    with pytest.raises(Misconfiguration, match="can't be written"):
        model.save(tmp_path / "nowhere" / "m.safetensors")


def test_a_training_without_a_model_says_so() -> None:
    with pytest.raises(Misconfiguration, match="before a model was seen"):
        Participation().save("m.safetensors")
