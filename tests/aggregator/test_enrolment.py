"""Claims are capped, the roster is fixed; enrolment until a date or a quorum."""

import math
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import TaskMaker
from tests.rig.aggregators import roster

from precad.aggregator.enrol.admission import Listed, Window, window_of
from precad.aggregator.enrol.register import Register
from precad.cli.operate import reminders
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId, Role
from precad.common.roster import Enrolment, Roster, on_grid, rate_grid
from precad.common.task import Task

WARD = ClientId("ward-1")


@pytest.mark.parametrize(("records", "rate"), [(1, 0.2), (500, 0.2), (1000, 0.1), (1, 0.2 / 64)])
def test_claims_within_the_caps_pass(make_task: TaskMaker, records: int, rate: float) -> None:
    Enrolment(WARD, records, rate).check(make_task())


@pytest.mark.parametrize(
    ("records", "rate", "field"),
    [
        (0, 0.2, "records"),
        (501, 0.2, "records"),
        (2**64 - 1, 0.2 / 64, "records"),
        (10, 0.0, "record_rate"),
        (10, math.nextafter(0.2, 1), "record_rate"),
        (10, math.nextafter(0.2 / 64, 0), "record_rate"),
        (10, 0.11, "record_rate"),
        (10, math.nan, "record_rate"),
        (10, math.inf, "record_rate"),
    ],
)
def test_claims_beyond_the_caps_name_the_field(
    make_task: TaskMaker, records: int, rate: float, field: str
) -> None:
    with pytest.raises(Misconfiguration) as refused:
        Enrolment(WARD, records, rate).check(make_task())
    assert refused.value.field == field
    assert refused.value.value == (
        records if field == "records" else pytest.approx(rate, nan_ok=True)
    )


@pytest.mark.parametrize("p", [1.0, 0.3, 0.2, 1 / 3, 256 / 60_000, 1e-9])
def test_the_grid_is_short_and_ends_at_the_tasks_rate(make_task: TaskMaker, p: float) -> None:
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


def test_a_client_samples_no_more_than_its_owner_said(make_task: TaskMaker) -> None:
    task = make_task(8, {"privacy.record_rate": 0.3})
    for wanted in (0.3, 0.29999, 0.16, 0.15, 0.1, 0.0047):
        rate = on_grid(task, wanted)
        assert rate in rate_grid(task)
        assert 0.8 * wanted <= rate <= wanted
    # 0.7·3 in floats is a little above 2.1: what a person writes means the grid's own number.
    task = make_task(8, {"privacy.record_rate": 0.7})
    assert on_grid(task, 0.6125) == pytest.approx(0.6125, rel=1e-12)


def test_a_refused_rate_names_what_would_do(make_task: TaskMaker) -> None:
    task = make_task()
    with pytest.raises(Misconfiguration, match=r"record_rate = 0\.11: .* 0\.1$"):
        Enrolment(WARD, 1, 0.11).check(task)
    with pytest.raises(Misconfiguration, match=r"record_rate = 1e-15: must be at least 0\.003125,"):
        Enrolment(WARD, 1, 1e-15).check(task)
    with pytest.raises(Misconfiguration, match=r"at most the task's 0\.2"):
        on_grid(task, 0.3)


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


# --- until a date or a quorum --------------------------------------------------------------------


TASK = Task.load(Path(__file__).parents[2] / "deploy" / "task.toml")
NOW = datetime(2027, 1, 31, 12, 0, tzinfo=UTC)


def test_unless_given_the_task_says_it() -> None:
    assert window_of(TASK) == Window(TASK.deadlines.enrol, TASK.enrolment.clients)


def test_a_date_holds_whenever_the_server_starts() -> None:
    until = datetime(2027, 1, 31, 18, 0, tzinfo=timezone(timedelta(hours=1)))
    assert window_of(TASK, until, now=NOW).seconds == 5 * 3600
    assert window_of(TASK, until, now=NOW + timedelta(hours=4)).seconds == 3600
    assert window_of(TASK, until, now=NOW + timedelta(days=4)).seconds == 0


def test_a_date_without_a_zone_is_refused() -> None:
    with pytest.raises(Misconfiguration, match="say its time zone"):
        window_of(TASK, datetime(2027, 1, 31, 18, 0))  # noqa: DTZ001 -- as TOML reads it


def test_a_date_beyond_a_year_is_refused() -> None:
    with pytest.raises(Misconfiguration, match="within a year"):
        window_of(TASK, NOW + timedelta(days=367), now=NOW)


@pytest.mark.parametrize("quorum", [2, 4])
def test_a_quorum_beyond_the_tasks_bounds_is_refused(quorum: int) -> None:
    with pytest.raises(Misconfiguration, match="takes 3 to 3 owners"):
        window_of(TASK, quorum=quorum)


def test_those_on_the_operators_list_are_missing_until_they_enrol(tmp_path: Path) -> None:
    listed = tmp_path / "roster.toml"
    entry = '[[clients]]\nclient = "ward-{}"\nrecords = 10\nrecord_rate = 0.2\n'
    listed.write_text("".join(entry.format(number) for number in (1, 2, 3)))
    roster = Roster.load(listed, TASK)
    empty = SimpleNamespace(roster=lambda: None, claims=dict, claim=lambda claim: claim)
    kept: Any = SimpleNamespace(enrolment=empty)
    register = Register(TASK, kept, Listed(roster))
    one, two, three = (ClientId(f"ward-{number}") for number in (1, 2, 3))
    assert register.missing() == [one, two, three]
    register.enrol(roster[one])
    assert register.missing() == [two, three]
    assert Register(TASK, kept).missing() == []


def test_models_come_first_from_either_server_for_half_of_the_roster() -> None:
    roster = Roster({each: Enrolment(each, 10, 0.2) for each in map(ClientId, "abc")})
    enrolment = SimpleNamespace(roster=lambda: None, claims=dict, freeze=lambda *_, **__: None)
    kept: Any = SimpleNamespace(enrolment=enrolment)
    register = Register(TASK, kept)
    assert {register.serves_first(client) for client in roster} == {Role.SERVER_A}
    register.freeze(roster)
    first = {client: register.serves_first(client) for client in roster}
    assert first == roster.seed_holders(TASK.digest)
    assert len(set(first.values())) == 2
    assert register.serves_first(ClientId("stranger")) is Role.SERVER_A


def test_the_screen_says_who_is_missing_and_who_came_twice() -> None:
    facts: dict[str, Any] = {
        "phase": "enrolling",
        "least_owners": 2,
        "most_owners": 5,
        "enrolment_left_s": 9000,
        "missing": ["ward-3", "ward-4"],
        "unused_tokens": 2,
        "twice": Counter({"ward-1": 2}),
    }
    said = [text for text, _ in reminders(facts)]
    assert said == [
        "enrolment takes 2 to 5 owners, for 2.5 hours more",
        "not enrolled yet: ward-3, ward-4",
        "2 enrolment tokens, made for nobody by name, aren't used yet",
        "a second process came under the name of ward-1 (2 times)",
    ]
    over = {"phase": "training", "missing": [], "unused_tokens": 0, "twice": {}}
    assert reminders(facts | over) == []
