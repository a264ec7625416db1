"""The model that all parties agree on: its vector, digest, steps and file.

Both servers compute every θ_t themselves and must end with the same bytes. So
everything here is elementwise IEEE arithmetic in one fixed order, in float64, rounded
once to float32, and nothing is summed over elements. The file is safetensors: named
float32 tensors, and metadata that say what they belong to. A version that was made when
models were float64 stays as it is: a vector's own dtype says which it is.
"""

import hashlib
import json
import math
import re
import struct
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from precad.common import (
    WORD_BYTES,
    AnyNumbers,
    DataSection,
    Digest,
    Floats,
    Floats32,
    Misconfiguration,
    ModelSection,
    Parameter,
    RingVector,
    Task,
    TaskMismatch,
    digest_of,
    encode_context,
    frozen_dataclass,
    write_file,
)
from precad.common.fixed_point import decode
from precad.common.short_words import rounded

Number = TypeVar("Number", bound=np.generic)
"""The dtype of a vector that is cut into tensors."""
ModelVector = NDArray[np.floating]
"""θ, ``[d] float32``, or ``[d] float64`` of a version that was made so."""
_PIECE = 1 << 15
"""Parameters that are stepped together: they stay in the processor's cache."""


def initial_vector(model: ModelSection) -> Floats32:
    """Return θ_0, ``[d] float32``, the same on every machine.

    It is ``unrounded_start``, rounded to the nearest, ties to even.

    Raises Misconfiguration: as ``unrounded_start``, or a weight is too large for
    float32.
    """
    with np.errstate(over="ignore"):
        theta = unrounded_start(model).astype(np.float32)
    if not np.isfinite(theta).all():
        raise Misconfiguration(
            "model.initial_file",
            model.initial_file,
            "has a weight that float32 can't hold",
        )
    return theta


def unrounded_start(model: ModelSection) -> Floats:
    """Return what θ_0 is rounded from, ``[d] float64``, by ``model.initial``.

    ``zeros``: all are 0. ``file``: the weights of ``model.initial_file``. ``uniform``:
    SHAKE-256 expands each tensor from the task's public ``initial_seed`` and the
    tensor's name, uniform in ±1/√(fan-in); fan-in is the product of all axes but the
    first. A tensor of one axis has no fan-in: it is 1 where its name ends in ``weight``
    (the scale of a normalisation layer), and 0 otherwise (a bias).

    Raises Misconfiguration: the file can't be read, or isn't the one that the task
    means.
    """
    match model.initial:
        case "zeros":
            return np.zeros(sum(parameter.size for parameter in model.parameters))
        case "uniform":
            parts = [
                _initial_tensor(parameter, model.initial_seed)
                for parameter in model.parameters
            ]
            return np.concatenate(parts)
        case "file":
            return _initial_file_weights(model)


def _initial_file_weights(model: ModelSection) -> Floats:
    """Return the weights of the task's initial file, ``[d] float64``.

    Raises Misconfiguration: the file isn't there, can't be read, or has other weights
    than the task's digest of them.
    """
    field = "model.initial_file"
    path = Path(model.initial_file or "")
    source = "everybody has it beside the task's file, from whoever made the task"
    if not path.is_file():
        raise Misconfiguration(field, model.initial_file, f"isn't there: {source}")
    theta = read_weights(path, model.parameters)
    digest = weights_digest(theta)
    if digest != model.initial_digest:
        raise Misconfiguration(
            field,
            path,
            f"has other weights than the task: their SHA-256 is {digest}, the task's"
            f" {model.initial_digest}; {source}",
        )
    return theta


def weights_digest(theta: Floats) -> str:
    """Return the SHA-256 of weights, ``[d] float64``, in hexadecimal.

    ``model.initial_digest`` holds it. It doesn't depend on the file's form.
    """
    encoded = encode_context("initial-weights") + to_bytes(theta)
    return hashlib.sha256(encoded).hexdigest()


