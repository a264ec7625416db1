"""Where the bytes of a model on offer are: on the disk, once it is there.

A round reads its model once, near its end, and owners fetch theirs at its beginning: in between
that memory is for bodies. The bytes lie in the system's cache, which gives way to whoever needs it.
"""

import os
import weakref
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from precad.common.model import byte_view
from precad.common.ring import WORD_BYTES


class Stored(Protocol):
    """A model's 8·d bytes."""

    length: int
    """How many."""

    def read(self, start: int, size: int) -> bytes:
        """``size`` of them, or what is left. Raises OSError."""


class InMemory:
    """As ``Stored``: of a model that isn't on the disk.

    Args:
        theta: ``[d] float64``; mustn't change any more.
    """

    def __init__(self, theta: NDArray[np.float64]) -> None:
        self._data = byte_view(theta)
        self.length = len(self._data)

    def read(self, start: int, size: int) -> bytes:
        """As ``Stored.read``."""
        return bytes(self._data[start : start + size])


class InFile:
    """As ``Stored``: of a file that ``save_model`` wrote, also when another takes its name.

    Args:
        path: the file.
        dimension: d.

    Raises:
        OSError: it can't be opened.
    """

    def __init__(self, path: Path, dimension: int) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self.length = dimension * WORD_BYTES
        self._start = os.fstat(self._descriptor).st_size - self.length

    def read(self, start: int, size: int) -> bytes:
        """As ``Stored.read``. No memory is mapped: a failing disk is an error, and no signal."""
        left = min(size, self.length - start)
        data = os.pread(self._descriptor, left, self._start + start)
        if len(data) < left:
            raise OSError(f"the model's file ends at byte {start + len(data)} of {self.length}")
        return data
