"""The torch models that a task describes, and the task's parameters in a module."""

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from precad.client.gradients import NOT_BUILT, buffers_of, is_lazy
from precad.common import (
    Misconfiguration,
    ModelSection,
    ModelVector,
    Parameter,
    Task,
    initial_vector,
    read_weights,
    tensors,
    weights_digest,
)

Net = TypeVar("Net", bound=nn.Module)
BUILT_IN = ("logistic", "mlp", "cnn")
"""Architectures that need no module of the owner's own."""
_MATRIX = 2
"""Dimensions of a linear layer's weights."""


def logistic(features: int, classes: int) -> nn.Module:
    """Return multinomial logistic regression.

    It takes inputs ``[n, …]`` of ``features`` values and gives logits ``[n, classes]``.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(features, classes))


def mlp(features: int, hidden: int, classes: int) -> nn.Module:
    """Return a perceptron with one hidden layer of tanh units.

    It takes inputs ``[n, …]`` of ``features`` values and gives logits ``[n, classes]``.
    Tanh, not ReLU: with clipped gradients and noise, bounded activations train better
    (Papernot et al., "Tempered Sigmoid Activations", AAAI 2021).
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(features, hidden),
        nn.Tanh(),
        nn.Linear(hidden, classes),
    )


def cnn(classes: int) -> nn.Module:
    """Return a network of two convolutions with tanh units, for grey images.

    It takes images ``[n, 1, 28, 28]``, gives logits ``[n, classes]``, and has 1,376 +
    145·classes parameters.
    """
    return nn.Sequential(
        nn.Conv2d(
            1,
            8,
            5,
            stride=2,
            padding=2,
        ),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(144, classes),
    )


def build(section: ModelSection) -> nn.Module:
    """Return the task's model, if its architecture is one of ``BUILT_IN``.

    Its sizes are those that the shapes of the task's parameters say.

    Raises Misconfiguration: another architecture, or shapes that don't belong to it.
    """
    matrices = [
        parameter.shape
        for parameter in section.parameters
        if len(parameter.shape) == _MATRIX
    ]
    match section.architecture, matrices:
        case "logistic", [(classes, features)]:
            module = logistic(features, classes)
        case "mlp", [(hidden, features), (classes, _)]:
            module = mlp(features, hidden, classes)
        case "cnn", [(classes, _)]:
            module = cnn(classes)
        case "logistic" | "mlp" | "cnn", _:
            raise Misconfiguration(
                "model.parameters",
                matrices,
                f"don't belong to {section.architecture}",
            )
        case _:
            raise Misconfiguration(
                "model.architecture",
                section.architecture,
                f"only {', '.join(BUILT_IN)} are built in; give the model yourself",
            )
    check_parameters(module, section.parameters)
    return module


def model_section(
    module: nn.Module,
    architecture: str,
    *,
    initial: str = "zeros",
    initial_seed: int = 0,
    initial_file: str | Path | None = None,
) -> dict[str, object]:
    """Return the task's ``model`` section for a torch module.

    ``Task.parse`` takes it. It describes every parameter by name and shape, in the
    module's own order, and every buffer by its numbers' digest.

    Args:
        module: the model; its layers have to know their shapes.
        architecture: the name by which owners call it; those in ``BUILT_IN`` are built
            in.
        initial: the start, ``zeros`` or, for more than one layer, ``uniform``.
        initial_seed: public seed from which everybody expands a uniform start.
        initial_file: safetensors with public weights to start from instead.

    Raises Misconfiguration: a layer has no shapes yet, a parameter no elements, or the
    file hasn't these parameters.
    """
    for name, layer in module.named_modules():
        if is_lazy(layer):
            raise Misconfiguration(
                f"model layer {name}",
                type(layer).__name__,
                NOT_BUILT,
            )
    parameters = _parameters_of(dict(module.named_parameters()))
    section = {
        "architecture": architecture,
        "parameters": [
            {"name": parameter.name, "shape": list(parameter.shape)}
            for parameter in parameters
        ],
        "initial": initial,
        "initial_seed": initial_seed,
    }
    if initial_file is not None:
        weights = read_weights(Path(initial_file), parameters)
        section["initial"] = "file"
        section["initial_file"] = str(initial_file)
        section["initial_digest"] = weights_digest(weights)
    buffers = buffers_of(module)
    if buffers:
        section["buffers"] = buffers
    return section


def _parameters_of(named: Mapping[str, nn.Parameter]) -> tuple[Parameter, ...]:
    """Return a module's parameters as a task describes them, by name and shape.

    Raises Misconfiguration: one has no elements, which nobody could train.
    """
    for name, tensor in named.items():
        if not tensor.numel():
            raise Misconfiguration(
                f"model parameter {name}",
                list(tensor.shape),
                "has no elements: leave its layer out",
            )
    return tuple(
        Parameter(name=name, shape=tuple(tensor.shape))
        for name, tensor in named.items()
    )


def load_initial(module: Net, task: Task) -> Net:
    """Copy the weights that a task starts from into a module, and return the module.

    Raises Misconfiguration: its parameters aren't the task's, or the task's file can't
    be read.
    """
    check_parameters(module, task.mechanism.parameters)
    load_vector(module, initial_vector(task.model))
    return module


def check_parameters(module: nn.Module, parameters: tuple[Parameter, ...]) -> None:
    """Refuse a module whose parameters aren't the task's, in names, shapes and order.

    Raises Misconfiguration: names the first one that differs.
    """
    own = [(name, tuple(tensor.shape)) for name, tensor in module.named_parameters()]
    agreed = [(parameter.name, parameter.shape) for parameter in parameters]
    for position, (ours, tasks) in enumerate(zip_longest(own, agreed)):
        if ours == tasks:
            continue
        if tasks is None:
            remedy = "the task has none; remove it"
        else:
            remedy = (
                f"the task has {tasks[0]}{list(tasks[1])}; give the model that it"
                " describes"
            )
        raise Misconfiguration(
            f"model parameter {position}",
            "absent" if ours is None else f"{ours[0]}{list(ours[1])}",
            remedy,
        )


def load_vector(module: nn.Module, theta: ModelVector) -> None:
    """Copy θ, ``[d]``, into a module's parameters, cast to their dtype; buffers stay.

    Names aren't looked at; ``TrainedModel.load_into`` looks at them.

    Raises Misconfiguration: the module has another number of parameters.
    """
    named = dict(module.named_parameters())
    parameters = _parameters_of(named)
    with torch.no_grad():
        for name, values in tensors(theta, parameters).items():
            named[name].copy_(torch.from_numpy(values))
