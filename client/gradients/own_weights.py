"""What a module brings beside its shapes: weights and buffers, which are the task's.

Every party starts from the task's weights, whatever a module holds, and a buffer's
numbers are part of every gradient. So neither may differ in silence.
"""

import copy
import hashlib
import math
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from precad.common import (
    Misconfiguration,
    ModelSection,
    encode_context,
    initial_vector,
    tensors,
)

_DEVIATIONS = 5.0
"""How far the size of a fresh tensor's numbers may lie from other draws' size, in
deviations."""
_FEW = 8
"""Of fewer numbers than these the size says nothing."""


def check_weights(module: nn.Module, section: ModelSection) -> None:
    """Refuse weights that somebody chose and that training wouldn't start from.

    Weights as torch's layers draw them are nobody's choice, and pass.

    Raises Misconfiguration: names a parameter and both ways out.
    """
    name = _chosen(module, section)
    if name is None:
        return
    start = f'model.initial = "{section.initial}"'
    if section.initial == "file":
        start = "the file's weights"
    raise Misconfiguration(
        f"model parameter {name}",
        type(module).__name__,
        f"has weights of its own, and the task starts from {start}: to start from"
        " these, make the task by precad task new --start module, or by --continue FILE"
        " after safetensors.torch.save_file(net.state_dict(), FILE); to start from the"
        " task's, give the module as torch's layers draw it, or after"
        " precad.client.load_initial(net, task)",
    )


def _chosen(module: nn.Module, section: ModelSection) -> str | None:
    """Return the first parameter that somebody chose, for ``check_weights``.

    It is neither the task's start nor such as its layer draws. It is compared with two
    other draws: a constant must be the same one, other numbers about as large. Nothing
    is known of a few numbers that aren't all equal. The own parameters of a module,
    which draws none by ``reset_parameters``, are chosen.
    """
    start = tensors(initial_vector(section), section.parameters)
    first_draws = dict(_drawn_again(module, seed=0).named_parameters())
    second_draws = dict(_drawn_again(module, seed=1).named_parameters())
    for name, parameter in module.named_parameters():
        own, started, first, second = (
            tensor.detach().cpu().float()
            for tensor in (
                parameter,
                torch.from_numpy(start[name]),
                first_draws[name],
                second_draws[name],
            )
        )
        if torch.equal(own, started):
            continue
        if first.isnan().all():
            # Under a file nothing of a module's own is lost by the seed.
            if section.initial != "file":
                return name
        elif torch.equal(first, second):
            if not torch.equal(own, first):
                return name
        elif _apart(own, torch.stack([first, second])):
            return name
    return None


def _apart(own: Tensor, drawn: Tensor) -> bool:
    """Return whether numbers can't be such as are drawn, beyond chance.

    They are all equal, or their root mean square is larger or smaller than of those
    drawn.
    """
    count = own.numel()
    if count > 1 and own.max() == own.min():
        return True
    if count < _FEW:
        return False
    own_size, drawn_size = (
        float(tensor.double().square().mean().sqrt()) for tensor in (own, drawn)
    )
    tolerance = _DEVIATIONS / math.sqrt(count)
    return abs(math.log(own_size / drawn_size)) > tolerance


def _drawn_again(module: nn.Module, seed: int) -> nn.Module:
    """Return a copy on the CPU whose layers have drawn their parameters anew.

    NaN stands for the parameters of a layer that isn't torch's and draws none. torch's
    own generator stays as it is.
    """
    drawn = copy.deepcopy(module).cpu()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the CPU's alone
        # An outer layer draws after the layers in it, and may draw over them.
        for layer in reversed(list(drawn.modules())):
            own = not type(layer).__module__.startswith("torch.")
            for name in ("reset_parameters", "_reset_parameters"):
                draw = getattr(layer, name, None)
                if callable(draw):
                    own = False
                    try:
                        draw()
                    except Exception:  # noqa: BLE001, S112 -- or one with arguments
                        continue
            if own:
                for parameter in layer.parameters(recurse=False):
                    nn.init.constant_(parameter, math.nan)
    return drawn


def check_file(module: nn.Module, path: Path) -> None:
    """Refuse a file of weights that holds more than the module, or other buffers.

    Raises Misconfiguration: names the tensor.
    """
    trained = dict(module.named_parameters())
    state = module.state_dict()
    with safe_open(path, framework="pt") as file:
        for name in sorted(set(file.keys()) - trained.keys()):
            if name not in state:
                fault = (
                    "isn't in the model: write its own state_dict(), or give the"
                    " architecture of the task whose model it is"
                )
            elif not torch.equal(file.get_tensor(name).float(), state[name].float()):
                fault = (
                    "differs from the model's, which isn't trained: let the model be"
                    " made so"
                )
            else:
                continue
            raise Misconfiguration(f"weights, tensor {name}", path, fault)


# --- buffers
# -----------------------------------------------------------------------------------


def buffers_of(module: nn.Module) -> list[dict[str, str]]:
    """Return the task's ``model.buffers``: tensors that aren't trained, with digests.

    Tensors that are no buffers, only a layer's attributes, are among them.
    """
    attributes = (
        (f"{prefix}.{name}".lstrip("."), value)
        for prefix, layer in module.named_modules()
        for name, value in vars(layer).items()
        if isinstance(value, Tensor)
    )
    return [
        {"name": name, "digest": _tensor_digest(name, tensor)}
        for name, tensor in (*module.named_buffers(), *attributes)
    ]


def check_buffers(module: nn.Module, section: ModelSection) -> None:
    """Refuse other buffers than the task's: owners would train two models as one.

    Raises Misconfiguration: names the first that differs.
    """
    own = {buffer["name"]: buffer["digest"] for buffer in buffers_of(module)}
    agreed = {buffer.name: buffer.digest for buffer in section.buffers}
    for name in (*agreed, *own):
        if own.get(name) == agreed.get(name):
            continue
        if name not in agreed:
            remedy = (
                "isn't in the task, and every owner must have the same: make the task"
                " from this module, by precad task new --model or"
                " precad.client.model_section"
            )
        else:
            fault = "has other numbers than the task's" if name in own else "is missing"
            remedy = (
                f"{fault}: give the module of the task, with the same constants, read"
                " from a file where they were computed"
            )
        raise Misconfiguration(f"model buffer {name}", type(module).__name__, remedy)


def _tensor_digest(name: str, tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's name, shape and numbers, in hexadecimal.

    Its numbers are taken as training has them: float32, or whole ones.
    """
    plain = tensor.detach().cpu()
    if tensor.is_floating_point():
        kind = "<f4"
        plain = plain.float()
    else:
        kind = "<c8" if tensor.is_complex() else "<i8"
    numbers = plain.numpy().astype(kind)
    context = encode_context(
        "model-buffer", name.encode(), kind.encode(), *numbers.shape
    )
    return hashlib.sha256(context + numbers.tobytes()).hexdigest()
