"""Enrolment until a date or a quorum; who is missing, and who came twice."""

from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from precad.cli.watch import reminders
from precad.common.aggregator.enrol.admission import Listed
from precad.common.aggregator.enrol.register import Register
from precad.common.aggregator.enrol.window import Window, window_of
from precad.common.enrolment import Roster
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.task import Task

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
    kept: Any = SimpleNamespace(roster=lambda: None, claims=dict, claim=lambda _claim: None)
    register = Register(TASK, kept, Listed(roster))
    one, two, three = (ClientId(f"ward-{number}") for number in (1, 2, 3))
    assert register.missing() == [one, two, three]
    register.enrol(roster[one])
    assert register.missing() == [two, three]
    assert Register(TASK, kept).missing() == []


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
    said = [click.unstyle(line) for line in reminders(facts)]
    assert said == [
        "enrolment takes 2 to 5 owners, for 2.5 hours more",
        "not enrolled yet: ward-3, ward-4",
        "2 enrolment tokens, made for nobody by name, aren't used yet",
        "a second process came under the name of ward-1 (2 times)",
    ]
    over = {"phase": "training", "missing": [], "unused_tokens": 0, "twice": {}}
    assert reminders(facts | over) == []
