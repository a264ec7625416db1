"""Algorithm 2 in integers: what bounds one record, and what bounds one client.

Encoding never lengthens, clips hold in the integers, and one record moves the sum by at
most R.
"""

import math
import sys
from collections import Counter
from fractions import Fraction
from types import FrameType

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from tests.rig.tasks import task_with
from torch import nn
from torch.nn.functional import cross_entropy

from precad.client.gradients.local_update import local_update
from precad.client.gradients.torch_models import model_section
from precad.common.errors import Misconfiguration
from precad.common.fixed_point import (
    clip_record_norm,
    clip_update,
    decode,
    encode,
    squared_norm,
)
from precad.common.ring import RingVector
from precad.common.task import Task

MODEL = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
RECORDS = 40


def task_of(
    record_clip: float = 1.0, client_clip: float = 20.0, bits: int = 20
) -> Task:
    clips = {"privacy.record_clip": record_clip, "privacy.client_clip": client_clip}
    return task_with(
        {"model": model_section(MODEL, architecture="custom"), "fractional_bits": bits}
        | clips
    )


def data(scale: float = 1.0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    generator = np.random.default_rng(11)
    x = generator.normal(0, scale, (RECORDS, 5)).astype(np.float32)
    return x, generator.integers(0, 3, RECORDS)


THETA = np.random.default_rng(12).normal(
    0, 0.5, sum(p.numel() for p in MODEL.parameters())
)


def update(
    task: Task, indices: ArrayLike, chunk: int | None = None, scale: float = 3.0
) -> RingVector:
    return local_update(
        MODEL,
        cross_entropy,
        data(scale),
        np.array(indices, np.int64),
        THETA,
        task,
        chunk=chunk,
    )


def test_it_is_minus_the_sum_of_clipped_gradients() -> None:
    task = task_of(client_clip=32.0)
    expected = np.zeros(task.dimension)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(THETA), model.parameters())
    x, y = data(3.0)
    for record in range(20):
        model.zero_grad()
        inputs = torch.from_numpy(x[record : record + 1]).double()
        cross_entropy(model(inputs), torch.tensor([y[record]])).backward()  # type: ignore[no-untyped-call]
        g = torch.cat(
            [p.grad.ravel() for p in model.parameters() if p.grad is not None]
        ).numpy()
        expected -= g * min(1.0, 1.0 / np.linalg.norm(g))
    found = update(task, range(20)) / 2.0**task.fractional_bits
    np.testing.assert_allclose(found, expected, atol=1e-4)


@settings(max_examples=15)
@given(
    st.lists(st.integers(0, RECORDS - 1), min_size=1, max_size=RECORDS, unique=True),
    st.integers(1, RECORDS + 5),
)
def test_the_vector_does_not_depend_on_the_chunk_size(
    indices: list[int], chunk: int
) -> None:
    task = task_of()
    assert (update(task, indices, chunk) == update(task, indices, 1)).all()


@settings(max_examples=15)
@given(
    st.lists(st.integers(0, RECORDS - 1), min_size=1, max_size=24, unique=True),
    st.sampled_from([0.3, 1.0, 1.7]),
    st.sampled_from([0.5, 3.0, 50.0]),
    st.data(),
)
def test_one_record_moves_the_sum_by_at_most_its_clip(
    indices: list[int], record_clip: float, scale: float, draw: st.DataObject
) -> None:
    # No client clip acts at 24 records of norm 1.7 and C = 60.
    task = task_of(record_clip, client_clip=60.0, bits=19)
    removed = draw.draw(st.sampled_from(indices))
    neighbour = [index for index in indices if index != removed]
    difference = update(task, indices, scale=scale) - update(
        task, neighbour, scale=scale
    )
    limit = record_clip * 2.0**19
    assert squared_norm(difference) <= limit * limit


def test_no_records_give_the_zero_vector_and_indices_outside_the_data_are_refused() -> (
    None
):
    assert not update(task_of(), []).any()
    for indices in ([0, RECORDS], [-1]):
        with pytest.raises(Misconfiguration, match="indices"):
            update(task_of(), indices)


@pytest.mark.parametrize("client_clip", [1.0, 2.37, 5.5])
def test_a_clipped_update_is_at_most_beta_long_and_nearly_that(
    client_clip: float,
) -> None:
    task = task_of(1.0, client_clip)
    same_label = np.flatnonzero(data()[1] == 0)
    x = update(task, np.tile(same_label, 4))
    assert squared_norm(x) <= task.mechanism.bound**2
    assert math.sqrt(squared_norm(x)) > 0.9999 * task.mechanism.bound


