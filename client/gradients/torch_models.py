"""Torch models: those that a task describes, and a trained one on records."""

import copy
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from precad.client.gradients.model_constructs import NOT_BUILT, is_lazy
from precad.client.gradients.objectives import Loss
from precad.client.gradients.own_weights import buffers_of
from precad.client.participation import Evaluation, Net
from precad.client.records.torch_records import Records
from precad.common.errors import Misconfiguration
from precad.common.model import ModelVector, initial_vector, read_weights, tensors, weights_digest
from precad.common.task import Task
from precad.common.task_schema import ModelSection, Parameter

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
    initial: str = "zeros",
    initial_seed: int = 0,
    initial_file: str | Path | None = None,
) -> dict[str, Any]:
    """The task's ``model`` section that describes a torch module, as ``Task.parse`` takes it.

    Every parameter is described, by name and shape, in the module's own order, and every buffer by
    its numbers' digest. Owners call it by ``architecture``; those in ``BUILT_IN`` are built in.
    ``initial`` is ``zeros``, or ``uniform`` for more than one layer, a start that everybody expands
    from the public ``initial_seed``; ``initial_file`` is safetensors with public weights instead.

    Raises Misconfiguration: a layer has no shapes yet, or the file hasn't these parameters.
    """
    for name, layer in module.named_modules():
        if is_lazy(layer):
            raise Misconfiguration(f"model layer {name}", type(layer).__name__, NOT_BUILT)
    named = module.named_parameters()
    parameters = tuple(Parameter(name=name, shape=tuple(each.shape)) for name, each in named)
    section: dict[str, Any] = {
        "architecture": architecture,
        "parameters": [{"name": each.name, "shape": list(each.shape)} for each in parameters],
        "initial": initial,
        "initial_seed": initial_seed,
    }
    if initial_file is not None:
        section["initial"], section["initial_file"] = "file", str(initial_file)
        section["initial_digest"] = weights_digest(read_weights(Path(initial_file), parameters))
    if buffers := buffers_of(module):
        section["buffers"] = buffers
    return section


def load_initial(module: Net, task: Task) -> Net:
    """Copies the weights that a task starts from into a module, and returns it.

    Raises Misconfiguration: its parameters aren't the task's, or the task's file can't be read.
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
                "the task has none; remove it"
                if task is None
                else f"the task has {task[0]}{list(task[1])}; give the model that it describes",
            )


def load_vector(module: nn.Module, theta: ModelVector) -> None:
    """Copy θ, ``[d]``, into a torch module's parameters, cast to their dtype; buffers stay.

    Names aren't looked at (``TrainedModel.load_into`` does). Raises Misconfiguration: the module
    has another number of parameters.
    """
    named = dict(module.named_parameters())
    shapes = tuple(Parameter(name=n, shape=tuple(p.shape)) for n, p in named.items())
    with torch.no_grad():
        for name, values in tensors(theta, shapes).items():
            named[name].copy_(torch.from_numpy(values))


_ROWS = 64
"""Records at a time: whoever has to stop for an upload stops soon."""


class Applied:
    """A copy of a model in evaluation mode, at any θ, applied to records chunk by chunk.

    Raises Misconfiguration: the model's parameters aren't ``parameters``, the task's.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: tuple[Parameter, ...],
        loss: Loss = functional.cross_entropy,
    ) -> None:
        check_parameters(model, parameters)
        self._module = copy.deepcopy(model).float().eval()
        self._device = next(self._module.parameters()).device
        self._losses = vmap(
            lambda output, target: loss(output.unsqueeze(0), target.unsqueeze(0)).sum()
        )

    def outputs(
        self, theta: ModelVector, inputs: Tensor, between: Callable[[], object] = lambda: None
    ) -> NDArray[np.float32]:
        """What the model says of each record, ``[n, …] float32``; calls ``between`` chunks.

        Raises Misconfiguration: the model can't take the records, or gives no row for each.
        """
        if len(inputs) == 0:
            raise Misconfiguration("data", "no records", "give at least one")
        load_vector(self._module, theta)
        parts = []
        for start in range(0, len(inputs), _ROWS):
            between()
            some = inputs[start : start + _ROWS]
            try:
                with torch.no_grad():
                    found: Any = self._module(some.to(self._device))
            except Exception as error:  # whatever a model's operations raise
                raise Misconfiguration(
                    f"data, records {start} to {start + len(some) - 1}",
                    f"{some.dtype}{list(some.shape)}",
                    f"the model can't take them ({error}): give records like those of training",
                ) from error
            if not isinstance(found, Tensor) or len(found) != len(some):
                raise Misconfiguration(
                    "model", type(self._module).__name__, "must give one row for each record"
                )
            parts.append(found.float().cpu())
        outputs: NDArray[np.float32] = torch.cat(parts).numpy()
        return outputs

    def evaluate(
        self, theta: ModelVector, records: Records, between: Callable[[], object] = lambda: None
    ) -> Evaluation:
        """Mean loss, and for classes the share of right answers; arguments as of ``outputs``.

        Raises Misconfiguration: model, loss and records don't go together.
        """
        outputs = self.outputs(theta, records.inputs, between)
        losses = []
        for start in range(0, len(records), _ROWS):
            between()
            rows = slice(start, start + _ROWS)
            try:
                with torch.no_grad():
                    found = self._losses(torch.from_numpy(outputs[rows]), records.targets[rows])
            except Exception as error:  # whatever a loss raises
                raise Misconfiguration(
                    f"data, targets from record {start}",
                    str(records.targets.dtype),
                    f"the loss can't take them ({error}): give targets like those of training",
                ) from error
            losses.append(found.double())
        accuracy, targets = None, records.targets
        # For a column a class and whole labels.
        classes = outputs.ndim == _MATRIX and outputs.shape[1] > 1
        if classes and targets.ndim == 1 and not targets.is_floating_point():
            accuracy = float((outputs.argmax(axis=1) == targets.numpy()).mean())
        return Evaluation(len(records), float(torch.cat(losses).mean()), accuracy)
