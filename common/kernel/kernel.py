"""Which of the projections' kernels runs: the best that was built and that the processor can run.

All give the same result (``numpy_projection.py`` says which). A library exists where a C compiler
was there when precad was installed; without one NumPy does the work.
"""

import ctypes
import os
from collections.abc import Callable, Collection
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.common.kernel.numpy_projection import BLOCK, MASKS, project_blocks
from precad.common.ring import RingVector

Projection: TypeAlias = Callable[[RingVector, NDArray[np.uint64], RingVector], None]
"""What ``numpy_projection.project_blocks`` is, and its arguments."""

VARIABLE = "PRECAD_KERNEL"
"""The environment variable that names the kernel to use, for tests and measurements."""
NUMPY = "numpy"
_COMPILED = {"avx512-vnni": 2, "avx2": 1, "c": 0}
"""Best first, each with its bit in what the library says of the processor."""


def built_library(folder: Path = Path(__file__).parent) -> Path | None:
    """The library that was compiled from ``projections.c`` when precad was installed, if any."""
    paths = (folder / f"_projections{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def kernels(library: Path | None) -> dict[str, Projection]:
    """All kernels of a library that this processor can run, best first; NumPy is the last."""
    found: dict[str, Projection] = {}
    if library is not None:
        try:
            functions = ctypes.CDLL(str(library))
        except OSError:
            # Built for another machine: as good as none.
            pass
        else:
            can = functions.precad_kernels()
            found = {
                name: _compiled(functions[f"precad_project_{name.replace('-', '_')}"])
                for name, bit in _COMPILED.items()
                if bit == 0 or can & bit
            }
    return {**found, NUMPY: project_blocks}


def chosen(available: Collection[str], wanted: str) -> str:
    """The name of the kernel that is used: the one that is wanted, or the first, the best.

    Raises:
        Misconfiguration: the wanted one isn't available.
    """
    if wanted and wanted not in available:
        names = ", ".join(available)
        raise Misconfiguration(VARIABLE, wanted, f"must be one of {names}, or unset for the first")
    return wanted or next(iter(available))


@cache
def kernel_in_use() -> str:
    """``avx512-vnni``, ``avx2``, ``c`` or ``numpy``; settled when first asked."""
    return chosen(_built_kernels(), os.environ.get(VARIABLE, ""))


def projection_in_use() -> Projection:
    """The kernel of that name."""
    return _built_kernels()[kernel_in_use()]


@cache
def _built_kernels() -> dict[str, Projection]:
    return kernels(built_library())


def _compiled(function: Any) -> Projection:
    """A function of the library as a ``Projection``; it can't check lengths, so this does."""
    address, size = ctypes.c_void_p, ctypes.c_size_t
    function.argtypes = (address, address, size, size, address)
    function.restype = None

    def project(words: RingVector, masks: NDArray[np.uint64], z: RingVector) -> None:
        n, k, each = masks.shape
        if each != MASKS or words.shape != (n * BLOCK,) or z.shape != (k,):
            raise ValueError(f"masks of {masks.shape} for {words.shape} words and {z.shape} rows")
        for name, array, dtype in (
            ("words", words, np.int64),
            ("masks", masks, "<u8"),
            ("z", z, np.int64),
        ):
            if array.dtype != np.dtype(dtype) or not array.flags.c_contiguous:
                raise ValueError(f"{name} must be contiguous and of 64 bits, not {array.dtype}")
        # The other threads go on: ctypes gives the interpreter's lock back.
        function(words.ctypes.data, masks.ctypes.data, n, k, z.ctypes.data)

    return project
