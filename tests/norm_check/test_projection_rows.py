"""The secret rows of the range test: their distribution, what they are bound to,
exactness."""

import os
import shutil
import sysconfig
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from tests.rig.corpus import too_long, unit, wrapping

from precad.common import kernel
from precad.common.fixed_point import CLIENT_MARGIN
from precad.common.identifiers import Secret
from precad.common.ring import Keystream, RingVector, dot, signed
from precad.common.task import TAU

KEY = Secret(bytes(range(32)))
BETA = 30 * 2**16


LONG = [*wrapping(256), too_long(256, BETA)[-1], unit(256, 2 * TAU * BETA + 1)]
LONG.append(unit(256, -(2**62)) + unit(256, -(2**62), at=1))  # Two halves of the ring


def entries(dimension: int, k: int, key: Secret = KEY) -> NDArray[np.int64]:
    """The rows bit by bit, ``[k, d] int64``: how the stream is to be read."""
    blocks = -(-dimension // kernel.BLOCK)
    stream = np.empty(blocks * k * kernel.MASK_BYTES, np.uint8)
    Keystream(key, "validate/rows").read_into(stream.data)
    bits = np.unpackbits(stream, bitorder="little")
    u, v = (
        bits.reshape(blocks, k, 2, kernel.BLOCK).astype(np.int64).transpose(2, 1, 0, 3)
    )
    return (u - v).reshape(k, blocks * kernel.BLOCK)[:, :dimension]


def key_of(number: int) -> Secret:
    return Secret(number.to_bytes(32, "big"))


def projected(
    x: RingVector, k: int, pieces: tuple[int, ...] = (), key: Secret = KEY
) -> RingVector:
    """By ``Rows``, in pieces that end at the given places."""
    rows = kernel.Rows(key, dimension=x.size, k=k)
    for piece in np.split(x, pieces):
        rows.absorb(piece)
    return rows.z()


def uniform(dimension: int, seed: int = 1) -> RingVector:
    """Words of the whole ring, with its ends among them."""
    x = np.random.default_rng(seed).integers(
        -(2**63), 2**63 - 1, dimension, endpoint=True
    )
    x[: min(3, dimension)] = [-(2**63), 2**63 - 1, -1][: min(3, dimension)]
    return x


def test_entries_are_minus_one_zero_one_with_a_quarter_a_half_a_quarter() -> None:
    # The projection on a unit vector is the row's entry there.
    columns = [
        projected(np.eye(1, 320, at, dtype=np.int64)[0], 256) for at in range(320)
    ]
    s = np.stack(columns, axis=1)
    assert (s == entries(320, 256)).all()
    values, counts = np.unique(s, return_counts=True)
    assert values.tolist() == [-1, 0, 1]
    assert stats.chisquare(counts, np.array([0.25, 0.5, 0.25]) * s.size).pvalue > 5e-5
    # Unbiased in each row and place of a mask, and uncorrelated.
    s, deviation = entries(40_000, 40), np.sqrt(0.5)
    assert np.abs(s.mean(axis=1)).max() < 5 * deviation / np.sqrt(40_000)
    for place in range(kernel.BLOCK):
        assert abs(s[:, place :: kernel.BLOCK].mean()) < 5 * deviation / np.sqrt(25_000)
        assert abs((s[:, place :: kernel.BLOCK] ** 2).mean() - 0.5) < 5 * 0.5 / np.sqrt(
            25_000
        )
    correlations = (s @ s.T) / (0.5 * 40_000)
    assert np.abs(correlations - np.eye(40)).max() < 6 / np.sqrt(40_000)
    neighbours = (s[:, 1:] * s[:, :-1]).mean()
    assert abs(neighbours) < 5 * 0.5 / np.sqrt(s.size)


@pytest.mark.parametrize(
    "dimension", [1, 3, 63, 64, 65, 16_383, 16_384, 16_385, 40_000]
)
def test_projections_are_exact_in_the_ring(dimension: int) -> None:
    x = uniform(dimension)
    z = projected(x, 40)
    assert z.dtype == np.int64
    assert z.tolist() == [dot(row, x) for row in entries(dimension, 40)]
    # However the words come.
    for pieces in (
        (64,),
        (0, 64, 64, 128),
        (16_384,),
        (64, 20_032),
        (32_768, 39_936),
        (40_000,),
    ):
        if pieces[-1] <= dimension:
            assert projected(x, 40, pieces).tolist() == z.tolist()


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([63], "a piece of 63 words ends at 63 of 200"),
        ([64, 65], "a piece of 65 words ends at 129 of 200"),
        *(([*pieces], "201 words for rows of 200") for pieces in ((201,), (200, 1))),
        ([128], "only 128 of 200"),
    ],
)
def test_pieces_that_do_not_fit_are_refused(pieces: list[int], words: str) -> None:
    rows = kernel.Rows(KEY, dimension=200, k=40)
    with pytest.raises(ValueError, match=words):  # noqa: PT012 — the last piece raises
        for size in pieces:
            rows.absorb(np.zeros(size, dtype=np.int64))
        rows.z()


