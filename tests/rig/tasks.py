"""Small tasks outside of fixtures: varied field by field, or around a module."""

import numpy as np
from numpy.typing import NDArray
from tests.conftest import small_task
from tests.rig.documents import Arguments, Document
from torch import nn

from precad.client import DataOwner, TrainedModel
from precad.client.gradients.torch_models import model_section
from precad.common.model import model_digest
from precad.common.task import Task

LARGE = """
name = "large"
model.parameters = [{ name = "w", shape = [10_000_000] }]
training = { learning_rate = 1.0, rounds = 200 }
enrolment = { clients = 50, max_expected_records = 60.0 }
[privacy]
record_clip = 1.0
client_clip = 2.0
noise_multiplier = 2.0
record_rate = 0.1
client_rate = 0.1
"""
# So large a model that the rounding in R' counts: with 16 fractional bits it would be
# 4.5 % larger.
RECIPE = """[data]
target = { name = "died", kind = "categorical", levels = ["no", "yes"] }
columns = [
  { name = "age", centre = 60, scale = 20, fill = 60 },
  { name = "ward", kind = "categorical", levels = ["A", "B"], fill_level = "B" },
]
"""  # Of a table of two columns, of which one has levels


def task_with(changes: Document, dimension: int = 8) -> Task:
    """``task_with({"privacy.client_clip": 30.1})``: as the fixture ``make_task``."""
    return small_task(dimension, changes)


def logistic(features: int, classes: int = 2) -> Document:
    """For a model that `precad join` can build: (features + 1)·classes parameters."""
    weight, bias = [classes, features], [classes]
    parameters = [
        {"name": "1.weight", "shape": weight},
        {"name": "1.bias", "shape": bias},
    ]
    return {"model.architecture": "logistic", "model.parameters": parameters}


def task_of(module: nn.Module, initial: str = "zeros", **privacy: object) -> Task:
    changes = {f"privacy.{name}": value for name, value in privacy.items()}
    return task_with(
        {
            "model": model_section(module, architecture="custom", initial=initial),
            **changes,
        }
    )


def data_owner(name: str, task: Task, data: object, **more: object) -> DataOwner:
    """As the SDK makes it; no server is called."""
    nobody: Arguments = {
        "server_a": "a:1",
        "server_b": "b:1",
        "identity": object(),
    }
    return DataOwner(name, task=task, data=data, **nobody | more)


def model_at(task: Task, theta: NDArray[np.float64], version: int = 0) -> TrainedModel:
    digest = model_digest(task.digest, version, task.model.parameters, theta)
    return TrainedModel(task=task, version=version, theta=theta, digest=digest)
