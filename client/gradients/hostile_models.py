"""What a server may bring about by the θ that it serves: models at which a record could be seen.

Where an operation raises on values, or takes as many steps as the values need, a server
can choose a θ at which the records with some property alone take longer, and see it by
when the upload begins. So what raises at hostile models is refused before enrolment,
and so is every operation that isn't known to take the same steps for all records.
"""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from traceback import walk_tb

import numpy as np
import torch
from torch import Tensor, nn

from precad.client.gradients import (
    NotTaken,
    Operations,
    RecordGradients,
    place_in_own_code,
    synthetic,
)
from precad.common import (
    Floats,
    Misconfiguration,
    ModelVector,
    Parameter,
    Task,
    initial_vector,
)

_FILLS = (0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-42)
_WIDE = 1e4
_DENORMAL_EXP = -94.0
_RAISES = (
    "clamp whole numbers that index to the table's rows, index.clamp(0, rows - 1), and"
    " keep to the operations that docs/own-model.md lists"
)


def hostile_models(dimension: int) -> Iterator[tuple[str, Floats]]:
    """Ten θ that a malicious server might serve: zero, equal, missing, infinite, huge, tiny, wide.

    A name, and ``[dimension] float64``.
    """
    for fill in _FILLS:
        yield f"{fill:g} everywhere", np.full(dimension, fill)
    yield f"from -{_WIDE:g} to {_WIDE:g}", np.linspace(-_WIDE, _WIDE, dimension)


def slow_models(
    parameters: tuple[Parameter, ...],
) -> Iterator[Floats]:
    """θ at which torch's kernels are slow, each ``[d] float64``; the first one is zero.

    Vectors (biases) are -94, all of them or every other one, where float32's exp gives
    denormal numbers and takes 200 times as long, and log and sqrt take no negative
    numbers; or all parameters are denormal, infinite, missing or wide.
    """
    sizes = [each.size for each in parameters]
    is_bias = np.repeat([len(each.shape) == 1 for each in parameters], sizes)
    biases = np.where(is_bias, _DENORMAL_EXP, 0.0)
    dimension = len(biases)
    yield np.zeros(dimension)
    yield biases
    yield biases * (np.arange(dimension) % 2)
    for fill in (1e-42, np.inf, np.nan):
        yield np.full(dimension, fill)
    yield np.linspace(-_WIDE, _WIDE, dimension)


def refuse_what_may_raise(gradients: RecordGradients, task: Task) -> None:
    """Refuse a model and a loss that take longer at values which a server can bring about.

    ``gradients`` is prepared for the records: its synthetic ones are tried, at the
    task's own model, where each of torch's operations is looked at, and at each of
    ``hostile_models``.

    Raises Misconfiguration: names the layer or the loss, what it does, and what to use
    instead.
    """
    inputs, targets = gradients.fillers
    shape = (gradients.chunk, gradients.objective.noisy, *inputs.shape[1:])
    noise = synthetic(torch.empty(shape), gradients.chunk)
    own: tuple[str, ModelVector] = "the task's own", initial_vector(task.model)
    for name, theta in (own, *hostile_models(task.dimension)):
        named = gradients.loaded(theta)
        # A copy's noise is no record's, and may be anything, as θ.
        served = [*named.values(), noise]
        looked_at = theta is own[1] and not task.training.any_operations
        try:
            with _watching([inputs, targets], served) if looked_at else nullcontext():
                gradients.kernel(named, inputs=inputs, targets=targets, noise=noise)
        except Exception as error:  # whatever a model's operations raise
            gradients.reraise_what_no_record_causes(error)
            if task.training.any_operations:
                continue
            name_of = "an operation"
            remedy = _RAISES
            does = f"raises at a model of {name} ({type(error).__name__}: {error})"
            if isinstance(error, NotTaken):
                name_of, does, remedy = error.args
            raise Misconfiguration(
                *_where(error, gradients),
                f"has {name_of}{place_in_own_code(error)}: it {does}, and a server that"
                " serves a model at which some records alone make it do so would see"
                f" by the time of the upload whether they are there; {remedy}",
            ) from error


@contextmanager
def _watching(records: list[Tensor], served: list[Tensor]) -> Iterator[None]:
    """Look at each operation; autograd keeps where each stands, for its way back."""
    with (
        warnings.catch_warnings(action="ignore"),
        torch.autograd.set_detect_anomaly(mode=True, check_nan=False),
        Operations(records, served),
    ):
        yield


def _where(error: Exception, gradients: RecordGradients) -> tuple[str, str]:
    """The field and the value that name what raised: the innermost layer, or the loss."""
    model = gradients.module
    names = {layer: name for name, layer in model.named_modules() if name}
    loss = gradients.loss
    own = loss.func if isinstance(loss, functools.partial) else loss
    code = getattr(own, "__code__", None)
    found = "model or loss", type(model).__name__
    for frame, _ in walk_tb(error.__traceback__):
        caller = frame.f_locals.get("self")
        if isinstance(caller, nn.Module) and caller in names:
            found = f"model layer {names[caller]}", type(caller).__name__
        elif caller is own or frame.f_code is code:
            found = "loss", getattr(own, "__name__", type(own).__name__)
    return found
