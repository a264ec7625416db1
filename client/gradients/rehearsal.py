"""Before enrolment: does every record work with this model and this loss, each on its own?

Refusing is still the owner's own affair here. Later it would be public, so later
nothing is.
"""

import contextlib
import copy
import functools
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from precad.client.gradients import (
    WORK_ROOM,
    Loss,
    RecordGradients,
    check_buffers,
    check_first_gradients,
    check_layers,
    check_weights,
    chunk_records,
    chunks_of,
    compared,
    explained,
    padded_work_s,
    refuse_what_may_raise,
    synthetic,
    uneven_start,
)
from precad.client.records import MEND, Records
from precad.common import Integers, Misconfiguration, Task, initial_vector

_ROWS = 8
_TRIED = 4
_TOLERANCE = 1e-4
_NO_START = (
    "no record's loss is finite at the task's initial model: a single number or a"
    " vector starts at 0, or at 1 where its name ends in weight (model.initial); divide"
    " by none that starts at 0, or start from a file of weights"
)
_ALONE = (
    "mixes the records of a batch, and privacy needs each record's gradient to be a"
    " function of that record alone: use a loss with reduction='sum' or 'none' and no"
    " term between records (contrastive losses: make each record a pair or triplet),"
    " and a model without batch statistics or memory, its recurrent layers with"
    " batch_first=True"
)


def rehearse(
    model: nn.Module,
    loss: Loss,
    records: Records,
    task: Task,
    most: int | None = None,
) -> None:
    """Refuse what training can't use; each error names the record, or the model, and a remedy.

    Every record is tried at the task's initial model, by its loss alone, in training's
    chunks. ``most`` is M, the units that a round's work is padded to.

    Raises Misconfiguration: see ``RecordGradients``; a label is no class of the model;
    a record's loss raises or isn't finite; the loss or the model mixes records.
    """
    if isinstance(loss, type):
        raise Misconfiguration(
            "loss", loss.__name__, f"is a class: make one, {loss.__name__}()"
        )
    slots = None if most is None else task.mechanism.padded_records(most)
    chunk = chunk_records(task.dimension, most=slots)
    gradients = RecordGradients(
        model,
        loss,
        task.mechanism.parameters,
        chunk,
        task.objective,
        class_weights=task.training.class_weights,
    )
    check_buffers(model, task.model)
    check_weights(model, task.model)
    try:
        gradients.prepare(records)
    except Misconfiguration:
        raise
    except Exception as error:  # whatever a model's operations raise
        raise _unusable(gradients, records, error) from error
    _check_weights(gradients)
    _check_labels(gradients, records)
    _check_gradient(gradients, records, task)
    refuse_what_may_raise(gradients, task)
    if task.training.any_operations and most and slots:
        passes = 1 if task.local is None else task.local.epochs
        _check_time_alone(gradients, task, max(most, slots) * passes)
    _check_losses(gradients, records, task)
    _check_batches(gradients, records, task)
    check_first_gradients(gradients, records, task)


def _check_time_alone(gradients: RecordGradients, task: Task, most: int) -> None:
    """Refuse a ``deadlines.work`` that M records, each computed alone, would overrun.

    That is what is done where an operation raises, and the model that a server serves
    says whether one does.
    """
    inputs, targets = (filler[:1] for filler in gradients.fillers)
    named = gradients.loaded(initial_vector(task.model))
    took = []
    for _ in range(_TRIED):
        began = time.perf_counter()
        gradients.kernel(named, inputs=inputs, targets=targets)
        took.append(time.perf_counter() - began)
    # A chunk is tried as a whole first.
    alone_s = WORK_ROOM * min(took) * (most + math.ceil(most / gradients.chunk))
    if alone_s > task.deadlines.work:
        raise Misconfiguration(
            "deadlines.work",
            task.deadlines.work,
            f"must be {alone_s:.2g} s or more under training.any_operations: {most}"
            f" records, each computed alone, and {WORK_ROOM} times that; or use"
            " operations that docs/own-model.md lists, without any_operations",
        )


