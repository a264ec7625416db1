"""Gates, byte by byte: what the dealer sends, and what each server makes of it."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.rig.plain_dcf import plain_keys

from precad.common.errors import Misconfiguration
from precad.common.secret import Secret
from precad.norm_check.comparison_keys import (
    Blocks,
    FixedKeyPrg,
    Words,
    derive_roots,
    keys_from_bytes,
)
from precad.norm_check.distributed_comparison import evaluate_intervals, generate_intervals

VECTORS = json.loads(Path(__file__).with_name("gates.json").read_text(encoding="utf-8"))
GOOD = VECTORS["good"]
of_each_size = pytest.mark.parametrize("batch", GOOD, ids=lambda batch: f"{batch['bits']} bits")


def column(batch: dict[str, Any], name: str) -> Words:
    return np.array([gate[name] for gate in batch["gates"]], dtype="<u8")


def roots_of(batch: dict[str, Any]) -> Blocks:
    data = [bytes.fromhex(gate["roots"][party]) for party in (0, 1) for gate in batch["gates"]]
    return np.frombuffer(b"".join(data), dtype="<u8").reshape(2, -1, 2)


@of_each_size
def test_keys(batch: dict[str, Any]) -> None:
    prg_key = bytes.fromhex(batch["prg_key"])
    keys = generate_intervals(prg_key, column(batch, "offset"), roots_of(batch), batch["bits"])
    assert [each.to_bytes().hex() for each in keys] == batch["keys"]


@of_each_size
def test_keys_are_the_papers_in_the_formats_order(batch: dict[str, Any]) -> None:
    prg_key, bits, gates = bytes.fromhex(batch["prg_key"]), batch["bits"], batch["gates"]
    for party in (0, 1):
        columns = []
        for gate in gates:
            one, other = (int.from_bytes(bytes.fromhex(r), "little") for r in gate["roots"])
            both = plain_keys(prg_key, -gate["offset"] % 2**bits, (one, other), bits)
            columns.append(both[party].encoded())
        roots, words, controls, finals = zip(*columns, strict=True)
        by_level = [
            word[start : start + 16] for start in range(0, len(words[0]), 16) for word in words
        ]
        header = struct.pack("<BBBBI", 1, party, bits, 7, len(gates)) + prg_key
        expected = b"".join([header, *roots, *by_level, *controls, *finals])
        assert expected.hex() == batch["keys"][party]


@of_each_size
def test_shares(batch: dict[str, Any]) -> None:
    ends = [column(batch, name) for name in ("point", "low", "high")]
    for party, data in enumerate(batch["keys"]):
        gates = len(batch["gates"])
        keys = keys_from_bytes(bytes.fromhex(data), party=party, gates=gates, bits=batch["bits"])
        shares = evaluate_intervals(keys, *ends)
        assert shares.tolist() == [gate["shares"][party] for gate in batch["gates"]]
    for gate in batch["gates"]:
        size = 2 ** batch["bits"]
        inside = (gate["point"] + gate["offset"] - gate["low"]) % size
        assert gate["inside"] == (inside <= (gate["high"] - gate["low"]) % size)
        assert gate["inside"] == (gate["shares"][0] != gate["shares"][1])


def test_the_generator_is_aes_128_and_its_input() -> None:
    """FIPS 197, appendix C.1: key, plain text and cipher text."""
    prg = FixedKeyPrg(bytes(range(16)))
    plain = bytes.fromhex("00112233445566778899aabbccddeeff")
    block = np.frombuffer(plain, dtype="<u8").copy()
    stretched = np.empty_like(block)
    prg.stretch(block, stretched)
    assert (stretched ^ block).tobytes().hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"


def test_roots() -> None:
    given = VECTORS["roots"]
    fresh, gates = bytes.fromhex(given["fresh"]), given["gates"]
    contexts = [bytes.fromhex(each) for each in given["contexts"]]
    roots = derive_roots(Secret(fresh), [Secret(each) for each in contexts], gates)
    found = [[block.tobytes().hex() for block in of_one] for of_one in roots]
    assert found == given["roots"]
    for number, context in enumerate(contexts):
        named = b""
        for part in (b"precad/v1/gate-roots", fresh, struct.pack("<Q", number), context):
            named += struct.pack("<I", len(part)) + part
        drawn = hashlib.shake_256(named).hexdigest(2 * gates * 16)
        mine = slice(number * gates, (number + 1) * gates)
        assert "".join(found[0][mine] + found[1][mine]) == drawn


def changed(data: bytes, bad: dict[str, Any]) -> bytes:
    """Server 0's keys, changed as the vector says."""
    if "keep" in bad:
        return data[: bad["keep"]]
    if "append" in bad:
        return data + bytes.fromhex(bad["append"])
    found = bytearray(data)
    found[bad["at"]] = bad["byte"] if "byte" in bad else found[bad["at"]] ^ bad["flip"]
    return bytes(found)


@pytest.mark.parametrize("bad", VECTORS["bad"], ids=lambda bad: bad["what"])
def test_what_is_no_servers_keys_is_never_read(bad: dict[str, Any]) -> None:
    batch = GOOD[1]
    data = bytes.fromhex(batch["keys"][0])
    expected = {"party": 0, "gates": len(batch["gates"]), "bits": batch["bits"]}
    assert keys_from_bytes(data, **expected).to_bytes() == data
    with pytest.raises(Misconfiguration) as refused:
        keys_from_bytes(changed(data, bad), **expected)
    assert refused.value.field == bad["field"]