@pytest.mark.parametrize("x", LONG, ids=range(len(LONG)))
def test_one_row_passes_a_long_vector_at_most_half_the_time(x: RingVector) -> None:
    k, times = 256, 16
    z = np.concatenate([projected(x, k, key=key_of(n)) for n in range(times)])
    # Two one-sided comparisons, never abs: |−2^63| overflows.
    passed = ((z >= -TAU * BETA) & (z <= TAU * BETA)).mean()
    assert passed < 0.5 + 4 * 0.5 / np.sqrt(k * times)


def test_a_hundred_thousand_honest_vectors_pass_the_plain_predicate() -> None:
    # 250 row sets, 400 vectors on each: dense, sparse and one-hot directions, all as
    # long as an honest client's may be. Without MPC; test_corpus.py puts hundreds
    # through it.
    rng = np.random.default_rng(3)
    d, beta, accepted = 64, int(30.1 * 2**16), 0
    for number in range(250):
        real = rng.standard_normal((d, 400))
        real[:, 100:200] *= rng.random((d, 100)) < 0.1
        real[:, 200:300] = np.sign(real[:, 200:300])
        real[:, 300:] = np.eye(d)[rng.integers(d, size=100)].T
        norms = np.linalg.norm(real, axis=0)
        clipped = real * (beta * CLIENT_MARGIN / np.where(norms > 0, norms, 1))
        # In plain integers, which are too small to wrap.
        x = np.trunc(clipped).astype(np.int64)
        in_range = (np.abs(entries(d, 40, key_of(number)) @ x) <= TAU * beta).all(
            axis=0
        )
        accepted += int((in_range & ((x * x).sum(axis=0) <= beta * beta)).sum())
    assert accepted == 100_000


EDGES = (-(2**63), 2**63 - 1, -1, 0, 1, 2**32, -(2**32), 0x7F80_7F80_7F80_7F80)
ONES = 2**64 - 1
ring = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EDGES)


LIBRARY = kernel.built_library()


def test_kernels_are_compiled_where_there_is_a_compiler() -> None:
    command = os.environ.get("CC") or sysconfig.get_config_var("CC")
    assert bool(LIBRARY) == bool(shutil.which(command.split()[0]))


def plain(words: RingVector, masks: NDArray[np.uint64]) -> NDArray[np.int64]:
    """In Python's integers, bit by bit: the low and the high halves' projections."""
    bits = np.unpackbits(masks.astype("<u8").view(np.uint8), axis=-1, bitorder="little")
    u, v = (
        bits.reshape(*masks.shape, kernel.BLOCK).astype(np.int64).transpose(2, 1, 0, 3)
    )
    entries = (u - v).reshape(masks.shape[1], -1).astype(object)
    unsigned = words.view(np.uint64)
    halves = np.stack(
        [unsigned & np.uint64(2**32 - 1), unsigned >> np.uint64(32)], axis=1
    )
    z: NDArray[np.int64] = (entries @ halves.astype(object)).astype(np.int64)
    return z


@settings(max_examples=25)
@given(
    st.integers(1, 70),
    st.integers(1, 48),
    st.lists(ring, min_size=1, max_size=70),
    st.lists(
        st.integers(0, ONES) | st.sampled_from((0, ONES)), min_size=1, max_size=70
    ),
)
@example(33, 40, [-1], [ONES, 0])
@example(65, 3, [-1, -(2**63), 2**63 - 1], [0, ONES])
def test_kernels_agree_with_plain_integers(
    blocks: int, k: int, some_words: list[int], some_masks: list[int]
) -> None:
    words = np.resize(np.array(some_words, dtype=np.int64), blocks * kernel.BLOCK)
    masks = np.resize(np.array(some_masks, dtype=np.uint64), (blocks, k, kernel.MASKS))
    before = np.arange(2 * k, dtype=np.int64).reshape(-1, 2) - 2**61
    expected = plain(words, masks) + before
    for name, project in kernel.kernels(LIBRARY).items():
        z = before.copy()
        project(words, masks, z)
        assert z.tolist() == expected.tolist(), name


