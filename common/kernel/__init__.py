"""Kernels for projections and shares, in NumPy, which defines them, and compiled.

All give the same result bit for bit. The best that was built and that the processor can
run is used: a library exists where a C compiler was there when precad was installed,
and without one NumPy does the work. In NumPy projections are a product of matrices,
because NumPy has a fast library for that. Words are cut into bytes and entries are −1,
0 and 1, so every sum is an integer in float32's range: exact in any order of summation.
"""

import ctypes
import os
from collections.abc import Callable, Collection
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from precad.common.arrays import AnyNumbers, Integers, Words
from precad.common.errors import Misconfiguration, log
from precad.common.identifiers import Secret
from precad.common.ring import WORD_BYTES, Keystream, RingVector, dot

Projection = Callable[[RingVector, Words, RingVector], None]
"""A kernel that projects, called like ``project_blocks``."""


class Sharing(Protocol):
    """A kernel that makes shares, called like ``share_words``."""

    def __call__(
        self,
        *,
        b: RingVector,
        a: RingVector,
        total: RingVector | None,
        adds_b: bool,
    ) -> tuple[int, int]:
        """Return ⟨b, a⟩ and ⟨b, b⟩; see ``share_words``."""


VARIABLE = "PRECAD_KERNEL"
"""The environment variable that names the kernel to use, for tests and measurements."""
NUMPY = "numpy"
"""Name of the kernel that NumPy is."""
_WORD = np.dtype(np.int64)
_MASK = np.dtype("<u8")
_Kernel = TypeVar("_Kernel")
_ForeignFunction = Any
"""A function of a library that ctypes loaded; its class has no public name."""
_COMPILED = {"avx512-vnni": 2, "avx2": 1, "c": 0}
"""Compiled kernels, best first, each with the bit by which ``precad_kernels`` says that
this processor can run it; 0 is for any processor."""


def built_library(folder: Path = Path(__file__).parent) -> Path | None:
    """Return the library that was compiled from the C files here, if any.

    That happens when precad is installed.
    """
    for suffix in EXTENSION_SUFFIXES:
        path = folder / f"_projections{suffix}"
        if path.is_file():
            return path
    return None


@cache
def kernels(library: Path | None) -> dict[str, Projection]:
    """Return the kernels that project, by name: those that this processor can run.

    The library's come first, the best before the others, and NumPy's is the last.
    """
    return {**_compiled(library, "halves", _projection), NUMPY: project_blocks}


@cache
def sharings(library: Path | None) -> dict[str, Sharing]:
    """Return the kernels that make shares, by name, ordered as ``kernels``."""
    return {**_compiled(library, "share", _sharing), NUMPY: share_words}


def chosen(available: Collection[str], requested: str) -> str:
    """Return the name of the kernel to use: ``requested``, or if empty the first.

    Raises Misconfiguration: the requested one isn't available.
    """
    if not requested:
        return next(iter(available))
    if requested not in available:
        names = ", ".join(available)
        raise Misconfiguration(
            VARIABLE, requested, f"must be one of {names}, or unset for the first"
        )
    return requested


@cache
def kernel_in_use() -> str:
    """Return ``avx512-vnni``, ``avx2``, ``c`` or ``numpy``; settled when first asked.

    Raises Misconfiguration: the environment names one that isn't available.
    """
    return chosen(kernels(built_library()), os.environ.get(VARIABLE, ""))


def sharing_in_use() -> Sharing:
    """Return the kernel in use that makes shares."""
    return sharings(built_library())[kernel_in_use()]


def _compiled(
    library: Path | None,
    task: str,
    wrap: Callable[[_ForeignFunction], _Kernel],
) -> dict[str, _Kernel]:
    """Return the library's kernels that this processor can run, best first.

    ``task`` stands in the names of their functions; ``wrap`` makes a kernel of one.
    """
    if library is None:
        return {}
    try:
        functions = ctypes.CDLL(str(library))
    except OSError:
        # Built for another machine: as good as none.
        return {}
    supported = functions.precad_kernels()
    try:
        return {
            name: wrap(functions[f"precad_{task}_{name.replace('-', '_')}"])
            for name, bit in _COMPILED.items()
            if bit == 0 or supported & bit
        }
    except AttributeError:
        log.warning(
            "%s was built from other sources: NumPy does its work; install anew",
            library,
        )
        return {}


