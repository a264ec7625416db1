"""Expansion: the same for the same use, independent for any other."""

import itertools
import struct

import numpy as np
import pytest

from precad.common.keystream import Keystream, derive, encode_context
from precad.common.secret import Secret

KEY = Secret(bytes(range(32)))
TINY = 1 << 16


def test_the_same_use_gives_the_same_words() -> None:
    assert (Keystream(KEY, "p", 1, b"x").words(9) == Keystream(KEY, "p", 1, b"x").words(9)).all()


def test_key_purpose_and_every_part_of_the_context_separate_streams() -> None:
    uses: list[tuple[Secret, str, tuple[bytes | int, ...]]] = [
        (KEY, "p", (1, b"x")),
        (Secret(bytes(32)), "p", (1, b"x")),
        (KEY, "q", (1, b"x")),
        (KEY, "p", (2, b"x")),
        (KEY, "p", (1, b"y")),
        (KEY, "p", (b"x", 1)),
        (KEY, "p", (1, b"x", b"")),
        (KEY, "p", (1,)),
        (KEY, "p", ()),
        (KEY, "", (b"p", 1, b"x")),
    ]
    streams = [Keystream(key, purpose, *context).read(32) for key, purpose, context in uses]
    for one, other in itertools.combinations(streams, 2):
        # Not only different as a whole: no shared word at any place.
        assert not set(np.frombuffer(one, "<u4")) & set(np.frombuffer(other, "<u4"))


def test_reading_in_pieces_is_reading_at_once() -> None:
    whole = Keystream(KEY, "p").read(3 * TINY + 5)
    pieces = Keystream(KEY, "p")
    assert b"".join(pieces.read(n) for n in (1, 15, TINY, 0, 2 * TINY - 11)) == whole


def test_words_are_the_bytes_little_endian() -> None:
    words = Keystream(KEY, "p").words(4)
    assert words.astype("<i8").tobytes() == Keystream(KEY, "p").read(32)


def test_a_stream_goes_on_and_never_repeats() -> None:
    stream = Keystream(KEY, "p")
    words = np.concatenate([stream.words(1000) for _ in range(20)])
    assert np.unique(words).size == words.size


def test_derived_keys_are_secrets_bound_to_their_use() -> None:
    key = derive(KEY, "p", 1)
    assert len(key) == 32
    assert key == derive(KEY, "p", 1)
    assert key != derive(KEY, "p", 2)
    assert key != KEY


def test_a_number_outside_64_bits_is_an_error_and_never_wraps() -> None:
    for number in (-1, 2**64):
        with pytest.raises(struct.error):
            encode_context("p", number)
