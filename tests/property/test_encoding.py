"""Encoding never lengthens, clips hold in the integers, and one record moves the sum by R."""

import math
from fractions import Fraction

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from precad.common.ring import clip_record_norm, clip_update, decode, encode, squared_norm

finite = st.floats(-1e9, 1e9)
vectors = st.lists(finite, min_size=1, max_size=12).map(np.array)
any_gradients = st.lists(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
    min_size=1,
    max_size=5,
).map(np.array)
ring_vectors = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=12).map(
    lambda x: np.array(x, dtype=np.int64)
)
bits = st.integers(1, 30)


def exact_square(x: NDArray[np.float64]) -> Fraction:
    return sum((Fraction(v) ** 2 for v in x.tolist()), Fraction(0))


@given(vectors, bits)
def test_encoding_never_lengthens(x: NDArray[np.float64], f: int) -> None:
    encoded = encode(x, f)
    assert squared_norm(encoded) <= exact_square(x) * Fraction(4) ** f
    # Nor does any entry grow, change its sign, or move by a whole unit.
    scaled = [Fraction(v) * 2**f for v in x.tolist()]
    for word, value in zip(encoded.tolist(), scaled, strict=True):
        assert abs(word) <= abs(value) < abs(word) + 1
        assert word * value >= 0


@given(ring_vectors, bits)
def test_squared_norms_are_exact_integers(x: NDArray[np.int64], f: int) -> None:
    assert squared_norm(x) == sum(v * v for v in x.tolist())
    assert decode(x, f).shape == x.shape


@given(ring_vectors, st.integers(1, 2**25), bits)
@example(np.full(100, -(2**63)), 2**25, 20)
@example(np.full(2, 2**63 - 1), 2**25, 20)
# At C = 30.1 and d = 2 a clip to C alone would leave 43 % of all vectors above floor(C·2^f).
@example(np.array([1, 1]) * 30 * 2**20, math.floor(30.1 * 2**16), 16)
@example(np.array([3, -5]) * 2**40, math.floor(30.1 * 2**20), 20)
def test_a_clipped_update_is_within_its_bound(x: NDArray[np.int64], bound: int, f: int) -> None:
    clipped = clip_update(x, bound, f)
    assert squared_norm(clipped) <= bound**2
    if squared_norm(x) <= bound**2:
        assert (clipped == x).all()
    else:
        assert math.isqrt(squared_norm(clipped)) >= bound - 2 - math.isqrt(x.size)


@given(any_gradients, st.floats(1e-6, 1e3), st.integers(1, 40))
@example(np.full((2, 3), [[1.7e308], [1e200]]), 1e-10, 20)
@example(np.full((2, 3), [[5e-324], [1e-300]]), 1e6, 20)
def test_a_record_moves_the_sum_by_at_most_its_clip(
    x: NDArray[np.float64], record_clip: float, f: int
) -> None:
    """And by hardly less, where it is longer."""
    clipped = clip_record_norm(x, record_clip)
    for row in clipped:
        assert exact_square(row) <= Fraction(record_clip) ** 2
        assert squared_norm(encode(row, f)) <= Fraction(record_clip) ** 2 * Fraction(4) ** f
    least = (Fraction(record_clip) * Fraction(0.999)) ** 2
    for row, before in zip(clipped, x, strict=True):
        if exact_square(before) < least:
            assert (row == before).all()
        else:
            assert exact_square(row) >= least * Fraction(0.999)
