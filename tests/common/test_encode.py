"""Fixed point and the two clips: exact borders and named errors; the ring."""

import math

import numpy as np
import pytest

from precad.common import ring as fixed_point
from precad.common.errors import Misconfiguration
from precad.common.ring import clip_record_norm, clip_update, encode, signed, squared_norm


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**42, -(2.0**42), 1e308])
def test_what_cannot_be_encoded_is_refused_by_its_index(bad: float) -> None:
    x = np.zeros((3, 5))
    x[1, 2] = bad
    with pytest.raises(Misconfiguration) as refused:
        encode(x, 20)
    assert (refused.value.field, "2^42" in refused.value.remedy) == ("update[1, 2]", True)
    assert refused.value.value == bad or math.isnan(bad)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_names_its_record(bad: float) -> None:
    x = np.ones((4, 3))
    x[2, 1] = bad
    with pytest.raises(Misconfiguration, match="sampled record 2"):
        clip_record_norm(x, 1.0)


@pytest.mark.parametrize("slips", [0, 1, 3, 4])
def test_a_sum_that_slips_over_its_bound_is_scaled_again_and_zero_the_fourth_time(
    slips: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float64 isn't known to slip so far: a margin above 1 plays it, a bit less each time."""
    monkeypatch.setattr(fixed_point, "CLIENT_MARGIN", 1 + (slips - 0.5) * 2.0**-20)
    bound = 2**25
    clipped = clip_update(np.array([2**40, 0, -(2**40)]), bound, 20)
    length, expected = math.sqrt(squared_norm(clipped)), bound * (1 - 2.0**-21)
    assert clipped.dtype == np.int64
    assert length == (0 if slips == 4 else pytest.approx(expected, abs=2))
    assert length <= bound


@pytest.mark.parametrize("bound", [0, -1])
def test_a_bound_below_one_unit_is_refused(bound: int) -> None:
    with pytest.raises(Misconfiguration, match="bound"):
        clip_update(np.ones(2, dtype=np.int64), bound, 20)


def test_signed_representatives() -> None:
    values = (2**63 - 1, 2**63, 2**64 - 1, -(2**63) - 1, 5 * 2**64 + 7)
    assert [signed(value) for value in values] == [2**63 - 1, -(2**63), -1, 2**63 - 1, 7]