def read_weights(path: Path, parameters: tuple[Parameter, ...]) -> Floats:
    """Return these parameters' weights in a safetensors file, ``[d] float64``.

    Other tensors of the file aren't looked at.

    Raises Misconfiguration, which names the file, or the tensor that is missing, of
    another shape, or not of finite real numbers.
    """
    field = "model.initial_file"
    named, metadata = _read_safetensors(
        field, path, [parameter.name for parameter in parameters]
    )
    remedy = (
        "write the whole model,"
        " safetensors.torch.save_file(net.float().state_dict(), FILE)"
    )
    if "task_name" in metadata:
        remedy = (
            f"the file is the model of task {metadata['task_name']}: give a task of its"
            " architecture, features and classes, or public weights of this model"
        )
    parts = []
    for parameter in parameters:
        tensor = named.get(parameter.name)
        if (
            tensor is None
            or tensor.dtype.kind != "f"
            or tensor.shape != parameter.shape
            or not np.isfinite(tensor).all()
        ):
            raise Misconfiguration(
                f"{field}, tensor {parameter.name}",
                "absent" if tensor is None else _shape_of(tensor),
                f"must be finite real numbers of shape {list(parameter.shape)}: {remedy}",
            )
        parts.append(tensor.astype(np.float64).ravel())
    return np.concatenate(parts)


def _shape_of(tensor: AnyNumbers) -> str:
    """Return dtype and shape as errors show them, like ``float32[10, 3]``."""
    return f"{tensor.dtype}{list(tensor.shape)}"


def _read_safetensors(
    field: str, path: Path, wanted: Iterable[str] | None = None
) -> tuple[dict[str, AnyNumbers], dict[str, str]]:
    """Return a file's tensors by name, all or those of ``wanted``, and its metadata.

    Raises Misconfiguration: it can't be read, or holds numbers that NumPy hasn't.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys())
            if wanted is not None:
                names &= set(wanted)
            named = {name: file.get_tensor(name) for name in sorted(names)}
            return named, file.metadata() or {}
    except (OSError, SafetensorError, TypeError) as error:
        raise Misconfiguration(
            field,
            path,
            f"can't be read: {error}; give a safetensors file, float32 or float64",
        ) from None


def _initial_tensor(parameter: Parameter, seed: int) -> Floats:
    """Return a tensor's start under ``uniform``, flat; see ``unrounded_start``."""
    if len(parameter.shape) < 2:  # noqa: PLR2004
        is_scale = parameter.name.rpartition(".")[2] == "weight"
        return np.full(parameter.size, 1.0 if is_scale else 0.0)
    context = encode_context("initial-parameters", seed, parameter.name.encode())
    stream = hashlib.shake_256(context).digest(parameter.size * WORD_BYTES)
    # The upper 53 bits, centred: a multiple of 2^−52 in [−1, 1), exact in float64.
    words = np.frombuffer(stream, dtype="<u8") >> np.uint64(11)
    centred = np.ldexp(words.astype(np.float64) - 2.0**52, -52)
    return centred / math.sqrt(math.prod(parameter.shape[1:]))


def to_bytes(theta: ModelVector) -> bytes:
    """Return little-endian IEEE numbers of θ's own dtype, 4 or 8 bytes an element."""
    return bytes(byte_view(theta))


def byte_view(theta: ModelVector) -> memoryview:
    """Return the bytes of ``to_bytes``, on a little-endian machine without a copy."""
    little = theta.astype(theta.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).data.cast("B")


def most_bytes(dimension: int) -> int:
    """Return the most bytes of a task's model: 8 an element, as before float32."""
    return dimension * np.dtype(np.float64).itemsize


def little_endian(length: int, dimension: int) -> np.dtype[np.floating]:
    """Return the dtype, float32 or float64, of a model of ``length`` bytes.

    Raises Misconfiguration: d elements of neither have this length.
    """
    for dtype in (np.dtype("<f4"), np.dtype("<f8")):
        if length == dimension * dtype.itemsize:
            return dtype
    right = f"{4 * dimension}, or {most_bytes(dimension)} where it is an old one"
    raise Misconfiguration("model", f"{length} bytes", f"this task's model has {right}")


