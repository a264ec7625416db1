"""Bodies on the disk: as they came, or a clear error; and noise to whoever lacks the key."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from precad.aggregator.collect.upload import TAG_BYTES, Spool, SpooledBody
from precad.common.errors import BodyUnreadable
from precad.common.identifiers import ClientId, Secret
from precad.common.share.submission import PIECE_BYTES

ONE, TWO = ClientId("ward-1"), ClientId("ward-2")
SALT = Secret(b"\7" * 32)
WORDS = np.arange(2 * PIECE_BYTES // 8 + 5, dtype="<i8").tobytes()
CHUNK = PIECE_BYTES + TAG_BYTES


def kept(spool: Spool, words: bytes = WORDS, client: ClientId = ONE) -> SpooledBody:
    file = spool.begin(client)
    file.add(memoryview(words))
    return file.finish(SALT)


SIZES = (1, 4096, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES)


@pytest.mark.parametrize("size", SIZES)
def test_a_body_is_the_same_however_it_arrives(tmp_path: Path, size: int) -> None:
    words = WORDS[-5000:] if size == 1 else WORDS
    file = Spool(tmp_path).begin(ONE)
    for start in range(0, len(words), size):
        file.add(memoryview(words)[start : start + size])
    body = file.finish(SALT)
    assert b"".join(body.pieces()) == words
    assert body.path.stat().st_size == len(words) + -(-len(words) // PIECE_BYTES) * TAG_BYTES


def test_equal_bodies_are_unlike_on_the_disk(tmp_path: Path) -> None:
    """No key and nonce are used twice: not in a file, an attempt, or two attempts."""
    words = bytes(2 * PIECE_BYTES)
    spool = Spool(tmp_path)
    files = [kept(each, words) for each in (spool, spool, Spool(tmp_path))]
    blocks = [
        data[start : start + 16]
        for data in (each.path.read_bytes() for each in files)
        for start in (0, 16, CHUNK, CHUNK + 16)
    ]
    assert len(set(blocks)) == len(blocks)


def meddled(change: Callable[[bytes], bytes]) -> Callable[[SpooledBody, SpooledBody], None]:
    def meddle(body: SpooledBody, _other: SpooledBody) -> None:
        body.path.write_bytes(change(body.path.read_bytes()))

    return meddle


def flipped(at: int) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[at] ^= 1
        return bytes(changed)

    return flip


def replace_by_a_folder(body: SpooledBody, _other: SpooledBody) -> None:
    body.path.unlink()
    body.path.mkdir()


def exchange(body: SpooledBody, other: SpooledBody) -> None:
    body.path.write_bytes(other.path.read_bytes())


MEDDLINGS: dict[str, Callable[[SpooledBody, SpooledBody], None]] = {
    "a bit of the first chunk": meddled(flipped(0)),
    "a bit of the last chunk": meddled(flipped(-TAG_BYTES - 1)),
    "a bit of a tag": meddled(flipped(CHUNK - 1)),
    "the last byte is gone": meddled(lambda data: data[:-1]),
    "the last chunk is gone": meddled(lambda data: data[: 2 * CHUNK]),
    "the last chunk is shorter": meddled(lambda data: data[: -TAG_BYTES - 8] + data[-TAG_BYTES:]),
    "nothing is left": meddled(lambda _: b""),
    "two chunks exchanged": meddled(
        lambda data: data[CHUNK : 2 * CHUNK] + data[:CHUNK] + data[2 * CHUNK :]
    ),
    "a chunk twice": meddled(lambda data: data[:CHUNK] * 2 + data[2 * CHUNK :]),
    "a chunk left out": meddled(lambda data: data[:CHUNK] + data[2 * CHUNK :]),
    "another client's file": exchange,
    "removed": lambda body, _other: body.path.unlink(),
    "a folder": replace_by_a_folder,
}


@pytest.mark.parametrize("meddling", MEDDLINGS)
def test_a_file_that_was_changed_is_a_clear_error_and_no_other_body(
    tmp_path: Path, meddling: str
) -> None:
    spool = Spool(tmp_path)
    body, other = kept(spool), kept(spool, client=TWO)
    MEDDLINGS[meddling](body, other)
    with pytest.raises(BodyUnreadable, match=str(body.path)):
        list(body.pieces())
    # Nobody else's is touched.
    assert b"".join(other.pieces()) == WORDS


def test_a_later_attempts_key_reads_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    earlier, later = kept(Spool(tmp_path)), kept(Spool(tmp_path))
    later.path.write_bytes(earlier.path.read_bytes())
    with pytest.raises(BodyUnreadable):
        list(later.pieces())


def test_an_abandoned_file_and_a_discarded_body_are_gone(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    file = spool.begin(ONE)
    file.add(memoryview(WORDS))
    for _ in range(2):
        file.abandon()
    body = kept(spool)
    for _ in range(2):
        body.discard()
    assert list(tmp_path.iterdir()) == []


def test_neither_repr_nor_an_error_shows_a_body(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = kept(Spool(tmp_path), WORDS[-64:])
    body.path.write_bytes(b"x" * 80)
    with caplog.at_level(logging.DEBUG), pytest.raises(BodyUnreadable) as error:
        list(body.pieces())
    shown = repr(body) + str(error.value) + caplog.text
    for secret in (SALT.reveal(), WORDS[-16:]):
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown
