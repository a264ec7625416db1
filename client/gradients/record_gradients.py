"""Per-record gradients in chunks of bounded memory (torch.func).

The privacy proof needs each record's encoded gradient to be a function of that record
and θ alone, to the last bit, and batched kernels don't give that: with shared
parameters, or another batch size, the last bits differ. So every call has the same
shape (short chunks are padded) and every record its own copy of the parameters. Where
torch has several threads a convolution's last bits may depend on the record's slot; a
neighbouring data set keeps the slots, with one gradient of zero in them.

Nor may a record make an owner fall silent, at any θ that a server may serve: labels
that the loss can't take are masked, and a record without a finite gradient keeps its
slot with a gradient of zero.
"""

import copy
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap
from torch.nn import functional

from precad.client.gradients import (
    MOST_COPIES,
    NO_RANDOMNESS,
    ForeignTokens,
    Loss,
    Objective,
    augmentation,
    check_layers,
    check_parameters,
    check_usable,
    compared,
)
from precad.client.records import Records
from precad.common import (
    Floats,
    Integers,
    Misconfiguration,
    ModelVector,
    ObjectiveSection,
    Parameter,
    Secret,
    tensors,
)

Named = dict[str, Tensor]
"""Parameters, or their gradients, by name."""
PerRecord = Callable[..., Any]
"""Function of parameters by name and of one record's tensors; torch.func, which has no
types, makes one of n records of it."""
CHUNK_BYTES = 256 * 2**20
"""Memory that one chunk's gradients, clipping and encoding may take."""
MOST_RECORDS = 256
"""No chunk is longer: padding to it costs little."""
_CACHED_RECORDS = 64
"""Records of a chunk, where memory allows; it has more only within ``_CACHED``."""
_CACHED = 2**20
"""Most numbers, 4 MiB, in the gradients of such a chunk. For a small model a call costs
more than its records do; beyond the cache more of them are slower."""
_BYTES_PER_ELEMENT = 64
"""Gradient in float32 twice, then float64 and int64 arrays of clip and encoding."""

_INDEXED = (functional.cross_entropy, functional.nll_loss)
"""torch's losses that index outputs by labels."""
_INDEXED_LAYERS = (nn.CrossEntropyLoss, nn.NLLLoss)
"""The same losses as layers."""
_IGNORED = -100
"""Label that torch's losses ignore unless told otherwise."""
_GOLDEN = (math.sqrt(5) - 1) / 2
"""Golden ratio: fractions of its multiples are spread over (0, 1), none twice."""


