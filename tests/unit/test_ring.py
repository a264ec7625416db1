"""Z_2^64 by signed representatives."""

import numpy as np
import pytest

from precad.common.ring import MODULUS, dot, from_bytes, signed, to_bytes


@pytest.mark.parametrize(
    ("value", "representative"),
    [
        (0, 0),
        (-1, -1),
        (2**63 - 1, 2**63 - 1),
        (2**63, -(2**63)),
        (2**64, 0),
        (2**64 - 1, -1),
        (-(2**63), -(2**63)),
        (-(2**63) - 1, 2**63 - 1),
        (5 * 2**64 + 7, 7),
    ],
)
def test_signed_representatives(value: int, representative: int) -> None:
    assert signed(value) == representative


def test_dot_wraps_like_the_integers_modulo_2_to_the_64() -> None:
    x = np.array([-(2**63), 2**63 - 1, 3, -1], dtype=np.int64)
    y = np.array([-(2**63), 2**62, -7, 2**63 - 1], dtype=np.int64)
    exact = sum(a * b for a, b in zip(x.tolist(), y.tolist(), strict=True))
    assert exact >= MODULUS
    assert dot(x, y) == signed(exact)


def test_words_are_little_endian_on_the_wire() -> None:
    assert to_bytes(np.array([1, -2], dtype=np.int64)).hex() == "0100000000000000feffffffffffffff"


def test_words_read_from_bytes_may_be_written_to() -> None:
    words = from_bytes(bytes(16))
    words += 1
    assert words.tolist() == [1, 1]


def test_a_length_that_is_no_whole_number_of_words_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        from_bytes(bytes(15))
