"""Models by name: a module for a data set, with random initial weights of its own."""

from collections.abc import Callable

from torch import nn

from precad.client.gradients.torch_models import logistic as logistic_module
from precad.client.gradients.torch_models import mlp as mlp_module
from precad.simulation.datasets import DataSet
from research.registry import Registry

Model = Callable[[DataSet], nn.Module]
MODELS: Registry[Model] = Registry(
    "model",
    "research.models.convolutional",
    "research.models.pooled",
    "research.models.resnet",
    "research.models.lstm",
)
"""A function of the data set each; without batch norm, dropout or running statistics.
"""
HIDDEN = 32


@MODELS.register("logistic")
def logistic(data: DataSet) -> nn.Module:
    """Multinomial logistic regression."""
    return logistic_module(data.features, data.classes)


@MODELS.register("mlp")
def mlp(data: DataSet) -> nn.Module:
    """One hidden layer of 32 tanh units."""
    return mlp_module(data.features, HIDDEN, data.classes)
