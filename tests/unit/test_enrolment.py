"""Claims are capped, the roster is fixed, and its denominator is public."""

import dataclasses
import math
from itertools import pairwise
from typing import Any

import pytest

from precad.common.enrolment import MAX_RECORDS, Enrolment, Roster, on_grid, rate_grid
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId

WARD = ClientId("ward-1")


def roster(*claims: tuple[str, int, float]) -> Roster:
    return Roster({ClientId(n): Enrolment(ClientId(n), r, p) for n, r, p in claims})


@pytest.mark.parametrize(("records", "rate"), [(1, 0.2), (500, 0.2), (1000, 0.1), (1, 0.2 / 64)])
def test_claims_within_the_caps_pass(make_task: Any, records: int, rate: float) -> None:
    Enrolment(WARD, records, rate).check(make_task())


@pytest.mark.parametrize(
    ("records", "rate", "field"),
    [
        (0, 0.2, "records"),
        (-5, 0.2, "records"),
        (10, 0.0, "record_rate"),
        (10, -0.1, "record_rate"),
        (10, math.nextafter(0.2, 1), "record_rate"),
        (10, math.nextafter(0.2, 0), "record_rate"),
        (10, math.nextafter(0.2 / 64, 0), "record_rate"),
        (10, 0.11, "record_rate"),
        (10, 1e-15, "record_rate"),
        (10, 5e-324, "record_rate"),
        (10, math.nan, "record_rate"),
        (10, math.inf, "record_rate"),
        (501, 0.2, "records"),
        (MAX_RECORDS + 1, 0.2, "records"),
        (2**64 - 1, 0.2 / 64, "records"),
    ],
)
def test_claims_beyond_the_caps_name_the_field(
    make_task: Any, records: int, rate: float, field: str
) -> None:
    with pytest.raises(Misconfiguration) as refused:
        Enrolment(WARD, records, rate).check(make_task())
    assert refused.value.field == field
    assert refused.value.value == (
        records if field == "records" else pytest.approx(rate, nan_ok=True)
    )


@pytest.mark.parametrize("p", [1.0, 0.3, 0.2, 1 / 3, 256 / 60_000, 1e-9])
def test_the_grid_is_short_and_ends_at_the_tasks_rate(make_task: Any, p: float) -> None:
    """So that the servers give at most 25 accounts, whatever clients claim."""
    task = make_task(8, {"privacy.record_rate": p})
    grid = rate_grid(task)
    assert (grid[0], grid[-1], len(grid)) == (p, p / 64, 25)
    assert list(grid) == sorted(set(grid), reverse=True)
    # A client gives up no more than a fifth of the rate that it wants.
    assert max(a / b for a, b in pairwise(grid)) == pytest.approx(5 / 4)
    for rate in grid:
        Enrolment(WARD, 1, rate).check(task)
        assert on_grid(task, rate) == rate


def test_a_client_samples_no_more_than_its_owner_said(make_task: Any) -> None:
    task = make_task(8, {"privacy.record_rate": 0.3})
    for wanted in (0.3, 0.29999, 0.16, 0.15, 0.1, 0.0047):
        rate = on_grid(task, wanted)
        assert rate in rate_grid(task)
        assert 0.8 * wanted <= rate <= wanted
    # 0.7·3 in floats is a little above 2.1: what a person writes means the grid's own number.
    task = make_task(8, {"privacy.record_rate": 0.7})
    assert on_grid(task, 0.6125) == pytest.approx(0.6125, rel=1e-12)


def test_a_refused_rate_names_what_would_do(make_task: Any) -> None:
    task = make_task()
    with pytest.raises(Misconfiguration, match=r"record_rate = 0\.11: .* 0\.1$"):
        Enrolment(WARD, 1, 0.11).check(task)
    with pytest.raises(Misconfiguration, match=r"record_rate = 1e-15: must be at least 0\.003125,"):
        Enrolment(WARD, 1, 1e-15).check(task)
    with pytest.raises(Misconfiguration, match=r"at most the task's 0\.2"):
        on_grid(task, 0.3)


def test_the_largest_claim_can_be_kept_and_digested(make_task: Any) -> None:
    claim = Enrolment(WARD, MAX_RECORDS, 0.1)
    claim.check(make_task(8, {"enrolment.max_expected_records": 1e9}))
    assert Roster({WARD: claim}).digest()


def test_the_roster_is_in_the_order_of_names_however_it_was_made() -> None:
    one = roster(("b", 1, 0.1), ("a", 2, 0.2), ("a-1", 3, 0.1))
    other = roster(("a-1", 3, 0.1), ("b", 1, 0.1), ("a", 2, 0.2))
    assert [c.name for c in one] == ["a", "a-1", "b"]
    assert one.digest() == other.digest()
    assert one == other


def test_the_digest_covers_every_claim() -> None:
    rosters = [
        roster(("a", 1, 0.1), ("b", 2, 0.2)),
        roster(("a", 2, 0.1), ("b", 2, 0.2)),
        roster(("a", 1, math.nextafter(0.1, 1)), ("b", 2, 0.2)),
        roster(("a", 1, 0.1), ("c", 2, 0.2)),
        roster(("a", 1, 0.1)),
        roster(),
    ]
    assert len({r.digest() for r in rosters}) == len(rosters)


def test_the_denominator_is_q_times_the_expected_records_of_all_enrolled() -> None:
    r = roster(("a", 100, 0.1), ("b", 10, 0.2), ("c", 1, 0.05))
    assert r.expected_records() == pytest.approx(12.05)
    assert r.denominator(0.5) == pytest.approx(6.025)


def test_the_denominator_does_not_depend_on_the_order_of_summation() -> None:
    claims = [(f"c{i}", i + 1, 0.1 + i * 1e-9) for i in range(500)]
    assert roster(*claims).denominator(0.3) == roster(*reversed(claims)).denominator(0.3)


def test_enrolments_and_rosters_cannot_be_changed() -> None:
    claim = Enrolment(WARD, 1, 0.1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        claim.records = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        Roster({WARD: claim})[WARD] = claim  # type: ignore[index]
