"""What a server may bring about by the θ that it serves: models at which a record could be seen.

Where an operation raises on values, or takes as many steps as the values need, a server
can choose a θ at which the records with some property alone take longer, and see it by
when the upload begins. So what raises at hostile models is refused before enrolment,
and so are operations that may.
"""

import functools
from collections.abc import Iterator
from traceback import walk_tb
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from precad.client.gradients.model_constructs import place_in_own_code
from precad.client.gradients.objectives import Loss
from precad.client.gradients.record_gradients import RecordGradients
from precad.common.errors import Misconfiguration
from precad.common.model import ModelVector, initial_vector
from precad.common.task import Task

_FILLS = (0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-42)
_WIDE = 1e4

_LINEAR = (
    "raises for some matrices",
    (
        "use torch.linalg's inv_ex, solve_ex or cholesky_ex: a record with none then"
        " counts as zero"
    ),
)
_STEPS = (
    "takes as many steps as the values need, or raises",
    "use an operation without a decomposition",
)
_DECIDES = (
    "decides by values",
    "write it with torch.where, or give validate_args=False to torch.distributions",
)
_SIZES = (
    "has as many results as the values say",
    "use an operation whose size is fixed, such as a comparison",
)
_MAY_RAISE = {
    "binary_cross_entropy": (
        "raises where an output isn't from 0 to 1, NaN too",
        (
            "use binary_cross_entropy_with_logits (nn.BCEWithLogitsLoss), and no"
            " sigmoid before it"
        ),
    ),
    **dict.fromkeys(("_linalg_check_errors", "_linalg_det", "linalg_pinv"), _LINEAR),
    **dict.fromkeys(
        ("_linalg_svd", "_linalg_eigh", "linalg_eig", "linalg_lstsq"), _STEPS
    ),
    **dict.fromkeys(("_is_all_true", "_is_any_true"), _DECIDES),
    **dict.fromkeys(("bincount", "repeat_interleave"), _SIZES),
}
"""By torch's own names: what each operation does, and the remedy. What takes a value
into Python isn't here: vmap refuses it."""


def hostile_models(dimension: int) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Ten θ that a malicious server might serve: zero, equal, missing, infinite, huge, tiny, wide.

    A name, and ``[dimension] float64``.
    """
    for fill in _FILLS:
        yield f"{fill:g} everywhere", np.full(dimension, fill)
    yield f"from -{_WIDE:g} to {_WIDE:g}", np.linspace(-_WIDE, _WIDE, dimension)


def refuse_what_may_raise(gradients: RecordGradients, loss: Loss, task: Task) -> None:
    """Refuse a model and a loss that take longer at values which a server can bring about.

    ``gradients`` is prepared for the records: its synthetic ones are tried, at the
    task's own model and at each of ``hostile_models``.

    Raises Misconfiguration: names the layer or the loss, what it does, and what to use
    instead.
    """
    inputs, targets = gradients.fillers
    own: tuple[str, ModelVector] = "the task's own", initial_vector(task.model)
    for name, theta in (own, *hostile_models(task.dimension)):
        try:
            with _Watch():  # type: ignore[no-untyped-call]
                gradients.kernel(
                    gradients.loaded(theta), inputs=inputs, targets=targets
                )
        except Exception as error:  # whatever a model's operations raise
            gradients.reraise_what_no_record_causes(error)
            name_of = "an operation"
            remedy = "bound what it takes, as torch.clamp and torch.nan_to_num do"
            does = f"raises at a model of {name} ({type(error).__name__}: {error})"
            if isinstance(error, _MayRaise):
                name_of, does, remedy = error.args
            raise Misconfiguration(
                *_where(error, gradients.module, loss),
                f"has {name_of}{place_in_own_code(error)}: it {does}, and a server that"
                " serves a model at which some records alone make it do so would see"
                f" by the time of the upload whether they are there; {remedy}",
            ) from error


class _MayRaise(Exception):
    """An operation that isn't taken: its name, what it does, and the remedy."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each of torch's operations below vmap and grad, those of the way back too."""

    def __torch_dispatch__(
        self,
        operation: Any,
        _: Any,
        arguments: Any = (),
        options: Any = None,
    ) -> Any:
        name = operation.overloadpacket.__name__
        if name in _MAY_RAISE:
            raise _MayRaise(f"torch's {name}", *_MAY_RAISE[name])
        return operation(*arguments, **(options or {}))


def _where(error: Exception, model: nn.Module, loss: Loss) -> tuple[str, str]:
    """The field and the value that name what raised: the innermost layer, or the loss."""
    names = {layer: name for name, layer in model.named_modules() if name}
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
