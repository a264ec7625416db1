"""Evaluates a trained model on records: outputs, loss, and what they say.

Outputs are said in the task's words: probabilities of its levels, or numbers in its
target's own unit.
"""

import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor, nn
from torch.func import vmap

from precad.client.gradients import (
    Loss,
    check_parameters,
    load_vector,
    loss_in,
    loss_of_record,
)
from precad.client.records import Records
from precad.common import (
    AnyNumbers,
    Column,
    Floats,
    Floats32,
    Misconfiguration,
    ModelVector,
    Task,
    frozen_kw_only_dataclass,
)

_MATRIX = 2
"""Dimensions of outputs with one column for each class."""
_ROWS = 64
"""Records that are evaluated together: whoever has to stop for an upload stops soon."""


@frozen_kw_only_dataclass
class Evaluation:
    """How well a model does on records."""

    records: int
    """How many records there were."""
    loss: float
    """The mean of the owner's own loss."""
    accuracy: float | None
    """Share of right labels, 0 to 1; None where the outputs have no column for each
    class."""
    r_squared: float | None = None
    """Share of the targets' variance that is explained, at most 1; None of classes."""

    @property
    def quality(self) -> str:
        """Return in a few words how good it is."""
        text = f"loss {self.loss:.4g}"
        if self.r_squared is not None:
            text += f", R² {self.r_squared:.3f}"
        if self.accuracy is not None:
            text += f", {self.accuracy:.1%} right"
        return text

    def __str__(self) -> str:
        return f"{self.quality}, of {self.records} records"


class Applied:
    """Copy of a model in evaluation mode, which takes any θ and records in chunks.

    ``loss`` is the owner's own; the task's unless given.

    Raises Misconfiguration: the model has other parameters than the task.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        own_loss: Loss | None = None,
    ) -> None:
        check_parameters(model, task.mechanism.parameters)
        self._task = task
        loss = loss_in(task, own_loss)
        self._module = copy.deepcopy(model).float().eval()
        self._device = next(self._module.parameters()).device
        self._losses = vmap(partial(loss_of_record, loss))

    def outputs(
        self,
        theta: ModelVector,
        inputs: Tensor,
        between: Callable[[], object] = lambda: None,
        *,
        together: int = _ROWS,
    ) -> Floats32:
        """Return the model's output for each record, ``[n, …] float32``.

        ``theta`` is ``[d]``, ``inputs`` are ``[n, …]``. ``between`` is called before
        every chunk of ``together`` records.

        Raises Misconfiguration: there are no records, the model can't take them, or
        doesn't give one row for each.
        """
        if len(inputs) == 0:
            raise Misconfiguration("data", "no records", "give at least one")
        load_vector(self._module, theta)
        parts = []
        for start in range(0, len(inputs), together):
            between()
            chunk = inputs[start : start + together]
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
        return torch.cat(parts).numpy()

    def evaluate(
        self,
        theta: ModelVector,
        records: Records,
        between: Callable[[], object] = lambda: None,
        *,
        outputs: Floats32 | None = None,
    ) -> Evaluation:
        """Return the mean loss, and of classes the share of right labels, else R².

        ``theta`` and ``between`` are as in ``outputs``, whose result may be given.

        Raises Misconfiguration: as ``outputs``, and where the loss can't take the
        targets.
        """
        if outputs is None:
            outputs = self.outputs(theta, records.inputs, between)
        targets = records.targets
        losses = []
        for start in range(0, len(targets), _ROWS):
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
        r_squared = None
        beside = beside_targets(self._task, outputs, targets)
        if beside is not None:
            predicted, true = beside
            if predicted.ndim == _MATRIX:
                accuracy = float((predicted.argmax(axis=1) == true).mean())
            elif len(true) > 1:
                from sklearn.metrics import r2_score  # noqa: PLC0415 -- a second

                r_squared = r2_score(true, predicted)
        return Evaluation(
            records=len(targets),
            loss=float(torch.cat(losses).mean()),
            accuracy=accuracy,
            r_squared=r_squared,
        )


def own_words(task: Task, outputs: Floats32) -> Floats | None:
    """Return what a model's outputs, ``[n, …]``, say in the task's words.

    Probabilities of classes, ``[n, classes]``; or numbers in the target's own unit,
    ``[n]``. None where they are neither, as where several numbers are learned at once.
    """
    if outputs.size > len(outputs):
        of_classes = task.loss == "cross-entropy" and outputs.ndim == _MATRIX
        if not of_classes:
            return None
        # Of outputs that aren't finite nothing is said: NumPy's warning would show that
        # a record is such.
        with np.errstate(invalid="ignore"):
            chances: Floats = softmax(outputs.astype(np.float64), axis=1)
        return chances
    return None if task.target.levels else own_unit(task.target, outputs)


def own_unit(target: Column, scaled: AnyNumbers) -> Floats:
    """Return n numbers, ``[n, …]``, in the target's own unit, ``[n]``."""
    return scaled.reshape(-1).astype(np.float64) * target.scale + target.centre


def beside_targets(
    task: Task, outputs: Floats32, targets: Tensor
) -> tuple[Floats, Floats] | None:
    """Return what outputs say, as ``own_words``, and what is true, ``[n]``.

    None where one of the two isn't known, or an output isn't finite.
    """
    predicted = own_words(task, outputs)
    if (
        predicted is None
        or not np.isfinite(predicted).all()
        or targets.numel() > len(targets)
        or (targets.is_floating_point() and predicted.ndim == _MATRIX)
    ):
        return None
    return predicted, own_unit(task.target, targets.numpy())


def level_names(task: Task, count: int) -> list[str]:
    """Return the names of so many classes; their numbers where the task has none."""
    levels = task.target.levels
    return [*levels, *map(str, range(len(levels), count))][:count]
