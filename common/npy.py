"""Arrays from NumPy files that anybody may have written: never unpickled, numbers only."""

import os
import sys
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any, TypeAlias
from zipfile import BadZipFile

import numpy as np

from precad.common.errors import Misconfiguration

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_UNREADABLE = (
    *(OSError, ValueError, EOFError, zlib.error),
    # Headers are Python literals, which may announce any length.
    *(SyntaxError, TokenError, TypeError, RecursionError, MemoryError, OverflowError),
    # Zip's many features.
    *(BadZipFile, KeyError, NotImplementedError, RuntimeError),
)
"""What NumPy and zipfile raise for files that are damaged or made up."""
_SHOWN = 8
_USUAL_MEMORY = 16 << 30


def read_npy(field: str, path: Path) -> Array:
    """The array of a ``.npy`` file, mapped and not yet read.

    Raises Misconfiguration: no such file, no array of numbers, or shorter than its
    header says.
    """
    try:
        array: Array = np.lib.format.open_memmap(path, mode="r")
    except _UNREADABLE as error:
        raise _refusal(field, path, error) from None
    return _numbers(field, path, array)


def read_npz(field: str, path: Path, *names: str) -> tuple[Array, ...]:
    """The arrays of these names in a ``.npz`` file.

    Raises Misconfiguration: no such file or array, or an array of something else than
    numbers.
    """
    try:
        with (
            path.open("rb") as opened,
            np.lib.npyio.NpzFile(opened, allow_pickle=False) as file,
        ):
            missing = [name for name in names if name not in file]
            packed: Any = file.zip
            arrays = (each for each in packed.infolist() if each.filename[:-4] in names)
            require_room(field, path, sum(each.file_size for each in arrays))
            found = [] if missing else [np.asarray(file[name]) for name in names]
            there = ", ".join(list(file)[:_SHOWN]) or "none"
    except _UNREADABLE as error:
        raise _refusal(field, path, error) from None
    if missing:
        remedy = (
            f"has no array {missing[0]}, but {there}: save {' and '.join(names)} in it"
        )
        raise Misconfiguration(field, str(path), remedy)
    return tuple(_numbers(field, path, array) for array in found)


def require_room(field: str, path: Path, unpacked: int) -> None:
    """Refuse a compressed file before it is unpacked: to more than half of this machine's memory.

    Raises Misconfiguration.
    """
    memory = memory_bytes()
    if unpacked > memory // 2:
        remedy = (
            f"unpacks to {unpacked / 2**30:,.1f} GiB, and this machine has"
            f" {memory / 2**30:,.1f} GiB of memory: if it is the right file, give fewer"
            " records, or use a larger machine"
        )
        raise Misconfiguration(field, str(path), remedy)


def memory_bytes() -> int:
    """Memory of this machine, or what most have where it doesn't say."""
    if sys.platform == "win32":
        return _USUAL_MEMORY
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return _USUAL_MEMORY


def _numbers(field: str, path: Path, array: Array) -> Array:
    if array.dtype.kind not in "biuf":
        raise Misconfiguration(
            field, str(path), f"holds {array.dtype}; give an array of numbers"
        )
    return array


def _refusal(field: str, path: Path, error: BaseException) -> Misconfiguration:
    return Misconfiguration(
        field, str(path), f"can't be read as arrays of numbers: {error}"
    )
