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
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from precad.client.gradients.model_constructs import NO_RANDOMNESS, check_layers
from precad.client.gradients.objectives import (
    MOST_COPIES,
    Augmentation,
    Loss,
    Objective,
    check_usable,
)
from precad.client.gradients.torch_models import check_parameters
from precad.client.records.torch_records import Records
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Secret
from precad.common.model import ModelVector, tensors
from precad.common.task_schema import ObjectiveSection, Parameter

Named = dict[str, Tensor]
"""Parameters, or their gradients, by name."""
CHUNK_BYTES = 256 * 2**20
"""Memory that one chunk's gradients, clipping and encoding may take."""
MOST_RECORDS = 256
"""No chunk is longer: padding to it costs little."""
_CACHED_RECORDS = 64
_CACHED = 2**20
"""A chunk of more than 64 records has no more numbers in its gradients than these, 4
MiB. For a small model a call costs more than its records do; beyond the cache more of
them are slower."""
_BYTES_PER_ELEMENT = 64
"""Gradient in float32 twice, then float64 and int64 arrays of clip and encoding."""

_INDEXED = (functional.cross_entropy, functional.nll_loss)
_INDEXED_LAYERS = (nn.CrossEntropyLoss, nn.NLLLoss)
_IGNORED = -100
"""What torch's losses ignore unless told otherwise."""
_GOLDEN = (math.sqrt(5) - 1) / 2


