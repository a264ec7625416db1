"""The field of p = 2^64 − 2^32 + 1 elements: arrays of words below p, by NumPy and compiled alike.

2^32 divides p − 1, so there are roots of unity of every order 2^j up to 2^32, and
polynomials are multiplied by number-theoretic transforms. NumPy's functions say what is
computed; ``field.c`` does the same, bit for bit, where a compiler was there at
installation. ``PRECAD_KERNEL=numpy`` does without it (``common/kernel``). ``Group`` is
whichever of field and ring a task's sums live in.
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from precad.common.identifiers import Secret
from precad.common.kernel import NUMPY, built_library, kernel_in_use
from precad.common.proof_shape import P
from precad.common.ring import RingVector, derive, fill
from precad.common.task import Task

FieldVector: TypeAlias = NDArray[np.uint64]
"""``[n] uint64``, every word below p."""

GENERATOR = 7
"""Of the multiplicative group."""
_P = np.uint64(P)
_FOLD = np.uint64(2**32 - 1)
"""2^64 mod p, and the mask of a word's low half."""
_HALF = np.uint64(32)
_AT_ONCE = 1 << 16
"""Words that are added or multiplied together: they stay in the processor's cache."""


def root_of_unity(order: int) -> int:
    """The ω of that order, a power of two up to 2^32, that all parties use: 7^((p−1)/order)."""
    if order < 1 or order & (order - 1) or order > 2**32:
        raise ValueError(
            f"roots of unity have an order of a power of two up to 2^32, not {order}"
        )
    return pow(GENERATOR, (P - 1) // order, P)


def powers(base: int, count: int) -> FieldVector:
    """1, base, base² …, ``[count]``."""
    found = []
    value = 1
    for _ in range(count):
        found.append(value)
        value = value * base % P
    return np.array(found, dtype=np.uint64)


def of_signed(x: NDArray[np.int64]) -> FieldVector:
    """Signed integers, ``[n] int64``, as words below p; the inverse of ``signed_of``."""
    words = x.astype(np.int64, copy=False).view(np.uint64)
    return np.where(x < 0, words - _FOLD, words)


def signed_of(words: FieldVector) -> NDArray[np.int64]:
    """The representatives in [−(p−1)/2, (p−1)/2], ``[n] int64``."""
    return np.where(words > np.uint64(P // 2), words + _FOLD, words).view(np.int64)


def first_not_below(words: NDArray[np.uint64]) -> int | None:
    """Where the first word stands that is no element of the field, if any."""
    bad = np.flatnonzero(words >= _P)
    return int(bad[0]) if bad.size else None


@cache
def _transform(n: int, by: int) -> tuple[FieldVector, FieldVector, FieldVector]:
    """ω^j and ω^−j for j < n/2, and by^j/n for the coefficients in bit-reversed order."""
    omega = root_of_unity(n)
    bits = n.bit_length() - 1
    order = [int(f"{j:0{bits}b}"[::-1], 2) if bits else 0 for j in range(n)]
    inverse = np.full(n, pow(n, -1, P), dtype=np.uint64)
    scale = Arithmetic().multiply(powers(by, n)[order], inverse)
    return powers(omega, n // 2), powers(pow(omega, -1, P), n // 2), scale


class Arithmetic:
    """NumPy's, the reference: halves of 32 bits, so that no product or sum leaves 64.

    Vectors are contiguous ``[n] uint64``, words below p.
    """

    def add(self, a: FieldVector, b: FieldVector) -> FieldVector:
        """A + b, elementwise; so are the next two."""
        total = a + b
        total += np.where(total < a, _FOLD, np.uint64(0))
        return np.where(total >= _P, total - _P, total)

    def subtract(self, a: FieldVector, b: FieldVector) -> FieldVector:
        """A − b."""
        return a - b - np.where(a < b, _FOLD, np.uint64(0))

    def multiply(self, a: FieldVector, b: FieldVector) -> FieldVector:
        """a·b."""
        a_low = a & _FOLD
        a_high = a >> _HALF
        b_low = b & _FOLD
        b_high = b >> _HALF
        lowest = a_low * b_low
        middle = a_high * b_low + (lowest >> _HALF)
        other = a_low * b_high + (middle & _FOLD)
        low = (other << _HALF) | (lowest & _FOLD)
        return self._reduced(
            low, a_high * b_high + (middle >> _HALF) + (other >> _HALF)
        )

    def dot(self, a: FieldVector, b: FieldVector) -> int:
        """⟨a, b⟩, in [0, p)."""
        return int(self._sum(self.multiply(a, b)[:, None])[0])

    def combine(
        self, rows: FieldVector, weights: FieldVector, out: FieldVector
    ) -> None:
        """Add Σ_m weights[m]·rows[m] to ``out``: ``[m, c]``, ``[m]`` and ``[c]``."""
        step = max(1, _AT_ONCE // rows.shape[1])
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            products = self.multiply(rows[part], weights[part, None])
            out[:] = self.add(out, self._sum(products))

    def squares(self, rows: FieldVector, out: FieldVector) -> None:
        """Add ⟨rows[m], rows[m]⟩ to ``out[m]``: ``[m, c]`` and ``[m]``."""
        out[:] = self.add(out, self._sum(self.multiply(rows, rows).T))

    def shift(self, rows: FieldVector, by: int) -> None:
        """Columns' values at the n-th roots of unity become those at ``by`` times these roots.

        ``rows`` is ``[n, c]``, changed in place: row k stands at ω^k, n a power of two.
        by ≠ 0.
        """
        n = len(rows)
        roots, inverses, scale = _transform(n, by)
        half = n // 2
        step = 1
        while half:
            pairs = rows.reshape(n // (2 * half), 2, half, -1)
            first = pairs[:, 0].copy()
            second = pairs[:, 1].copy()
            pairs[:, 0] = self.add(first, second)
            pairs[:, 1] = self.multiply(
                self.subtract(first, second), inverses[::step, None][None]
            )
            half = half // 2
            step = step * 2
        rows[:] = self.multiply(rows, scale[:, None])
        half = 1
        step = n // 2
        while half < n:
            pairs = rows.reshape(n // (2 * half), 2, half, -1)
            first = pairs[:, 0].copy()
            second = self.multiply(pairs[:, 1], roots[::step, None][None])
            pairs[:, 0], pairs[:, 1] = (
                self.add(first, second),
                self.subtract(first, second),
            )
            half = half * 2
            step = step // 2

    def lagrange(self, n: int, t: int) -> FieldVector:
        """The weights ``[n]`` with Σ_k weights[k]·f(ω^k) = f(t), ω of order n, deg f < n.

        n is a power of two, t no n-th root of unity.
        """
        omega = root_of_unity(n)
        point = 1
        factor = (pow(t, n, P) - 1) * pow(n, -1, P) % P
        found = []
        for _ in range(n):
            found.append(point * factor % P * pow(t - point, -1, P) % P)
            point = point * omega % P
        return np.array(found, dtype=np.uint64)

    def _sum(self, values: FieldVector) -> FieldVector:
        """Over the first axis: at most 2^32 words."""
        low = (values & _FOLD).sum(axis=0, dtype=np.uint64)
        high = (values >> _HALF).sum(axis=0, dtype=np.uint64)
        return self.add(self._reduced(high << _HALF, high >> _HALF), low % _P)

    def _reduced(self, low: FieldVector, high: FieldVector) -> FieldVector:
        """Low + 2^64·high: 2^64 = 2^32 − 1 and 2^96 = −1."""
        top = high >> _HALF
        middle = high & _FOLD
        total = low - top - np.where(low < top, _FOLD, np.uint64(0))
        folded = (middle << _HALF) - middle
        total += folded
        total += np.where(total < folded, _FOLD, np.uint64(0))
        return np.where(total >= _P, total - _P, total)


class _Compiled(Arithmetic):
    """``field.c``; it can't check lengths, so this does."""

    def __init__(self, library: Any) -> None:
        word = ctypes.c_uint64
        size = ctypes.c_size_t
        address = ctypes.c_void_p
        arguments = {
            **dict.fromkeys(
                ("add", "subtract", "multiply"), (address, address, address, size)
            ),
            "dot": (address, address, size),
            "combine": (address, address, size, size, address),
            "squares": (address, size, size, address),
            "shift": (address, size, size, address, address, address),
            "lagrange": (word, size, word, address, address),
        }
        self._functions: dict[str, Any] = {}
        for name, types in arguments.items():
            function = library[f"precad_field_{name}"]
            function.argtypes = types
            function.restype = word if name == "dot" else None
            self._functions[name] = function

    def add(self, a: FieldVector, b: FieldVector) -> FieldVector:
        return self._elementwise("add", a, b)

    def subtract(self, a: FieldVector, b: FieldVector) -> FieldVector:
        return self._elementwise("subtract", a, b)

    def multiply(self, a: FieldVector, b: FieldVector) -> FieldVector:
        return self._elementwise("multiply", a, b)

    def dot(self, a: FieldVector, b: FieldVector) -> int:
        _require(a.shape, b.shape, a, b)
        return int(self._functions["dot"](a.ctypes.data, b.ctypes.data, a.size))

    def combine(
        self, rows: FieldVector, weights: FieldVector, out: FieldVector
    ) -> None:
        _require(
            rows.shape,
            weights.shape + out.shape,
            rows,
            weights,
            out=out,
        )
        data = rows.ctypes.data, weights.ctypes.data
        self._functions["combine"](*data, *rows.shape, out.ctypes.data)

    def squares(self, rows: FieldVector, out: FieldVector) -> None:
        _require(rows.shape[:1], out.shape, rows, out=out)
        self._functions["squares"](rows.ctypes.data, *rows.shape, out.ctypes.data)

    def shift(self, rows: FieldVector, by: int) -> None:
        tables = _transform(len(rows), by)
        _require(rows.shape[:1], tables[2].shape, out=rows)
        self._functions["shift"](
            rows.ctypes.data, *rows.shape, *(t.ctypes.data for t in tables)
        )

    def lagrange(self, n: int, t: int) -> FieldVector:
        prefix = np.empty(n, dtype=np.uint64)
        weights = np.empty(n, dtype=np.uint64)
        data = prefix.ctypes.data, weights.ctypes.data
        self._functions["lagrange"](root_of_unity(n), n, t, *data)
        return weights

    def _elementwise(self, name: str, a: FieldVector, b: FieldVector) -> FieldVector:
        _require(a.shape, b.shape, a, b)
        out = np.empty_like(a)
        self._functions[name](a.ctypes.data, b.ctypes.data, out.ctypes.data, a.size)
        return out


_Shape = tuple[int, ...]


def _require(
    shape: _Shape,
    other: _Shape,
    *arrays: FieldVector,
    out: FieldVector | None = None,
) -> None:
    """C reads and writes whatever it is given: refuse what NumPy would refuse."""
    if shape != other:
        raise ValueError(f"shapes {shape} and {other} don't belong together")
    for array in arrays if out is None else (*arrays, out):
        if array.dtype != np.uint64 or not (
            array.flags.c_contiguous and array.flags.aligned
        ):
            raise ValueError(
                f"words must be contiguous, aligned uint64, not {array.dtype}"
            )
    if out is not None and not out.flags.writeable:
        raise ValueError("the output must be writeable")


@cache
def arithmetic() -> Arithmetic:
    """The implementation in use."""
    found = arithmetics(built_library())
    return found[NUMPY if kernel_in_use() == NUMPY else next(iter(found))]


def arithmetics(library: Path | None) -> dict[str, Arithmetic]:
    """All that this machine can run, the best first; NumPy's is the last."""
    found: dict[str, Arithmetic] = {}
    if library is not None:
        # It may be built for another machine, or by a precad that had no field.
        with suppress(OSError, AttributeError):
            found["c"] = _Compiled(ctypes.CDLL(str(library)))
    return {**found, NUMPY: Arithmetic()}


class FieldKeystream:
    """Uniform words below p, as ``Keystream`` for the ring; any piece can be expanded alone.

    Word i is the first below p of W_0[i], W_1[i] …; W_r are the words of AES-256-CTR
    under derive(key, purpose, *context) from the counter r·2^64 on. Reducing mod p
    instead would give small words twice the chance of others: 2^−32 a word, that is .8
    % over 10^6 of them.
    """

    def __init__(self, key: Secret, purpose: str, *context: bytes | int) -> None:
        self._cipher = algorithms.AES256(derive(key, purpose, *context).reveal())

    def words(self, count: int, start: int = 0) -> FieldVector:
        """Words ``start`` to ``start + count``, ``[count] uint64``, all below p."""
        found = self._drawn(0, start, count)
        again = 0
        while (at := first_not_below(found)) is not None:
            again += 1
            for each in at + np.flatnonzero(found[at:] >= np.uint64(P)):
                found[each] = self._drawn(again, start + int(each), 1)[0]
        return found

    def _drawn(self, again: int, start: int, count: int) -> FieldVector:
        """Words of W_again: two to a block of the cipher."""
        odd = start % 2
        counter = (again << 64) + start // 2
        encryptor = Cipher(
            self._cipher, modes.CTR(counter.to_bytes(16, "big"))
        ).encryptor()
        words = np.empty(odd + count, dtype="<u8")
        fill(words.data.cast("B"), encryptor)
        return words[odd:].astype(np.uint64, copy=False)


class Group:
    """Z_2^64, where every word is an element; all vectors are ``[n] int64`` of one length."""

    def encode(self, x: RingVector) -> RingVector:
        """Signed integers as elements; in the ring they are their own."""
        return x

    def decode(self, words: RingVector) -> RingVector:
        """Inverse of ``encode``, for a sum with as much room as the task's headroom leaves."""
        return words

    def add(self, total: RingVector, more: RingVector) -> None:
        """Add ``more`` to ``total``."""
        total += more

    def subtract(self, total: RingVector, less: RingVector) -> None:
        """Subtract ``less`` from ``total``."""
        total -= less

    def first_foreign(self, words: RingVector) -> int | None:  # noqa: ARG002 -- all are elements
        """Where the first word stands that is no element, if any."""
        return None


class _Field(Group):
    def encode(self, x: RingVector) -> RingVector:
        return of_signed(x).view(np.int64)

    def decode(self, words: RingVector) -> RingVector:
        return signed_of(words.view(np.uint64))

    def add(self, total: RingVector, more: RingVector) -> None:
        _change(total, more, arithmetic().add)

    def subtract(self, total: RingVector, less: RingVector) -> None:
        _change(total, less, arithmetic().subtract)

    def first_foreign(self, words: RingVector) -> int | None:
        return first_not_below(words.view(np.uint64))


def _change(
    total: RingVector,
    by: RingVector,
    how: Callable[[FieldVector, FieldVector], FieldVector],
) -> None:
    for start in range(0, total.size, _AT_ONCE):
        part = total[start : start + _AT_ONCE].view(np.uint64)
        part[:] = how(part, by[start : start + _AT_ONCE].view(np.uint64))


RING = Group()
FIELD = _Field()


def group_of(task: Task) -> Group:
    """The group of a task's shares, which its check decides."""
    return RING if task.proof is None else FIELD
