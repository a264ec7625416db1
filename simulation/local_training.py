"""Virtual owners that train by themselves: each adds what its training changed.

An owner that is drawn starts from θ_t, goes E times through its own records by plain
gradient descent, and adds θ_E − θ_t, clipped to C as a whole. No record is clipped by
itself. So whole owners are protected: all that an owner's records may say lies within C
(``LocalTraining``).
"""

import copy
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from precad.client.gradients.objectives import Loss, compared
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
    """Updates by each drawn owner's own training, one owner after the other.

    The model's device is used.

    Args:
        model: copied; its parameters are the task's.
        loss: as in torch.nn.functional, a mean over records.
        task: what is trained.
        training: E, the batch size, and the step of an owner's own training.

    Raises Misconfiguration: the model's parameters aren't the task's.
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
        """Owners so far whose training left the finite numbers: they added zeros."""

    def updates(self, theta: ModelVector, drawn: Sequence[Drawn]) -> Matrix:
        """Return ``[owners, d] int64``: what each owner's training changed.

        Each row has a norm of at most β. ``theta`` is θ_t, ``[d]``. An owner's sample
        of records isn't looked at: it trains on all that it has.
        """
        updates = np.zeros((len(drawn), self._task.dimension), dtype=np.int64)
        for row, owner in zip(updates, drawn, strict=True):
            row[:] = self._update(theta, owner)
        return updates

    def _update(self, theta: ModelVector, drawn: Drawn) -> RingVector:
        """Return one owner's contribution, ``[d] int64``; zeros where it isn't finite.

        The difference is clipped to C in float64, and its encoding to β once more.
        """
        mechanism = self._task.mechanism
        trained = self._trained(theta, drawn.owner.records, drawn.copies)
        difference = trained - theta.astype(np.float64)
        norm = float(np.linalg.norm(difference))
        if not np.isfinite(norm):
            self.failed += 1
            return np.zeros(mechanism.dimension, dtype=np.int64)
        if norm > mechanism.owner_clip:
            difference *= mechanism.owner_clip / norm
        encoded = encode(difference, mechanism.fractional_bits)
        return clip_update(
            encoded,
            bound=mechanism.bound,
            fractional_bits=mechanism.fractional_bits,
        )

    def _trained(
        self,
        theta: ModelVector,
        records: Records,
        randomness: Secret,
    ) -> NDArray[np.float64]:
        """Return θ_E, ``[d] float64``, from θ_t and the owner's own records."""
        load_vector(self._model, theta)
        for epoch in range(self._training.epochs):
            for batch in self._batches(len(records), randomness, epoch):
                inputs, targets = records.take(batch)
                self._step(inputs.to(self._device), targets.to(self._device))
        parameters = [
            parameter.detach().reshape(-1).double().cpu()
            for parameter in self._model.parameters()
        ]
        return torch.cat(parameters).numpy()

    def _step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Take one step of plain gradient descent on a batch; changes the model."""
        parameters = list(self._model.parameters())
        outputs = self._model(inputs)
        loss = compared(self._loss, outputs, targets).mean()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=self._training.learning_rate)

    def _batches(
        self,
        count: int,
        randomness: Secret,
        epoch: int,
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the records of each step: all at once, or batches in a fresh order.

        Each is indices of the ``count`` records. ``randomness`` is the key of the
        order, which each epoch has of its own.
        """
        size = self._training.batch_size
        if size is None:
            yield np.arange(count)
            return
        words = Keystream(randomness, "simulated-order", epoch).words(count)
        order = np.argsort(words, kind="stable")
        for start in range(0, count, size):
            yield order[start : start + size]
