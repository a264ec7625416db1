"""Small tasks outside of fixtures: varied field by field, or around a module."""

from typing import Any

from tests.conftest import task_values
from torch import nn

from precad.client.gradients.torch_models import model_section
from precad.common.task import Task


def task_with(changes: dict[str, Any], dimension: int = 8) -> Task:
    """``task_with({"privacy.client_clip": 30.1})``: as the fixture ``make_task``."""
    values = task_values(dimension)
    for path, value in changes.items():
        *sections, field = path.split(".")
        section = values
        for name in sections:
            section = section.setdefault(name, {})
        section[field] = value
    return Task.parse(values)


def logistic(features: int, classes: int = 2) -> dict[str, Any]:
    """Changes for a model that `precad join` can build: (features + 1)·classes parameters."""
    weight, bias = [classes, features], [classes]
    parameters = [{"name": "1.weight", "shape": weight}, {"name": "1.bias", "shape": bias}]
    return {"model.architecture": "logistic", "model.parameters": parameters}


def task_of(module: nn.Module, initial: str = "zeros", **privacy: Any) -> Task:
    """Around a model of one's own; ``privacy`` by the names of its fields."""
    changes = {f"privacy.{name}": value for name, value in privacy.items()}
    return task_with({"model": model_section(module, "custom", initial), **changes})
