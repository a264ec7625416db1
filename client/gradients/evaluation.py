"""Evaluates a trained model on records: outputs, mean loss, share of right labels."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

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
"""Dimensions of outputs with one column for each class."""
_ROWS = 64
"""Records that are evaluated together: whoever has to stop for an upload stops soon."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well a model does on records."""

    records: int
    """How many records there were."""
    loss: float
    """The mean of the owner's own loss."""
    accuracy: float | None
    """Share of right labels, 0 to 1; None where the outputs have no column for each
    class."""

    def __str__(self) -> str:
        right = "" if self.accuracy is None else f", {self.accuracy:.1%} right"
        return f"loss {self.loss:.4g}{right}, of {self.records} records"


class Applied:
    """Copy of a model in evaluation mode, which takes any θ and records in chunks.

    ``parameters`` are the task's; ``loss`` is the owner's own.

    Raises Misconfiguration: the model has other parameters than the task.
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

        def loss_of_record(output: Tensor, target: Tensor) -> Tensor:
            return loss(output.unsqueeze(0), target.unsqueeze(0)).sum()

        self._losses = vmap(loss_of_record)

    def outputs(
        self,
        theta: ModelVector,
        inputs: Tensor,
        between: Callable[[], object] = lambda: None,
    ) -> NDArray[np.float32]:
        """Return the model's output for each record, ``[n, …] float32``.

        ``theta`` is ``[d]``, ``inputs`` are ``[n, …]``. ``between`` is called before
        every chunk of records.

        Raises Misconfiguration: there are no records, the model can't take them, or
        doesn't give one row for each.
        """
        if len(inputs) == 0:
            raise Misconfiguration("data", "no records", "give at least one")
        load_vector(self._module, theta)
        parts = []
        for start in range(0, len(inputs), _ROWS):
            between()
            chunk = inputs[start : start + _ROWS]
            try:
                with torch.no_grad():
                    outputs: object = self._module(chunk.to(self._device))
            except Exception as error:  # whatever a model's operations raise
                raise Misconfiguration(
                    f"data, records {start} to {start + len(chunk) - 1}",
                    f"{chunk.dtype}{list(chunk.shape)}",
                    f"the model can't take them ({error}): give records like those of"
                    " training",
                ) from error
            if not isinstance(outputs, Tensor) or len(outputs) != len(chunk):
                raise Misconfiguration(
                    "model",
                    type(self._module).__name__,
                    "must give one row for each record",
                )
            parts.append(outputs.float().cpu())
        whole: NDArray[np.float32] = torch.cat(parts).numpy()
        return whole

    def evaluate(
        self,
        theta: ModelVector,
        records: Records,
        between: Callable[[], object] = lambda: None,
    ) -> Evaluation:
        """Return the mean loss and, for classes, the share of right labels.

        ``theta`` and ``between`` are as in ``outputs``.

        Raises Misconfiguration: as ``outputs``, and where the loss can't take the
        targets.
        """
        outputs = self.outputs(theta, records.inputs, between)
        targets = records.targets
        losses = []
        for start in range(0, len(records), _ROWS):
            between()
            chunk = slice(start, start + _ROWS)
            try:
                with torch.no_grad():
                    chunk_losses = self._losses(
                        torch.from_numpy(outputs[chunk]), targets[chunk]
                    )
            except Exception as error:  # whatever a loss raises
                raise Misconfiguration(
                    f"data, targets from record {start}",
                    str(targets.dtype),
                    f"the loss can't take them ({error}): give targets like those of"
                    " training",
                ) from error
            losses.append(chunk_losses.double())
        accuracy = None
        column_per_class = outputs.ndim == _MATRIX and outputs.shape[1] > 1
        whole_labels = targets.ndim == 1 and not targets.is_floating_point()
        if column_per_class and whole_labels:
            labels = outputs.argmax(axis=1)
            accuracy = float((labels == targets.numpy()).mean())
        return Evaluation(
            records=len(records),
            loss=float(torch.cat(losses).mean()),
            accuracy=accuracy,
        )
