"""Sizes of owners as a person writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precad.common.account.sizes import MOST_OWNERS, owners_sizes, written
from precad.common.errors import Misconfiguration


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("6000", (6000,)),
        ("6000,6_000,500", (6000, 6000, 500)),
        ("10x6000", (6000,) * 10),
        ("3x500,1200,6x40", (500,) * 3 + (1200,) + (40,) * 6),
        (" 2 × 1_000 , 3X7 ", (1000, 1000, 7, 7, 7)),
    ],
)
def test_a_count_before_an_x_repeats_a_size(text: str, sizes: tuple[int, ...]) -> None:
    assert owners_sizes(text) == sizes


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=30))
def test_what_is_written_is_read_back(sizes: list[int]) -> None:
    assert owners_sizes(written(tuple(sizes))) == tuple(sizes)


def test_what_is_written_is_short() -> None:
    assert written((6000,) * 100_000) == "100000x6000"
    assert written((500, 500, 40, 500)) == "2x500,40,500"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "whole numbers like 10x6000"),
        ("6000,", "'' is no size"),
        ("6000;500", "separated by commas"),
        ("10x", "10x6000"),
        ("x6000", "10x6000"),
        ("2x3x4", "10x6000"),
        ("-3", "10x6000"),
        ("1.5", "10x6000"),
        ("٣", "10x6000"),
        ("0", "1 or more"),
        ("3x500,0x40", "'0x40'"),
        ("3x0", "1 or more"),
        (f"{MOST_OWNERS}x1,1", "at most 100,000 owners"),
        ("9" * 16 + "x1", "at most 100,000 owners"),
        ("9" * 5000, "10x6000"),
    ],
)
def test_anything_else_names_what_is_wrong_and_the_form(text: str, said: str) -> None:
    with pytest.raises(Misconfiguration, match=said) as refused:
        owners_sizes(text)
    assert refused.value.field == "records"
