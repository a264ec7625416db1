"""Words in as few bits as they need, and the steps that owners make models of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.rig.documents import Document
from tests.rig.refusals import refused
from tests.rig.tasks import task_with

from precad.aggregator.noise import server_noise
from precad.common.identifiers import Digest
from precad.common.model import apply_update
from precad.common.ring import RingVector, to_bytes
from precad.common.short_words import (
    pack,
    packed_bytes,
    read_step,
    rounded,
    step_bytes,
    step_digest,
    unpack,
)
from precad.common.task import Task

COMPACT = {"training.compact_release": True, "enrolment.planned_units": 287}
WORDS = st.integers(1, 64).flatmap(
    lambda bits: st.tuples(
        st.just(bits),
        arrays.arrays(
            np.int64,
            st.integers(0, 70),
            elements=st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
        ),
    )
)


def compact(dimension: int = 8, changes: Document | None = None) -> Task:
    return task_with(COMPACT | (changes or {}), dimension)


@given(WORDS)
def test_words_of_any_width_come_back_and_take_their_bits(
    case: tuple[int, RingVector],
) -> None:
    bits, words = case
    data = pack(words, bits)
    assert len(data) == packed_bytes(words.size, bits) == -(-words.size * bits // 8)
    np.testing.assert_array_equal(unpack(data, words.size, bits), words)


@pytest.mark.parametrize("bits", [1, 7, 8, 27, 63, 64])
@pytest.mark.parametrize("count", [1 << 15, (1 << 15) + 1, (2 << 15) + 13])
def test_long_vectors_come_back_over_the_pieces_they_are_packed_in(
    bits: int, count: int
) -> None:
    random = np.random.default_rng([bits, count])
    words = random.integers(-(2**63), 2**63, count, dtype=np.int64)
    data = pack(words, bits)
    assert len(data) == packed_bytes(count, bits)
    expected = (words << (64 - bits)) >> (64 - bits)
    np.testing.assert_array_equal(unpack(data, count, bits), expected)


def test_64_bits_are_the_words_own_bytes() -> None:
    words = np.array([0, 1, -1, 2**62, -(2**63)], dtype=np.int64)
    assert pack(words, 64) == to_bytes(words)


@pytest.mark.parametrize("change", [b"\0", b""])
def test_bytes_of_another_length_are_refused(change: bytes) -> None:
    data = pack(np.arange(9), 5)
    wrong = data + change if change else data[:-1]
    refused("9 words of 5 bits have 6", unpack, wrong, 9, 5)


def test_a_sum_is_rounded_to_at_most_an_eighth_of_one_servers_noise() -> None:
    task = compact()
    grid = 2**task.mechanism.step_shift
    assert task.mechanism.noise_units / 16 < grid <= task.mechanism.noise_units / 8
    total = np.array([0, grid // 2 - 1, grid // 2, -grid // 2, -grid // 2 - 1, 2**61])
    expected = [0, 0, 1, 0, -1, 2**61 // grid]
    assert rounded(total, task.mechanism).tolist() == expected


def test_without_compact_releases_a_sum_stays_itself() -> None:
    total = np.array([3, -5, 2**61, 0, 1, -1, 7, 9])
    mechanism = task_with({}).mechanism
    assert mechanism.step_shift == 0
    np.testing.assert_array_equal(rounded(total, mechanism), total)


@given(
    arrays.arrays(np.int64, 8, elements=st.integers(-(2**61), 2**61)),
    st.integers(0, 2**32),
)
def test_an_owner_makes_the_servers_model_of_a_step_bit_for_bit(
    total: RingVector, seed: int
) -> None:
    task = compact(changes={"training.learning_rate": 1e-9})
    theta = np.random.default_rng(seed).normal(size=8).astype(np.float32)
    servers = apply_update(theta, total, task, 287.0)
    step = read_step(step_bytes(total, task.mechanism), task.mechanism)
    np.testing.assert_array_equal(apply_update(theta, step, task, 287.0), servers)
    # And what rounding moves the sum by is at most half a grid's cell.
    assert np.abs(step - total).max() <= 2**task.mechanism.step_shift / 2


def test_a_step_takes_as_many_bits_as_its_largest_number_needs() -> None:
    mechanism = compact().mechanism
    grid = 2**mechanism.step_shift
    for largest, bits in ((0, 1), (-1, 1), (1, 2), (-2, 2), (63, 7), (-64, 7), (64, 8)):
        total = np.zeros(8, np.int64)
        total[3] = largest * grid
        data = step_bytes(total, mechanism)
        assert (data[0], len(data)) == (bits, 1 + packed_bytes(8, bits))


@pytest.mark.parametrize("data", [b"", b"\0", b"\x41", bytes([8]) + bytes(7)])
def test_what_is_no_step_is_refused(data: bytes) -> None:
    words = "must be bits of a word" if len(data) < 2 else "8 words of 8 bits have 8"
    refused(words, read_step, data, compact().mechanism)


def test_a_steps_digest_is_of_its_task_version_and_bytes() -> None:
    task = Digest.of(b"task")
    digests = {
        step_digest(task, 3, b"step"),
        step_digest(task, 4, b"step"),
        step_digest(task, 3, b"Step"),
        step_digest(Digest.of(b"other"), 3, b"step"),
    }
    assert len(digests) == 4


def test_rounding_adds_a_768th_of_one_servers_noise_at_most() -> None:
    """2σ²(1 + 1/768): of a real server's noise, and of its rounding alone."""
    task = compact(200_000)
    mechanism = task.mechanism
    one, other = (server_noise(mechanism).draw(200_000) for _ in range(2))
    total = one + other
    steps = rounded(total, mechanism) << mechanism.step_shift
    noise = mechanism.noise_units**2
    added = np.mean((steps - total).astype(float) ** 2)
    assert added <= noise / 768 * 1.02
    assert abs(np.var(steps.astype(float)) / (2 * noise) - 1) < 0.02
