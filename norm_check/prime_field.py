"""The field of p = 2^64 − 2^32 + 1 elements: arithmetic on arrays of words below p.

2^32 divides p − 1, so there are roots of unity of every order 2^j up to 2^32, and
polynomials are multiplied by number-theoretic transforms. ``Arithmetic``, in NumPy,
says what is computed; ``field.c`` computes the same, bit for bit, where a compiler was
there at installation. ``PRECAD_KERNEL=numpy`` does without it (``common/kernel``).
``Group`` is the field or the ring, whichever a task's sums live in.
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from precad.common import (
    MODULUS,
    Integers,
    P,
    RingVector,
    Secret,
    Task,
    Words,
    derive,
    fill,
)
from precad.common.kernel import NUMPY, built_library, kernel_in_use

FieldVector = NDArray[np.uint64]
"""Elements of the field: ``[n] uint64``, every word below p."""

GENERATOR = 7
"""A generator of the field's multiplicative group."""
_P = np.uint64(P)
"""p, for comparisons with words."""
_FOLD = np.uint64(2**32 - 1)
"""2^64 mod p, and the mask of a word's low half."""
_HALF = np.uint64(32)
"""Bits of half a word."""
_AT_ONCE = 1 << 16
"""Words that are added or multiplied together: they stay in the processor's cache."""
_Shape = tuple[int, ...]
"""Of an array of words."""
_Function = Callable[..., Any]
"""A function of the compiled library, which has no types."""


