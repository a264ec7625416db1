"""No two contexts share an encoding."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from precad.common.keystream import encode_context

parts = st.lists(st.binary(max_size=12) | st.integers(0, 2**64 - 1), max_size=4)
purposes = st.text("abc/", max_size=4)


def as_bytes(context: list[bytes | int]) -> list[bytes]:
    """A number stands for its eight bytes; a purpose fixes which parts are numbers."""
    return [struct.pack("<Q", part) if isinstance(part, int) else part for part in context]


@given(purposes, parts, purposes, parts)
def test_the_encoding_is_injective(
    purpose: str, context: list[bytes | int], other_purpose: str, other: list[bytes | int]
) -> None:
    same = (purpose, as_bytes(context)) == (other_purpose, as_bytes(other))
    assert (encode_context(purpose, *context) == encode_context(other_purpose, *other)) == same


@given(st.binary(max_size=40), st.integers(0, 40))
def test_moving_the_border_between_two_parts_changes_the_encoding(data: bytes, cut: int) -> None:
    at = cut % (len(data) + 1)
    splits = {encode_context("p", data[:i], data[i:]) for i in range(len(data) + 1)}
    assert len(splits) == len(data) + 1
    assert encode_context("p", data[:at], data[at:]) in splits


@given(purposes, parts)
def test_it_can_be_read_back(purpose: str, context: list[bytes | int]) -> None:
    encoded, read = encode_context(purpose, *context), []
    while encoded:
        (length,) = struct.unpack_from("<I", encoded)
        read.append(encoded[4 : 4 + length])
        encoded = encoded[4 + length :]
    assert read == [b"precad/v1/" + purpose.encode(), *as_bytes(context)]
