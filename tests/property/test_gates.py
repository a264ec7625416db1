"""Gates of function secret sharing are right for every key, point and interval; so is the codec."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rig.plain_dcf import plain_keys, plain_share

from precad.common.errors import Misconfiguration
from precad.norm_check.comparison_keys import (
    Blocks,
    DcfKeys,
    Words,
    gate_bytes,
    keys_bytes,
    keys_from_bytes,
)
from precad.norm_check.distributed_comparison import (
    evaluate,
    evaluate_intervals,
    generate,
    generate_intervals,
)


@st.composite
def functions(draw: st.DrawFn) -> tuple[bytes, list[int], Blocks, int]:
    """A generator's key, some α, roots, and the words' size."""
    bits = draw(st.integers(8, 64))
    alpha = draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=5))
    data = draw(st.binary(min_size=32 * len(alpha), max_size=32 * len(alpha)))
    roots = np.frombuffer(data, dtype="<u8").reshape(2, len(alpha), 2)
    return draw(st.binary(min_size=16, max_size=16)), alpha, roots, bits


def words(values: list[int]) -> Words:
    return np.array(values, dtype="<u8")


def around(value: int, bits: int, draw: st.DataObject) -> int:
    """Any word, or one that parts from ``value`` at a bit that is drawn, or lies beside it."""
    near = st.integers(-2, 2).map(lambda step: (value + step) % 2**bits)
    fork = st.integers(0, bits - 1).map(lambda place: value ^ 1 << place)
    return draw.draw(st.one_of(near, fork, st.integers(0, 2**bits - 1)))


@given(function=functions(), data=st.data())
def test_shares_differ_exactly_below_alpha(
    function: tuple[bytes, list[int], Blocks, int], data: st.DataObject
) -> None:
    prg_key, alpha, roots, bits = function
    keys = generate(prg_key, words(alpha), roots, bits)
    points = [[around(a, bits, data) for a in alpha] for _ in range(3)]
    of_0, of_1 = (evaluate(each, np.array(points, dtype="<u8")) for each in keys)
    for row, at in enumerate(points):
        expected = [x < a for x, a in zip(at, alpha, strict=True)]
        assert (of_0 ^ of_1)[row].tolist() == expected


@settings(max_examples=40)
@given(function=functions(), data=st.data())
def test_keys_and_shares_are_those_of_the_papers_algorithm(
    function: tuple[bytes, list[int], Blocks, int], data: st.DataObject
) -> None:
    prg_key, alpha, roots, bits = function
    keys = generate(prg_key, words(alpha), roots, bits)
    for gate, a in enumerate(alpha):
        own = (int.from_bytes(roots[party, gate].tobytes(), "little") for party in (0, 1))
        plain = plain_keys(prg_key, a, (next(own), next(own)), bits)
        x = around(a, bits, data)
        for party, key in enumerate(keys):
            mine = key.part(slice(gate, gate + 1))
            assert mine.to_bytes()[24:] == b"".join(plain[party].encoded())
            share = plain_share(prg_key, party, plain[party], x, bits)
            assert evaluate(mine, words([x])[None])[0, 0] == share


@given(function=functions(), data=st.data())
def test_a_gate_says_whether_the_sum_lies_in_the_interval(
    function: tuple[bytes, list[int], Blocks, int], data: st.DataObject
) -> None:
    prg_key, offsets, roots, bits = function
    keys = generate_intervals(prg_key, words(offsets), roots, bits)
    low = [data.draw(st.integers(0, 2**bits - 1)) for _ in offsets]
    width = [data.draw(st.integers(1, 2**bits - 1)) for _ in offsets]
    high = [(a + w - 1) % 2**bits for a, w in zip(low, width, strict=True)]
    points = [
        (around(data.draw(st.sampled_from([a, b])), bits, data) - t) % 2**bits
        for a, b, t in zip(low, high, offsets, strict=True)
    ]
    arrays = [words(each) for each in (points, low, high)]
    of_0, of_1 = (evaluate_intervals(each, *arrays) for each in keys)
    expected = [
        (c + t - a) % 2**bits < w for c, t, a, w in zip(points, offsets, low, width, strict=True)
    ]
    assert (of_0 ^ of_1).tolist() == expected


def same(one: DcfKeys, other: DcfKeys) -> bool:
    arrays = ("roots", "corrections", "controls", "finals")
    return (one.party, one.bits, one.prg_key) == (other.party, other.bits, other.prg_key) and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays
    )


@given(function=functions(), party=st.sampled_from([0, 1]))
def test_keys_come_back_from_their_bytes(
    function: tuple[bytes, list[int], Blocks, int], party: int
) -> None:
    prg_key, alpha, roots, bits = function
    keys = generate(prg_key, words(alpha), roots, bits)[party]
    data = keys.to_bytes()
    assert len(data) == keys_bytes(len(alpha), bits) == 24 + len(alpha) * gate_bytes(bits)
    read = keys_from_bytes(data, party=party, gates=len(alpha), bits=bits)
    assert same(read, keys)
    assert read.to_bytes() == data


@given(function=functions(), party=st.sampled_from([0, 1]), data=st.data())
def test_a_changed_key_is_refused_or_is_the_one_encoding_of_another(
    function: tuple[bytes, list[int], Blocks, int], party: int, data: st.DataObject
) -> None:
    prg_key, alpha, roots, bits = function
    changed = bytearray(generate(prg_key, words(alpha), roots, bits)[party].to_bytes())
    place = data.draw(st.integers(0, 8 * len(changed) - 1))
    changed[place // 8] ^= 1 << place % 8
    try:
        read = keys_from_bytes(changed, party=party, gates=len(alpha), bits=bits)
    except Misconfiguration:
        return
    assert place >= 64, "a change of the header's first eight bytes was taken"
    assert read.to_bytes() == changed


@given(function=functions(), party=st.sampled_from([0, 1]), cut=st.integers(1, 2000))
def test_keys_of_another_length_are_refused(
    function: tuple[bytes, list[int], Blocks, int], party: int, cut: int
) -> None:
    prg_key, alpha, roots, bits = function
    good = generate(prg_key, words(alpha), roots, bits)[party].to_bytes()
    for bad in (good[:-cut], good + bytes(cut)):
        with pytest.raises(Misconfiguration, match="gate keys"):
            keys_from_bytes(bad, party=party, gates=len(alpha), bits=bits)


@given(data=st.binary(max_size=400), gates=st.integers(0, 5), party=st.sampled_from([0, 1]))
def test_any_bytes_are_read_or_refused(data: bytes, gates: int, party: int) -> None:
    for header in (b"", bytes([1, party, 8, 7]) + gates.to_bytes(4, "little")):
        try:
            read = keys_from_bytes(header + data, party=party, gates=gates, bits=8)
        except Misconfiguration:
            continue
        assert read.to_bytes() == header + data
