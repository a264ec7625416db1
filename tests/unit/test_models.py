"""Built-in models and the task's description of a torch model."""

import numpy as np
import pytest
import torch
from torch import nn

from precad.client.gradients.torch_models import build, logistic, mlp, model_section
from precad.client.trained_model import load_vector
from precad.common.errors import Misconfiguration
from precad.common.model import initial_vector
from precad.common.task_schema import ModelSection


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


def test_images_are_flattened() -> None:
    assert logistic(36, 4)(torch.zeros(2, 1, 6, 6)).shape == (2, 4)


def test_an_unknown_architecture_asks_for_the_model() -> None:
    with pytest.raises(Misconfiguration, match="give the model yourself"):
        build(section(logistic(2, 2), "resnet"))


@pytest.mark.parametrize("architecture", ["logistic", "mlp"])
def test_shapes_of_another_architecture_are_refused(architecture: str) -> None:
    with pytest.raises(Misconfiguration):
        build(section(nn.Sequential(*(nn.Linear(3, 3) for _ in range(3))), architecture))


def test_layers_that_do_not_fit_each_other_are_refused() -> None:
    wrong = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(6, 3))
    with pytest.raises(Misconfiguration, match=r"3.weight\[3, 5\]"):
        build(section(wrong, "mlp"))


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