def _projection(function: _ForeignFunction) -> Projection:
    """Return a function of the library as a kernel that projects.

    The kernel checks types and lengths first: C can't.
    """
    address = ctypes.c_void_p
    size = ctypes.c_size_t
    function.argtypes = (address, address, size, size, address)
    function.restype = None

    def project(words: RingVector, masks: Words, z: RingVector) -> None:
        """Check the arrays and call the library; see ``project_blocks``."""
        blocks, k, masks_a_row = masks.shape
        if (
            masks_a_row != MASKS
            or words.shape != (blocks * BLOCK,)
            or z.shape != (k, 2)
        ):
            raise ValueError(
                f"masks of {masks.shape} for {words.shape} words and {z.shape} rows"
            )
        _require_layout("words", words)
        _require_layout("masks", masks, _MASK)
        _require_layout("z", z, written=True)
        # Other threads go on meanwhile: ctypes releases the interpreter's lock.
        function(
            words.ctypes.data,
            masks.ctypes.data,
            blocks,
            k,
            z.ctypes.data,
        )

    return project


def _sharing(function: _ForeignFunction) -> Sharing:
    """Return a function of the library as a kernel that makes shares.

    The kernel checks types and lengths first: C can't.
    """
    address = ctypes.c_void_p
    size = ctypes.c_size_t
    function.argtypes = (address, address, size, ctypes.c_int, address, address)
    function.restype = None

    def share(
        *,
        b: RingVector,
        a: RingVector,
        total: RingVector | None,
        adds_b: bool,
    ) -> tuple[int, int]:
        """Check the arrays and call the library; see ``share_words``."""
        if (
            a.shape != b.shape
            or b.ndim != 1
            or (total is not None and total.shape != b.shape)
        ):
            raise ValueError(f"b of {b.shape}, a mask of {a.shape}, another total")
        _require_layout("b", b)
        _require_layout("a", a, written=True)
        total_address = None
        if total is not None:
            _require_layout("total", total, written=True)
            total_address = total.ctypes.data
        sums = (ctypes.c_int64 * 2)()
        function(
            b.ctypes.data,
            a.ctypes.data,
            b.size,
            adds_b,
            total_address,
            sums,
        )
        return sums[0], sums[1]

    return share


def _require_layout(
    name: str,
    array: AnyNumbers,
    dtype: np.dtype[np.generic] = _WORD,
    *,
    written: bool = False,
) -> None:
    """Check that C may read an array as words, and where it is ``written`` write it.

    Raises ValueError: another dtype or layout.
    """
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise ValueError(f"{name} must be contiguous and of 64 bits, not {array.dtype}")
    if written and not (array.flags.writeable and array.flags.aligned):
        raise ValueError(f"{name} is written to: it must be writeable and aligned")


BLOCK = 64
"""Coordinates of one mask."""
MASKS = 2
"""Masks of a row for each block: u and v."""
_STEP = 256
"""Blocks of one product of matrices: 255·64·_STEP < 2^24 bounds every partial sum,
which float32 holds exactly."""
_NIBBLE = 4
"""Bits of half a byte."""
_LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_SHIFT = np.uint64(_NIBBLE)

_BITS = np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
)
_ENTRIES = _BITS[:, :_NIBBLE].astype(np.float32) - _BITS[:, _NIBBLE:]
_TABLE = np.ascontiguousarray(_ENTRIES).view(f"V{_NIBBLE * 4}").reshape(256)
"""Four entries for each byte: bit i of u, in its low half, minus bit i of v, in its
high half. They are one opaque item, so that a look-up moves all four."""
_WEIGHTS = np.arange(0, 32, 8)
"""Bits by which the sums of the four bytes of half a word are shifted."""


def project_blocks(words: RingVector, masks: Words, z: RingVector) -> None:
    """Add to ``z[r]`` the inner products of row r with the words' halves, low and high.

    ``z`` is ``[k, 2] int64``, and ``words`` ``[64·n] int64``. A half has 32 bits and no
    sign. So z[r, 0] + 2^32·z[r, 1] is the inner product of the words with row r in the
    ring, and in the field of p elements too (``prime_field.py``); for up to 2^31
    coordinates nothing wraps. ``masks`` is ``[n, k, 2] uint64``, little-endian: u and v
    of each block and row. All are contiguous.
    """
    for start in range(0, len(masks), _STEP):
        part = masks[start : start + _STEP]
        z += _projected(words[start * BLOCK : (start + len(part)) * BLOCK], part)


