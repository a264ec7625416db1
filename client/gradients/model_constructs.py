"""What a model may be made of: a refusal names the construct, where it stands, and what to write.

Records go through a model all at once and each alone (torch.func), so what turns a tensor into one
Python value, draws at random or keeps something of a record can't be trained. And a server chooses
θ: where an operation raises on values, or takes as many steps as the values need, it can choose one
at which the records with some property alone take longer, and see it by when the upload begins. So
what raises at hostile models is refused before enrolment, and so are operations that may.
"""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from traceback import extract_tb, walk_tb
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

from precad.client.gradients.objectives import Loss
from precad.common.errors import Misconfiguration
from precad.common.model import ModelVector, initial_vector
from precad.common.task import Task

if TYPE_CHECKING:
    from precad.client.gradients.record_gradients import RecordGradients

NO_RANDOMNESS = "random layers aren't supported; remove dropout (clipping and noise regularise)"
NOT_BUILT = "its shapes aren't known yet: apply the model to one record first, model(x[:1])"
_SPECTRAL = (
    "spectral norm changes a buffer at every call, unprotected; use parametrizations.orthogonal or "
    "parametrizations.weight_norm of torch.nn.utils"
)
_BY_NAME = {
    "torch.nn.utils.weight_norm.WeightNorm": (
        "the old torch.nn.utils.weight_norm keeps a weight that is no parameter; use "
        "torch.nn.utils.parametrizations.weight_norm"
    ),
    "torch.nn.utils.spectral_norm.SpectralNorm": _SPECTRAL,
    "torch.nn.utils.parametrizations._SpectralNorm": _SPECTRAL,
}
"""Layers, and hooks before a layer's forward, that torch has no public class for."""
_BY_CLASS: tuple[tuple[Any, str], ...] = (
    (
        torch.jit.ScriptModule,
        "TorchScript can't be trained record by record; give the module that was scripted",
    ),
    (nn.parallel.DataParallel, "splits batches over devices; give its .module"),
    (nn.parallel.DistributedDataParallel, "splits batches over devices; give its .module"),
    (nn.modules.batchnorm._BatchNorm, "batch norm mixes records; use nn.GroupNorm"),  # noqa: SLF001
    (prune.BasePruningMethod, "pruning keeps a weight that is no parameter; prune.remove ends it"),
)


def check_layers(model: nn.Module) -> None:
    """Refuse what can be seen without a record.

    Raises Misconfiguration: names the layer or the parameter.
    """
    for name, layer in model.named_modules():
        if (fault := _fault(layer)) is not None:
            field = f"model layer {name or 'itself'}"
            raise Misconfiguration(field, type(layer).__name__, fault)
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


def _fault(layer: nn.Module) -> str | None:
    """Why a layer can't be trained, with what to write; None if nothing is seen."""
    # A hook may be what makes a layer one of these.
    for part in (layer, *layer._forward_pre_hooks.values()):  # noqa: SLF001
        kind = type(part)
        if (fault := _BY_NAME.get(f"{kind.__module__}.{kind.__name__}")) is not None:
            return fault
        for classes, said in _BY_CLASS:
            if isinstance(part, classes):
                return said
    compiled = hasattr(layer, "_orig_mod") or hasattr(layer.forward, "_torchdynamo_orig_callable")
    if compiled or getattr(layer, "_compiled_call_impl", None) is not None:
        return "torch.compile can't be trained record by record; give the module itself"
    if is_lazy(layer):
        return NOT_BUILT
    if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:  # noqa: SLF001
        return NO_RANDOMNESS
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and float(layer.dropout) > 0:
        return NO_RANDOMNESS
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        if layer.sparse:
            return "sparse gradients can't be clipped together with others; leave sparse out"
        if layer.max_norm is not None:
            return "max_norm changes the table without protection; leave it out"
    for name, value in vars(layer).items():
        if isinstance(value, torch.Tensor) and value.grad_fn is not None:
            return f"its {name} was computed from parameters beforehand; compute it in forward"
    return None


def is_lazy(layer: nn.Module) -> bool:
    """Whether it has parameters or buffers without a shape."""
    own = (*layer.parameters(recurse=False), *layer.buffers(recurse=False))
    return any(nn.parameter.is_lazy(tensor) for tensor in own)


