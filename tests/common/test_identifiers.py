"""Names and digests are checked where they are made; secrets don't show themselves, and what they
expand to is independent for every use; errors are the same beyond their process."""

import copy
import hmac
import json
import logging
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from precad.common.errors import Misconfiguration, MissingPackage, PrecadError, Rejection
from precad.common.errors import RejectedSubmission as Rejected
from precad.common.identifiers import ClientId, Digest, Secret
from precad.common.ring import Keystream, derive, encode_context


@pytest.mark.parametrize("name", ["a", "0", "ward-3", "a" * 63, "a--b"])
def test_good_client_names(name: str) -> None:
    assert ClientId(name).encoded() == name.encode()


@pytest.mark.parametrize(
    "name", ["", "A", "-a", "a-", "a_b", "a b", "a" * 64, "a\n", "ä", "../a", "a\0", None, 3, b"a"]
)
def test_bad_client_names_are_refused(name: Any) -> None:
    with pytest.raises(Misconfiguration) as refused:
        ClientId(name)
    assert (refused.value.field, refused.value.value) == ("client", name)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_digest_has_32_bytes(length: int) -> None:
    with pytest.raises(Misconfiguration):
        Digest(bytes(length))


@pytest.mark.parametrize(
    "error",
    [
        PrecadError("x" * 5000),
        Misconfiguration("--data", "nowhere", "name a folder"),
        MissingPackage("precad serve", "torch", "server"),
        Rejected(Rejection.ABSENT, "nothing came"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_beyond_its_process(error: PrecadError) -> None:
    # By the protocol that takes it to another process.
    there = copy.copy(error)
    assert (type(there), str(there), vars(there)) == (type(error), str(error), vars(error))


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
def test_no_formatting_and_no_log_shows_the_bytes(
    shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("t").info("key %s of %r", SECRET, Holder(SECRET))
    for text in (shown, caplog.messages[0]):
        assert "<Secret of 32 bytes>" in text
        assert not [
            each for each in (DATA.hex()[:8], repr(DATA)[2:10], str(DATA[0])) if each in text
        ]


@pytest.mark.parametrize(
    ("use", "said"),
    [
        *(
            (lambda protocol=protocol: pickle.dumps(SECRET, protocol), "never pickled")
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
        ),
        (lambda: copy.deepcopy(SECRET), "never"),
        (lambda: json.dumps(SECRET), "not JSON serializable"),
        (lambda: hash(SECRET), "unhashable"),
    ],
)
def test_it_is_never_pickled_copied_written_or_hashed(use: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        use()


def test_equality_is_by_constant_time_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = hmac.compare_digest

    def spy(*both: bytes) -> bool:
        compared.append(both)
        return real(*both)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    assert Secret(DATA) == SECRET
    assert Secret(DATA[::-1]) != SECRET
    assert len(compared) == 2
    assert SECRET != DATA


KEY = Secret(bytes(range(32)))
TINY = 1 << 16


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
