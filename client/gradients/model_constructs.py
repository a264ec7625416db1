"""What a model may be made of.

Records go through a model all at once and each alone (torch.func). So what turns a
tensor into one Python value, draws at random or keeps something of a record can't be
trained. A refusal names the construct, where it stands, and what to write instead.
"""

import re
from pathlib import Path
from traceback import extract_tb

import torch
from torch import nn
from torch.nn.utils import prune

from precad.common import Misconfiguration

NO_RANDOMNESS = (
    "random layers aren't supported; remove dropout (clipping and noise regularise)"
)
"""Refusal of layers that draw at random."""
NOT_BUILT = (
    "its shapes aren't known yet: apply the model to one record first, model(x[:1])"
)
"""Refusal of lazy layers."""
_SPECTRAL = (
    "spectral norm changes a buffer at every call, unprotected; use"
    " parametrizations.orthogonal or parametrizations.weight_norm of torch.nn.utils"
)
_BY_NAME = {
    "torch.nn.utils.weight_norm.WeightNorm": (
        "the old torch.nn.utils.weight_norm keeps a weight that is no parameter; use "
        "torch.nn.utils.parametrizations.weight_norm"
    ),
    "torch.nn.utils.spectral_norm.SpectralNorm": _SPECTRAL,
    "torch.nn.utils.parametrizations._SpectralNorm": _SPECTRAL,
}
"""Refusals of layers, and of hooks before a layer's forward, by the full name of a
class that torch keeps private."""
_BY_CLASS: tuple[tuple[type, str], ...] = (
    (
        torch.jit.ScriptModule,
        (
            "TorchScript can't be trained record by record; give the module that was"
            " scripted"
        ),
    ),
    (nn.parallel.DataParallel, "splits batches over devices; give its .module"),
    (
        nn.parallel.DistributedDataParallel,
        "splits batches over devices; give its .module",
    ),
    (
        nn.modules.batchnorm._BatchNorm,  # noqa: SLF001
        "batch norm mixes records; use nn.GroupNorm",
    ),
    (
        prune.BasePruningMethod,
        "pruning keeps a weight that is no parameter; prune.remove ends it",
    ),
)
"""Refusals of layers and hooks by class, subclasses included."""


def check_layers(model: nn.Module) -> None:
    """Refuse a model that can't be trained, as far as that shows without a record.

    Raises Misconfiguration: names the layer or the parameter.
    """
    for name, layer in model.named_modules():
        fault = _fault(layer)
        if fault is not None:
            field = f"model layer {name or 'itself'}"
            raise Misconfiguration(field, type(layer).__name__, fault)
    parameters = dict(model.named_parameters())
    if not parameters:
        raise Misconfiguration(
            "model", type(model).__name__, "has no parameters to train"
        )
    for name, parameter in parameters.items():
        if not parameter.is_floating_point():
            raise Misconfiguration(
                f"model parameter {name}", parameter.dtype, "must be real"
            )
        if not parameter.requires_grad:
            raise Misconfiguration(
                f"model parameter {name}",
                "frozen",
                "every parameter is trained: apply frozen layers to the data"
                " beforehand, or set requires_grad",
            )


def _fault(layer: nn.Module) -> str | None:
    """Return why a layer can't be trained, with what to write; None if nothing shows.

    It looks at the layer alone, for ``check_layers``, which goes through all of them.
    """
    # A hook may be what makes a layer one of these.
    for part in (layer, *layer._forward_pre_hooks.values()):  # noqa: SLF001
        kind = type(part)
        fault = _BY_NAME.get(f"{kind.__module__}.{kind.__name__}")
        if fault is not None:
            return fault
        for refused_class, fault in _BY_CLASS:
            if isinstance(part, refused_class):
                return fault
    compiled = hasattr(layer, "_orig_mod") or hasattr(
        layer.forward, "_torchdynamo_orig_callable"
    )
    if compiled or getattr(layer, "_compiled_call_impl", None) is not None:
        return "torch.compile can't be trained record by record; give the module itself"
    if is_lazy(layer):
        return NOT_BUILT
    if isinstance(layer, nn.RReLU):
        return "draws its slopes at random; use nn.LeakyReLU"
    if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:  # noqa: SLF001
        return NO_RANDOMNESS
    if (
        isinstance(layer, nn.RNNBase | nn.MultiheadAttention)
        and float(layer.dropout) > 0
    ):
        return NO_RANDOMNESS
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        if layer.sparse:
            return (
                "sparse gradients can't be clipped together with others; leave"
                " sparse out"
            )
        if layer.max_norm is not None:
            return "max_norm changes the table without protection; leave it out"
    for name, value in vars(layer).items():
        if isinstance(value, torch.Tensor) and value.grad_fn is not None:
            return (
                f"its {name} was computed from parameters beforehand; compute it in"
                " forward"
            )
    return None


