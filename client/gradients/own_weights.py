"""What a module brings besides its shapes, weights and buffers: the task's own, or refused.

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

from precad.common.errors import Misconfiguration
from precad.common.model import initial_vector, tensors
from precad.common.ring import encode_context
from precad.common.task_schema import ModelSection

_DEVIATIONS = 5.0
"""How far the size of a fresh tensor's numbers may lie from other draws', in
deviations."""
_FEW = 8


def check_weights(module: nn.Module, section: ModelSection) -> None:
    """Refuse weights that somebody chose and that training wouldn't start from.

    Weights as torch's layers draw them are nobody's choice, and pass.

    Raises Misconfiguration: names a parameter and both ways out.
    """
    name = _chosen(module, section)
    if name is not None:
        file = section.initial == "file"
        start = "the file's weights" if file else f'model.initial = "{section.initial}"'
        raise Misconfiguration(
            f"model parameter {name}",
            type(module).__name__,
            f"has weights of its own, and the task starts from {start}: to start from"
            " these, write them by safetensors.torch.save_file(net.state_dict(), FILE)"
            " and make the task by precad task new --from FILE; to start from the"
            " task's, give the module as torch's layers draw it, or after"
            " precad.client.load_initial(net, task)",
        )


def _chosen(module: nn.Module, section: ModelSection) -> str | None:
    """The first parameter that is neither the task's start nor such as its layer draws.

    Compared with two other draws: a constant must be the same one, other numbers about
    as large. Of a few numbers that aren't all one, and of a parameter that no layer's
    ``reset_parameters`` draws, nothing is known.
    """
    start = tensors(initial_vector(section), section.parameters)
    draws = [dict(_drawn_again(module, turn).named_parameters()) for turn in (0, 1)]
    for name, tensor in module.named_parameters():
        every = (
            tensor,
            torch.from_numpy(start[name]),
            *(drawn[name] for drawn in draws),
        )
        given, begun, one, other = (each.detach().cpu().float() for each in every)
        if torch.equal(given, begun):
            continue
        if torch.equal(one, other):
            if not torch.equal(given, one):
                return name
        elif _apart(given, torch.stack([one, other])):
            return name
    return None


def _apart(given: Tensor, drawn: Tensor) -> bool:
    """Whether numbers are all one, or larger or smaller than such as are drawn, beyond chance."""
    if given.numel() > 1 and given.max() == given.min():
        return True
    if given.numel() < _FEW:
        return False
    sizes = [float(each.double().square().mean().sqrt()) for each in (given, drawn)]
    return abs(math.log(sizes[0] / sizes[1])) > _DEVIATIONS / math.sqrt(given.numel())


def _drawn_again(module: nn.Module, turn: int) -> nn.Module:
    """A copy whose layers have drawn their parameters anew; torch's generator stays as it is."""
    other = copy.deepcopy(module).cpu()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(turn)  # no device's
        # An outer layer's own start comes after those of the layers in it.
        for layer in reversed(list(other.modules())):
            for name in ("reset_parameters", "_reset_parameters"):
                draw = getattr(layer, name, None)
                if callable(draw):
                    try:
                        draw()
                    except Exception:  # noqa: BLE001, S112 -- one that is told more, or has to be
                        continue
    return other


def check_file(module: nn.Module, path: Path) -> None:
    """Refuse a file of weights that holds more than the module, or other buffers.

    Raises Misconfiguration: names the tensor.
    """
    trained = dict(module.named_parameters())
    state = module.state_dict()
    with safe_open(path, framework="pt") as file:
        for name in sorted(set(file.keys()) - trained.keys()):
            if name not in state:
                fault = "isn't in the model: write its own state_dict()"
            elif not torch.equal(file.get_tensor(name).float(), state[name].float()):
                fault = (
                    "differs from the model's, which isn't trained: let the model be"
                    " made so"
                )
            else:
                continue
            raise Misconfiguration(f"weights, tensor {name}", str(path), fault)


# --- buffers
# -----------------------------------------------------------------------------------


def buffers_of(module: nn.Module) -> list[dict[str, str]]:
    """The task's ``model.buffers``: each tensor that isn't trained, with its digest.

    Those that are only a layer's attributes, too.
    """
    attributes = (
        (f"{prefix}.{name}".lstrip("."), value)
        for prefix, layer in module.named_modules()
        for name, value in vars(layer).items()
        if isinstance(value, Tensor)
    )
    fixed = (*module.named_buffers(), *attributes)
    return [
        {"name": name, "digest": _tensor_digest(name, each)} for name, each in fixed
    ]


def check_buffers(module: nn.Module, section: ModelSection) -> None:
    """Refuse other buffers than the task's: owners would train two models as one.

    Raises Misconfiguration: names the first that differs.
    """
    found = {each["name"]: each["digest"] for each in buffers_of(module)}
    agreed = {each.name: each.digest for each in section.buffers}
    for name in (*agreed, *found):
        if found.get(name) == agreed.get(name):
            continue
        if name not in agreed:
            remedy = (
                "isn't in the task, and every owner must have the same: make the task"
                " from this module, by precad task new --model or"
                " precad.client.model_section"
            )
        else:
            fault = (
                "has other numbers than the task's" if name in found else "is missing"
            )
            remedy = (
                f"{fault}: give the module of the task, with the same constants, read"
                " from a file where they were computed"
            )
        raise Misconfiguration(f"model buffer {name}", type(module).__name__, remedy)


def _tensor_digest(name: str, tensor: Tensor) -> str:
    """Of its numbers as training has them: float32, or whole ones."""
    real = tensor.is_floating_point()
    kind = "<f4" if real else "<c8" if tensor.is_complex() else "<i8"
    plain = tensor.detach().cpu()
    numbers = (plain.float() if real else plain).numpy().astype(kind)
    context = encode_context(
        "model-buffer", name.encode(), kind.encode(), *numbers.shape
    )
    return hashlib.sha256(context + numbers.tobytes()).hexdigest()
