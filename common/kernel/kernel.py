"""Which of the kernels runs: the best that was built and that the processor can run.

All give the same result (``numpy_projection.py`` and ``numpy_share.py`` say which). A library
exists where a C compiler was there when precad was installed; without one NumPy does the work.
"""

import ctypes
import os
from collections.abc import Callable, Collection
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.common.kernel.numpy_projection import BLOCK, MASKS, project_blocks
from precad.common.kernel.numpy_share import share_words
from precad.common.ring import RingVector

Projection: TypeAlias = Callable[[RingVector, NDArray[np.uint64], RingVector], None]
"""What ``numpy_projection.project_blocks`` is, and its arguments."""


class Sharing(Protocol):
    """What ``numpy_share.share_words`` is, and its arguments."""

    def __call__(
        self, b: RingVector, a: RingVector, total: RingVector | None, *, adds_b: bool
    ) -> tuple[int, int]:
        """⟨b, a⟩ and ⟨b, b⟩."""


VARIABLE = "PRECAD_KERNEL"
"""The environment variable that names the kernel to use, for tests and measurements."""
NUMPY = "numpy"
_WORD, _MASK = np.dtype(np.int64), np.dtype("<u8")
_T = TypeVar("_T")
_COMPILED = {"avx512-vnni": 2, "avx2": 1, "c": 0}
"""Best first, each with its bit in what the library says of the processor."""


def built_library(folder: Path = Path(__file__).parent) -> Path | None:
    """The library that was compiled from ``projections.c`` when precad was installed, if any."""
    paths = (folder / f"_projections{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def kernels(library: Path | None) -> dict[str, Projection]:
    """All kernels of a library that this processor can run, best first; NumPy is the last."""
    return {**_found(library, "project", _projection), NUMPY: project_blocks}


def sharings(library: Path | None) -> dict[str, Sharing]:
    """As ``kernels``, for the pass that makes shares."""
    return {**_found(library, "share", _sharing), NUMPY: share_words}


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


def sharing_in_use() -> Sharing:
    """The pass that makes shares, of the same name."""
    return _built_sharings()[kernel_in_use()]


@cache
def _built_kernels() -> dict[str, Projection]:
    return kernels(built_library())


@cache
def _built_sharings() -> dict[str, Sharing]:
    return sharings(built_library())


def _found(library: Path | None, what: str, wrap: Callable[[Any], _T]) -> dict[str, _T]:
    """The library's functions of that kind which this processor can run, best first."""
    if library is None:
        return {}
    try:
        functions = ctypes.CDLL(str(library))
    except OSError:
        # Built for another machine: as good as none.
        return {}
    can = functions.precad_kernels()
    return {
        name: wrap(functions[f"precad_{what}_{name.replace('-', '_')}"])
        for name, bit in _COMPILED.items()
        if bit == 0 or can & bit
    }


def _projection(function: Any) -> Projection:
    """A function of the library as a ``Projection``; it can't check lengths, so this does."""
    address, size = ctypes.c_void_p, ctypes.c_size_t
    function.argtypes = (address, address, size, size, address)
    function.restype = None

    def project(words: RingVector, masks: NDArray[np.uint64], z: RingVector) -> None:
        n, k, each = masks.shape
        if each != MASKS or words.shape != (n * BLOCK,) or z.shape != (k,):
            raise ValueError(f"masks of {masks.shape} for {words.shape} words and {z.shape} rows")
        _require(words=(words, _WORD), masks=(masks, _MASK), z=(z, _WORD))
        # The other threads go on: ctypes gives the interpreter's lock back.
        function(words.ctypes.data, masks.ctypes.data, n, k, z.ctypes.data)

    return project


def _sharing(function: Any) -> Sharing:
    """A function of the library as a ``Sharing``, with its checks."""
    address, size = ctypes.c_void_p, ctypes.c_size_t
    function.argtypes = (address, address, size, ctypes.c_int, address, address)
    function.restype = None

    def share(
        b: RingVector, a: RingVector, total: RingVector | None, *, adds_b: bool
    ) -> tuple[int, int]:
        if a.shape != b.shape or b.ndim != 1 or (total is not None and total.shape != b.shape):
            raise ValueError(f"b of {b.shape}, a mask of {a.shape}, another total")
        _require(b=(b, _WORD), a=(a, _WORD))
        into = None
        if total is not None:
            _require(total=(total, _WORD))
            into = total.ctypes.data
        sums = (ctypes.c_int64 * 2)()
        function(b.ctypes.data, a.ctypes.data, b.size, adds_b, into, sums)
        return sums[0], sums[1]

    return share


def _require(**arrays: tuple[NDArray[Any], np.dtype[Any]]) -> None:
    for name, (array, dtype) in arrays.items():
        if array.dtype != dtype or not array.flags.c_contiguous:
            raise ValueError(f"{name} must be contiguous and of 64 bits, not {array.dtype}")
