"""Secrets don't show themselves; what they expand to is independent for every use."""

import copy
import hmac
import itertools
import json
import logging
import pickle
import struct
from dataclasses import dataclass

import numpy as np
import pytest

from precad.common.identifiers import Secret
from precad.common.ring import Keystream, derive, encode_context

DATA = bytes(range(200, 232))
SECRET = Secret(DATA)


@dataclass(frozen=True, slots=True)
class Holder:
    secret: Secret


@pytest.mark.parametrize(
    "shown",
    [
        repr(SECRET),
        str(SECRET),
        f"{SECRET}",
        f"{SECRET!r:>40}",
        f"{SECRET!s}",
        "%s %r" % (SECRET, SECRET),  # noqa: UP031 - the old way must hide it too
        repr([SECRET]),
        repr(Holder(SECRET)),
        repr({"k": SECRET}),
    ],
)
def test_no_formatting_shows_the_bytes(shown: str) -> None:
    assert "of 32 bytes" in shown
    assert DATA.hex()[:8] not in shown
    assert repr(DATA)[2:10] not in shown
    assert str(DATA[0]) not in shown


def test_a_log_line_hides_the_bytes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("t").info("key %s of %r", SECRET, Holder(SECRET))
    assert "<Secret of 32 bytes>" in caplog.text
    assert DATA.hex() not in caplog.text


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_is_never_pickled(protocol: int) -> None:
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(SECRET, protocol)


def test_it_is_never_copied_or_written_as_json() -> None:
    with pytest.raises(TypeError):
        copy.deepcopy(SECRET)
    with pytest.raises(TypeError):
        json.dumps(SECRET)


def test_equality_is_by_constant_time_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = hmac.compare_digest

    def spy(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    assert Secret(DATA) == SECRET
    assert Secret(DATA[::-1]) != SECRET
    assert len(compared) == 2


def test_it_equals_no_bare_bytes_and_is_no_key_of_a_dict() -> None:
    assert SECRET != DATA
    with pytest.raises(TypeError, match="unhashable"):
        hash(SECRET)


# --- expansion -----------------------------------------------------------------------------------


KEY = Secret(bytes(range(32)))
TINY = 1 << 16


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
