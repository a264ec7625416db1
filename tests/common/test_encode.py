"""Fixed point and the two clips: exact borders and named errors; the ring."""

import math
import warnings

import numpy as np
import pytest
from numpy.typing import NDArray

from precad.common import encode as fixed_point
from precad.common.encode import (
    RECORD_MARGIN,
    clip_record_norm,
    clip_update,
    decode,
    encode,
    squared_norm,
)
from precad.common.errors import Misconfiguration
from precad.common.ring import signed


def test_encoding_rounds_toward_zero() -> None:
    x = np.array([0.99, -0.99, 1.5, -1.5, 2.0, -0.0])
    assert encode(x, 0).tolist() == [0, 0, 1, -1, 2, 0]
    assert encode(x, 1).tolist() == [1, -1, 3, -3, 4, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**42, -(2.0**42), 1e308])
def test_what_cannot_be_encoded_is_refused_by_its_index(bad: float) -> None:
    x = np.zeros((3, 5))
    x[1, 2] = bad
    with pytest.raises(Misconfiguration) as refused:
        encode(x, 20)
    assert refused.value.field == "update[1, 2]"
    assert refused.value.value == bad or math.isnan(bad)
    assert "2^42" in refused.value.remedy


def test_records_within_the_bound_are_untouched() -> None:
    x = np.random.default_rng(1).normal(size=(20, 7))
    x *= np.linspace(0, 0.999, 20)[:, None] / np.linalg.norm(x, axis=1, keepdims=True)
    assert (clip_record_norm(x, 1.0) == x).all()


def test_longer_records_keep_their_direction_and_get_the_bound() -> None:
    x = np.random.default_rng(2).normal(size=(20, 7)) * 50
    clipped = clip_record_norm(x, 1.5)
    norms = np.linalg.norm(clipped, axis=1)
    assert norms == pytest.approx(1.5 * RECORD_MARGIN, rel=1e-12)
    cosines = (clipped * x).sum(axis=1) / norms / np.linalg.norm(x, axis=1)
    assert cosines == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("size", [1e200, 1.7e308, 1e-300, 5e-324])
@pytest.mark.parametrize("record_clip", [1e-10, 1.0, 1e6])
def test_huge_and_tiny_gradients_are_clipped_without_overflow(
    size: float, record_clip: float
) -> None:
    x = np.full((1, 10), size)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clipped = clip_record_norm(x, record_clip)
    if size < 1:
        assert (clipped == x).all()
    else:
        assert math.hypot(*clipped[0]) == pytest.approx(record_clip * RECORD_MARGIN, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_names_its_record(bad: float) -> None:
    x = np.ones((4, 3))
    x[2, 1] = bad
    with pytest.raises(Misconfiguration, match="sampled record 2"):
        clip_record_norm(x, 1.0)


def on_the_circle(radius: float, bits: int) -> NDArray[np.int64]:
    """Encoded vectors of two entries whose real norm is just the radius."""
    angles = np.random.default_rng(3).uniform(0, 2 * math.pi, 2000)
    points = radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.round(np.ldexp(points, bits)).astype(np.int64)


@pytest.mark.parametrize("bits", [1, 4, 20])
def test_clipping_to_a_bound_that_is_no_whole_number_of_units(bits: int) -> None:
    """With C = 30.1, d = 2, clipping to C alone gives vectors above β = floor(C·2^f).

    The control clips to C itself and is refused by the integer check; ``clip_update`` isn't.
    """
    bound = math.floor(math.ldexp(30.1, bits))
    too_long = 0
    for x in on_the_circle(3 * 30.1, bits):
        clipped = clip_update(x, bound, bits)
        assert squared_norm(clipped) <= bound * bound
        # No more is lost than the margin and one unit for each entry.
        assert math.sqrt(squared_norm(clipped)) > bound - 2
        real = decode(x, bits)
        naive = encode(real * (30.1 / np.linalg.norm(real)), bits)
        too_long += squared_norm(naive) > bound * bound
    assert too_long > 0 or bits == 20


def test_the_extremes_of_the_ring_are_clipped_too() -> None:
    for extreme in (-(2**63), 2**63 - 1):
        for d in (1, 2, 100):
            x = np.full(d, extreme, dtype=np.int64)
            assert squared_norm(x) == d * extreme**2
            assert 0 < squared_norm(clip_update(x, 2**25, 20)) <= 2**50


@pytest.mark.parametrize("slips", [0, 1, 3])
def test_a_sum_that_slips_over_its_bound_is_scaled_again(
    slips: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float64 isn't known to slip so far: a margin above 1 plays it, a bit less each time."""
    monkeypatch.setattr(fixed_point, "CLIENT_MARGIN", 1 + (slips - 0.5) * 2.0**-20)
    bound = 2**25
    clipped = clip_update(np.array([2**40, 0, 2**40]), bound, 20)
    expected = bound * (1 - 2.0**-21)
    assert squared_norm(clipped) <= bound * bound
    assert math.sqrt(squared_norm(clipped)) == pytest.approx(expected, abs=2)


def test_a_sum_that_slips_a_fourth_time_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_point, "CLIENT_MARGIN", 1 + 3.5 * 2.0**-20)
    clipped = clip_update(np.array([2**40, 0, -(2**40)]), 2**25, 20)
    assert clipped.tolist() == [0, 0, 0]
    assert clipped.dtype == np.int64


@pytest.mark.parametrize("bound", [0, -1])
def test_a_bound_below_one_unit_is_refused(bound: int) -> None:
    with pytest.raises(Misconfiguration, match="bound"):
        clip_update(np.ones(2, dtype=np.int64), bound, 20)


# --- the ring ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "representative"),
    [
        (2**63 - 1, 2**63 - 1),
        (2**63, -(2**63)),
        (2**64 - 1, -1),
        (-(2**63) - 1, 2**63 - 1),
        (5 * 2**64 + 7, 7),
    ],
)
def test_signed_representatives(value: int, representative: int) -> None:
    assert signed(value) == representative