finite = st.floats(-1e9, 1e9)
vectors = st.lists(finite, min_size=1, max_size=12).map(np.array)
any_gradients = st.lists(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
    min_size=1,
    max_size=5,
).map(np.array)
ring_vectors = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=12).map(
    lambda x: np.array(x, dtype=np.int64)
)
bits = st.integers(1, 30)


def exact_square(x: NDArray[np.float64]) -> Fraction:
    return sum((Fraction(v) ** 2 for v in x.tolist()), Fraction(0))


@given(vectors, bits)
def test_encoding_never_lengthens(x: NDArray[np.float64], f: int) -> None:
    encoded = encode(x, f)
    assert squared_norm(encoded) <= exact_square(x) * Fraction(4) ** f
    # Nor does any entry grow, change its sign, or move by a whole unit.
    scaled = [Fraction(v) * 2**f for v in x.tolist()]
    for word, value in zip(encoded.tolist(), scaled, strict=True):
        assert abs(word) <= abs(value) < abs(word) + 1
        assert word * value >= 0


@given(ring_vectors, bits)
def test_squared_norms_are_exact_integers(x: NDArray[np.int64], f: int) -> None:
    assert squared_norm(x) == sum(v * v for v in x.tolist())
    assert decode(x, f).shape == x.shape


@given(ring_vectors, st.integers(1, 2**25), bits)
@example(np.full(100, -(2**63)), 2**25, 20)
@example(np.full(2, 2**63 - 1), 2**25, 20)
# At C = 30.1 and d = 2 a clip to C alone would leave 43 % of all vectors above
# floor(C·2^f).
@example(np.array([1, 1]) * 30 * 2**20, math.floor(30.1 * 2**16), 16)
@example(np.array([3, -5]) * 2**40, math.floor(30.1 * 2**20), 20)
def test_a_clipped_update_is_within_its_bound(
    x: NDArray[np.int64], bound: int, f: int
) -> None:
    clipped = clip_update(x, bound, f)
    assert squared_norm(clipped) <= bound**2
    if squared_norm(x) <= bound**2:
        assert (clipped == x).all()
    else:
        assert math.isqrt(squared_norm(clipped)) >= bound - 2 - math.isqrt(x.size)


@given(any_gradients, st.floats(1e-6, 1e3), st.integers(1, 40))
@example(np.full((2, 3), [[1.7e308], [1e200]]), 1e-10, 20)
@example(np.full((2, 3), [[5e-324], [1e-300]]), 1e6, 20)
def test_a_record_moves_the_sum_by_at_most_its_clip(
    x: NDArray[np.float64], record_clip: float, f: int
) -> None:
    """And by hardly less, where it is longer."""
    clipped = clip_record_norm(x, record_clip)
    for row in clipped:
        assert exact_square(row) <= Fraction(record_clip) ** 2
        assert (
            squared_norm(encode(row, f))
            <= Fraction(record_clip) ** 2 * Fraction(4) ** f
        )
    least = (Fraction(record_clip) * Fraction(0.999)) ** 2
    for row, before in zip(clipped, x, strict=True):
        if exact_square(before) < least:
            assert (row == before).all()
        else:
            assert exact_square(row) >= least * Fraction(0.999)


def steps_of(x: NDArray[np.int64], bound: int) -> Counter[str]:
    """Which functions are called, Python's and C's, and how often."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, called: object) -> None:
        name = (
            getattr(called, "__name__", "")
            if event == "c_call"
            else frame.f_code.co_name
        )
        calls[f"{event} {name}"] += event.endswith("call")

    sys.setprofile(note)
    try:
        clip_update(x, bound, 20)
    finally:
        sys.setprofile(None)
    return +calls


def test_every_sum_is_clipped_by_the_same_steps() -> None:
    """Short, long, so long that a square passes 64 bits, and zero."""
    bound, d = 2**24, 70_000
    generator = np.random.default_rng(9)
    vectors = [
        generator.integers(-most, most, d) for most in (1, 2**10, 2**24, 2**31, 2**62)
    ]
    vectors += [np.zeros(d, np.int64), np.full(d, -(2**63)), np.full(d, 2**63 - 1)]
    seen = [steps_of(x, bound) for x in vectors]
    assert len(seen[0]) > 3
    assert all(each == seen[0] for each in seen)