def from_bytes(data: bytes | bytearray | memoryview, dimension: int) -> ModelVector:
    """Return the vector whose ``to_bytes`` is ``data``, as a copy that may be changed.

    Its length says whether a version is float32 or float64, and its digest whether that
    is right.

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
    theta: NDArray[Number], parameters: Collection[Parameter]
) -> dict[str, NDArray[Number]]:
    """Return the vector as named tensors, views into ``theta``, in the task's order.

    Raises Misconfiguration: the vector's length isn't the parameters' total size.
    """
    size = sum(parameter.size for parameter in parameters)
    if theta.shape != (size,):
        raise Misconfiguration(
            "model", f"shape {list(theta.shape)}", f"must be [{size}]"
        )
    named = {}
    start = 0
    for parameter in parameters:
        stop = start + parameter.size
        named[parameter.name] = theta[start:stop].reshape(parameter.shape)
        start = stop
    return named


def model_digest(
    task_digest: Digest,
    version: int,
    parameters: Collection[Parameter],
    theta: ModelVector,
) -> Digest:
    """Return the SHA-256 over task digest, version, names, shapes and θ's bytes.

    The bytes are those of θ's own dtype.

    Raises Misconfiguration: the vector's length isn't the parameters' total size.
    """
    shapes = [
        encode_context("tensor", name.encode(), *part.shape)
        for name, part in tensors(theta, parameters).items()
    ]
    digest = hashlib.sha256(
        encode_context("model", task_digest.value, version, *shapes)
    )
    digest.update(struct.pack("<Q", theta.size))
    digest.update(byte_view(theta))
    return Digest(digest.digest())


def digest_of_model(task: Task, version: int, theta: ModelVector) -> Digest:
    """Return the digest of a task's θ_t, of ``version`` t.

    Raises Misconfiguration: the vector's length isn't the task's d.
    """
    return model_digest(task.digest, version, task.mechanism.parameters, theta)


def apply_update(
    theta: ModelVector,
    total: RingVector,
    task: Task,
    denominator: float,
    out: Floats32 | None = None,
) -> ModelVector:
    """Return the next model, θ_{t+1} = θ_t + (η/denominator)·S·2^−f, ``[d] float32``.

    Of a task that asks, S·2^−f itself, ``[d] float64``: exact below 2^53, and nothing
    is divided or added.

    PRECAD eq. (2) with the fixed denominator, ``Mechanism.denominator``. ``total`` is
    S, ``[d] int64``: the sum of valid updates and both servers' noise; of a task with
    compact releases its multiple of 2^k (``rounded``), whoever takes the step. ``out``
    takes the result, and may be ``theta``.

    Three roundings an element in float64, in this order, each to nearest even, and no
    sum over elements: the same bytes on every machine. Rounding to float32 is
    post-processing of what is released: no guarantee changes. A parameter moves by at
    most 2^−24 of its size, 6e-8; the noise of one step of the demo's is 0.03.

    Raises Misconfiguration: shapes differ from the task's d, the denominator isn't
    positive and finite, or a parameter would no longer be finite.
    """
    for name, vector in (("theta", theta), ("total", total)):
        if vector.shape != (task.dimension,):
            raise Misconfiguration(
                name, f"shape {list(vector.shape)}", f"must be [{task.dimension}]"
            )
    mechanism = task.mechanism
    if mechanism.step is None:
        return decode(total, task.fractional_bits)
    if not (denominator > 0 and math.isfinite(denominator)):
        raise Misconfiguration(
            "denominator", denominator, "must be positive and finite"
        )
    step = mechanism.step.learning_rate / denominator
    moved = np.empty(theta.size, np.float32) if out is None else out
    finite = True
    with np.errstate(over="ignore", invalid="ignore"):
        # In pieces: a large model has room for few vectors.
        for start in range(0, theta.size, _PIECE):
            piece = slice(start, start + _PIECE)
            some = rounded(total[piece], mechanism) << mechanism.step_shift
            stepped = decode(some, task.fractional_bits)
            stepped *= step
            stepped += theta[piece]
            moved[piece] = stepped
            finite = finite and bool(np.isfinite(moved[piece]).all())
    if not finite:
        raise Misconfiguration(
            "training.learning_rate",
            mechanism.step.learning_rate,
            f"with denominator {denominator} the model overflows; lower the learning"
            " rate",
        )
    return moved


FORMAT = "precad-model-1"
"""What the metadata of a model's file name as its format."""
_VERSION = re.compile(r"[0-9]{1,18}")


@frozen_dataclass
class SavedModel:
    """A model from its file, which fits its task and its own digest."""

    version: int
    theta: ModelVector
    """θ_t, ``[d]``."""
    digest: Digest