@pytest.mark.parametrize("word", [-1, 0])
@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("blocks", [31, 32, 33, 63, 64, 255, 257, 2200])
def test_the_longest_sums_fit(blocks: int, sign: int, word: int) -> None:
    # Every byte of every word is 255, or 0 (a kernel may take bytes less 128), and
    # every entry 1 or every entry −1; but for the first, so that a sum of 255s is odd
    # and rounding can't hide.
    words = np.full(blocks * kernel.BLOCK, word, dtype=np.int64)
    masks = np.zeros((blocks, 2, kernel.MASKS), dtype=np.uint64)
    masks[:, :, sign] = ONES
    masks[0, :, sign] -= 1
    for name, project in kernel.kernels(LIBRARY).items():
        z = np.zeros((2, 2), dtype=np.int64)
        project(words, masks, z)
        half = (2**32 - 1) * -word * (blocks * kernel.BLOCK - 1) * (-1) ** sign
        assert z.tolist() == [[half] * 2] * 2, name


@settings(max_examples=25)
@given(
    st.integers(1, 200),
    st.lists(st.tuples(ring, ring, ring), min_size=1, max_size=70),
    st.tuples(st.booleans(), st.booleans()),
    st.integers(0, 7),
)
@example(64, [(-(2**63), -1, -(2**63))], (True, True), 1)
def test_shares_and_sums_agree_with_plain_integers(
    size: int, some: list[tuple[int, int, int]], how: tuple[bool, bool], start: int
) -> None:
    adds_b, summed = how
    columns = np.resize(np.array(some, dtype=np.int64), (size, 3)).T
    b_plain, a_plain, total_plain = columns.tolist()
    pairs = list(zip(a_plain, b_plain, strict=True))
    share = [signed(a + b * adds_b) for a, b in pairs]
    expected = signed(sum(a * b for a, b in pairs)), signed(sum(b * b for b in b_plain))
    total_expected = [signed(t + s) for t, s in zip(total_plain, share, strict=True)]
    # A body's pieces are read-only, and may begin at any byte.
    b = np.frombuffer(bytes(start) + columns[0].tobytes(), np.int64, size, start)
    for name, add_share in kernel.sharings(LIBRARY).items():
        a, total = columns[1].copy(), columns[2].copy()
        sums = add_share(b=b, a=a, total=total if summed else None, adds_b=adds_b)
        assert sums == expected, name
        assert a.tolist() == share, name
        assert total.tolist() == (total_expected if summed else total_plain), name


I8, I4, I2, U8, U1 = (
    np.dtype(each) for each in ("int64", "int32", "int16", "uint64", "uint8")
)
words, masks, z = np.zeros(64, I8), np.zeros((1, 3, 2), U8), np.zeros((3, 2), I8)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ((words[:63], masks, z), "masks of"),
        ((words, np.zeros((2, 3, 2), U8), z), "masks of"),
        ((words, np.zeros((1, 3, 1), U8), z), "masks of"),
        ((words, masks, z[:, 0].copy()), "masks of"),
        ((words.astype(I4), masks, z), "words must"),
        ((words, masks.astype(U1), z), "masks must"),
        ((words, masks, z.astype(I2)), "z must"),
        ((np.zeros(128, I8)[::2], masks, z), "words must be contiguous"),
        ((words, words[:63], words), "a mask of"),
        ((words, words, words[:63]), "another total"),
        ((words.astype(I4), words, words), "b must"),
        ((words, words.astype(U8), words), "a must"),
        ((words, words, words.astype(I2)), "total must"),
    ],
)
def test_a_kernel_stays_within_its_arrays(
    arrays: tuple[NDArray[np.generic], ...], text: str
) -> None:
    sums = arrays[1].ndim == 1
    found: dict[str, Callable[..., object]] = dict(
        kernel.sharings(LIBRARY) if sums else kernel.kernels(LIBRARY)
    )
    del found[kernel.NUMPY]
    for call in found.values():
        with pytest.raises(ValueError, match=text):
            call(*arrays) if not sums else call(
                **dict(zip(("b", "a", "total"), arrays, strict=True)), adds_b=True
            )