_SAID: tuple[tuple[str, str, str], ...] = (
    (
        r"\.item\(\)|data-dependent control flow",
        "takes a tensor's value into Python (.item(), float(), an if on data)",
        "keep it a tensor, and choose by torch.where",
    ),
    (
        r"data pointer|numpy\(\)",
        "takes a tensor's values into Python (.tolist(), .numpy())",
        "keep to torch's operations",
    ),
    (
        r"dynamic shape",
        "makes a tensor whose shape depends on the data (a mask as index, nonzero, unique)",
        "multiply by the mask or use torch.where",
    ),
    (
        r"inplace arithmetic|doesn't match the broadcast shape",
        "changes a tensor in place that it made itself (z += …, z[:, 0] = …)",
        "write z = z + … or torch.cat, or make z by x.new_zeros",
    ),
    (
        r"saved tensor hooks|torch.utils.checkpoint\.py",
        "saves memory by torch.utils.checkpoint",
        "leave it out: chunks bound the memory",
    ),
    (
        r"autograd\.Function with functorch|generate_vmap_rule|vmap staticmethod",
        "has an autograd.Function of the old form",
        "give it setup_context and generate_vmap_rule = True, or use torch's own operations",
    ),
    (r"backward\(\) called inside", "calls backward()", "use torch.func.grad or leave it out"),
    (r"missing the required \"forward\"", "has no forward", "give it one"),
    (
        r"(?:rule not implemented for|Attempted to vmap over) (aten::\w+)",
        "uses an operation that can't be taken record by record",
        "write it by other operations",
    ),
)


def explained(error: BaseException) -> str | None:
    """Which construct an operation's error is about and what to write, in one sentence.

    None where it isn't known: then the error's own words are all that there is.
    """
    # torch versions word what checkpoint raises differently; its file is in each one's traceback.
    text = "\n".join((*(f.filename for f in extract_tb(error.__traceback__)), str(error)))
    for pattern, does, remedy in _SAID:
        if found := re.search(pattern, text):
            operation = f" ({found[1]})" if found.lastindex else ""
            return f"{does}{operation}{place_in_own_code(error)}: {remedy}"
    return None


def place_in_own_code(error: BaseException) -> str:
    """Where in its owner's code an error arose: file, line and what stands there."""
    for frame in reversed(extract_tb(error.__traceback__)):
        if not any(folder in Path(frame.filename).parents for folder in _NOT_OWN):
            code = f", `{frame.line[:80]}`" if frame.line else ""
            return f", in {Path(frame.filename).name} line {frame.lineno}{code}"
    return ""


_NOT_OWN = (Path(torch.__file__).parent, Path(__file__).parents[2])

# --- what a server may bring about -------------------------------------------------------------

_FILLS = (0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-42)
_WIDE = 1e4

_LINEAR = (
    "raises for some matrices",
    "use torch.linalg's inv_ex, solve_ex or cholesky_ex: a record with none then counts as zero",
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
        "use binary_cross_entropy_with_logits (nn.BCEWithLogitsLoss), and no sigmoid before it",
    ),
    **dict.fromkeys(("_linalg_check_errors", "_linalg_det", "linalg_pinv"), _LINEAR),
    **dict.fromkeys(("_linalg_svd", "_linalg_eigh", "linalg_eig", "linalg_lstsq"), _STEPS),
    **dict.fromkeys(("_is_all_true", "_is_any_true"), _DECIDES),
    **dict.fromkeys(("bincount", "repeat_interleave"), _SIZES),
}
"""By torch's own names: what each operation does, and the remedy. What takes a value into Python
isn't here: vmap refuses it."""


def hostile_models(dimension: int) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Ten θ that a malicious server might serve: zero, equal, missing, infinite, huge, tiny, wide.

    A name, and ``[dimension] float64``.
    """
    for fill in _FILLS:
        yield f"{fill:g} everywhere", np.full(dimension, fill)
    yield f"from -{_WIDE:g} to {_WIDE:g}", np.linspace(-_WIDE, _WIDE, dimension)


def refuse_what_may_raise(gradients: "RecordGradients", loss: Loss, task: Task) -> None:
    """Refuse a model and a loss that take longer at values which a server can bring about.

    ``gradients`` is prepared for the records: its synthetic ones are tried, at the task's own model
    and at each of ``hostile_models``.

    Raises Misconfiguration: names the layer or the loss, what it does, and what to use instead.
    """
    inputs, targets = gradients.fillers
    own: tuple[str, ModelVector] = "the task's own", initial_vector(task.model)
    for name, theta in (own, *hostile_models(task.dimension)):
        try:
            with _Watch():  # type: ignore[no-untyped-call]
                gradients.kernel(gradients.loaded(theta), inputs, targets)
        except Exception as error:  # whatever a model's operations raise
            gradients.reraise_what_no_record_causes(error)
            name_of = "an operation"
            remedy = "bound what it takes, as torch.clamp and torch.nan_to_num do"
            does = f"raises at a model of {name} ({type(error).__name__}: {error})"
            if isinstance(error, _MayRaise):
                name_of, does, remedy = error.args
            raise Misconfiguration(
                *_where(error, gradients.module, loss),
                f"has {name_of}{place_in_own_code(error)}: it {does}, and a server that serves a "
                "model at which some records alone make it do so would see by the time of the "
                f"upload whether they are there; {remedy}",
            ) from error


class _MayRaise(Exception):
    """An operation that isn't taken: its name, what it does, and the remedy."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each of torch's operations below vmap and grad, those of the way back too."""

    def __torch_dispatch__(
        self, operation: Any, _: Any, arguments: Any = (), options: Any = None
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