def try_model(
    model: nn.Module, task: Task, shape: tuple[int, ...] | None = None
) -> Tensor | None:
    """Before there are records or a loss: whether a model can be trained record by record.

    What comes back are the outputs for one made-up record of this shape. Without it
    such as the first layer takes are tried, and it is None where none fits. The
    objective isn't looked at.

    Raises Misconfiguration: as ``rehearse``, or it takes no record of this shape.
    """
    check_layers(model)
    module = copy.deepcopy(model).float().train()
    fault = None
    tokens = any(
        isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in model.modules()
    )
    guessed = next(
        (sizes for layer in model.modules() if (sizes := _sizes_of(layer))), []
    )
    for each, whole in itertools.product(
        [shape] if shape else guessed, (False, True)[: 1 + tokens]
    ):
        inputs = synthetic(torch.empty(1, *each), _TRIED)
        if whole:
            # Both tokens that every vocabulary has: a padding's row isn't moved.
            inputs = inputs.round().long()
        try:
            with torch.no_grad():
                outputs: Tensor = module(inputs[:1])
        except Exception as error:  # noqa: BLE001 -- whatever a model's operations raise
            fault = fault or error
            continue
        rehearse(
            model,
            _own_square,
            Records(inputs, torch.zeros(_TRIED)),
            task.model_copy(update={"objective": None}),
            _TRIED,
        )
        return outputs
    if shape is None or fault is None:
        return None
    remedy = (
        explained(fault)
        or f"takes no record of shape {list(shape)} ({type(fault).__name__}: {fault})"
    )
    raise Misconfiguration("model", type(model).__name__, remedy) from fault


def made_up_work_s(
    model: nn.Module, task: Task, shape: tuple[int, ...], count: int
) -> float:
    """Seconds of one update of |D_i| = ``count`` records of this shape, as estimated.

    A few made-up ones are enough: the work is padded. 0 where the model takes none.
    """
    rate = task.mechanism.unit_rate
    inputs = synthetic(torch.empty(1, *shape), _TRIED)
    for rows in (inputs, torch.zeros_like(inputs, dtype=torch.int64)):
        data = Records(rows, torch.zeros(len(rows)))
        try:
            return padded_work_s(
                model,
                _own_square,
                data,
                count=count,
                rate=rate,
                task=task,
                repeats=0,
            )
        except Exception:  # noqa: BLE001, S112 -- whatever a model's operations raise
            continue
    return 0.0


def _own_square(outputs: Tensor, _: Tensor) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise TypeError("torch's losses take one tensor")
    return outputs.square().sum()


def _sizes_of(layer: nn.Module) -> list[tuple[int, ...]]:
    """Shapes of records that a model may take whose first layer this is."""
    match layer:
        case nn.Linear():
            return [(layer.in_features,), (5, layer.in_features)]
        case nn.Embedding() | nn.EmbeddingBag():
            return [(8,), (16,), (1,)]
        case nn.RNNBase() | nn.RNNCellBase():
            return [(5, layer.input_size)]
        case nn.MultiheadAttention():
            return [(5, layer.embed_dim)]
        case nn.Conv1d():
            return [(layer.in_channels, size) for size in (16, 64, 128)]
        case nn.Conv2d():
            return [(layer.in_channels, size, size) for size in (8, 28, 32, 64, 224)]
        case _:
            return []


def check_processor(model: nn.Module) -> None:
    """Refuse an owner's model that isn't on the processor; a simulation may be anywhere.

    Raises Misconfiguration: names the tensor.
    """
    for name, tensor in itertools.chain(
        model.named_parameters(), model.named_buffers()
    ):
        if tensor.device.type != "cpu":
            raise Misconfiguration(
                f"model, {name}",
                str(tensor.device),
                "is trained on the processor alone: that one record's gradient doesn't"
                " show in another's last bits is tested nowhere else; give model.cpu()",
            )


