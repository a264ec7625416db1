"""Secrets don't show themselves by accident."""

import copy
import hmac
import json
import logging
import pickle
from dataclasses import dataclass

import pytest

from precad.common.secret import Secret

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


def test_random_secrets_differ_and_have_the_length_asked_for() -> None:
    assert len(Secret.random(16)) == 16
    assert len({Secret.random().reveal() for _ in range(50)}) == 50
