"""Arrays in IDX files, as MNIST and Fashion-MNIST are published: packed by gzip or not."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration

_UNSIGNED_BYTES = 8
_MOST_BYTES = 2**30


def find_idx(folders: tuple[Path, ...], name: str) -> Path | None:
    """The file of this name, as it is or with ``.gz``, in the first folder that has it."""
    tried = (folder / each for folder in folders for each in (name, f"{name}.gz"))
    return next((path for path in tried if path.is_file()), None)


def read_idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """An array of bytes: two zeros, the type, the number of axes, their sizes, the values.

    Raises:
        Misconfiguration: the file can't be read, or isn't one array of bytes with so many axes.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(_MOST_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise _refusal(path, str(error)) from None
    start = 4 + 4 * axes
    if len(data) < start or data[:4] != bytes((0, 0, _UNSIGNED_BYTES, axes)):
        raise _refusal(path, f"isn't an array of bytes with {axes} axes")
    shape = [int(size) for size in np.frombuffer(data[4:start], ">u4")]
    if len(data) - start != math.prod(shape):
        raise _refusal(path, f"has {len(data) - start} values, its head says {math.prod(shape)}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _refusal(path: Path, why: str) -> Misconfiguration:
    return Misconfiguration(
        "data folder", str(path), f"can't be read as an IDX file ({why}); fetch it again"
    )