class _CancelledWeights(TorchFunctionMode):
    """Notices class weights in a mean over one label, which cancel: w·l/w = l, whatever w is."""

    seen = ""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        given = kwargs or {}
        if func in (functional.cross_entropy, functional.nll_loss):
            target = args[1]
            averages = given["reduction"] == "mean"
            one_label = target.numel() == 1 and not target.is_floating_point()
            if given["weight"] is not None and averages and one_label:
                self.seen = func.__name__
        return func(*args, **given)


def _check_weights(gradients: RecordGradients) -> None:
    """Wherever it is that a loss calls torch's."""
    inputs, targets = gradients.fillers
    # What raises is said with its record later.
    with (
        torch.no_grad(),
        contextlib.suppress(Exception),
        _CancelledWeights() as weights,
    ):
        gradients.loss_of({}, inputs, targets)
    if weights.seen:
        raise Misconfiguration(
            "loss",
            f"{weights.seen} with weights",
            "class weights cancel in one record's weighted mean and would do nothing:"
            " let the task have them (precad task new --balance), all of 1 and less,"
            " as the clip cancels larger ones",
        )


def _check_labels(gradients: RecordGradients, records: Records) -> None:
    wrong = gradients.wrong_labels(records.targets)
    if wrong.any():
        record, *place = np.argwhere(wrong.numpy())[0].tolist()
        assert gradients.classes is not None
        raise Misconfiguration(
            f"data, target{place or ''} of record {record}",
            int(records.targets[(record, *place)]),
            f"the model has {gradients.classes} classes: labels must be from 0 to "
            f"{gradients.classes - 1}: {MEND}",
        )


def _check_losses(gradients: RecordGradients, records: Records, task: Task) -> None:
    """Every record's outputs and loss at θ_0."""
    named = gradients.loaded(initial_vector(task.model))

    def outputs(inputs: Tensor, _: Tensor) -> None:
        # Unbatched operations check more of their indices than those of torch.func.
        with torch.no_grad():
            gradients.outputs(named, inputs.to(gradients.device))

    losses = functools.partial(gradients.losses, named)
    for some in chunks_of(records, gradients):
        try:
            outputs(*records.take(some))
        except Exception:  # noqa: BLE001 -- a model may also take no more than one record
            _name_the_record(outputs, records, some)
        try:
            found = losses(*records.take(some))
        except Exception as error:  # whatever a model's operations raise
            _name_the_record(losses, records, some)
            raise _unusable(gradients, records, error) from error
        finite = np.isfinite(found)
        if not finite.all():
            inputs, targets = (filler[:1] for filler in gradients.fillers)
            if not (finite.any() or np.isfinite(losses(inputs, targets)).any()):
                raise _at_fault(gradients, _NO_START)
            slot = int(np.argmin(finite))
            remedy = f"must be finite at the task's initial model: {MEND}"
            raise Misconfiguration(
                f"data, loss of record {some[slot]}", float(found[slot]), remedy
            )


def _name_the_record(
    compute: Callable[[Tensor, Tensor], object],
    records: Records,
    some: Integers,
) -> None:
    for record in some.tolist():
        try:
            compute(*records.take(np.array([record])))
        except Exception as error:  # whatever a model's operations raise
            raise Misconfiguration(
                f"data, record {record}",
                type(error).__name__,
                f"the model or its loss can't take it ({error}): {MEND}",
            ) from error


def _check_gradient(gradients: RecordGradients, records: Records, task: Task) -> None:
    """One synthetic record's gradient beside two sets of others: the same bits."""
    chunk = gradients.chunk
    named = gradients.loaded(uneven_start(task))
    inputs = synthetic(records.inputs, 2 * chunk)
    targets = synthetic(records.targets, 2 * chunk)
    if not targets.is_floating_point():
        targets.zero_()
    for rows in (inputs, targets):
        rows[chunk] = rows[0]
    both = slice(chunk), slice(chunk, None)
    try:
        found = [
            gradients.kernel(named, inputs=inputs[slots], targets=targets[slots])[0]
            for slots in both
        ]
    except Exception as error:  # whatever a model's operations raise
        if "randomness" in str(error):
            gradients.reraise_what_no_record_causes(error)
        raise _unusable(gradients, records, error) from error
    if not np.array_equal(found[0], found[1], equal_nan=True):
        raise _at_fault(gradients, _ALONE)


