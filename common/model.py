"""The model as everybody agrees on it: one float32 vector, its digest, its step, its file.

Both servers compute every θ_t for themselves and must end with the same bytes, so
everything here is elementwise IEEE arithmetic in one fixed order, in float64, rounded
once to float32; nothing is reduced. The file is safetensors: named float32 tensors, and
what they belong to. A version that was made when models were float64 stays as it is: a
vector's own dtype says which it is.
"""

import hashlib
import json
import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from precad.common.errors import Misconfiguration, TaskMismatch
from precad.common.files import write_file
from precad.common.fixed_point import decode
from precad.common.identifiers import Digest
from precad.common.ring import WORD_BYTES, RingVector, encode_context
from precad.common.task import Task
from precad.common.task_schema import ModelSection, Parameter

Number = TypeVar("Number", bound=np.generic)
ModelVector = NDArray[np.floating[Any]]
"""θ, ``[d] float32``; ``[d] float64`` where it was made so."""
_PIECE = 1 << 15
"""Parameters that are stepped together: they stay in the processor's cache."""


def initial_vector(model: ModelSection) -> NDArray[np.float32]:
    """θ_0, ``[d] float32``, the same on every machine: ``unrounded_start``, to nearest even.

    Raises as ``unrounded_start``, and Misconfiguration: a weight is too large for
    float32.
    """
    with np.errstate(over="ignore"):
        theta = unrounded_start(model).astype(np.float32)
    if not np.isfinite(theta).all():
        why = "has a weight that float32 can't hold"
        raise Misconfiguration("model.initial_file", model.initial_file, why)
    return theta


def unrounded_start(model: ModelSection) -> NDArray[np.float64]:
    """What θ_0 is rounded from, ``[d] float64``.

    ``uniform``: fan-in is the product of all axes but the first; SHAKE-256 expands a
    tensor from the task's public ``initial_seed`` and the tensor's name. What has one
    axis has no fan-in: it is 1 where its name ends in ``weight`` (the scale of a
    normalisation layer), 0 otherwise (a bias).

    Raises Misconfiguration: the file can't be read, or isn't the one that the task
    means.
    """
    match model.initial:
        case "zeros":
            return np.zeros(sum(parameter.size for parameter in model.parameters))
        case "uniform":
            parts = [
                _initial_tensor(each, model.initial_seed) for each in model.parameters
            ]
            return np.concatenate(parts)
        case "file":
            field = "model.initial_file"
            path = Path(model.initial_file or "")
            source = (
                "everybody has it beside the task's file, from whoever made the task"
            )
            if not path.is_file():
                raise Misconfiguration(field, str(path), f"isn't there: {source}")
            theta = read_weights(path, model.parameters)
            found = weights_digest(theta)
            if found != model.initial_digest:
                why = (
                    f"their SHA-256 is {found}, the task's {model.initial_digest};"
                    f" {source}"
                )
                raise Misconfiguration(
                    field, str(path), f"has other weights than the task: {why}"
                )
            return theta


def weights_digest(theta: NDArray[np.float64]) -> str:
    """SHA-256 of weights, ``[d] float64``, whatever file they are in: ``model.initial_digest``."""
    return hashlib.sha256(
        encode_context("initial-weights") + to_bytes(theta)
    ).hexdigest()


def read_weights(path: Path, parameters: tuple[Parameter, ...]) -> NDArray[np.float64]:
    """Weights of a safetensors file, ``[d] float64``; what else it holds isn't looked at.

    Raises Misconfiguration: names the file, or the tensor that is missing or can't be
    one.
    """
    field = "model.initial_file"
    parts = []
    named, _ = _read_safetensors(field, path, [each.name for each in parameters])
    for parameter in parameters:
        tensor = named.get(parameter.name)
        found = "absent" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"
        if (
            tensor is None
            or (tensor.dtype.kind, tensor.shape) != ("f", parameter.shape)
            or not np.isfinite(tensor).all()
        ):
            remedy = (
                f"must be finite real numbers of shape {list(parameter.shape)}: write"
                " the whole model,"
                " safetensors.torch.save_file(net.float().state_dict(), FILE)"
            )
            raise Misconfiguration(f"{field}, tensor {parameter.name}", found, remedy)
        parts.append(tensor.astype(np.float64).ravel())
    return np.concatenate(parts)