def root_of_unity(order: int) -> int:
    """Return the root of unity ω of an order that all parties use: 7^((p−1)/order).

    Raises ValueError: the order is no power of two up to 2^32.
    """
    if order < 1 or order & (order - 1) or order > 2**32:
        raise ValueError(
            f"roots of unity have an order of a power of two up to 2^32, not {order}"
        )
    return pow(GENERATOR, (P - 1) // order, P)


def powers(base: int, count: int) -> FieldVector:
    """Return 1, base, base² … in the field, ``[count]``."""
    elements = []
    element = 1
    for _ in range(count):
        elements.append(element)
        element = element * base % P
    return np.array(elements, np.uint64)


def of_signed(x: Integers) -> FieldVector:
    """Return signed integers, ``[n] int64``, as words below p.

    The inverse of ``signed_of``.
    """
    # As a word −x is 2^64 − x, in the field p − x: _FOLD less.
    words = x.astype(np.int64, copy=False).view(np.uint64)
    return np.where(x < 0, words - _FOLD, words)


def signed_of(words: FieldVector) -> Integers:
    """Return the words' representatives in [−(p−1)/2, (p−1)/2], ``[n] int64``."""
    return np.where(words > np.uint64(P // 2), words + _FOLD, words).view(np.int64)


def first_not_below(words: Words) -> int | None:
    """Return the place of the first word that is p or more; None if there is none."""
    too_large = np.flatnonzero(words >= _P)
    return int(too_large[0]) if too_large.size else None


@cache
def _transform(n: int, by: int) -> tuple[FieldVector, FieldVector, FieldVector]:
    """Return the tables with which ``Arithmetic.shift`` works on n rows.

    They are ω^j and ω^−j for j < n/2, ``[n/2]`` each, and by^j/n for the coefficients
    in bit-reversed order, ``[n]``. n is a power of two, ω the root of unity of order n.
    """
    omega = root_of_unity(n)
    bits = n.bit_length() - 1
    bit_reversed = [int(f"{j:0{bits}b}"[::-1], 2) if bits else 0 for j in range(n)]
    inverse = np.full(n, pow(n, -1, P), np.uint64)
    scale = Arithmetic().multiply(powers(by, n)[bit_reversed], inverse)
    return powers(omega, n // 2), powers(pow(omega, -1, P), n // 2), scale


class Arithmetic:
    """The field's arithmetic in NumPy: the reference for every other implementation.

    It works on halves of 32 bits, so that no product or sum leaves 64 bits. Vectors are
    contiguous ``[n] uint64``, words below p.
    """

    def add(self, a: FieldVector, b: FieldVector) -> FieldVector:
        """Return a + b, elementwise."""
        # A sum that leaves 64 bits has lost 2^64, which is _FOLD in the field.
        total = a + b
        total += np.where(total < a, _FOLD, np.uint64(0))
        return np.where(total >= _P, total - _P, total)

    def subtract(self, a: FieldVector, b: FieldVector) -> FieldVector:
        """Return a − b, elementwise."""
        # A difference below 0 has gained 2^64, and needs p: 2^64 − _FOLD.
        return a - b - np.where(a < b, _FOLD, np.uint64(0))

    def multiply(self, a: FieldVector, b: FieldVector) -> FieldVector:
        """Return a·b, elementwise."""
        # By halves: a·b = a_low·b_low + 2^32·(a_high·b_low + a_low·b_high)
        # + 2^64·a_high·b_high. With the upper half of what comes before, none of these
        # sums leaves 64 bits.
        a_low = a & _FOLD
        a_high = a >> _HALF
        b_low = b & _FOLD
        b_high = b >> _HALF
        lowest = a_low * b_low
        middle = a_high * b_low + (lowest >> _HALF)
        other = a_low * b_high + (middle & _FOLD)
        low = (other << _HALF) | (lowest & _FOLD)
        high = a_high * b_high + (middle >> _HALF) + (other >> _HALF)
        return self._reduced(low, high)

    def dot(self, a: FieldVector, b: FieldVector) -> int:
        """Return the inner product ⟨a, b⟩, in [0, p)."""
        return int(self._sum(self.multiply(a, b)[:, None])[0])

    def combine(
        self, rows: FieldVector, weights: FieldVector, out: FieldVector
    ) -> None:
        """Add Σ_m weights[m]·rows[m] to ``out``, in place.

        ``rows`` are ``[m, c]``, ``weights`` ``[m]`` and ``out`` ``[c]``.
        """
        # So many rows at a time that their products stay in the cache.
        step = max(1, _AT_ONCE // rows.shape[1])
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            products = self.multiply(rows[part], weights[part, None])
            out[:] = self.add(out, self._sum(products))

    def squares(self, rows: FieldVector, out: FieldVector) -> None:
        """Add ⟨rows[m], rows[m]⟩ to ``out[m]``, in place, for each m.

        ``rows`` are ``[m, c]`` and ``out`` ``[m]``.
        """
        out[:] = self.add(out, self._sum(self.multiply(rows, rows).T))

    def shift(self, rows: FieldVector, by: int) -> None:
        """Turn values at the n-th roots of unity into those at ``by`` times the roots.

        ``rows`` is ``[n, c]``, changed in place: row k stands at ω^k, then at by·ω^k. n
        is a power of two, by ≠ 0. A column holds the values of a polynomial of degree
        below n. An inverse number-theoretic transform gives its coefficients, in
        bit-reversed order; each is scaled; a transform gives the values.
        """
        n = len(rows)
        roots, inverses, scale = _transform(n, by)
        # The inverse transform, without the division by n: pairs of rows that are
        # ``half`` apart, in blocks that get shorter.
        half = n // 2
        step = 1
        while half:
            pairs = rows.reshape(n // (2 * half), 2, half, -1)
            first = pairs[:, 0].copy()
            second = pairs[:, 1].copy()
            pairs[:, 0] = self.add(first, second)
            difference = self.subtract(first, second)
            pairs[:, 1] = self.multiply(difference, inverses[::step, None][None])
            half = half // 2
            step = step * 2
        # by^j for the coefficient j moves the points, 1/n ends the inverse transform.
        rows[:] = self.multiply(rows, scale[:, None])
        # The transform: the same pairs in blocks that get longer.
        half = 1
        step = n // 2
        while half < n:
            pairs = rows.reshape(n // (2 * half), 2, half, -1)
            first = pairs[:, 0].copy()
            second = self.multiply(pairs[:, 1], roots[::step, None][None])
            pairs[:, 0] = self.add(first, second)
            pairs[:, 1] = self.subtract(first, second)
            half = half * 2
            step = step // 2

    def lagrange(self, n: int, t: int) -> FieldVector:
        """Return the Lagrange weights at t over the n-th roots of unity, ``[n]``.

        Σ_k weights[k]·f(ω^k) = f(t) for every polynomial f of degree below n, with ω of
        order n: weights[k] = ω^k·(t^n − 1)/(n·(t − ω^k)). n is a power of two, t no
        n-th root of unity.
        """
        factor = (pow(t, n, P) - 1) * pow(n, -1, P) % P
        weights = [
            point * factor % P * pow(t - point, -1, P) % P
            for point in powers(root_of_unity(n), n).tolist()
        ]
        return np.array(weights, np.uint64)

    def _sum(self, values: FieldVector) -> FieldVector:
        """Return the sum over the first axis, of at most 2^32 words: ``[c]``."""
        # Halves are summed by themselves, so that no sum leaves 64 bits.
        low = (values & _FOLD).sum(axis=0, dtype=np.uint64)
        high = (values >> _HALF).sum(axis=0, dtype=np.uint64)
        return self.add(self._reduced(high << _HALF, high >> _HALF), low % _P)

    def _reduced(self, low: FieldVector, high: FieldVector) -> FieldVector:
        """Return low + 2^64·high mod p, elementwise; both are any words.

        In the field 2^64 = 2^32 − 1 and 2^96 = −1: of ``high`` the lower half counts
        2^32 − 1 times, and the upper half is subtracted.
        """
        top = high >> _HALF
        middle = high & _FOLD
        total = low - top - np.where(low < top, _FOLD, np.uint64(0))
        folded = (middle << _HALF) - middle
        total += folded
        total += np.where(total < folded, _FOLD, np.uint64(0))
        return np.where(total >= _P, total - _P, total)


class _Compiled(Arithmetic):
    """The arithmetic of ``field.c``, with the results of ``Arithmetic``, bit for bit.

    C can't check lengths and types of arrays: this class compares lengths, and ctypes
    refuses arrays of other words, or with gaps, or that may not be written
    (ArgumentError).
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        """Take the functions of a loaded library, and declare their types.

        Raises AttributeError: the library lacks one.
        """
        word = ctypes.c_uint64
        size = ctypes.c_size_t
        read = np.ctypeslib.ndpointer(np.uint64, flags=("C", "A"))
        written = np.ctypeslib.ndpointer(np.uint64, flags=("C", "A", "W"))
        elementwise = (read, read, written, size)
        parameters = {
            "add": elementwise,
            "subtract": elementwise,
            "multiply": elementwise,
            "dot": (read, read, size),
            "combine": (read, read, size, size, written),
            "squares": (read, size, size, written),
            "shift": (written, size, size, read, read, read),
            "lagrange": (word, size, word, written, written),
        }
        self._functions: dict[str, _Function] = {}
        for name, types in parameters.items():
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
        _require_alike(a.shape, b.shape)
        return int(self._functions["dot"](a, b, a.size))

    def combine(
        self, rows: FieldVector, weights: FieldVector, out: FieldVector
    ) -> None:
        _require_alike(rows.shape, weights.shape + out.shape)
        self._functions["combine"](rows, weights, *rows.shape, out)

    def squares(self, rows: FieldVector, out: FieldVector) -> None:
        _require_alike(rows.shape[:1], out.shape)
        self._functions["squares"](rows, *rows.shape, out)

    def shift(self, rows: FieldVector, by: int) -> None:
        self._functions["shift"](rows, *rows.shape, *_transform(len(rows), by))

    def lagrange(self, n: int, t: int) -> FieldVector:
        prefix = np.empty(n, np.uint64)
        weights = np.empty(n, np.uint64)
        self._functions["lagrange"](root_of_unity(n), n, t, prefix, weights)
        return weights

    def _elementwise(self, name: str, a: FieldVector, b: FieldVector) -> FieldVector:
        """Return what the function ``name`` makes of each word of a and b."""
        _require_alike(a.shape, b.shape)
        out = np.empty_like(a)
        self._functions[name](a, b, out, a.size)
        return out


def _require_alike(shape: _Shape, other: _Shape) -> None:
    """Refuse what NumPy would refuse: C reads and writes whatever it is given.

    Raises ValueError: the two shapes aren't equal.
    """
    if shape != other:
        raise ValueError(f"shapes {shape} and {other} don't belong together")


@cache
def arithmetic() -> Arithmetic:
    """Return the arithmetic in use: NumPy's if that is asked for, else the best."""
    available = arithmetics(built_library())
    if kernel_in_use() == NUMPY:
        return available[NUMPY]
    return next(iter(available.values()))


def arithmetics(library: Path | None) -> dict[str, Arithmetic]:
    """Return all that this machine can run, by name, the best first and NumPy's last.

    ``library`` is where the compiled functions are, None if they weren't compiled.
    """
    available: dict[str, Arithmetic] = {}
    if library is not None:
        # It may be built for another machine, or by a precad that had no field.
        with suppress(OSError, AttributeError):
            available["c"] = _Compiled(ctypes.CDLL(str(library)))
    available[NUMPY] = Arithmetic()
    return available


class FieldKeystream:
    """Uniform words below p, of which any piece can be expanded alone.

    As ``Keystream`` is for the ring. Word i is the first below p of W_0[i], W_1[i] …;
    W_r are the words of AES-256-CTR under derive(key, purpose, *context) from the
    counter r·2^64 on. Reducing mod p instead would give small words twice the chance of
    others: 2^−32 a word, that is .8 % over 10^6 of them.
    """

    def __init__(self, key: Secret, purpose: str, *context: bytes | int) -> None:
        """Derive the stream's own key: for one purpose, bound to the context."""
        self._cipher = algorithms.AES256(derive(key, purpose, *context).reveal())

    def words(self, count: int, start: int = 0) -> FieldVector:
        """Return words ``start`` to ``start + count``, ``[count] uint64``, below p."""
        words = self._drawn(0, start, count)
        # A word that is p or more is looked up in the next stream, at the same place.
        stream = 0
        too_large = np.flatnonzero(words >= _P)
        while too_large.size:
            stream += 1
            for place in too_large:
                words[place] = self._drawn(stream, start + int(place), 1)[0]
            too_large = too_large[words[too_large] >= _P]
        return words

    def _drawn(self, stream: int, start: int, count: int) -> Words:
        """Return ``count`` words of W_stream from ``start`` on, p and more included.

        A block of the cipher has two words.
        """
        odd = start % 2
        counter = (stream << 64) + start // 2
        encryptor = Cipher(
            self._cipher, modes.CTR(counter.to_bytes(16, "big"))
        ).encryptor()
        words = np.empty(odd + count, "<u8")
        fill(words.data.cast("B"), encryptor)
        return words[odd:].astype(np.uint64, copy=False)


class Group:
    """The group of a task's shares: by itself Z_2^64, where every word is an element.

    All vectors are ``[n] int64`` of one length.
    """

    order = MODULUS
    """How many elements it has."""

    def encode(self, x: RingVector) -> RingVector:
        """Return signed integers as elements; in the ring they are their own."""
        return x

    def decode(self, words: RingVector) -> RingVector:
        """Return elements as signed integers: the inverse of ``encode``.

        For a sum with as much room as the task's headroom leaves.
        """
        return words

    def add(self, total: RingVector, words: RingVector) -> None:
        """Add ``words`` to ``total``, in place."""
        total += words

    def subtract(self, total: RingVector, words: RingVector) -> None:
        """Subtract ``words`` from ``total``, in place."""
        total -= words

    def first_foreign(self, words: RingVector) -> int | None:  # noqa: ARG002 -- all are elements
        """Return the place of the first word that is no element; None if all are."""
        return None


class _Field(Group):
    """The field of p elements; a word below p is an element."""

    order = P

    def encode(self, x: RingVector) -> RingVector:
        return of_signed(x).view(np.int64)

    def decode(self, words: RingVector) -> RingVector:
        return signed_of(words.view(np.uint64))

    def add(self, total: RingVector, words: RingVector) -> None:
        _change(total, words, arithmetic().add)

    def subtract(self, total: RingVector, words: RingVector) -> None:
        _change(total, words, arithmetic().subtract)

    def first_foreign(self, words: RingVector) -> int | None:
        return first_not_below(words.view(np.uint64))


def _change(
    total: RingVector,
    operand: RingVector,
    operation: Callable[[FieldVector, FieldVector], FieldVector],
) -> None:
    """Set ``total`` to operation(total, operand), a cacheful at a time."""
    for start in range(0, total.size, _AT_ONCE):
        part = total[start : start + _AT_ONCE].view(np.uint64)
        part[:] = operation(part, operand[start : start + _AT_ONCE].view(np.uint64))


RING = Group()
"""Where shares live if norms are checked with a dealer."""
FIELD = _Field()
"""Where shares live if owners prove their norms."""


def group_of(task: Task) -> Group:
    """Return the group of a task's shares, which the task's check of norms decides."""
    return RING if task.proof is None else FIELD