def save_model(
    path: Path,
    task: Task,
    version: int,
    theta: ModelVector,
    digest: Digest | None = None,
    facts: Mapping[str, str] | None = None,
) -> Digest:
    """Write θ_t, ``[d]`` in its own dtype, to a file; return its digest.

    The file appears whole or not at all. Its metadata say which task and version it is
    of, how privately it was trained, and ``facts``. ``digest`` is θ_t's where it is
    known already.

    Raises Misconfiguration: the vector's length isn't the task's d.
    """
    unit = task.mechanism.unit
    digest = digest or digest_of_model(task, version, theta)
    private_training = {
        "rounds": version,
        "servers_with_noise": 2,
        "gradients": f"clipped {unit} by {unit}, Poisson-sampled"
        if task.mechanism.step
        else "none: every record answered",
        **task.privacy.model_dump(
            exclude={"epsilon_limit", "cover_uploads"},
            exclude_none=True,
        ),
    }
    metadata = {
        **(facts or {}),
        "format": FORMAT,
        "task": str(task.digest),
        "task_name": task.name,
        "version": str(version),
        "model": str(digest),
        "recipe": recipe_digest(task.data),
        "private_training": json.dumps(private_training),
        "class_weights": json.dumps(task.training.class_weights),
    }
    header = _header(tensors(theta, task.mechanism.parameters), metadata)
    # The library's own writer would make copies of the vector first.
    write_file(path, header, byte_view(theta))
    return digest


def recipe_digest(recipe: DataSection | None) -> str:
    """Return the SHA-256 of a recipe, in hexadecimal; of none the empty text."""
    if recipe is None:
        return ""
    written = recipe.model_dump_json(exclude_defaults=True).encode()
    return str(digest_of("recipe", written))


def trained_model(path: Path) -> dict[str, str]:
    """Return the metadata of a file that ``save_model`` wrote; of another, none.

    Raises Misconfiguration: it can't be read.
    """
    _, metadata = _read_safetensors("model file", path, ())
    return metadata if metadata.get("format") == FORMAT else {}


def continued(task: Task) -> dict[str, str]:
    """Return the metadata of the trained model that a task starts from, or none.

    Raises Misconfiguration: the file can't be read.
    """
    file = task.model.initial_file
    return {} if file is None else trained_model(Path(file))


def _header(
    named: Mapping[str, NDArray[np.floating]], metadata: Mapping[str, str]
) -> bytes:
    """Return the header of a safetensors file, before the tensors in the task's order.

    Its length in 8 bytes, then JSON: metadata, and each tensor's dtype, shape and
    place. Source: the safetensors format.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in named.items():
        start = end
        end += tensor.nbytes
        header[name] = {
            "dtype": f"F{8 * tensor.itemsize}",
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    # Padded, so that a program that maps the file finds the tensors aligned.
    text += b" " * (-len(text) % WORD_BYTES)
    return struct.pack("<Q", len(text)) + text


def load_model(path: Path, task: Task) -> SavedModel:
    """Return the model of a file that ``save_model`` wrote.

    Raises Misconfiguration: the file can't be read, isn't a model of precad, has other
    tensors than the task, or its content doesn't fit its digest; TaskMismatch: it
    belongs to another task.
    """
    named, metadata = _read_safetensors("model file", path)
    if metadata.get("format") != FORMAT:
        raise Misconfiguration("model file", path, f"isn't a {FORMAT} file")
    task_digest = metadata.get("task", "")
    version_text = metadata.get("version", "")
    if task_digest != str(task.digest):
        raise TaskMismatch(str(task.digest), task_digest)
    if not _VERSION.fullmatch(version_text):
        raise Misconfiguration(
            "model file, version", version_text, "must be a whole number"
        )
    _check_tensors(named, task)
    theta = np.concatenate(
        [named[parameter.name].ravel() for parameter in task.mechanism.parameters]
    )
    version = int(version_text)
    digest = digest_of_model(task, version, theta)
    if metadata.get("model") != str(digest):
        raise Misconfiguration(
            "model file",
            path,
            f"its content has digest {digest}, not the one it states",
        )
    return SavedModel(version, theta, digest)


def _check_tensors(named: Mapping[str, AnyNumbers], task: Task) -> None:
    """Raise Misconfiguration where tensors aren't the task's: names, dtypes, shapes."""
    expected = {
        parameter.name: parameter.shape for parameter in task.mechanism.parameters
    }
    # All of them are float64, or none: which tensor an error names mustn't depend on
    # their order in the file.
    old = all(tensor.dtype == np.float64 for tensor in named.values())
    dtype = np.dtype(np.float64 if old else np.float32)
    for name in sorted(expected.keys() | named.keys()):
        field = f"model file, tensor {name}"
        if name not in named:
            raise Misconfiguration(field, None, "is missing")
        if name not in expected:
            raise Misconfiguration(field, None, "isn't one of the task's parameters")
        tensor = named[name]
        if tensor.dtype != dtype or tensor.shape != expected[name]:
            raise Misconfiguration(
                field, _shape_of(tensor), f"must be {dtype}{list(expected[name])}"
            )