def chunk_records(dimension: int, most: int | None = None) -> int:
    """Records a chunk so that ``[records, dimension]`` work arrays fit ``CHUNK_BYTES``; 1 or more.

    With ``most``, M of a padded sample, the chunks share it evenly: less is padding.
    """
    fast = min(MOST_RECORDS, max(_CACHED_RECORDS, _CACHED // dimension))
    fitting = min(fast, max(1, CHUNK_BYTES // (_BYTES_PER_ELEMENT * dimension)))
    if not most:
        return fitting
    return math.ceil(most / math.ceil(most / fitting))


def synthetic(like: Tensor, count: int) -> Tensor:
    """``count`` rows like those of ``like`` in shape and type: fractions in (0, 1), zeros and ones.

    They depend on no record.
    """
    shape = (count, *like.shape[1:])
    spread = torch.frac(
        torch.arange(1, math.prod(shape) + 1, dtype=torch.float64) * _GOLDEN
    )
    rows = spread.reshape(shape)
    return rows.float() if like.is_floating_point() else rows.round().long()


class RecordGradients:
    """Gradients of single records at any θ, for one model and loss.

    Works on its own float32 copy of the module in training mode; the given one isn't
    changed. Every parameter is trained: frozen ones would receive noise too if they
    were in the vector, and could differ unseen between data owners if they weren't, so
    they are refused.

    The model takes ``[n, …]`` inputs; ``parameters`` and ``objective`` are the task's,
    the latter the loss of the record alone unless given. A ``chunk`` has
    ``chunk_records`` unless given; keep it for a whole task.

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
    ) -> None:
        check_layers(model)
        check_parameters(model, parameters)
        self.parameters = parameters
        self.dimension = sum(parameter.size for parameter in parameters)
        self.chunk = chunk_records(self.dimension) if chunk is None else chunk
        self.module = copy.deepcopy(model).float().train()
        self._loss = loss
        own = loss.func if isinstance(loss, functools.partial) else loss
        self._elementwise = own in _ELEMENTWISE or isinstance(own, _ELEMENTWISE_MODULES)
        self.objective = Objective(objective or ObjectiveSection(), loss)
        self._device = next(self.module.parameters()).device
        kinds = nn.RNNBase | nn.RNNCellBase
        self._recurrent = any(
            isinstance(layer, kinds) for layer in self.module.modules()
        )
        self.fillers: list[Tensor] = []
        """Synthetic inputs and targets, a chunk of them."""
        self.classes: int | None = None
        """How many labels the loss takes, where that is known."""
        self.gives: str | None = None
        """What the model gives instead of a tensor; None if it gives one."""
        self._ignored = _IGNORED

    def chunks(
        self,
        records: Records,
        indices: NDArray[np.int64],
        theta: ModelVector,
        most: int | None = None,
        on_failure: Callable[[int], object] = lambda _: None,
        randomness: Secret | None = None,
    ) -> Iterator[NDArray[np.float64]]:
        """Gradients of the records at these indices, chunk by chunk; Algorithm 2, line 3.

        Yields ``[chunk, d] float64``, in the order of ``indices``, ``[n] int64``; zero
        for records that failed, and after the last record. θ_t, ``[d]``, may have any
        values and is cast to float32. With ``most``, M ≥ n, the number of chunks is
        that of M records, whatever n is. ``on_failure`` is told the index of each
        record whose label the loss can't take, or whose gradient isn't finite or can't
        be computed. ``randomness`` is the key of the copies' noise; fresh unless given.

        Raises Misconfiguration: θ has another length, or the model keeps running
        statistics or is random. Neither depends on a record's values nor on those of θ.
        """
        named = self.loaded(theta)
        self.prepare(records)
        shape = tuple(records.inputs.shape[1:])
        draws = Augmentation(randomness or Secret.random(), self.objective.noisy, shape)
        for start in range(0, len(indices) if most is None else most, self.chunk):
            some = indices[start : start + self.chunk]
            inputs, targets = records.take(some)
            wrong = self.wrong_labels(targets)
            noise = draws.of(some, self.chunk)
            rows = self._gradients(
                named,
                inputs=inputs,
                targets=torch.where(wrong, 0, targets),
                noise=noise,
            )
            good: NDArray[np.bool_] = np.asarray(np.isfinite(rows).all(axis=1))
            good[: len(some)] &= ~(
                wrong.flatten(1).any(dim=1) if wrong.ndim > 1 else wrong
            ).numpy()
            good[len(some) :] = False
            rows[~good] = 0.0
            for record in some[~good[: len(some)]].tolist():
                on_failure(record)
            yield rows

    def loaded(self, theta: ModelVector) -> Named:
        """θ as the model's parameters in float32."""
        return {
            name: torch.from_numpy(values).to(self._device, torch.float32)
            for name, values in tensors(theta, self.parameters).items()
        }

    def prepare(self, records: Records) -> None:
        """What the shapes of the records tell, from one synthetic record.

        Raises Misconfiguration: training changes a buffer of the model, or labels
        aren't integers.
        """
        self.fillers = [
            synthetic(each, self.chunk) for each in (records.inputs, records.targets)
        ]
        for filler in self.fillers:
            if not filler.is_floating_point():
                filler.zero_()  # the one label, or token, that every model has
        before = dict(self.module.named_buffers())
        after = {name: buffer.clone() for name, buffer in before.items()}
        with torch.no_grad():
            outputs = functional_call(
                self.module, after, (self.fillers[0][:1].to(self._device),)
            )
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

    def wrong_labels(self, targets: Tensor) -> Tensor:
        """Which targets are no class of the model and would make the loss raise, same shape."""
        if self.classes is None:
            return torch.zeros_like(targets, dtype=torch.bool)
        outside = (targets < 0) | (targets >= self.classes)
        # An ignored label is nobody's class: what needs one takes it as wrong, so as
        # zero too.
        return (
            outside
            if self.objective.needs_labels
            else outside & (targets != self._ignored)
        )

    def _classes(self, outputs: Any, targets: Tensor) -> int | None:
        """How many labels the loss takes, where it is one of torch's that index by them."""
        loss = getattr(self._loss, "func", self._loss)  # functools.partial
        indexes = loss in _INDEXED or isinstance(loss, _INDEXED_LAYERS)
        default = getattr(loss, "ignore_index", _IGNORED)
        self._ignored = getattr(self._loss, "keywords", {}).get("ignore_index", default)
        whole = not targets.is_floating_point()
        batched = isinstance(outputs, Tensor) and outputs.ndim > 1
        if indexes and not whole and batched and targets.ndim < outputs.ndim:
            raise Misconfiguration(
                "data, targets",
                str(targets.dtype).removeprefix("torch."),
                "this loss takes labels, and labels are whole numbers: give them as"
                " int64, or a loss of your own for other targets",
            )
        indexes = indexes or self.objective.needs_labels
        if indexes and whole and isinstance(outputs, Tensor) and outputs.ndim > 1:
            return outputs.shape[1]
        return None

    def _gradients(
        self,
        named: Named,
        inputs: Tensor,
        targets: Tensor,
        noise: Tensor,
    ) -> NDArray[np.float64]:
        """``kernel``, but where that raises each record alone, and NaN where it still does.

        Some operations raise on values: an index that is out of range, a matrix without
        inverse. One record must not cost its neighbours their gradients.
        """
        try:
            return self.kernel(
                named,
                inputs=inputs,
                targets=targets,
                noise=noise,
            )
        except Exception as error:  # noqa: BLE001 -- whatever a model's operations raise
            self.reraise_what_no_record_causes(error)
        rows = np.full((self.chunk, self.dimension), np.nan)
        for slot in range(len(inputs)):
            one = slice(slot, slot + 1)
            try:
                rows[slot] = self.kernel(
                    named,
                    inputs=inputs[one],
                    targets=targets[one],
                    noise=noise[slot:],
                )[0]
            except Exception as error:  # noqa: BLE001
                self.reraise_what_no_record_causes(error)
        return rows

    def reraise_what_no_record_causes(self, error: Exception) -> None:
        """Raises where the model is random or memory is short."""
        if isinstance(error, RuntimeError) and "randomness" in str(error):
            raise Misconfiguration(
                "model", type(self.module).__name__, NO_RANDOMNESS
            ) from error
        # An owner without memory is absent; an update of zeros would be wrong.
        if isinstance(
            error, MemoryError | torch.OutOfMemoryError
        ) or "Allocator" in str(error):
            raise error

    def kernel(
        self,
        named: Named,
        inputs: Tensor,
        targets: Tensor,
        noise: Tensor | None = None,
    ) -> NDArray[np.float64]:
        """Gradients of at most ``chunk`` records, and of what fills it: ``[chunk, d] float64``.

        ``noise`` is the copies', ``[at most chunk, K, …]``; the same for every record
        unless given. Raises whatever the model and the loss do.
        """
        # Parameters have an axis of their own for the records, see above; buffers are
        # shared.
        copies = _for_each(named, self.chunk)
        x, y = self._filled(inputs, targets)
        shape = (self.chunk, self.objective.noisy, *inputs.shape[1:])
        if noise is None:
            noise = synthetic(torch.empty(shape[1:]), self.objective.noisy).expand(
                shape
            )
        elif len(noise) < self.chunk:
            noise = torch.cat(
                [noise, noise.new_zeros(self.chunk - len(noise), *shape[1:])]
            )
        rows: NDArray[np.float64] = (
            self._of(
                copies,
                0,
                inputs=x,
                targets=y,
                noise=noise,
            )
            .double()
            .cpu()
            .numpy()
        )
        return rows

    def shared(
        self,
        named: Named,
        inputs: Tensor,
        targets: Tensor,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Gradients ``[n, d] float32`` of any number of records; faster, to fewer bits.

        All records share one copy of the parameters, so that a record's last bits may
        depend on its neighbours: for simulations, never for an owner's update. Raises
        whatever the model does.
        """
        if noise is None:
            noise = inputs.new_zeros(
                len(inputs), self.objective.noisy, *inputs.shape[1:]
            )
        return self._of(*self._apart(named, len(inputs)), inputs, targets, noise)

    def _apart(self, named: Named, count: int) -> tuple[Named, int | None]:
        """One copy of the parameters for all records, without an axis for them.

        Recurrent steps change what they made in place, which has to be a record's own.
        """
        return (_for_each(named, count), 0) if self._recurrent else (named, None)

    def _of(
        self,
        named: Named,
        axis: int | None,
        inputs: Tensor,
        targets: Tensor,
        noise: Tensor,
    ) -> Tensor:
        """``[n, d] float32``; ``axis`` is 0 where θ has a copy for each record."""
        x, y, noise = (each.to(self._device) for each in (inputs, targets, noise))
        if not self.objective.noisy:
            found = self._mapped(grad(self._record_loss), axis, 2)(named, x, y)
        else:
            seen = self._mapped(self._copies, axis, 3)(named, x, y, noise)
            if seen.shape[1] <= MOST_COPIES:
                found = self._mapped(grad(self._loss_of_copies), axis, 2)(
                    named, seen, y
                )
            else:
                found = self._in_pieces(named, axis, seen=seen, y=y)
        flat = [
            found[parameter.name].reshape(len(x), -1) for parameter in self.parameters
        ]
        return torch.cat(flat, dim=1)

    def _in_pieces(
        self,
        named: Named,
        axis: int | None,
        *,
        seen: Tensor,
        y: Tensor,
    ) -> Named:
        """The gradient by the chain rule through the outputs: Σ_j (∂out_j/∂θ)ᵀ ∂L/∂out_j."""
        pieces = torch.split(seen, MOST_COPIES, dim=1)
        apply = self._mapped(_as_trained(self._outputs), axis, 1)
        outputs = [apply(named, piece) for piece in pieces]
        slopes = vmap(grad(self.objective.of_outputs))(torch.cat(outputs, dim=1), y)
        total: Named = {}
        for piece, slope in zip(
            pieces, torch.split(slopes, MOST_COPIES, dim=1), strict=True
        ):
            part = self._mapped(grad(self._product), axis, 2)(named, piece, slope)
            total = {name: total[name] + part[name] for name in part} if total else part
        return total

    def _mapped(
        self, function: Callable[..., Any], axis: int | None, arguments: int
    ) -> Callable[..., Any]:
        """Over records: θ along ``axis``, and so many arguments that have a row for each."""

        def guarded(*given: Any) -> Any:
            with _ForeignTokens():
                return function(*given)

        return vmap(guarded, in_dims=(axis, *(0,) * arguments), randomness="error")

    def losses(
        self, named: Named, inputs: Tensor, targets: Tensor
    ) -> NDArray[np.float64]:
        """Losses ``[n]`` of at most ``chunk`` records; faster than ``kernel``, to fewer bits."""
        copies, axis = self._apart(named, self.chunk)
        losses_of = self._mapped(_as_trained(self._record_loss), axis, 2)
        found = losses_of(copies, *self._filled(inputs, targets))
        losses: NDArray[np.float64] = found[: len(inputs)].double().cpu().numpy()
        return losses

    def _filled(self, *some: Tensor) -> list[Tensor]:
        pairs = zip(some, self.fillers, strict=True)
        return [
            torch.cat([rows, filler[len(rows) :]]).to(self._device)
            for rows, filler in pairs
        ]

    def _record_loss(self, named: Named, record: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(self.module, named, (record.unsqueeze(0),))
        target = target.unsqueeze(0)
        if self._elementwise and isinstance(outputs, Tensor):
            # A number a record beside one output: torch warns of [1] beside [1, 1].
            target = (
                target.reshape(outputs.shape)
                if target.numel() == outputs.numel()
                else target
            )
        return self._loss(outputs, target).sum()

    def _outputs(self, named: Named, copies: Tensor) -> Any:
        return functional_call(self.module, named, (copies,))

    def _copies(
        self,
        named: Named,
        record: Tensor,
        target: Tensor,
        noise: Tensor,
    ) -> Tensor:
        model = functools.partial(self._outputs, named)
        return self.objective.copies(
            model,
            x=record,
            y=target,
            randomness=noise,
        )

    def _loss_of_copies(self, named: Named, copies: Tensor, target: Tensor) -> Tensor:
        return self.objective.of_outputs(self._outputs(named, copies), target)

    def _product(self, named: Named, copies: Tensor, slope: Tensor) -> Tensor:
        found: Tensor = (self._outputs(named, copies) * slope).sum()
        return found


def _for_each(named: Named, count: int) -> Named:
    """A copy of the parameters for each of so many records, in no more memory."""
    return {name: tensor.expand(count, *tensor.shape) for name, tensor in named.items()}


def _as_trained(function: Callable[..., Any]) -> Callable[..., Any]:
    """Values alone, by the operations that gradients go through: recurrent layers have others."""
    return lambda named, *rest: vjp(lambda at: function(at, *rest), named)[0]


class _ForeignTokens(TorchFunctionMode):
    """Makes the rows NaN that a token outside its table would be given.

    Batched, torch numbers the rows of all slots' tables through, so such a token would
    train the next slot's copy: one record would move another one's gradient.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        options = kwargs or {}
        if func is not functional.embedding:
            return func(*args, **options)
        tokens, table, *rest = args
        foreign = (tokens < 0) | (tokens >= table.shape[0])
        rows = func(torch.where(foreign, 0, tokens), table, *rest, **options)
        return torch.where(foreign.unsqueeze(-1), torch.nan, rows)


_ELEMENTWISE = (
    *(functional.mse_loss, functional.l1_loss),
    *(functional.smooth_l1_loss, functional.huber_loss),
)
_ELEMENTWISE_MODULES = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
