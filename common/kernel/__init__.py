"""The kernels for projections and shares: NumPy's, which says what is computed, and compiled ones.

All give the same result bit for bit. The best that was built and that the processor can
run is used: a library exists where a C compiler was there when precad was installed;
without one NumPy does the work. In NumPy a product of matrices projects, because that
is what it has a fast library for. Words are cut into bytes and entries are −1, 0 and 1,
so every sum is an integer of float32's range: exact in any order of summation.
"""

import ctypes
import logging
import os
from collections.abc import Callable, Collection
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Secret
from precad.common.ring import WORD_BYTES, Keystream, RingVector, dot

log = logging.getLogger("precad")

Projection: TypeAlias = Callable[[RingVector, NDArray[np.uint64], RingVector], None]
"""What ``project_blocks`` is, and its arguments."""


class Sharing(Protocol):
    """What ``share_words`` is, and its arguments."""

    def __call__(
        self,
        b: RingVector,
        a: RingVector,
        total: RingVector | None,
        *,
        adds_b: bool,
    ) -> tuple[int, int]:
        """⟨b, a⟩ and ⟨b, b⟩."""


VARIABLE = "PRECAD_KERNEL"
"""The environment variable that names the kernel to use, for tests and measurements."""
NUMPY = "numpy"
_WORD = np.dtype(np.int64)
_MASK = np.dtype("<u8")
_T = TypeVar("_T")
_COMPILED = {"avx512-vnni": 2, "avx2": 1, "c": 0}
"""Best first, each with its bit in what the library says of the processor."""


def built_library(folder: Path = Path(__file__).parent) -> Path | None:
    """The library that was compiled from the C files here when precad was installed, if any."""
    paths = (folder / f"_projections{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


@cache
def kernels(library: Path | None) -> dict[str, Projection]:
    """All kernels of a library that this processor can run, best first; NumPy is the last."""
    return {**_found(library, "halves", _projection), NUMPY: project_blocks}


@cache
def sharings(library: Path | None) -> dict[str, Sharing]:
    """As ``kernels``, for the pass that makes shares."""
    return {**_found(library, "share", _sharing), NUMPY: share_words}


def chosen(available: Collection[str], wanted: str) -> str:
    """The name of the kernel that is used: the one that is wanted, or the first, the best.

    Raises Misconfiguration: the wanted one isn't available.
    """
    if wanted and wanted not in available:
        names = ", ".join(available)
        raise Misconfiguration(
            VARIABLE, wanted, f"must be one of {names}, or unset for the first"
        )
    return wanted or next(iter(available))


@cache
def kernel_in_use() -> str:
    """``avx512-vnni``, ``avx2``, ``c`` or ``numpy``; settled when first asked."""
    return chosen(kernels(built_library()), os.environ.get(VARIABLE, ""))


def sharing_in_use() -> Sharing:
    """The pass that makes shares, of that kernel."""
    return sharings(built_library())[kernel_in_use()]


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
    usable = [name for name, bit in _COMPILED.items() if bit == 0 or can & bit]
    try:
        found = {
            name: functions[f"precad_{what}_{name.replace('-', '_')}"]
            for name in usable
        }
    except AttributeError:
        log.warning(
            "%s was built from other sources: NumPy does its work; install anew",
            library,
        )
        return {}
    return {name: wrap(function) for name, function in found.items()}


def _projection(function: Any) -> Projection:
    """A function of the library as a ``Projection``; it can't check lengths, so this does."""
    address = ctypes.c_void_p
    size = ctypes.c_size_t
    function.argtypes = (address, address, size, size, address)
    function.restype = None

    def project(words: RingVector, masks: NDArray[np.uint64], z: RingVector) -> None:
        n, k, each = masks.shape
        if each != MASKS or words.shape != (n * BLOCK,) or z.shape != (k, 2):
            raise ValueError(
                f"masks of {masks.shape} for {words.shape} words and {z.shape} rows"
            )
        _require("words", words)
        _require("masks", masks, _MASK)
        _require("z", z, written=True)
        # The other threads go on: ctypes gives the interpreter's lock back.
        function(
            words.ctypes.data,
            masks.ctypes.data,
            n,
            k,
            z.ctypes.data,
        )

    return project


def _sharing(function: Any) -> Sharing:
    """A function of the library as a ``Sharing``, with its checks."""
    address = ctypes.c_void_p
    size = ctypes.c_size_t
    function.argtypes = (address, address, size, ctypes.c_int, address, address)
    function.restype = None

    def share(
        b: RingVector,
        a: RingVector,
        total: RingVector | None,
        *,
        adds_b: bool,
    ) -> tuple[int, int]:
        if (
            a.shape != b.shape
            or b.ndim != 1
            or (total is not None and total.shape != b.shape)
        ):
            raise ValueError(f"b of {b.shape}, a mask of {a.shape}, another total")
        _require("b", b)
        _require("a", a, written=True)
        if total is not None:
            _require("total", total, written=True)
        into = None if total is None else total.ctypes.data
        sums = (ctypes.c_int64 * 2)()
        function(
            b.ctypes.data,
            a.ctypes.data,
            b.size,
            adds_b,
            into,
            sums,
        )
        return sums[0], sums[1]

    return share


def _require(
    name: str,
    array: NDArray[Any],
    dtype: np.dtype[Any] = _WORD,
    *,
    written: bool = False,
) -> None:
    """C wouldn't ask, and words are read as a whole there."""
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise ValueError(f"{name} must be contiguous and of 64 bits, not {array.dtype}")
    if written and not (array.flags.writeable and array.flags.aligned):
        raise ValueError(f"{name} is written to: it must be writeable and aligned")


BLOCK = 64
"""Coordinates of one mask."""
MASKS = 2
"""u and v."""
_STEP = 256
"""Blocks a product: 255·64·_STEP < 2^24 bounds every partial sum, which float32 holds
exactly."""
_NIBBLE = 4
_LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_SHIFT = np.uint64(_NIBBLE)

_BITS = np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
)
_ENTRIES = _BITS[:, :_NIBBLE].astype(np.float32) - _BITS[:, _NIBBLE:]
_TABLE = np.ascontiguousarray(_ENTRIES).view(f"V{_NIBBLE * 4}").reshape(256)
"""Four entries for each byte: bits i of its low half u and of its high half v give u −
v. As one opaque item a byte, so that a look-up moves all four."""
_WEIGHTS = np.arange(0, 32, 8)