def _check_batches(gradients: RecordGradients, records: Records, task: Task) -> None:
    """Whether the loss of a whole batch of synthetic records is one of records.

    Training gives the loss one record at a time, so nothing can be mixed there; but one
    that is made to compare records would be constant then, or weigh them otherwise than
    its owner thinks, without a word. A sum or a mean over records has L(A,B) + L(C,D) =
    L(A,D) + L(C,B).
    """
    outputs = functools.partial(gradients.outputs, gradients.loaded(uneven_start(task)))
    inputs = synthetic(records.inputs, _ROWS).to(gradients.device)
    labels = synthetic(records.targets, _ROWS)

    def mixes(targets: Tensor) -> bool | None:
        """None where these targets don't tell."""
        usable = torch.where(gradients.wrong_labels(targets), 0, targets)
        usable = usable.to(gradients.device)

        def of(*rows: int) -> float:
            some = list(rows)
            found = outputs(inputs[some])
            return float(compared(gradients.loss, found, usable[some]).sum())

        try:
            with torch.no_grad():
                # Their labels: 1100, 0011, 1111 and 0000.
                terms = [
                    of(0, 2, 1, 3),
                    of(4, 6, 5, 7),
                    -of(0, 2, 5, 7),
                    -of(4, 6, 1, 3),
                ]
        except Exception:  # noqa: BLE001 -- takes no batch, or not these values
            return None
        size = sum(abs(term) for term in terms)
        return abs(sum(terms)) > _TOLERANCE * size if 0 < size < np.inf else None

    try:
        with torch.no_grad():
            # First beside others, and last: a recurrent layer may take records for its
            # steps.
            apart = any(
                float((one - other).abs().max() / one.abs().max()) > _TOLERANCE
                for at, rows in (
                    (0, ([0, 1, 2, 3], [0, 4, 5, 6])),
                    (-1, ([1, 2, 3, 0], [4, 5, 6, 0])),
                )
                for one, other in [[outputs(inputs[each])[at] for each in rows]]
            )
    except Exception:  # noqa: BLE001 -- takes no batch, or gives no tensor
        apart = False
    if not apart and not mixes(labels):
        return
    # A mean weighted by labels, or over those that aren't ignored, is one of records
    # all the same.
    if not apart and any(
        mixes(torch.full_like(labels, label)) is False for label in (0, 1)
    ):
        return
    raise _at_fault(gradients, _ALONE)


def _at_fault(gradients: RecordGradients, remedy: str) -> Misconfiguration:
    return Misconfiguration("model or loss", type(gradients.module).__name__, remedy)


def _unusable(
    gradients: RecordGradients, records: Records, error: Exception
) -> Misconfiguration:
    """Return what tells an owner why its model can't be trained record by record."""
    kind = type(gradients.module).__name__
    construct = explained(error)
    if construct is not None:
        return _at_fault(gradients, construct)
    if gradients.gives is not None:
        return Misconfiguration(
            "model",
            kind,
            f"gives a {gradients.gives}, and this loss doesn't take it"
            f" ({type(error).__name__}: {error}): return one tensor, such as"
            " self.lstm(x)[0]; several heads by torch.cat, which the loss splits",
        )
    inputs, targets = (
        f"{str(rows.dtype).removeprefix('torch.')}{list(rows.shape[1:])}"
        for rows in (records.inputs, records.targets)
    )
    remedy = "give records of the shape that the model takes, or the task's model"
    if not records.inputs.is_floating_point():
        remedy += (
            "; whole numbers stay whole, as embeddings take them: give others as"
            " float32"
        )
    return Misconfiguration(
        "model, loss, data",
        kind,
        f"don't go together: a record's input is {inputs}, its target {targets} "
        f"({type(error).__name__}: {error}); {remedy}",
    )
