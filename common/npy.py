"""Arrays of numbers from NumPy files that anybody may have written; never unpickled."""

import os
import sys
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from precad.common import Misconfiguration

Array = NDArray[Any]
"""An array of a file: any shape, and booleans, integers or floats of any width."""
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    zlib.error,
    # A header is a Python literal, which may announce any length.
    SyntaxError,
    TokenError,
    TypeError,
    RecursionError,
    MemoryError,
    OverflowError,
    # Zip has many features.
    BadZipFile,
    KeyError,
    NotImplementedError,
    RuntimeError,
)
"""What NumPy and zipfile raise for files that are damaged or made up."""
_NUMBER_KINDS = "biuf"
"""NumPy's letters for booleans, integers with and without a sign, and floats."""
_SHOWN = 8
"""Most names of arrays that an error lists."""
_USUAL_MEMORY = 16 << 30


def read_npy(field: str, path: Path) -> Array:
    """Return the array of a ``.npy`` file, mapped and not yet read.

    Raises Misconfiguration, which names ``field`` and the file: there is no such file,
    it holds no array of numbers, or is shorter than its header says.
    """
    try:
        array: Array = np.lib.format.open_memmap(path, mode="r")
    except _UNREADABLE as error:
        raise _refusal(field, path, error) from None
    _require_numbers(field, path, array)
    return array


def read_npz(field: str, path: Path, *names: str) -> tuple[Array, ...]:
    """Return the arrays of these names in a ``.npz`` file, in the order of ``names``.

    Raises Misconfiguration, which names ``field`` and the file: there is no such file
    or array, an array holds something else than numbers, or all of them are too large
    for this machine.
    """
    try:
        with (
            path.open("rb") as opened,
            np.lib.npyio.NpzFile(opened, allow_pickle=False) as file,
        ):
            missing = [name for name in names if name not in file]
            archive = file.zip
            assert archive is not None
            unpacked = sum(
                entry.file_size
                for entry in archive.infolist()
                if entry.filename[:-4] in names  # without .npy
            )
            require_room(field, path, unpacked)
            arrays = [] if missing else [np.asarray(file[name]) for name in names]
            present = ", ".join(list(file)[:_SHOWN]) or "none"
    except _UNREADABLE as error:
        raise _refusal(field, path, error) from None
    if missing:
        raise Misconfiguration(
            field,
            path,
            f"has no array {missing[0]}, but {present}: save"
            f" {' and '.join(names)} in it",
        )
    for array in arrays:
        _require_numbers(field, path, array)
    return tuple(arrays)


def require_room(field: str, path: Path, unpacked: int) -> None:
    """Refuse a compressed file that is too large, before it is unpacked.

    Raises Misconfiguration: its ``unpacked`` bytes are more than half of this machine's
    memory.
    """
    memory = memory_bytes()
    if unpacked > memory // 2:
        raise Misconfiguration(
            field,
            path,
            f"unpacks to {unpacked / 2**30:,.1f} GiB, and this machine has"
            f" {memory / 2**30:,.1f} GiB of memory: if it is the right file, give fewer"
            " records, or use a larger machine",
        )


def memory_bytes() -> int:
    """Return this machine's memory in bytes, or 16 GiB where the system doesn't say."""
    if sys.platform == "win32":
        return _USUAL_MEMORY
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return _USUAL_MEMORY


def _require_numbers(field: str, path: Path, array: Array) -> None:
    """Raise Misconfiguration where an array holds something else than numbers."""
    if array.dtype.kind not in _NUMBER_KINDS:
        raise Misconfiguration(
            field, path, f"holds {array.dtype}; give an array of numbers"
        )


def _refusal(field: str, path: Path, error: BaseException) -> Misconfiguration:
    return Misconfiguration(field, path, f"can't be read as arrays of numbers: {error}")