def _read_safetensors(
    field: str, path: Path, wanted: Iterable[str] | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """A file's tensors by name, those that are wanted or all; and its metadata.

    Raises Misconfiguration: it can't be read, or holds numbers that NumPy hasn't.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys()) & set(file.keys() if wanted is None else wanted)
            return {
                name: file.get_tensor(name) for name in sorted(names)
            }, file.metadata() or {}
    except (OSError, SafetensorError, TypeError) as error:
        why = f"can't be read: {error}; give a safetensors file, float32 or float64"
        raise Misconfiguration(field, str(path), why) from None


def _initial_tensor(parameter: Parameter, seed: int) -> NDArray[np.float64]:
    if len(parameter.shape) < 2:  # noqa: PLR2004
        scale = parameter.name.rpartition(".")[2] == "weight"
        return np.full(parameter.size, 1.0 if scale else 0.0)
    context = encode_context("initial-parameters", seed, parameter.name.encode())
    stream = hashlib.shake_256(context).digest(parameter.size * WORD_BYTES)
    # The upper 53 bits, centred: a multiple of 2^−52 in [−1, 1), exact in float64.
    words = np.frombuffer(stream, dtype="<u8") >> np.uint64(11)
    centred = np.ldexp(words.astype(np.float64) - 2.0**52, -52)
    uniform: NDArray[np.float64] = centred / math.sqrt(math.prod(parameter.shape[1:]))
    return uniform


def to_bytes(theta: ModelVector) -> bytes:
    """Little-endian IEEE numbers of θ's own dtype, 4 or 8 bytes per element."""
    return bytes(byte_view(theta))


def byte_view(theta: ModelVector) -> memoryview:
    """The bytes of ``to_bytes`` without a copy, where the machine is little-endian."""
    little = theta.astype(theta.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).data.cast("B")


def most_bytes(dimension: int) -> int:
    """The longest that a model of this task may be: 8 bytes an element, of before float32."""
    return dimension * np.dtype(np.float64).itemsize


def little_endian(length: int, dimension: int) -> np.dtype[np.floating[Any]]:
    """Whether so many bytes of a model are float32 or float64.

    Raises Misconfiguration: neither.
    """
    for dtype in (np.dtype("<f4"), np.dtype("<f8")):
        if length == dimension * dtype.itemsize:
            return dtype
    right = f"{4 * dimension}, or {most_bytes(dimension)} where it is an old one"
    raise Misconfiguration("model", f"{length} bytes", f"this task's model has {right}")


def from_bytes(data: bytes | bytearray | memoryview, dimension: int) -> ModelVector:
    """Inverse of ``to_bytes``: ``[dimension]``, a copy that may be written to.

    Whether a version is float32 or float64, its length says, and its digest whether
    that is right.

    Raises Misconfiguration: the length is neither's, or an element is NaN or infinite.
    """
    dtype = little_endian(len(data), dimension)
    theta = np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))
    if not np.isfinite(theta).all():
        raise Misconfiguration(
            "model", "NaN or infinity", "every parameter must be finite"
        )
    return theta


def tensors(
    theta: NDArray[Number], parameters: Iterable[Parameter]
) -> dict[str, NDArray[Number]]:
    """The vector as named tensors, views into ``theta``, in the task's order.

    Raises Misconfiguration: the vector's length isn't the parameters' total size.
    """
    parameters = tuple(parameters)
    *starts, size = accumulate((each.size for each in parameters), initial=0)
    if theta.shape != (size,):
        raise Misconfiguration(
            "model", f"shape {list(theta.shape)}", f"must be [{size}]"
        )
    return {
        each.name: theta[start : start + each.size].reshape(each.shape)
        for start, each in zip(starts, parameters, strict=True)
    }


def model_digest(
    task_digest: Digest,
    version: int,
    parameters: Iterable[Parameter],
    theta: ModelVector,
) -> Digest:
    """SHA-256 over task digest, round, names and shapes, and the bytes of θ's own dtype.

    Raises Misconfiguration: the vector's length isn't the parameters' total size.
    """
    parameters = tuple(parameters)
    tensors(theta, parameters)
    shapes = [
        encode_context("tensor", each.name.encode(), *each.shape) for each in parameters
    ]
    digest = hashlib.sha256(
        encode_context("model", task_digest.value, version, *shapes)
    )
    digest.update(struct.pack("<Q", theta.size))
    digest.update(byte_view(theta))
    return Digest(digest.digest())


