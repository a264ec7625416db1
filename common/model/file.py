"""A model's file: safetensors, named float64 tensors, and what it belongs to."""

import json
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from precad.common.description import Parameter
from precad.common.durable import write_file
from precad.common.errors import Misconfiguration, TaskMismatch
from precad.common.identifiers import Digest
from precad.common.model.vector import byte_view, model_digest, tensors
from precad.common.ring import WORD_BYTES
from precad.common.task import Task

FORMAT = "precad-model-1"
_ROUND = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A model as read from its file, checked against its task and its own digest."""

    version: int
    """t of θ_t: how many rounds it has been through."""
    theta: NDArray[np.float64]
    """``[d] float64``."""
    digest: Digest


def save_model(
    path: Path,
    task: Task,
    version: int,
    theta: NDArray[np.float64],
    digest: Digest | None = None,
    facts: Mapping[str, str] | None = None,
) -> Digest:
    """Writes θ_t and returns its digest; the file appears whole or not at all.

    Its metadata say which task and version it is of, and how privately it was trained.

    Args:
        path: where to.
        task: the model's shapes.
        version: t.
        theta: ``[d] float64``, θ_t.
        digest: its digest, where the caller has computed it.
        facts: further metadata.

    Raises:
        Misconfiguration: the vector's length isn't the task's d.
    """
    parameters = task.model.parameters
    digest = digest or model_digest(task.digest, version, parameters, theta)
    metadata = {
        **(facts or {}),
        "format": FORMAT,
        "task": str(task.digest),
        "task_name": task.name,
        "version": str(version),
        "model": str(digest),
        "private_training": json.dumps(
            {
                "rounds": version,
                "servers_with_noise": 2,
                "gradients": "clipped record by record, Poisson-sampled",
                **task.privacy.model_dump(exclude={"epsilon_limit", "cover_uploads"}),
            }
        ),
    }
    tensors(theta, parameters)  # raises for another length
    # The library's own writer would make copies of the vector first.
    write_file(path, _header(parameters, metadata), byte_view(theta))
    return digest


def _header(parameters: Iterable[Parameter], metadata: Mapping[str, str]) -> bytes:
    """What comes before the tensors, one after the other in the task's order.

    Source: the safetensors format.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    start = 0
    for parameter in parameters:
        end = start + parameter.size * WORD_BYTES
        shape, offsets = list(parameter.shape), [start, end]
        header[parameter.name] = {"dtype": "F64", "shape": shape, "data_offsets": offsets}
        start = end
    text = json.dumps(header).encode()
    # Padded, so that whoever maps the file finds the tensors aligned.
    text += b" " * (-len(text) % WORD_BYTES)
    return struct.pack("<Q", len(text)) + text


def load_model(path: Path, task: Task) -> SavedModel:
    """Reads what ``save_model`` wrote.

    Raises:
        Misconfiguration: the file can't be read, isn't a model of precad, has other tensors
            than the task, or its content doesn't fit its digest.
        TaskMismatch: the file belongs to another task.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise Misconfiguration("model file", str(path), f"can't be read: {error}") from None
    if metadata.get("format") != FORMAT:
        raise Misconfiguration("model file", str(path), f"isn't a {FORMAT} file")
    task_digest, count = metadata.get("task", ""), metadata.get("version", "")
    if task_digest != str(task.digest):
        raise TaskMismatch(str(task.digest), task_digest)
    if not _ROUND.fullmatch(count):
        raise Misconfiguration("model file, version", count, "must be a whole number")
    _check_tensors(named, task)
    theta = np.concatenate([named[parameter.name].ravel() for parameter in task.model.parameters])
    version = int(count)
    digest = model_digest(task.digest, version, task.model.parameters, theta)
    if metadata.get("model") != str(digest):
        raise Misconfiguration(
            "model file", str(path), f"its content has digest {digest}, not the one it states"
        )
    return SavedModel(version, theta, digest)


def _check_tensors(named: dict[str, NDArray[np.float64]], task: Task) -> None:
    expected = {parameter.name: parameter.shape for parameter in task.model.parameters}
    for name in sorted(expected.keys() | named.keys()):
        if name not in named or name not in expected:
            state = "is missing" if name in expected else "isn't one of the task's parameters"
            raise Misconfiguration(f"model file, tensor {name}", None, state)
        tensor = named[name]
        if tensor.dtype != np.float64 or tensor.shape != expected[name]:
            raise Misconfiguration(
                f"model file, tensor {name}",
                f"{tensor.dtype}{list(tensor.shape)}",
                f"must be float64{list(expected[name])}",
            )