def _projected(words: RingVector, masks: Words) -> RingVector:
    """Return what ``project_blocks`` adds, ``[k, 2] int64``, by a product of matrices.

    Entries, ``[2, k, 32·n]``, times bytes of words, ``[2, 32·n, 8]``: the leading 2 is
    for even and odd groups of four coordinates.
    """
    blocks, k, _ = masks.shape
    u = masks[:, :, 0].T
    v = masks[:, :, 1].T
    # A byte of an index holds four bits of u below the same four of v. The even groups
    # of four coordinates come first, then the odd ones; the words are put into the same
    # order.
    indices = np.empty((MASKS, k, blocks), dtype="<u8")
    indices[0] = (u & _LOW_NIBBLES) | ((v & _LOW_NIBBLES) << _SHIFT)
    indices[1] = ((u >> _SHIFT) & _LOW_NIBBLES) | (v & ~_LOW_NIBBLES)
    # mode="raise" would copy through a buffer.
    entries = _TABLE.take(indices.view(np.uint8), mode="clip").view(np.float32)
    word_bytes = (
        words.astype("<i8", copy=False)
        .view(np.uint8)
        .reshape(-1, MASKS, _NIBBLE, WORD_BYTES)
        .transpose(1, 0, 2, 3)
        .reshape(MASKS, -1, WORD_BYTES)
        .astype(np.float32)
    )
    byte_sums = (entries @ word_bytes).astype(np.int64).sum(axis=0)
    projected: RingVector = (byte_sums.reshape(k, 2, -1) << _WEIGHTS).sum(axis=2)
    return projected


def share_words(
    *,
    b: RingVector,
    a: RingVector,
    total: RingVector | None,
    adds_b: bool,
) -> tuple[int, int]:
    """Make the mask ``a``, in place, into this server's share of x.

    The share is b + a if ``adds_b``, else a alone. It is added to ``total``, where
    there is one. All are ``[n] int64``, contiguous; b may be read-only.

    Returns ⟨b, a⟩ with the mask, and ⟨b, b⟩, both mod 2^64 and signed.
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
    """Projections of a share on k secret random rows; the words come in pieces.

    Part 1 of the range test. Rows have entries −1, 0, 1 with probabilities 1/4, 1/2,
    1/4: the difference of two random bits. They are expanded from 32 bytes that no
    client knows, of this submission's rows alone. So no client can choose its update
    after its rows, and the servers get the same rows without asking each other
    (docs/soundness.md, "Part 1: the range test").

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
    ) -> None:
        self._stream = Keystream(key, "validate/rows")
        self._project_blocks = kernels(built_library())[kernel_in_use()]
        self._dimension = dimension
        self._absorbed = 0
        self._z = np.zeros((k, 2), dtype=np.int64)
        self._blocks = min(_AT_ONCE // (k * MASK_BYTES), -(-dimension // BLOCK))
        self._masks = np.empty((self._blocks, k, MASKS), dtype="<u8")

    def absorb(self, words: RingVector) -> None:
        """Project the share's next words, ``[n] int64``, in order.

        n is a multiple of 64 but in the last piece.

        Raises ValueError: the piece doesn't fit behind those absorbed before.
        """
        count = words.size
        after = self._absorbed + count
        if after > self._dimension:
            raise ValueError(f"{after} words for rows of {self._dimension} coordinates")
        if after < self._dimension and count % BLOCK:
            raise ValueError(
                f"a piece of {count} words ends at {after} of {self._dimension}:"
                f" all pieces but the last are multiples of {BLOCK}"
            )
        whole = count - count % BLOCK
        step = self._blocks * BLOCK
        for start in range(0, whole, step):
            self._project(words[start : min(whole, start + step)])
        if whole < count:
            last = np.zeros(BLOCK, dtype=np.int64)
            last[: count - whole] = words[whole:]
            self._project(last)
        self._absorbed = after
        if after == self._dimension:
            # A server that decides on many submissions keeps all of their rows until
            # then: the buffer is freed.
            self._masks = self._masks[:0].copy()

    def z(self) -> RingVector:
        """Return this share's projections mod 2^64, ``[k] int64``.

        Raises ValueError: words are missing.
        """
        halves = self.halves()
        return halves[:, 0] + (halves[:, 1] << HALF_BITS)

    def halves(self) -> Integers:
        """Return the projections of the words' low and high halves, ``[k, 2] int64``.

        They aren't reduced.

        Raises ValueError: words are missing.
        """
        if self._absorbed < self._dimension:
            raise ValueError(
                f"only {self._absorbed} of {self._dimension} words were absorbed"
            )
        return self._z.copy()

    def _project(self, words: RingVector) -> None:
        """Project whole blocks, on masks that are read from the stream."""
        masks = self._masks[: words.size // BLOCK]
        self._stream.read_into(masks.data.cast("B"))
        self._project_blocks(np.ascontiguousarray(words), masks, self._z)
