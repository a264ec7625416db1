"""Comparisons and interval gates: exhaustive on small words, edges on 64 bits, what is refused.

Attacks that a rule of the check answers succeed here where the rule is broken.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.common.secret import Secret
from precad.norm_check.comparison_keys import (
    Blocks,
    DcfKeys,
    Words,
    derive_roots,
    draw_roots,
    keys_from_bytes,
)
from precad.norm_check.distributed_comparison import (
    Bits,
    evaluate,
    evaluate_intervals,
    generate,
    generate_intervals,
)

SEED = 20261122
ONE = np.uint64(1)
TOP = 2**64


@pytest.fixture
def rng() -> np.random.Generator:
    """Seeded: all of a test's inputs, its keys' randomness too."""
    return np.random.default_rng(SEED)


def some(rng: np.random.Generator, *shape: int) -> Words:
    return rng.integers(0, TOP, shape, dtype=np.uint64)


def roots_of(rng: np.random.Generator, gates: int) -> Blocks:
    return some(rng, 2, gates, 2)


def key_of(rng: np.random.Generator) -> bytes:
    return rng.bytes(16)


def opened(keys: Sequence[DcfKeys], points: Words) -> Bits:
    return evaluate(keys[0], points) ^ evaluate(keys[1], points)


def gate(keys: Sequence[DcfKeys], points: Words, low: Words, high: Words) -> Bits:
    shares = [evaluate_intervals(each, points, low, high) for each in keys]
    return shares[0] ^ shares[1]


# --- it is right ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 10])
def test_every_word_is_compared_rightly_with_every_other(
    bits: int, rng: np.random.Generator
) -> None:
    alpha = np.arange(1 << bits, dtype=np.uint64)
    keys = generate(key_of(rng), alpha, roots_of(rng, alpha.size), bits)
    # A few points at a time: their blocks stay in the processor's cache.
    for points in np.split(alpha, alpha.size // 8):
        everywhere = np.repeat(points[:, None], alpha.size, axis=1)
        assert np.array_equal(opened(keys, everywhere), points[:, None] < alpha)


def test_every_interval_is_right_for_every_point_and_offset_of_8_bits(
    rng: np.random.Generator,
) -> None:
    """All offsets and points, widths of every length; each with a lower end of its own."""
    words = np.arange(256, dtype=np.uint64)
    offsets, points = (each.reshape(-1) for each in np.meshgrid(words, words))
    keys = generate_intervals(key_of(rng), offsets, roots_of(rng, offsets.size), 8)
    mask = np.uint64(255)
    for width in (1, 2, 3, 8, 63, 64, 65, 127, 128, 129, 200, 254, 255):
        low = some(rng, offsets.size) & mask
        high = (low + np.uint64(width - 1)) & mask
        inside = ((points + offsets - low) & mask) < width
        assert np.array_equal(gate(keys, points, low, high), inside)


def forks(words: Words) -> Words:
    """``[64, N]``: each word with one bit changed."""
    return words ^ (ONE << np.arange(64, dtype=np.uint64)[:, None])


def test_64_bits_are_compared_rightly_at_every_fork_and_edge(rng: np.random.Generator) -> None:
    edges = [0, 1, 63, 64, 127, 128, 2**32 - 1, 2**32, 2**63 - 1, 2**63, TOP - 1, TOP - 128]
    alpha = np.concatenate([np.array(edges, dtype=np.uint64), some(rng, 2000)])
    keys = generate(key_of(rng), alpha, roots_of(rng, alpha.size))
    steps = np.arange(-3, 4).astype(np.uint64)[:, None]
    ends = np.array([[0], [TOP - 1]], dtype=np.uint64) & np.full_like(alpha, TOP - 1)
    random = some(rng, 8, alpha.size)
    points = np.concatenate([forks(alpha), alpha + steps, ends, random])
    assert np.array_equal(opened(keys, points), points < alpha)


# --- one server's part alone ---------------------------------------------------------------------


def test_keys_show_nothing_secret(rng: np.random.Generator) -> None:
    keys, _ = generate(bytes(16), some(rng, 3), roots_of(rng, 3))
    shown = f"{keys!r} {keys}"
    for array in (keys.roots, keys.corrections, keys.controls, keys.finals):
        for word in array.reshape(-1)[:10]:
            assert str(word) not in shown
            assert f"{word:x}" not in shown


# --- randomness ----------------------------------------------------------------------------------


def test_roots_never_come_twice() -> None:
    contexts = [Secret(b"one"), Secret(b"two"), Secret(b"one")]
    drawn = np.concatenate([draw_roots(contexts, 41) for _ in range(20)], axis=1)
    blocks = {block.tobytes() for block in drawn.reshape(-1, 2)}
    assert len(blocks) == 20 * 2 * 3 * 41


def test_where_the_machine_draws_the_same_again_another_context_has_other_roots() -> None:
    fresh = Secret(bytes(32))
    one, same, other = (derive_roots(fresh, [Secret(c)], 41) for c in (b"one", b"one", b"two"))
    assert np.array_equal(one, same)
    assert not np.isin(one, other).any()


# --- what is refused -----------------------------------------------------------------------------


def test_the_other_servers_keys_are_refused(rng: np.random.Generator) -> None:
    _, of_1 = generate(key_of(rng), some(rng, 3), roots_of(rng, 3))
    with pytest.raises(Misconfiguration, match=r"party = 1: must be 0"):
        keys_from_bytes(of_1.to_bytes(), party=0, gates=3)


# --- attacks that rules of the check answer ------------------------------------------------------


def test_a_relayed_key_with_one_bit_flipped_would_tell_how_many_bits_a_point_and_alpha_share(
    rng: np.random.Generator,
) -> None:
    """R4: why each server's keys come from the dealer directly, and never through the other."""
    gates, level = 2000, 20
    alpha = some(rng, gates)
    of_0, of_1 = generate(key_of(rng), alpha, roots_of(rng, gates))
    points = alpha ^ (ONE << (np.uint64(63) - rng.integers(0, 40, gates, dtype=np.uint64)))
    flipped = of_0.corrections.copy()
    flipped[level, :, 0] ^= np.uint64(2)

    def moved(keys: DcfKeys) -> Any:
        before = evaluate(keys, points[None])
        after: Bits = evaluate(replace(keys, corrections=flipped), points[None])
        flips: Bits = before ^ after
        return flips[0]

    shared = (points >> np.uint64(64 - level)) == (alpha >> np.uint64(64 - level))
    assert 500 < shared.sum() < 1500
    assert np.array_equal(moved(of_0) ^ moved(of_1), shared)


def first_difference(of_one: DcfKeys, of_other: DcfKeys) -> NDArray[Any]:
    """The first level at which two keys of one server differ."""
    words = (of_one.corrections != of_other.corrections).any(axis=2)
    places = np.arange(len(words), dtype=np.uint64)[:, None]
    controls = ((of_one.controls ^ of_other.controls) >> places) & ONE
    found: NDArray[Any] = np.argmax(words | (controls == 1), axis=0)
    return found


@pytest.mark.parametrize("again", [True, False])
def test_roots_used_twice_would_show_where_two_offsets_first_differ(
    rng: np.random.Generator, *, again: bool
) -> None:
    """R5: why roots are drawn afresh for every dealing; with fresh ones nothing is seen."""
    gates = 2000
    alpha, prg_key, roots = some(rng, gates), key_of(rng), roots_of(rng, gates)
    places = rng.integers(0, 57, gates, dtype=np.uint64)
    other = alpha ^ (ONE << (np.uint64(63) - places))
    one, _ = generate(prg_key, alpha, roots)
    two, _ = generate(prg_key, other, roots if again else roots_of(rng, gates))
    seen = first_difference(one, two) == places
    assert seen.all() if again else seen.sum() < 200
