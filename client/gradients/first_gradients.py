"""Before enrolment: do the first gradients move every parameter?

A loss may be finite where its gradient isn't, and a model may hold parameters that no
record moves. Both train without an error: on updates of zeros, or on noise alone.
"""

from collections.abc import Iterator

import numpy as np
import torch

from precad.client.gradients import RecordGradients
from precad.client.records import Records
from precad.common import (
    Floats,
    Floats32,
    Integers,
    Misconfiguration,
    ModelVector,
    Task,
    initial_vector,
    tensors,
)

_UNMOVED = (
    "is moved by no record (no_grad, detach, or a layer that forward never calls), so"
    " training would only add noise to it: leave it out, or apply frozen layers to the"
    " data beforehand"
)


def uneven_start(task: Task) -> Floats32:
    """Return parameters at which outputs differ, as they may not at θ_0: ``[d]``."""
    return initial_vector(task.model.model_copy(update={"initial": "uniform"}))


def check_first_gradients(
    gradients: RecordGradients, records: Records, task: Task
) -> None:
    """Refuse a model whose first gradients are nobody's, or that some part has none of.

    Records are looked at in chunks, until one has a finite gradient at θ_0 and every
    parameter was moved: there, or at other weights or their opposites, so that neither
    a start at 0 nor a unit that is off by chance counts. One that no loss depends on
    may stand still.

    Raises Misconfiguration: no record has a finite gradient at θ_0, or no record moves
    a parameter, which it names.
    """
    uneven = uneven_start(task)
    still = {each.name for each in gradients.parameters}
    finite = False
    kind = type(gradients.module).__name__
    for chunk in chunks_of(records, gradients):
        for position, theta in enumerate((initial_vector(task.model), uneven, -uneven)):
            if position and not still:
                break
            failed: list[int] = []
            # A chunk of its own each time: memory is that of one.
            [rows] = gradients.chunks(
                records,
                chunk,
                theta,
                on_failure=failed.append,
            )
            finite = finite or (position == 0 and len(failed) < len(chunk))
            still -= _moved(gradients, rows)
        if finite and not still:
            return
    if not finite:
        raise Misconfiguration(
            "model or loss",
            kind,
            f"{len(records)} of {len(records)} records have no finite gradient at the"
            " task's initial model, though their loss is finite: bound what a branch"
            " takes that isn't chosen (clamp before a root, a logarithm or a quotient;"
            " torch.where passes NaN slopes on)",
        )
    named = [
        each.name
        for each in gradients.parameters
        if each.name in still and _is_cut_off(gradients, each.name, uneven)
    ]
    if named:
        more = f", as are {', '.join(named[1:4])}" if named[1:] else ""
        raise Misconfiguration(f"model parameter {named[0]}", kind, f"{_UNMOVED}{more}")


def _is_cut_off(gradients: RecordGradients, name: str, theta: Floats32) -> bool:
    """Return whether no gradient can come to a parameter, as one made-up record shows.

    Other owners' records may move what these don't. What moves no loss either may stand
    still: the last step of a recurrent layer that reads backwards has no step before
    it, and noise does nothing there.
    """
    inputs, targets = (filler[:1] for filler in gradients.fillers)
    weights = gradients.loaded(theta)
    own = weights[name].requires_grad_()
    loss = gradients.loss_of(weights, inputs, targets)
    if not loss.requires_grad:
        return True
    (slope,) = torch.autograd.grad(loss, own, allow_unused=True)
    if slope is None or slope.any():
        return slope is None
    other = weights | {name: -own.detach()}
    return bool(gradients.loss_of(other, inputs, targets) != loss)


def chunks_of(records: Records, gradients: RecordGradients) -> Iterator[Integers]:
    """Yield the records' indices, as many at once as gradients are computed of."""
    for start in range(0, len(records), gradients.chunk):
        yield np.arange(start, min(start + gradients.chunk, len(records)))


def _moved(gradients: RecordGradients, rows: Floats) -> set[str]:
    """Return the names of parameters of which a record's gradient has a number."""
    most: ModelVector = np.abs(rows).max(axis=0)
    parts = tensors(most, gradients.parameters)
    return {name for name, values in parts.items() if values.any()}
