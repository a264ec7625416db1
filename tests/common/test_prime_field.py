"""Arithmetic modulo p against Python's integers, by NumPy and compiled, to the last bit."""

import ctypes
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from precad.common import identifiers, kernel
from precad.common.proof_shape import P
from precad.norm_check import prime_field
from precad.norm_check.prime_field import (
    Arithmetic,
    FieldKeystream,
    Group,
    root_of_unity,
)

ALL = prime_field.arithmetics(kernel.built_library())
EDGES = [
    0,
    1,
    2**32 - 1,
    2**32,
    2**32 + 1,
    (P - 1) // 2,
    (P + 1) // 2,
    P - 2**32,
    P - 1,
]
REFUSED = (ValueError, ctypes.ArgumentError)
WORDS = st.one_of(st.sampled_from(EDGES), st.integers(0, P - 1))


@pytest.fixture(params=list(ALL.values()), ids=list(ALL))
def field(request: pytest.FixtureRequest) -> Arithmetic:
    found: Arithmetic = request.param
    return found


def words(values: list[int]) -> prime_field.FieldVector:
    return np.array(values, dtype=np.uint64)


def drawn(*shape: int, seed: int = 1) -> prime_field.FieldVector:
    found = np.random.default_rng(seed).integers(0, P, shape, dtype=np.uint64)
    found.flat[: len(EDGES)] = EDGES[: found.size]
    return found


def value_at(t: int, coefficients: list[int]) -> int:
    return sum(each * pow(t, j, P) for j, each in enumerate(coefficients)) % P


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=70))
@example([(x, y) for x in EDGES for y in EDGES])
def test_sums_and_products_are_those_of_integers(pairs: list[tuple[int, int]]) -> None:
    a, b = words([x for x, _ in pairs]), words([y for _, y in pairs])
    for field in ALL.values():
        assert field.add(a, b).tolist() == [(x + y) % P for x, y in pairs]
        assert field.subtract(a, b).tolist() == [(x - y) % P for x, y in pairs]
        assert field.multiply(a, b).tolist() == [x * y % P for x, y in pairs]
        assert field.dot(a, b) == sum(x * y for x, y in pairs) % P


@pytest.mark.parametrize("columns", [1, 7, 128, 300])
def test_rows_are_combined_and_squared(field: Arithmetic, columns: int) -> None:
    rows, weights, out = drawn(9, columns), drawn(9, seed=2), drawn(columns, seed=3)
    expected = (weights.astype(object) @ rows.astype(object) + out.astype(object)) % P
    field.combine(rows, weights, out)
    assert out.tolist() == expected.tolist()
    squares = drawn(9, seed=4)
    expected = ((rows.astype(object) ** 2).sum(axis=1) + squares.astype(object)) % P
    field.squares(rows, squares)
    assert squares.tolist() == expected.tolist()
    # A body's bytes are read where they lie: nothing is written to what may only be
    # read.
    fixed = bytes(72)
    with pytest.raises(REFUSED, match=r"WRITEABLE|read-only"):
        field.squares(rows, np.frombuffer(fixed, dtype=np.uint64))
    assert fixed == bytes(72)


def test_a_long_sum_of_the_largest_words_is_exact(field: Arithmetic) -> None:
    many = np.full(200_000, P - 1, dtype=np.uint64)
    assert field.dot(many, many) == 200_000
    out = np.full(1, P - 1, dtype=np.uint64)
    field.combine(many[:, None], many, out)
    assert out.tolist() == [199_999]


@pytest.mark.parametrize("n", [1, 2, 8, 64])
def test_values_at_roots_of_unity_become_values_at_shifted_ones(
    field: Arithmetic, n: int
) -> None:
    omega, by = root_of_unity(n), root_of_unity(2 * n)
    coefficients = [
        [int(each) for each in drawn(n, seed=column)] for column in range(3)
    ]
    rows = words(
        [[value_at(pow(omega, k, P), each) for each in coefficients] for k in range(n)]  # type: ignore[misc]
    )
    field.shift(rows, by)
    assert rows.tolist() == [
        [value_at(by * pow(omega, k, P) % P, each) for each in coefficients]
        for k in range(n)
    ]


@pytest.mark.parametrize("t", [0, 5, P - 3, 2**33])
@pytest.mark.parametrize("n", [1, 2, 16])
def test_lagrange_weights_give_a_polynomials_value(
    field: Arithmetic, n: int, t: int
) -> None:
    omega = root_of_unity(n)
    coefficients = [int(each) for each in drawn(n, seed=n)]
    values = words([value_at(pow(omega, k, P), coefficients) for k in range(n)])
    assert field.dot(field.lagrange(n, t), values) == value_at(t, coefficients)


