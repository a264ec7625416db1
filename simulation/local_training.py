"""Virtual owners that train by themselves and add what that changed: whole owners are protected.

An owner that is drawn starts from θ_t, goes E times through its own records by plain
gradient descent, and adds θ_E − θ_t, clipped to C as a whole. No record is clipped by
itself: all that an owner's records may say lies within C (``LocalTraining``).
"""

import copy
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from precad.client.gradients.objectives import Loss
from precad.client.gradients.torch_models import load_vector
from precad.client.records.torch_records import Records
from precad.common.fixed_point import clip_update, encode
from precad.common.identifiers import Secret
from precad.common.mechanism import LocalTraining
from precad.common.model import ModelVector
from precad.common.ring import Keystream, RingVector
from precad.common.task import Task
from precad.simulation.virtual_owners import Drawn, Matrix


class LocallyTrained:
    """Each drawn owner's own training, one owner after the other.

    ``loss`` is as in torch.nn.functional, a mean over records. The model's device is
    used. Raises Misconfiguration: the model's parameters aren't the task's.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        task: Task,
        training: LocalTraining,
    ) -> None:
        self._model = copy.deepcopy(model).train()
        self._loss = loss
        self._task = task
        self._training = training
        self._device = next(model.parameters()).device
        self.failed = 0
        """Owners whose training left the finite numbers: they added zeros."""

    def updates(self, theta: ModelVector, drawn: Sequence[Drawn]) -> Matrix:
        """Return ``[owners, d] int64``: each difference, of a norm of at most β."""
        rows = np.zeros((len(drawn), self._task.dimension), dtype=np.int64)
        for row, one in zip(rows, drawn, strict=True):
            row[:] = self._update(theta, one)
        return rows

    def _update(self, theta: ModelVector, drawn: Drawn) -> RingVector:
        """Return one owner's contribution, ``[d] int64``; zeros where it isn't finite."""
        trained = self._trained(theta, drawn.owner.records, drawn.copies)
        difference = trained - theta.astype(np.float64)
        mechanism = self._task.mechanism
        norm = float(np.linalg.norm(difference))
        if not np.isfinite(norm):
            self.failed += 1
            return np.zeros(mechanism.dimension, dtype=np.int64)
        if norm > mechanism.owner_clip:
            difference *= mechanism.owner_clip / norm
        encoded = encode(difference, mechanism.fractional_bits)
        return clip_update(encoded, mechanism.bound, mechanism.fractional_bits)

    def _trained(
        self, theta: ModelVector, records: Records, randomness: Secret
    ) -> NDArray[np.float64]:
        """Return θ_E, ``[d] float64``, from θ_t and the owner's own records."""
        load_vector(self._model, theta)
        parameters = list(self._model.parameters())
        for epoch in range(self._training.epochs):
            for batch in self._batches(len(records), randomness, epoch):
                inputs, targets = records.take(batch)
                outputs = self._model(inputs.to(self._device))
                loss = self._loss(outputs, targets.to(self._device)).mean()
                gradients = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    for parameter, gradient in zip(parameters, gradients, strict=True):
                        parameter.sub_(gradient, alpha=self._training.learning_rate)
        flat = [each.detach().reshape(-1).double().cpu() for each in parameters]
        return torch.cat(flat).numpy()

    def _batches(
        self, count: int, randomness: Secret, epoch: int
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the records of each step: all at once, or batches in a fresh order."""
        size = self._training.batch_size
        if size is None:
            yield np.arange(count)
            return
        words = Keystream(randomness, "simulated-order", epoch).words(count)
        order = np.argsort(words, kind="stable")
        for start in range(0, count, size):
            yield order[start : start + size]
