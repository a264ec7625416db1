"""Per-record gradients in chunks of bounded memory (torch.func).

The privacy proof needs each record's encoded gradient to be a function of that record and θ
alone: if a neighbour's presence changed it even in the last bit, one record would move the sum
by more than its clip. Batched kernels don't give that by themselves: with shared parameters, or
with another batch size, the same record's gradient differs in its last bits. So every call has
the same shape (short chunks are padded) and every record has its own copy of the parameters,
which makes the batch a set of equal, separate computations. The tests hold this for linear,
convolution, normalisation and embedding layers: any order, neighbours and chunk, same bits.
"""

import copy
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap

from precad.client.train.models import check_parameters
from precad.client.train.records import Records
from precad.common.errors import Misconfiguration
from precad.common.model import tensors
from precad.common.task import Parameter

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""``loss(outputs, targets)`` as torch has it, for a batch of one record; its sum is taken."""

CHUNK_BYTES = 256 * 2**20
"""Memory that one chunk's gradients, clipping and encoding may take."""
MOST_RECORDS = 64
"""No chunk is longer: padding to it costs little, and more isn't faster on a CPU."""
_BYTES_PER_ELEMENT = 64
"""Gradient in float32 twice, then float64 and int64 arrays of clip and encoding."""


def chunk_records(dimension: int, budget: int = CHUNK_BYTES) -> int:
    """Records per chunk so that ``[records, dimension]`` work arrays fit the budget; at least 1."""
    return min(MOST_RECORDS, max(1, budget // (_BYTES_PER_ELEMENT * dimension)))


class RecordGradients:
    """Gradients of single records at any θ, for one model and loss.

    Works on its own float32 copy of the module in training mode; the given one isn't changed.
    Every parameter is trained: frozen ones would receive noise too if they were in the vector,
    and could differ unseen between data owners if they weren't, so they are refused.

    Args:
        model: parameters named and shaped as in ``parameters``; takes ``[n, …]`` inputs.
        loss: per-record loss, such as ``torch.nn.functional.cross_entropy``.
        parameters: the task's ``model.parameters``.
        chunk: records per chunk; by default ``chunk_records``. Keep it for a whole task.

    Raises:
        Misconfiguration: the parameters aren't the task's, one is frozen, the model has batch
            norm or dropout, or a parameter isn't a floating-point tensor.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        parameters: tuple[Parameter, ...],
        chunk: int | None = None,
    ) -> None:
        check_parameters(model, parameters)
        _check_layers(model)
        self.parameters = parameters
        self.dimension = sum(parameter.size for parameter in parameters)
        self.chunk = chunk_records(self.dimension) if chunk is None else chunk
        if self.chunk < 1:
            raise Misconfiguration("chunk", chunk, "must be at least 1 record")
        self._module = copy.deepcopy(model).float().train()
        self._loss = loss
        self._device = next(self._module.parameters()).device
        # Parameters have an axis of their own for the records, see above; buffers are shared.
        self._batched = vmap(grad(self._record_loss), in_dims=(0, 0, 0), randomness="error")

    def chunks(
        self, records: Records, indices: NDArray[np.int64], theta: NDArray[np.float64]
    ) -> Iterator[NDArray[np.float64]]:
        """Gradients of the records at these indices, chunk by chunk; Algorithm 2, line 3.

        Args:
            records: the data owner's.
            indices: ``[n] int64``.
            theta: θ_t, ``[d] float64``; cast to float32.

        Yields:
            ``[≤ chunk, d] float64``, in the order of the indices.

        Raises:
            Misconfiguration: θ has another length, the model keeps running statistics or is
                random, or a gradient isn't finite.
        """
        named = {
            name: torch.from_numpy(values).to(self._device, torch.float32)
            for name, values in tensors(theta, self.parameters).items()
        }
        for start in range(0, len(indices), self.chunk):
            some = indices[start : start + self.chunk]
            inputs, targets = records.take(some)
            if start == 0:
                self._check_buffers(named, inputs)
            rows = self._gradients(named, inputs, targets)
            finite = np.isfinite(rows).all(axis=1)
            if not finite.all():
                record = int(some[int(np.argmin(finite))])
                raise Misconfiguration(
                    f"gradient of record {record}",
                    "NaN or infinity",
                    "must be finite; check this record's values, the loss and the learning rate",
                )
            yield rows

    def _gradients(
        self, named: dict[str, torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor
    ) -> NDArray[np.float64]:
        count = len(inputs)
        copies = {name: tensor.expand(self.chunk, *tensor.shape) for name, tensor in named.items()}
        try:
            found = self._batched(copies, self._padded(inputs), self._padded(targets))
        except RuntimeError as error:
            if "randomness" not in str(error):
                raise
            raise Misconfiguration("model", type(self._module).__name__, _NO_RANDOMNESS) from error
        flat = [found[parameter.name].reshape(self.chunk, -1) for parameter in self.parameters]
        rows: NDArray[np.float64] = torch.cat(flat, dim=1)[:count].double().cpu().numpy()
        return rows

    def _padded(self, rows: torch.Tensor) -> torch.Tensor:
        """To ``chunk`` rows by repeating the last one; its gradient is thrown away."""
        missing = self.chunk - len(rows)
        if missing:
            rows = torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])])
        return rows.to(self._device)

    def _record_loss(
        self, named: dict[str, torch.Tensor], record: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        outputs = functional_call(self._module, named, (record.unsqueeze(0),))
        return self._loss(outputs, target.unsqueeze(0)).sum()

    def _check_buffers(self, named: dict[str, torch.Tensor], inputs: torch.Tensor) -> None:
        """One pass over one record tells whether training changes a buffer."""
        before = dict(self._module.named_buffers())
        after = {name: buffer.clone() for name, buffer in before.items()}
        if not before:
            return
        with torch.no_grad():
            functional_call(self._module, {**named, **after}, (inputs[:1].to(self._device),))
        for name, buffer in before.items():
            if not torch.equal(buffer, after[name]):
                raise Misconfiguration(
                    f"model buffer {name}",
                    type(self._module).__name__,
                    "training changes it, so it would leave the data owner unprotected or get "
                    "lost; use layers without running statistics, such as GroupNorm",
                )


_NO_RANDOMNESS = "random layers aren't supported; remove dropout (clipping and noise regularise)"


def _check_layers(model: nn.Module) -> None:
    parameters = dict(model.named_parameters())
    if not parameters:
        raise Misconfiguration("model", type(model).__name__, "has no parameters to train")
    for name, parameter in parameters.items():
        if not parameter.is_floating_point():
            raise Misconfiguration(f"model parameter {name}", parameter.dtype, "must be real")
        if not parameter.requires_grad:
            raise Misconfiguration(
                f"model parameter {name}",
                "frozen",
                "every parameter is trained: apply frozen layers to the data beforehand, "
                "or set requires_grad",
            )
    for name, layer in model.named_modules():
        label = f"model layer {name or 'itself'}"
        # These mix records or keep statistics of them outside the protected update.
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001
            raise Misconfiguration(
                label, type(layer).__name__, "batch norm mixes records; use nn.GroupNorm"
            )
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:  # noqa: SLF001
            raise Misconfiguration(label, type(layer).__name__, _NO_RANDOMNESS)