def chunk_records(dimension: int, most: int | None = None) -> int:
    """Return how many records a chunk has, 1 or more.

    Work arrays ``[records, dimension]`` of a chunk fit ``CHUNK_BYTES``. With ``most``,
    M of a padded sample, the chunks share it evenly, so that less is padding.
    """
    fast = min(MOST_RECORDS, max(_CACHED_RECORDS, _CACHED // dimension))
    in_memory = max(1, CHUNK_BYTES // (_BYTES_PER_ELEMENT * dimension))
    fitting = min(fast, in_memory)
    if not most:
        return fitting
    chunks = math.ceil(most / fitting)
    return math.ceil(most / chunks)


def synthetic(like: Tensor, count: int) -> Tensor:
    """Return ``count`` rows of the shape and type of those of ``like``.

    They are fractions in (0, 1), or zeros and ones, and depend on no record.
    """
    shape = (count, *like.shape[1:])
    numbers = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)
    rows = torch.frac(numbers * _GOLDEN).reshape(shape)
    return rows.float() if like.is_floating_point() else rows.round().long()


class RecordGradients:
    """Gradients of single records at any θ, for one model and loss.

    It works on its own float32 copy of the module in training mode; the given one isn't
    changed. Every parameter is trained. Frozen ones would receive noise too if they
    were in the vector, and could differ unseen between data owners if they weren't, so
    they are refused.

    Args:
        model: takes inputs ``[n, …]``.
        loss: the owner's loss.
        parameters: the task's.
        chunk: records in a chunk; ``chunk_records`` unless given. Keep it for a whole
            task.
        objective: the task's; the loss of the record alone unless given.
        class_weights: the task's; all classes alike unless given.

    Raises Misconfiguration: the parameters aren't the task's, real and all trained, or
    the model has batch norm or dropout.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        parameters: tuple[Parameter, ...],
        chunk: int | None = None,
        objective: ObjectiveSection | None = None,
        *,
        class_weights: tuple[float, ...] | None = None,
    ) -> None:
        """Check the model and copy it."""
        check_layers(model)
        check_parameters(model, parameters)
        self.parameters = parameters
        self.dimension = sum(parameter.size for parameter in parameters)
        self.chunk = chunk_records(self.dimension) if chunk is None else chunk
        self.module = copy.deepcopy(model).float().train()
        self.loss = loss
        """The owner's own."""
        self.objective = Objective(objective or ObjectiveSection(), loss, class_weights)
        self.device = next(self.module.parameters()).device
        self._recurrent = any(
            isinstance(layer, nn.RNNBase | nn.RNNCellBase)
            for layer in self.module.modules()
        )
        self.fillers: list[Tensor] = []
        """Synthetic inputs and targets that fill a chunk, ``[chunk, …]`` each."""
        self.classes: int | None = None
        """How many labels the loss takes, where that is known."""
        self.gives: str | None = None
        """Type of what the model gives, where that is no tensor."""
        self._ignored = _IGNORED

    def chunks(
        self,
        records: Records,
        indices: Integers,
        theta: ModelVector,
        most: int | None = None,
        on_failure: Callable[[int], object] = lambda _: None,
        randomness: Secret | None = None,
    ) -> Iterator[Floats]:
        """Yield the gradients of records, ``[chunk, d] float64``; Algorithm 2, line 3.

        Rows are in the order of ``indices``. They are zero for records that failed, and
        after the last record.

        Args:
            records: all records of the owner.
            indices: those whose gradients are wanted, ``[n] int64``.
            theta: θ_t, ``[d]``; may have any values and is cast to float32.
            most: M ≥ n: the number of chunks is that of M records, whatever n is.
            on_failure: is told the index of each record whose label the loss can't
                take, or whose gradient isn't finite or can't be computed.
            randomness: the key of the copies' noise; fresh unless given.

        Raises Misconfiguration: θ has another length, or the model keeps running
        statistics or is random. Neither depends on a record's values nor on those of θ.
        """
        weights = self.loaded(theta)
        self.prepare(records)
        shape = self.objective.noisy, *records.inputs.shape[1:]
        key = randomness or Secret.random()
        slots = len(indices) if most is None else most
        for start in range(0, slots, self.chunk):
            drawn = indices[start : start + self.chunk]
            inputs, targets, wrong = self.taken(records, drawn)
            rows = self._gradients(
                weights,
                inputs=inputs,
                targets=targets,
                noise=augmentation(key, shape, drawn, self.chunk),
            )
            usable = np.asarray(np.isfinite(rows).all(axis=1))
            usable[: len(drawn)] &= ~wrong.numpy()
            usable[len(drawn) :] = False
            rows[~usable] = 0.0
            for record in drawn[~usable[: len(drawn)]].tolist():
                on_failure(record)
            yield rows

    def loaded(self, theta: ModelVector) -> Named:
        """Return θ, ``[d]``, as the model's parameters in float32, on its device."""
        return {
            name: torch.from_numpy(values).to(self.device, torch.float32)
            for name, values in tensors(theta, self.parameters).items()
        }

    def loaded_by_record(self, thetas: ModelVector) -> Named:
        """Return a θ of each record's own, ``[n, d]``, as ``shared`` takes them."""
        rows = torch.from_numpy(thetas).to(self.device, torch.float32)
        sizes = [parameter.size for parameter in self.parameters]
        parts = torch.split(rows, sizes, dim=1)
        return {
            parameter.name: part.reshape(-1, *parameter.shape)
            for parameter, part in zip(self.parameters, parts, strict=True)
        }

    def prepare(self, records: Records) -> None:
        """Learn what the shapes of the records tell, from one synthetic record.

        That is ``fillers``, ``gives`` and ``classes``.

        Raises Misconfiguration: training changes a buffer of the model, or labels
        aren't integers.
        """
        self.fillers = [
            synthetic(rows, self.chunk) for rows in (records.inputs, records.targets)
        ]
        for filler in self.fillers:
            if not filler.is_floating_point():
                filler.zero_()  # the one label, or token, that every model has
        before = dict(self.module.named_buffers())
        after = {name: buffer.clone() for name, buffer in before.items()}
        record = self.fillers[0][:1].to(self.device)
        with torch.no_grad():
            outputs: object = functional_call(self.module, after, (record,))
        self.gives = None if isinstance(outputs, Tensor) else type(outputs).__name__
        for name, buffer in before.items():
            if not torch.allclose(
                buffer,
                after[name],
                rtol=0,
                atol=0,
                equal_nan=True,
            ):
                raise Misconfiguration(
                    f"model buffer {name}",
                    type(self.module).__name__,
                    "training changes it, so it would leave the data owner unprotected"
                    " or get lost; use layers without running statistics, such as"
                    " GroupNorm",
                )
        check_usable(self.objective, outputs, x=records.inputs, y=records.targets)
        self.classes = self._classes(outputs, records.targets)

    def taken(self, records: Records, rows: Integers) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs and targets of the records ``rows``, ``[n]``.

        Targets that are ``wrong_labels`` are 0; third comes which records have one,
        ``[n] bool``.
        """
        inputs, targets = records.take(rows)
        wrong = self.wrong_labels(targets)
        any_wrong = wrong.unsqueeze(1).flatten(1).any(dim=1)
        return inputs, torch.where(wrong, 0, targets), any_wrong

    def wrong_labels(self, targets: Tensor) -> Tensor:
        """Return which targets are no class and would make the loss raise.

        A bool tensor of the targets' shape, ``[n, …]``.
        """
        if self.classes is None:
            return torch.zeros_like(targets, dtype=torch.bool)
        outside = (targets < 0) | (targets >= self.classes)
        if self.objective.needs_labels:
            # An ignored label is nobody's class. What needs a class takes such a label
            # as wrong, so as zero too.
            return outside
        return outside & (targets != self._ignored)

    def _classes(self, outputs: object, targets: Tensor) -> int | None:
        """Return how many labels the loss takes, if it is one that indexes by them.

        ``outputs`` are the model's for one record. Learns which label the loss ignores.

        Raises Misconfiguration: the loss takes labels, and targets aren't integers.
        """
        loss = getattr(self.loss, "func", self.loss)  # functools.partial
        indexes = loss in _INDEXED or isinstance(loss, _INDEXED_LAYERS)
        default = getattr(loss, "ignore_index", _IGNORED)
        self._ignored = getattr(self.loss, "keywords", {}).get("ignore_index", default)
        if not isinstance(outputs, Tensor) or outputs.ndim <= 1:
            return None
        if not targets.is_floating_point():
            return outputs.shape[1] if indexes or self.objective.needs_labels else None
        if indexes and targets.ndim < outputs.ndim:
            raise Misconfiguration(
                "data, targets",
                str(targets.dtype).removeprefix("torch."),
                "this loss takes labels, and labels are whole numbers: give them as"
                " int64; numbers need training.loss in the task, such as squared-error,"
                " or a loss of your own",
            )
        return None

    def _gradients(
        self, weights: Named, *, inputs: Tensor, targets: Tensor, noise: Tensor
    ) -> Floats:
        """Return ``kernel``'s gradients, and NaN where one can't be computed.

        Where ``kernel`` raises, each record is tried alone. Some operations raise on
        values: an index that is out of range, a matrix without inverse. One record must
        not cost its neighbours their gradients.
        """
        try:
            return self.kernel(weights, inputs=inputs, targets=targets, noise=noise)
        except Exception as error:  # noqa: BLE001 -- whatever a model's operations raise
            self.reraise_what_no_record_causes(error)
        rows = np.full((self.chunk, self.dimension), np.nan)
        for slot in range(len(inputs)):
            record = slice(slot, slot + 1)
            try:
                rows[slot] = self.kernel(
                    weights,
                    inputs=inputs[record],
                    targets=targets[record],
                    noise=noise.roll(-slot, 0),
                )[0]
            except Exception as error:  # noqa: BLE001
                self.reraise_what_no_record_causes(error)
        return rows

    def reraise_what_no_record_causes(self, error: Exception) -> None:
        """Raise an error again that no record's values cause, and let others pass.

        Raises Misconfiguration: the model is random. Memory errors are raised as they
        are.
        """
        if isinstance(error, RuntimeError) and "randomness" in str(error):
            raise Misconfiguration(
                "model", type(self.module).__name__, NO_RANDOMNESS
            ) from error
        # An owner without memory is absent; an update of zeros would be wrong.
        no_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if no_memory or "Allocator" in str(error):
            raise error

    def kernel(
        self,
        weights: Named,
        *,
        inputs: Tensor,
        targets: Tensor,
        noise: Tensor | None = None,
    ) -> Floats:
        """Return gradients ``[chunk, d] float64`` of at most ``chunk`` records.

        Rows after the records' are of the fillers. ``inputs`` and ``targets`` are ``[n,
        …]``; ``noise`` is the copies', ``[chunk, K, …]``, the same for every record
        unless given.

        Raises whatever the model and the loss do.
        """
        # Each record has a copy of the parameters for itself, see the module's
        # docstring; buffers are shared.
        copies = _for_each_record(weights, self.chunk)
        x, y = self._filled(inputs, targets)
        shape = (self.chunk, self.objective.noisy, *inputs.shape[1:])
        if noise is None:
            draws = synthetic(torch.empty(shape[1:]), self.objective.noisy)
            noise = draws.expand(shape)
        return (
            self._batched(
                copies,
                axis=0,
                inputs=x,
                targets=y,
                noise=noise,
            )
            .double()
            .cpu()
            .numpy()
        )

    def shared(
        self,
        weights: Named,
        *,
        inputs: Tensor,
        targets: Tensor,
        noise: Tensor | None = None,
        weights_by_record: bool = False,
    ) -> Tensor:
        """Return gradients ``[n, d] float32`` of any number of records; faster.

        All records share one copy of the parameters, so that a record's last bits may
        depend on its neighbours: for simulations, never for an owner's update.
        ``inputs`` and ``targets`` are ``[n, …]``; ``noise`` is the copies', ``[n, K,
        …]``, zero unless given. With ``weights_by_record`` the weights have a row for
        each record: records of several models in one batch.

        Raises whatever the model and the loss do.
        """
        if noise is None:
            noise = inputs.new_zeros(
                len(inputs), self.objective.noisy, *inputs.shape[1:]
            )
        axis: int | None = 0
        if not weights_by_record:
            weights, axis = self._one_copy(weights, len(inputs))
        return self._batched(
            weights,
            axis=axis,
            inputs=inputs,
            targets=targets,
            noise=noise,
        )

    def _one_copy(self, weights: Named, count: int) -> tuple[Named, int | None]:
        """Return one copy of the parameters for ``count`` records, and their axis.

        Recurrent steps change in place what they made, which has to be a record's own:
        with such layers there is a copy for each record, along axis 0.
        """
        if self._recurrent:
            return _for_each_record(weights, count), 0
        return weights, None

    def _batched(
        self,
        weights: Named,
        *,
        axis: int | None,
        inputs: Tensor,
        targets: Tensor,
        noise: Tensor,
    ) -> Tensor:
        """Return gradients, ``[n, d] float32``, for ``kernel`` and ``shared``.

        ``axis`` is 0 where the weights have a copy for each record, else None.
        """
        x, y, noise = (tensor.to(self.device) for tensor in (inputs, targets, noise))
        gradients: Named
        if not self.objective.noisy:
            gradients = self._mapped(grad(self._record_loss), axis, 2)(weights, x, y)
        else:
            copies = self._mapped(self._copies, axis, 3)(weights, x, y, noise)
            if copies.shape[1] <= MOST_COPIES:
                of_copies = self._mapped(grad(self._loss_of_copies), axis, 2)
                gradients = of_copies(weights, copies, y)
            else:
                gradients = self._in_pieces(weights, axis, copies=copies, y=y)
        flat = [
            gradients[parameter.name].reshape(len(x), -1)
            for parameter in self.parameters
        ]
        rows = torch.cat(flat, dim=1)
        if not self.objective.class_weights:
            return rows
        by_class = rows.new_tensor(self.objective.class_weights)
        return rows * by_class[y.clamp(0, len(by_class) - 1)].unsqueeze(1)

    def _in_pieces(
        self,
        weights: Named,
        axis: int | None,
        *,
        copies: Tensor,
        y: Tensor,
    ) -> Named:
        """Return the gradients of records with many copies, which are taken in pieces.

        By the chain rule through the outputs: Σ_j (∂out_j/∂θ)ᵀ ∂L/∂out_j. ``copies``
        are ``[n, copies, …]``.
        """
        pieces = torch.split(copies, MOST_COPIES, dim=1)
        apply = self._mapped(_as_trained(self.outputs), axis, 1)
        outputs = [apply(weights, piece) for piece in pieces]
        slopes = vmap(grad(self.objective.of_outputs))(torch.cat(outputs, dim=1), y)
        total: Named = {}
        for piece, slope in zip(
            pieces, torch.split(slopes, MOST_COPIES, dim=1), strict=True
        ):
            part = self._mapped(grad(self._product), axis, 2)(weights, piece, slope)
            total = {name: total[name] + part[name] for name in part} if total else part
        return total

    def _mapped(
        self,
        function: PerRecord,
        axis: int | None,
        arguments: int,
    ) -> PerRecord:
        """Return a function of n records from one of a single record.

        Its first argument, the weights, has the records along ``axis``; so many
        ``arguments`` after it have a row for each record.
        """

        def guarded(weights: Named, *record: Tensor) -> Tensor:
            with ForeignTokens():
                outputs: Tensor = function(weights, *record)
                return outputs

        return vmap(guarded, in_dims=(axis, *(0,) * arguments), randomness="error")

    def losses(self, weights: Named, inputs: Tensor, targets: Tensor) -> Floats:
        """Return losses ``[n]`` of at most ``chunk`` records, ``[n, …]``.

        This is faster than ``kernel``, and right to fewer bits.
        """
        copies, axis = self._one_copy(weights, self.chunk)
        x, y = self._filled(inputs, targets)
        of_chunk = self._mapped(_as_trained(self._record_loss), axis, 2)(copies, x, y)
        losses: Floats = of_chunk[: len(inputs)].double().cpu().numpy()
        return losses

    def loss_of(self, weights: Named, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of one record, ``[1, …]``, as autograd sees it."""
        return self._record_loss(
            weights, inputs[0].to(self.device), targets[0].to(self.device)
        )

    def _filled(self, *record_rows: Tensor) -> list[Tensor]:
        """Return inputs and targets filled up to a chunk, ``[chunk, …]`` each."""
        return [
            torch.cat([rows, filler[len(rows) :]]).to(self.device)
            for rows, filler in zip(record_rows, self.fillers, strict=True)
        ]

    def _record_loss(self, weights: Named, record: Tensor, target: Tensor) -> Tensor:
        """Return the owner's loss of one record alone, a scalar."""
        outputs = self.outputs(weights, record.unsqueeze(0))
        return compared(self.loss, outputs, target.unsqueeze(0)).sum()

    def outputs(self, weights: Named, inputs: Tensor) -> Tensor:
        """Return the model's outputs for inputs ``[n, …]``.

        They are a tensor, unless the model and the loss agree on something else.
        """
        outputs: Tensor = functional_call(self.module, weights, (inputs,))
        return outputs

    def _copies(
        self,
        weights: Named,
        record: Tensor,
        target: Tensor,
        noise: Tensor,
    ) -> Tensor:
        """Return one record's copies, ``[copies, …]``."""
        return self.objective.copies(
            functools.partial(self.outputs, weights),
            x=record,
            y=target,
            randomness=noise,
        )

    def _loss_of_copies(self, weights: Named, copies: Tensor, target: Tensor) -> Tensor:
        """Return the objective of one record's copies, a scalar."""
        return self.objective.of_outputs(self.outputs(weights, copies), target)

    def _product(self, weights: Named, copies: Tensor, slope: Tensor) -> Tensor:
        """Return Σ_j out_j·∂L/∂out_j, whose gradient is the chain rule's product."""
        return (self.outputs(weights, copies) * slope).sum()


def _for_each_record(weights: Named, count: int) -> Named:
    """Return the parameters with an axis of ``count`` records; nothing is copied."""
    return {
        name: tensor.expand(count, *tensor.shape) for name, tensor in weights.items()
    }


def _as_trained(function: PerRecord) -> PerRecord:
    """Return a function's values alone, by the operations that gradients go through.

    Recurrent layers have other operations where no gradient is asked for.
    """

    def values(weights: Named, *record: Tensor) -> Tensor:
        outputs: Tensor = vjp(lambda at: function(at, *record), weights)[0]
        return outputs

    return values