def apply_update(
    theta: ModelVector,
    total: RingVector,
    task: Task,
    denominator: float,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """θ_{t+1} = θ_t + (η/denominator)·S·2^−f; PRECAD eq. (2) with the fixed denominator.

    It is calculated in float64 and rounded to float32, which is post-processing of what
    is released: no guarantee changes. A parameter moves by at most 2^−24 of its size,
    6e-8; the noise of one step of the demo's is 0.03. Three roundings an element, in
    this order, each to nearest even, and no sum over elements: the same bytes on every
    machine.

    ``total`` is S, ``[d] int64``: the sum of valid updates and both servers' noise; the
    denominator is ``Roster.denominator``. ``out`` takes the result, ``[d] float32``,
    and may be ``theta``.

    Raises Misconfiguration: shapes differ from the task's d, the denominator isn't
    positive and finite, or a parameter would no longer be finite.
    """
    for name, vector in (("theta", theta), ("total", total)):
        if vector.shape != (task.dimension,):
            shape = f"shape {list(vector.shape)}"
            raise Misconfiguration(name, shape, f"must be [{task.dimension}]")
    if not (denominator > 0 and math.isfinite(denominator)):
        raise Misconfiguration(
            "denominator", denominator, "must be positive and finite"
        )
    step = task.training.learning_rate / denominator
    moved = np.empty(theta.size, np.float32) if out is None else out
    finite = True
    with np.errstate(over="ignore", invalid="ignore"):
        # In pieces: a large model has room for few vectors.
        for start in range(0, theta.size, _PIECE):
            piece = slice(start, start + _PIECE)
            stepped = decode(total[piece], task.fractional_bits)
            stepped *= step
            stepped += theta[piece]
            moved[piece] = stepped
            finite = finite and bool(np.isfinite(moved[piece]).all())
    if not finite:
        why = (
            f"with denominator {denominator} the model overflows; lower the learning"
            " rate"
        )
        raise Misconfiguration(
            "training.learning_rate", task.training.learning_rate, why
        )
    return moved


FORMAT = "precad-model-1"
_ROUND = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A model as read from its file, checked against its task and its own digest: θ_t, ``[d]``."""

    version: int
    theta: ModelVector
    digest: Digest


def save_model(
    path: Path,
    task: Task,
    version: int,
    theta: ModelVector,
    digest: Digest | None = None,
    facts: Mapping[str, str] | None = None,
) -> Digest:
    """Write θ_t, ``[d]`` in its dtype, and return its digest; the file appears whole or not at all.

    Its metadata say which task and version it is of, how privately it was trained, and
    ``facts``.

    Raises Misconfiguration: the vector's length isn't the task's d.
    """
    parameters = task.model.parameters
    digest = digest or model_digest(task.digest, version, parameters, theta)
    private_training = {
        "rounds": version,
        "servers_with_noise": 2,
        "gradients": "clipped record by record, Poisson-sampled",
        **task.privacy.model_dump(exclude={"epsilon_limit", "cover_uploads"}),
    }
    metadata = {
        **(facts or {}),
        "format": FORMAT,
        "task": str(task.digest),
        "task_name": task.name,
        "version": str(version),
        "model": str(digest),
        "private_training": json.dumps(private_training),
    }
    tensors(theta, parameters)  # raises for another length
    # The library's own writer would make copies of the vector first.
    write_file(
        path, _header(parameters, metadata, theta.dtype.itemsize), byte_view(theta)
    )
    return digest


def _header(
    parameters: Iterable[Parameter], metadata: Mapping[str, str], each: int
) -> bytes:
    """What comes before the tensors, in the task's order.

    Source: the safetensors format.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for parameter in parameters:
        start = end
        end = end + parameter.size * each
        place = {"shape": list(parameter.shape), "data_offsets": [start, end]}
        header[parameter.name] = {"dtype": f"F{8 * each}"} | place
    text = json.dumps(header).encode()
    # Padded, so that whoever maps the file finds the tensors aligned.
    text += b" " * (-len(text) % WORD_BYTES)
    return struct.pack("<Q", len(text)) + text


def load_model(path: Path, task: Task) -> SavedModel:
    """Read what ``save_model`` wrote.

    Raises Misconfiguration: the file can't be read, isn't a model of precad, has other
    tensors than the task, or its content doesn't fit its digest; TaskMismatch: it
    belongs to another task.
    """
    named, metadata = _read_safetensors("model file", path)
    if metadata.get("format") != FORMAT:
        raise Misconfiguration("model file", str(path), f"isn't a {FORMAT} file")
    task_digest = metadata.get("task", "")
    count = metadata.get("version", "")
    if task_digest != str(task.digest):
        raise TaskMismatch(str(task.digest), task_digest)
    if not _ROUND.fullmatch(count):
        raise Misconfiguration("model file, version", count, "must be a whole number")
    _check_tensors(named, task)
    theta = np.concatenate([named[each.name].ravel() for each in task.model.parameters])
    version = int(count)
    digest = model_digest(task.digest, version, task.model.parameters, theta)
    if metadata.get("model") != str(digest):
        why = f"its content has digest {digest}, not the one it states"
        raise Misconfiguration("model file", str(path), why)
    return SavedModel(version, theta, digest)


def _check_tensors(named: dict[str, NDArray[Any]], task: Task) -> None:
    expected = {parameter.name: parameter.shape for parameter in task.model.parameters}
    # All of them, or none: which one is odd mustn't depend on their order in the file.
    old = all(tensor.dtype == np.float64 for tensor in named.values())
    dtype = np.dtype(np.float64 if old else np.float32)
    for name in sorted(expected.keys() | named.keys()):
        if name not in named or name not in expected:
            state = (
                "is missing"
                if name in expected
                else "isn't one of the task's parameters"
            )
            raise Misconfiguration(f"model file, tensor {name}", None, state)
        tensor = named[name]
        if tensor.dtype != dtype or tensor.shape != expected[name]:
            found = f"{tensor.dtype}{list(tensor.shape)}"
            wanted = f"{dtype}{list(expected[name])}"
            raise Misconfiguration(
                f"model file, tensor {name}", found, f"must be {wanted}"
            )