def project_blocks(words: RingVector, masks: NDArray[np.uint64], z: RingVector) -> None:
    """Add to ``z[r]``, ``[k, 2] int64``, the inner products of row r with the words' halves.

    A half, low or high, has 32 bits and no sign. So z[r, 0] + 2^32·z[r, 1] is the inner
    product of the words, ``[64·n] int64``, with row r in the ring, and in the field of
    p elements too (``prime_field.py``); for up to 2^31 coordinates nothing wraps.
    ``masks`` is ``[n, k, 2] uint64``, little-endian: u and v of each block and row; all
    are contiguous.
    """
    for start in range(0, len(masks), _STEP):
        part = masks[start : start + _STEP]
        z += _projected(words[start * BLOCK : (start + len(part)) * BLOCK], part)


def _projected(words: RingVector, masks: NDArray[np.uint64]) -> RingVector:
    n, k, _ = masks.shape
    u = masks[:, :, 0].T
    v = masks[:, :, 1].T
    # A byte of an index holds four bits of u below the same four of v. The even
    # quarters of all bytes come first, then the odd ones; the words are put into the
    # same order.
    indices = np.empty((MASKS, k, n), dtype="<u8")
    indices[0] = (u & _LOW_NIBBLES) | ((v & _LOW_NIBBLES) << _SHIFT)
    indices[1] = ((u >> _SHIFT) & _LOW_NIBBLES) | (v & ~_LOW_NIBBLES)
    # "raise" would copy through a buffer.
    entries = _TABLE.take(indices.view(np.uint8), mode="clip").view(np.float32)
    limbs = (
        words.astype("<i8", copy=False)
        .view(np.uint8)
        .reshape(-1, MASKS, _NIBBLE, WORD_BYTES)
    )
    halves = (
        limbs.transpose(1, 0, 2, 3).reshape(MASKS, -1, WORD_BYTES).astype(np.float32)
    )
    sums = (entries @ halves).astype(np.int64).sum(axis=0)
    projected: RingVector = (sums.reshape(k, 2, -1) << _WEIGHTS).sum(axis=2)
    return projected


