"""A trained model on records: what it says of each, its mean loss, its share of right answers."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from precad.client.gradients.objectives import Loss
from precad.client.gradients.torch_models import check_parameters, load_vector
from precad.client.records.torch_records import Records
from precad.common.errors import Misconfiguration
from precad.common.model import ModelVector
from precad.common.task_schema import Parameter

_MATRIX = 2
_ROWS = 64
"""Records at a time: whoever has to stop for an upload stops soon."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A model on so many ``records``."""

    records: int
    loss: float
    """The mean of the owner's own loss."""
    accuracy: float | None
    """Share of right labels; None where the model has no column a class."""

    def __str__(self) -> str:
        right = "" if self.accuracy is None else f", {self.accuracy:.1%} right"
        return f"loss {self.loss:.4g}{right}, of {self.records} records"


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
        self,
        theta: ModelVector,
        inputs: Tensor,
        between: Callable[[], object] = lambda: None,
    ) -> NDArray[np.float32]:
        """What the model says of each record, ``[n, …] float32``; calls ``between`` chunks.

        Raises Misconfiguration: the model can't take the records, or gives no row for
        each.
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
                    f"the model can't take them ({error}): give records like those of"
                    " training",
                ) from error
            if not isinstance(found, Tensor) or len(found) != len(some):
                raise Misconfiguration(
                    "model",
                    type(self._module).__name__,
                    "must give one row for each record",
                )
            parts.append(found.float().cpu())
        outputs: NDArray[np.float32] = torch.cat(parts).numpy()
        return outputs

    def evaluate(
        self,
        theta: ModelVector,
        records: Records,
        between: Callable[[], object] = lambda: None,
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
                    found = self._losses(
                        torch.from_numpy(outputs[rows]), records.targets[rows]
                    )
            except Exception as error:  # whatever a loss raises
                raise Misconfiguration(
                    f"data, targets from record {start}",
                    str(records.targets.dtype),
                    f"the loss can't take them ({error}): give targets like those of"
                    " training",
                ) from error
            losses.append(found.double())
        accuracy = None
        targets = records.targets
        # For a column a class and whole labels.
        classes = outputs.ndim == _MATRIX and outputs.shape[1] > 1
        if classes and targets.ndim == 1 and not targets.is_floating_point():
            accuracy = float((outputs.argmax(axis=1) == targets.numpy()).mean())
        return Evaluation(len(records), float(torch.cat(losses).mean()), accuracy)