def is_lazy(layer: nn.Module) -> bool:
    """Return whether a layer has parameters or buffers without a shape.

    Those of the layers in it don't count.
    """
    tensors = (*layer.parameters(recurse=False), *layer.buffers(recurse=False))
    return any(nn.parameter.is_lazy(tensor) for tensor in tensors)


_CONSTRUCTS: tuple[tuple[str, str, str], ...] = (
    (
        r"numpy\(\) on Tensor that requires grad",
        "keeps layers or parameters where torch doesn't see them (a list, a dict)",
        "use nn.ModuleList, nn.ModuleDict or nn.ParameterList",
    ),
    (
        r"does not require grad and does not have a grad_fn",
        "takes a gradient by autograd while records are taken one by one",
        "use torch.func.grad",
    ),
    (
        r"Double and Float|Float and Double|scalar type (?:Double|Float) but",
        "computes in double precision and in single",
        "give constants and inputs .float()",
    ),
    (
        r"Expected more than 1 value per channel",
        "normalises groups of one number, of which nothing is left",
        "give GroupNorm fewer groups, or use nn.LayerNorm",
    ),
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
        (
            "makes a tensor whose shape depends on the data (a mask as index, nonzero,"
            " unique)"
        ),
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
        (
            "give it setup_context and generate_vmap_rule = True, or use torch's own"
            " operations"
        ),
    ),
    (
        r"backward\(\) called inside",
        "calls backward()",
        "use torch.func.grad or leave it out",
    ),
    (r"missing the required \"forward\"", "has no forward", "give it one"),
    (
        r"(?:rule not implemented for|Attempted to vmap over) (aten::\w+)",
        "uses an operation that can't be taken record by record",
        "write it by other operations",
    ),
)
"""What torch's error looks like, what the model does, and what to write instead."""


def explained(error: BaseException) -> str | None:
    """Return which construct an error is about and what to write, in one sentence.

    ``error`` is one of torch's operations'. None where the construct isn't known: then
    the error's own words are all that there is.
    """
    # torch versions word what checkpoint raises differently; its file is in each one's
    # traceback.
    files = (frame.filename for frame in extract_tb(error.__traceback__))
    text = "\n".join((*files, str(error)))
    for pattern, construct, remedy in _CONSTRUCTS:
        match = re.search(pattern, text)
        if match:
            operation = f" ({match[1]})" if match.lastindex else ""
            return f"{construct}{operation}{place_in_own_code(error)}: {remedy}"
    return None


def place_in_own_code(error: BaseException) -> str:
    """Return where in the owner's code an error arose: file, line, what stands there.

    On a gradient's way back that is where the operation stands that it is of. Empty
    where no line of the owner's is in the traceback.
    """
    frames = getattr(error, "forward", None) or extract_tb(error.__traceback__)
    for frame in reversed(frames):
        folders = Path(frame.filename).parents
        if not any(folder in folders for folder in _NOT_OWN):
            code = f", `{frame.line[:80]}`" if frame.line else ""
            return f", in {Path(frame.filename).name} line {frame.lineno}{code}"
    return ""


_NOT_OWN = (Path(torch.__file__).parent, Path(__file__).parents[2])
"""Folders of code that isn't the owner's: torch's and precad's."""