def test_roots_of_unity_have_their_order() -> None:
    for bits in range(1, 33):
        omega = root_of_unity(2**bits)
        assert (pow(omega, 2**bits, P), pow(omega, 2 ** (bits - 1), P)) == (1, P - 1)
    with pytest.raises(ValueError, match="power of two up to 2\\^32, not 12"):
        root_of_unity(12)


def test_the_compiled_functions_take_no_lengths_that_differ() -> None:
    assert list(ALL) == (["c", "numpy"] if kernel.built_library() else ["numpy"])
    for field in list(ALL.values())[:-1]:
        one, three = words([1]), drawn(3)
        for call, says in (
            (partial(field.add, one, words([1, 2])), "don't belong together"),
            (partial(field.combine, drawn(2, 3), one, three), "don't belong together"),
            (partial(field.squares, drawn(2, 3), three), "don't belong together"),
            (
                partial(field.dot, one, np.ones(1, dtype=np.int64)),
                "must have data type uint64",
            ),
            (
                partial(field.dot, one, np.frombuffer(bytes(9), np.uint64, 1, 1)),
                "ALIGNED",
            ),
        ):
            with pytest.raises(REFUSED, match=says):
                call()


MODULI = {"ring": (prime_field.RING, 2**64), "field": (prime_field.FIELD, P)}
of_each_group = pytest.mark.parametrize(
    ("group", "modulus"), MODULI.values(), ids=MODULI
)
SIGNED = [0, 1, -1, 2**31, -(2**32), 2**62 - 1, -(2**62) + 1]


@of_each_group
def test_a_groups_sums_are_those_of_integers(group: Group, modulus: int) -> None:
    """In place, over the edge of what is added at once."""
    pairs = [(a, b) for a in SIGNED for b in SIGNED if abs(a + b) < 2**62 > abs(a - b)]
    sums, differences = [x + y for x, y in pairs], [x - y for x, y in pairs]
    repeats = 1 + 2 * (1 << 16) // len(pairs)
    a, b = (
        group.encode(np.array([pair[i] for pair in pairs] * repeats, dtype=np.int64))
        for i in (0, 1)
    )
    total = a.copy()
    group.add(total, b)
    first = [int(each) % 2**64 for each in total[: len(pairs)]]
    assert first == [each % modulus for each in sums]
    assert group.decode(total).tolist() == sums * repeats
    group.subtract(total, b)
    assert (total == a).all()
    group.subtract(total, b)
    assert group.decode(total).tolist() == differences * repeats


@of_each_group
def test_what_is_no_element_is_found(group: Group, modulus: int) -> None:
    """The words of a peer's noisy share, as they crossed the wire."""
    for bad in (P, P + 5, 2**64 - 1):
        found = group.first_foreign(words([P - 1, 0, bad, bad]).view(np.int64))
        assert found == (2 if bad >= modulus else None)
        assert prime_field.first_not_below(words([0, P - 1, bad, bad])) == 2
    assert group.first_foreign(words([P - 1, 0]).view(np.int64)) is None
    assert prime_field.first_not_below(words([0, P - 1])) is None


# --- random words below p; against a reference: tests/vectors/test_proof.py
# ----------------------

KEY = identifiers.Secret(bytes(range(32)))
REJECTED = 3_716_396_515
"""The first word of this stream's W_0 that isn't below p: found by reading that far."""


def stream() -> FieldKeystream:
    return FieldKeystream(KEY, "field-words")


@pytest.mark.parametrize("start", [0, 1, 2, 7, REJECTED - 6])
def test_every_piece_is_the_same_however_it_is_cut(start: int) -> None:
    whole = stream().words(13, start).tolist()
    for cut in range(14):
        first, rest = stream().words(cut, start), stream().words(13 - cut, start + cut)
        assert [*first.tolist(), *rest.tolist()] == whole


def test_words_too_large_twice_come_from_the_third_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drawn(_self: FieldKeystream, again: int, start: int, count: int) -> np.ndarray:
        words = np.arange(start, start + count, dtype=np.uint64) + np.uint64(
            100 * again
        )
        if again < 2:
            words[(start <= 4) * (4 - start) if count > 1 else 0] = P + again
        return words

    monkeypatch.setattr(FieldKeystream, "_drawn", drawn)
    assert stream().words(6).tolist() == [0, 1, 2, 3, 204, 5]
