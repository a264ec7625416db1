"""Torch models and the task's description of them."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from precad.common.description import ModelSection, Parameter
from precad.common.errors import Misconfiguration
from precad.common.model import tensors

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
        *(nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(144, classes)),
    )


def build(section: ModelSection) -> nn.Module:
    """The task's model, where its architecture is one of ours: ``BUILT_IN``.

    Its sizes are read from the parameters' shapes; its values are torch's own and are replaced
    by θ_t in training.

    Raises:
        Misconfiguration: another architecture, or shapes that don't belong to it.
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
            raise Misconfiguration(
                "model.architecture",
                section.architecture,
                f"only {', '.join(BUILT_IN)} are built in; give the model yourself",
            )
    check_parameters(module, section.parameters)
    return module


def model_section(
    module: nn.Module, architecture: str, initial: str = "zeros", initial_seed: int = 0
) -> dict[str, Any]:
    """The task's ``model`` section that describes a torch module.

    ```
    values = tomllib.loads(…) | {"model": model_section(net, "my-net")}
    task = Task.parse(values)
    ```

    Args:
        module: every parameter is described, by name and shape, in the module's own order.
        architecture: what the data owners call it; those in ``BUILT_IN`` are built in.
        initial: ``zeros``, or ``uniform`` for more than one layer.
        initial_seed: public; with ``uniform`` everybody expands the same start from it.

    Returns:
        Plain values, as a task file and ``Task.parse`` take them.
    """
    parameters = [
        {"name": name, "shape": list(tensor.shape)} for name, tensor in module.named_parameters()
    ]
    return {
        "architecture": architecture,
        "parameters": parameters,
        "initial": initial,
        "initial_seed": initial_seed,
    }


def check_parameters(module: nn.Module, parameters: tuple[Parameter, ...]) -> None:
    """Refuses a model whose parameters aren't the task's, in names, shapes and order.

    Raises:
        Misconfiguration: names the first difference.
    """
    found = [(name, tuple(tensor.shape)) for name, tensor in module.named_parameters()]
    expected = [(parameter.name, parameter.shape) for parameter in parameters]
    for position in range(max(len(found), len(expected))):
        ours = found[position] if position < len(found) else None
        task = expected[position] if position < len(expected) else None
        if ours != task:
            raise Misconfiguration(
                f"model parameter {position}",
                "absent" if ours is None else f"{ours[0]}{list(ours[1])}",
                "the task has none; remove it"
                if task is None
                else f"the task has {task[0]}{list(task[1])}; give the model that it describes",
            )


def load_vector(module: nn.Module, theta: NDArray[np.float64]) -> None:
    """Copies θ into a torch module's parameters, cast to their own dtype; buffers stay.

    Args:
        module: parameters of the task's shapes, in its order; their names aren't looked at
            (``TrainedModel.load_into`` does).
        theta: θ, ``[d] float64``: all parameters flattened, one after the other.

    Raises:
        Misconfiguration: the vector's length isn't the module's number of parameters.
    """
    named = dict(module.named_parameters())
    shapes = tuple(Parameter(name=n, shape=tuple(p.shape)) for n, p in named.items())
    with torch.no_grad():
        for name, values in tensors(theta, shapes).items():
            named[name].copy_(torch.from_numpy(values))
