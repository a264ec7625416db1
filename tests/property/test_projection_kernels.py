"""All kernels that run on this machine, compiled from this source, agree with plain integers."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from precad.common.kernel import BLOCK, MASKS, NUMPY, Projection, Sharing, kernels, sharings
from precad.common.ring import RingVector

CHECKOUT = Path(__file__).parents[2]
EDGES = (-(2**63), 2**63 - 1, -1, 0, 1, 2**32, -(2**32), 0x7F80_7F80_7F80_7F80)
ONES = 2**64 - 1


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Compiled from this source; None where there is no compiler."""
    folder = tmp_path_factory.mktemp("kernel")
    build = ("build_ext", "--build-lib", str(folder), "--build-temp", str(folder / "objects"))
    subprocess.run([sys.executable, "setup.py", "-q", *build], cwd=CHECKOUT, check=True)
    libraries = list(folder.rglob("_projections*"))
    command = os.environ.get("CC") or sysconfig.get_config_var("CC")
    assert bool(libraries) == bool(shutil.which(command.split()[0])), "no library but a compiler"
    return libraries[0] if libraries else None


@pytest.fixture(scope="session")
def all_kernels(library: Path | None) -> dict[str, Projection]:
    """By name, NumPy's included; only that one where there is no compiler."""
    return kernels(library)


@pytest.fixture(scope="session")
def all_sharings(library: Path | None) -> dict[str, Sharing]:
    """Likewise."""
    return sharings(library)


def plain(words: RingVector, masks: NDArray[np.uint64]) -> NDArray[np.int64]:
    """In Python's integers, bit by bit: the low and the high halves' projections."""
    bits = np.unpackbits(masks.astype("<u8").view(np.uint8), axis=-1, bitorder="little")
    u, v = bits.reshape(*masks.shape, BLOCK).astype(np.int64).transpose(2, 1, 0, 3)
    entries = (u - v).reshape(masks.shape[1], -1).astype(object)
    unsigned = words.view(np.uint64)
    halves = np.stack([unsigned & np.uint64(2**32 - 1), unsigned >> np.uint64(32)], axis=1)
    z: NDArray[np.int64] = (entries @ halves.astype(object)).astype(np.int64)
    return z


def check(all_kernels: dict[str, Projection], words: RingVector, masks: NDArray[np.uint64]) -> None:
    before = np.arange(2 * masks.shape[1], dtype=np.int64).reshape(-1, 2) - 2**61
    expected = plain(words, masks) + before
    for name, project in all_kernels.items():
        z = before.copy()
        project(words, masks, z)
        assert z.tolist() == expected.tolist(), name


@settings(max_examples=25)
@given(
    st.integers(1, 70),
    st.integers(1, 48),
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EDGES), min_size=1, max_size=70),
    st.lists(st.integers(0, ONES) | st.sampled_from((0, ONES)), min_size=1, max_size=70),
)
@example(33, 40, [-1], [ONES, 0])
@example(65, 3, [-1, -(2**63), 2**63 - 1], [0, ONES])
def test_kernels_agree_with_plain_integers(
    all_kernels: dict[str, Projection],
    blocks: int,
    k: int,
    some_words: list[int],
    some_masks: list[int],
) -> None:
    words = np.resize(np.array(some_words, dtype=np.int64), blocks * BLOCK)
    masks = np.resize(np.array(some_masks, dtype=np.uint64), (blocks, k, MASKS))
    check(all_kernels, words, masks)


@pytest.mark.parametrize("word", [-1, 0])
@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("blocks", [31, 32, 33, 63, 64, 255, 257, 2200])
def test_the_longest_sums_fit(
    all_kernels: dict[str, Projection], blocks: int, sign: int, word: int
) -> None:
    # Every byte of every word is 255, or 0 (a kernel may take bytes less 128), and every entry 1 or
    # every entry −1; but for the first, so that a sum of 255s is odd and rounding can't hide.
    words = np.full(blocks * BLOCK, word, dtype=np.int64)
    masks = np.zeros((blocks, 2, MASKS), dtype=np.uint64)
    masks[:, :, sign] = ONES
    masks[0, :, sign] -= 1
    for name, project in all_kernels.items():
        z = np.zeros((2, 2), dtype=np.int64)
        project(words, masks, z)
        half = (2**32 - 1) * -word * (blocks * BLOCK - 1) * (-1) ** sign
        assert z.tolist() == [[half] * 2] * 2, name


