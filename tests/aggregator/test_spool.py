"""Bodies on the disk: as they came, or a clear error; and noise to whoever lacks the key."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.rig.submissions import flipped

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


@pytest.mark.parametrize(
    "size", [1, 4096, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES]
)
def test_a_body_is_the_same_however_it_arrives(tmp_path: Path, size: int) -> None:
    words = WORDS[-5000:] if size == 1 else WORDS
    file = Spool(tmp_path).begin(ONE)
    for start in range(0, len(words), size):
        file.add(memoryview(words)[start : start + size])
    body = file.finish(SALT)
    assert b"".join(body.pieces()) == words
    assert body.path.stat().st_size == len(words) + -(-len(words) // PIECE_BYTES) * TAG_BYTES
    for _ in range(2):
        body.discard()
    file = Spool(tmp_path).begin(ONE)
    file.add(memoryview(words))
    for _ in range(2):
        file.abandon()
    assert list(tmp_path.iterdir()) == []


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


Meddling = Callable[[bytes, bytes], bytes]


MEDDLINGS: dict[str, Meddling | None] = {
    "a bit of the first chunk": lambda data, _: flipped(data, 0),
    "a bit of the last chunk": lambda data, _: flipped(data, -TAG_BYTES - 1),
    "a bit of a tag": lambda data, _: flipped(data, CHUNK - 1),
    "the last byte is gone": lambda data, _: data[:-1],
    "the last chunk is gone": lambda data, _: data[: 2 * CHUNK],
    "the last chunk is shorter": lambda data, _: data[: -TAG_BYTES - 8] + data[-TAG_BYTES:],
    "nothing is left": lambda *_: b"",
    "two chunks exchanged": lambda data, _: (
        data[CHUNK : 2 * CHUNK] + data[:CHUNK] + data[2 * CHUNK :]
    ),
    "a chunk twice": lambda data, _: data[:CHUNK] * 2 + data[2 * CHUNK :],
    "a chunk left out": lambda data, _: data[:CHUNK] + data[2 * CHUNK :],
    "another's file": lambda _, other: other,
    "removed": None,
    "a folder": None,
}


@pytest.mark.parametrize("key", ["the same attempt's", "another attempt's"])
@pytest.mark.parametrize("meddling", MEDDLINGS)
def test_a_changed_file_is_a_clear_error_and_no_other_body(
    tmp_path: Path, meddling: str, key: str
) -> None:
    """Another one is another client's of the same attempt, or of another attempt's key."""
    spool = Spool(tmp_path)
    body, other = (
        kept(spool),
        kept(spool if key == "the same attempt's" else Spool(tmp_path), client=TWO),
    )
    change = MEDDLINGS[meddling]
    if change is None:
        body.path.unlink()
        if meddling == "a folder":
            body.path.mkdir()
    else:
        body.path.write_bytes(change(body.path.read_bytes(), other.path.read_bytes()))
    with pytest.raises(BodyUnreadable, match=str(body.path)) as error:
        list(body.pieces())
    for secret in (SALT.reveal(), WORDS[:16], WORDS[-16:]):
        assert secret.hex() not in repr(body) + str(error.value)
        assert repr(secret)[2:-1] not in repr(body) + str(error.value)
    # Nobody else's is touched.
    assert b"".join(other.pieces()) == WORDS
