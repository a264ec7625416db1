"""Torch models that a task describes, and its vector of parameters in a module."""

from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from precad.client.gradients.model_constructs import NOT_BUILT, is_lazy
from precad.client.gradients.own_weights import buffers_of
from precad.common.errors import Misconfiguration
from precad.common.model import (
    ModelVector,
    initial_vector,
    read_weights,
    tensors,
    weights_digest,
)
from precad.common.task import Task
from precad.common.task_schema import ModelSection, Parameter

Net = TypeVar("Net", bound=nn.Module)
BUILT_IN = ("logistic", "mlp", "cnn")
"""Architectures that need no module of the owner's own."""
_MATRIX = 2


def logistic(features: int, classes: int) -> nn.Module:
    """Multinomial logistic regression: inputs ``[n, …]`` of ``features`` values, logits out."""
    return nn.Sequential(nn.Flatten(), nn.Linear(features, classes))


def mlp(features: int, hidden: int, classes: int) -> nn.Module:
    """One hidden layer of tanh units.

    Tanh, not ReLU: with clipped gradients and noise, bounded activations train better
    (Papernot et al., "Tempered Sigmoid Activations", AAAI 2021).
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, classes)
    )


def cnn(classes: int) -> nn.Module:
    """Two convolutions of tanh units, for grey images ``[n, 1, 28, 28]``; 1,376 + 145·classes."""
    return nn.Sequential(
        *(
            nn.Conv2d(
                1,
                8,
                5,
                stride=2,
                padding=2,
            ),
            nn.Tanh(),
            nn.MaxPool2d(2),
        ),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(144, classes)),
    )


def build(section: ModelSection) -> nn.Module:
    """The task's model, of the sizes that its parameters' shapes say, where it is of ``BUILT_IN``.

    Raises Misconfiguration: another architecture, or shapes that don't belong to it.
    """
    shapes = [p.shape for p in section.parameters if len(p.shape) == _MATRIX]
    match section.architecture, shapes:
        case "logistic", [(classes, features)]:
            module = logistic(features, classes)
        case "mlp", [(hidden, features), (classes, _)]:
            module = mlp(features, hidden, classes)
        case "cnn", [(classes, _)]:
            module = cnn(classes)
        case "logistic" | "mlp" | "cnn", _:
            raise Misconfiguration(
                "model.parameters", shapes, f"don't belong to {section.architecture}"
            )
        case _:
            remedy = f"only {', '.join(BUILT_IN)} are built in; give the model yourself"
            raise Misconfiguration("model.architecture", section.architecture, remedy)
    check_parameters(module, section.parameters)
    return module


def model_section(
    module: nn.Module,
    architecture: str,
    *,
    initial: str = "zeros",
    initial_seed: int = 0,
    initial_file: str | Path | None = None,
) -> dict[str, Any]:
    """The task's ``model`` section that describes a torch module, as ``Task.parse`` takes it.

    Every parameter is described, by name and shape, in the module's own order, and
    every buffer by its numbers' digest. Owners call it by ``architecture``; those in
    ``BUILT_IN`` are built in. ``initial`` is ``zeros``, or ``uniform`` for more than
    one layer, a start that everybody expands from the public ``initial_seed``;
    ``initial_file`` is safetensors with public weights instead.

    Raises Misconfiguration: a layer has no shapes yet, or the file hasn't these
    parameters.
    """
    for name, layer in module.named_modules():
        if is_lazy(layer):
            raise Misconfiguration(
                f"model layer {name}", type(layer).__name__, NOT_BUILT
            )
    named = module.named_parameters()
    parameters = tuple(
        Parameter(name=name, shape=tuple(each.shape)) for name, each in named
    )
    section: dict[str, Any] = {
        "architecture": architecture,
        "parameters": [
            {"name": each.name, "shape": list(each.shape)} for each in parameters
        ],
        "initial": initial,
        "initial_seed": initial_seed,
    }
    if initial_file is not None:
        section["initial"], section["initial_file"] = "file", str(initial_file)
        section["initial_digest"] = weights_digest(
            read_weights(Path(initial_file), parameters)
        )
    buffers = buffers_of(module)
    if buffers:
        section["buffers"] = buffers
    return section


def load_initial(module: Net, task: Task) -> Net:
    """Copies the weights that a task starts from into a module, and returns it.

    Raises Misconfiguration: its parameters aren't the task's, or the task's file can't
    be read.
    """
    check_parameters(module, task.model.parameters)
    load_vector(module, initial_vector(task.model))
    return module


def check_parameters(module: nn.Module, parameters: tuple[Parameter, ...]) -> None:
    """Refuse other parameters than the task's, in names, shapes and order; names the first."""
    found = [(name, tuple(tensor.shape)) for name, tensor in module.named_parameters()]
    expected = [(parameter.name, parameter.shape) for parameter in parameters]
    for position, (ours, task) in enumerate(zip_longest(found, expected)):
        if ours != task:
            raise Misconfiguration(
                f"model parameter {position}",
                "absent" if ours is None else f"{ours[0]}{list(ours[1])}",
                (
                    "the task has none; remove it"
                    if task is None
                    else (
                        f"the task has {task[0]}{list(task[1])}; give the model that it"
                        " describes"
                    )
                ),
            )


def load_vector(module: nn.Module, theta: ModelVector) -> None:
    """Copy θ, ``[d]``, into a torch module's parameters, cast to their dtype; buffers stay.

    Names aren't looked at (``TrainedModel.load_into`` does). Raises Misconfiguration:
    the module has another number of parameters.
    """
    named = dict(module.named_parameters())
    shapes = tuple(Parameter(name=n, shape=tuple(p.shape)) for n, p in named.items())
    with torch.no_grad():
        for name, values in tensors(theta, shapes).items():
            named[name].copy_(torch.from_numpy(values))