def share_words(
    b: RingVector,
    a: RingVector,
    total: RingVector | None,
    *,
    adds_b: bool,
) -> tuple[int, int]:
    """Make the mask ``a`` in place into this server's share of x, b + a or a alone (``adds_b``).

    Where there is a ``total``, that is added to it. All are ``[n] int64``, contiguous;
    b may be read-only. What comes back is ⟨b, a⟩ with the mask, and ⟨b, b⟩, both mod
    2^64 and signed.
    """
    crossed = dot(b, a)
    squared = dot(b, b)
    if adds_b:
        a += b
    if total is not None:
        total += a
    return crossed, squared


MASK_BYTES = 8 * MASKS
"""Bytes of the stream for a row and 64 coordinates."""
HALF_BITS = 32
"""Bits of half a word."""
_AT_ONCE = 640 << 10
"""Bytes of masks that are drawn and used together: with 40 rows those of a piece of a
body. They stay in L2, or nearly; what fewer at once gain there they lose by their
calls."""


class Rows:
    """A share's projections on k secret random rows, absorbed in pieces: part 1 of the range test.

    Rows have entries −1, 0, 1 with probabilities 1/4, 1/2, 1/4: the difference of two
    random bits. They are expanded from 32 bytes that no client knows, of this
    submission's rows alone: no client can choose its update after its rows, and the
    servers get the same rows unasked (docs/soundness.md, "Part 1: the range test").

    The stream is AES-256-CTR. For every 64 coordinates, and for each of the k rows, it
    holds two 64-bit masks, u then v, little-endian; entry i is bit i of u minus bit i
    of v. Both servers must read it alike: pinned bytes say how (tests/vectors).
    """

    def __init__(
        self,
        key: Secret,
        *,
        dimension: int,
        k: int,
        projection: Projection | None = None,
    ) -> None:
        self._stream = Keystream(key, "validate/rows")
        self._project_blocks = projection or kernels(built_library())[kernel_in_use()]
        self._dimension = dimension
        self._absorbed = 0
        self._z = np.zeros((k, 2), dtype=np.int64)
        self._blocks = min(_AT_ONCE // (k * MASK_BYTES), -(-dimension // BLOCK))
        self._masks = np.empty((self._blocks, k, MASKS), dtype="<u8")

    def absorb(self, words: RingVector) -> None:
        """The share's next words, ``[n] int64``, in order, n a multiple of 64 but in the last.

        Raises ValueError: the piece doesn't fit behind those absorbed before.
        """
        after = self._absorbed + words.size
        if after > self._dimension:
            raise ValueError(f"{after} words for rows of {self._dimension} coordinates")
        if after < self._dimension and words.size % BLOCK:
            where = (
                f"a piece of {words.size} words ends at {after} of {self._dimension}"
            )
            raise ValueError(
                f"{where}: all pieces but the last are multiples of {BLOCK}"
            )
        whole = words.size - words.size % BLOCK
        step = self._blocks * BLOCK
        for start in range(0, whole, step):
            self._project(words[start : min(whole, start + step)])
        if whole < words.size:
            last = np.zeros(BLOCK, dtype=np.int64)
            last[: words.size - whole] = words[whole:]
            self._project(last)
        self._absorbed = after
        if after == self._dimension:
            # Whoever decides on many keeps all of their rows until then.
            self._masks = self._masks[:0].copy()

    def z(self) -> RingVector:
        """This share's projections mod 2^64, ``[k] int64``. Raises as ``halves``."""
        halves = self.halves()
        z: RingVector = halves[:, 0] + (halves[:, 1] << HALF_BITS)
        return z

    def halves(self) -> NDArray[np.int64]:
        """The projections of the words' low and high halves, ``[k, 2] int64``, unreduced.

        Raises ValueError: words are missing.
        """
        if self._absorbed < self._dimension:
            raise ValueError(
                f"only {self._absorbed} of {self._dimension} words were absorbed"
            )
        return self._z.copy()

    def _project(self, words: RingVector) -> None:
        masks = self._masks[: words.size // BLOCK]
        self._stream.read_into(masks.data.cast("B"))
        self._project_blocks(np.ascontiguousarray(words), masks, self._z)