I8, U8 = "int64", "uint64"


@pytest.mark.parametrize(
    ("words", "masks", "z", "text"),
    [
        ((63, I8), ((1, 3, 2), U8), ((3, 2), I8), "masks of"),
        ((64, I8), ((2, 3, 2), U8), ((3, 2), I8), "masks of"),
        ((64, I8), ((1, 3, 1), U8), ((3, 2), I8), "masks of"),
        ((64, I8), ((1, 3, 2), U8), (3, I8), "masks of"),
        ((64, "int32"), ((1, 3, 2), U8), ((3, 2), I8), "words must"),
        ((64, I8), ((1, 3, 2), "uint8"), ((3, 2), I8), "masks must"),
        ((64, I8), ((1, 3, 2), U8), ((3, 2), "int16"), "z must"),
    ],
)
def test_a_compiled_kernel_reads_and_writes_nothing_beyond_its_arrays(
    all_kernels: dict[str, Projection],
    words: tuple[int, str],
    masks: tuple[tuple[int, ...], str],
    z: tuple[int | tuple[int, ...], str],
    text: str,
) -> None:
    compiled = [project for name, project in all_kernels.items() if name != NUMPY]
    for project in compiled:
        with pytest.raises(ValueError, match=text):
            project(np.zeros(*words), np.zeros(*masks), np.zeros(*z))


def test_a_compiled_kernel_takes_no_array_with_gaps(all_kernels: dict[str, Projection]) -> None:
    masks, z = np.zeros((1, 3, 2), dtype=np.uint64), np.zeros((3, 2), dtype=np.int64)
    compiled = [project for name, project in all_kernels.items() if name != NUMPY]
    for project in compiled:
        with pytest.raises(ValueError, match="words must be contiguous"):
            project(np.zeros(128, dtype=np.int64)[::2], masks, z)


ring = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EDGES)


def signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


@settings(max_examples=25)
@given(
    st.integers(1, 200),
    st.lists(st.tuples(ring, ring, ring), min_size=1, max_size=70),
    st.tuples(st.booleans(), st.booleans()),
    st.integers(0, 7),
)
@example(64, [(-(2**63), -1, -(2**63))], (True, True), 1)
def test_shares_and_sums_agree_with_plain_integers(
    all_sharings: dict[str, Sharing],
    size: int,
    some: list[tuple[int, int, int]],
    how: tuple[bool, bool],
    start: int,
) -> None:
    adds_b, summed = how
    columns = np.resize(np.array(some, dtype=np.int64), (size, 3)).T
    b_plain, a_plain, total_plain = columns.tolist()
    share = [signed(a + b * adds_b) for a, b in zip(a_plain, b_plain, strict=True)]
    expected = (
        signed(sum(a * b for a, b in zip(a_plain, b_plain, strict=True))),
        signed(sum(b * b for b in b_plain)),
    )
    total_expected = [signed(t + s) for t, s in zip(total_plain, share, strict=True)]
    # A body's pieces are read-only, and may begin at any byte.
    b = np.frombuffer(bytes(start) + columns[0].tobytes(), np.int64, size, start)
    for name, add_share in all_sharings.items():
        a, total = columns[1].copy(), columns[2].copy()
        sums = add_share(b, a, total if summed else None, adds_b=adds_b)
        assert sums == expected, name
        assert a.tolist() == share, name
        assert total.tolist() == (total_expected if summed else total_plain), name


@pytest.mark.parametrize(
    ("b", "a", "total", "text"),
    [
        ((64, I8), (63, I8), (64, I8), "a mask of"),
        ((64, I8), (64, I8), (63, I8), "another total"),
        ((64, "int32"), (64, I8), (64, I8), "b must"),
        ((64, I8), (64, U8), (64, I8), "a must"),
        ((64, I8), (64, I8), (64, "int16"), "total must"),
    ],
)
def test_a_compiled_pass_reads_and_writes_nothing_beyond_its_arrays(
    all_sharings: dict[str, Sharing],
    b: tuple[int, str],
    a: tuple[int, str],
    total: tuple[int, str],
    text: str,
) -> None:
    compiled = [each for name, each in all_sharings.items() if name != NUMPY]
    for add_share in compiled:
        with pytest.raises(ValueError, match=text):
            add_share(np.zeros(*b), np.zeros(*a), np.zeros(*total), adds_b=True)
