"""A release's bytes, bit by bit: shares cut, joined, rounded, stepped.

`release.json` is written by this file's plain integers (``python -m
tests.vectors.test_release``), never by the package.
"""

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from tests.rig.documents import Document
from tests.rig.tasks import task_with

from precad.aggregator.cut_shares import CutShares
from precad.common.errors import PeerViolation
from precad.common.model import apply_update, model_digest
from precad.common.proof_shape import P
from precad.common.ring import MODULUS, RingVector
from precad.common.short_words import (
    packed_bytes,
    read_step,
    step_bytes,
    step_digest,
)
from precad.norm_check.prime_field import group_of

FILE = Path(__file__).parent / "release.json"
ORDERS = {"crypten": MODULUS, "proof": P}
COMPACT = {"training.compact_release": True, "enrolment.planned_units": 40}
MOST = 2**26 + 12345
SUMS = [MOST, -MOST, 0, 1, -1, 524288, -262144, 33333333]
OWN = [0, P - 1, 5, MOST, 1, 2**63, 2**40 + 7, P - 33333333]


def words(values: list[int]) -> RingVector:
    return np.array(values, np.uint64).view(np.int64)


def bits_of(values: list[int], width: int) -> bytes:
    """As ``pack`` for one piece: whole bytes word by word, then what is left of each."""
    whole, rest = divmod(width, 8)
    low = b"".join((v % 2 ** (8 * whole)).to_bytes(whole, "little") for v in values)
    tail = 0
    for place, v in enumerate(values):
        tail |= (v >> 8 * whole) % 2**rest << rest * place
    return low + tail.to_bytes(-(-len(values) * rest // 8), "little")


def cut(shares: list[int], order: int) -> bytes:
    width = (2 * MOST + 1).bit_length()
    full = b"".join(
        struct.pack("<QQ", place, y)
        for place, y in enumerate(shares)
        if order == P and (y <= MOST or y >= P - 1 - MOST)
    )
    return bits_of(shares, width) + full


def written() -> Document:
    """What the file holds, of plain integers."""
    found: Document = {}
    for check, order in ORDERS.items():
        own = [y % order for y in OWN]
        other = [(s - y) % order for s, y in zip(SUMS, own, strict=True)]
        task = task_with({**COMPACT, "validation": check})
        k = task.mechanism.step_shift
        small = [(s + 2 ** (k - 1)) // 2**k for s in SUMS]
        width = max(max(v, -1 - v).bit_length() for v in small) + 1
        step = bytes([width]) + bits_of([v % 2**width for v in small], width)
        named = [b"precad/v1/step", task.digest.value, None, step]
        encoded = b"".join(
            struct.pack("<IQ", 8, 7)
            if part is None
            else struct.pack("<I", len(part)) + part
            for part in named
        )
        found[check] = {
            "shares": [own, other],
            "cut": [cut(own, order).hex(), cut(other, order).hex()],
            "sums": SUMS,
            "step_shift": k,
            "step": step.hex(),
            "step_digest": hashlib.sha256(encoded).hexdigest(),
        }
    return found


@pytest.mark.parametrize("check", ORDERS)
def test_a_release_has_the_committed_bytes(check: str) -> None:
    vector = json.loads(FILE.read_text(encoding="utf-8"))[check]
    task = task_with({**COMPACT, "validation": check})
    form = CutShares(dimension=len(SUMS), group=group_of(task), most=MOST)
    sent = [form.cut(words(share)) for share in vector["shares"]]
    assert [each.hex() for each in sent] == vector["cut"]
    total = form.joined(*sent)
    assert total.tolist() == vector["sums"]
    step = step_bytes(total, task.mechanism)
    assert (step.hex(), task.mechanism.step_shift) == (
        vector["step"],
        vector["step_shift"],
    )
    assert str(step_digest(task.digest, 7, step)) == vector["step_digest"]
    theta = np.linspace(-1, 1, len(SUMS), dtype=np.float32)
    models = [
        apply_update(theta, each, task, 8.0)
        for each in (total, read_step(step, task.mechanism))
    ]
    parameters = task.mechanism.parameters
    digests = {str(model_digest(task.digest, 7, parameters, each)) for each in models}
    assert len(digests) == 1


@pytest.mark.parametrize("check", ORDERS)
def test_every_low_bit_is_noticed_or_moves_the_sum_where_no_word_is_in_full(
    check: str,
) -> None:
    vector = json.loads(FILE.read_text(encoding="utf-8"))[check]
    task = task_with({**COMPACT, "validation": check})
    form = CutShares(dimension=len(SUMS), group=group_of(task), most=MOST)
    own, other = (bytes.fromhex(each) for each in vector["cut"])
    length = packed_bytes(len(SUMS), form.bits)
    in_full = {place for place, _ in struct.iter_unpack("<QQ", other[length:])}
    changed: set[int] = set()
    for bit in range(8 * length):
        wrong = bytearray(other)
        wrong[bit // 8] ^= 1 << bit % 8
        try:
            total = form.joined(own, bytes(wrong))
        except PeerViolation:
            continue
        changed |= set(np.flatnonzero(total != np.array(SUMS)).tolist())
        assert (total != SUMS).any() or in_full
    assert changed == set(range(len(SUMS))) - in_full


def test_the_file_is_what_plain_integers_write() -> None:
    assert json.loads(FILE.read_text(encoding="utf-8")) == written()


if __name__ == "__main__":
    FILE.write_text(json.dumps(written(), indent=1) + "\n", encoding="utf-8")
