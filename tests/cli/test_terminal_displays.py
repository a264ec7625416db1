"""Terminals: what the demo draws, and what `precad status --watch` says of a
training."""

import io
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest
from click import unstyle
from examples.demo import demo_run
from examples.demo.demo_options import DemoRequest
from examples.demo.demo_training import RoundRow, Scenario, make_scenario
from tests.rig import clock, commands, terminal
from tests.rig.documents import Document

from precad.cli.operate import facts_of, follow
from precad.common.errors import PeerUnavailable
from precad.common.terminal import redraws, say
from precad.protos import precad_pb2 as pb


@pytest.fixture
def scenario() -> Scenario:
    return make_scenario(DemoRequest(dataset="breast-cancer", clients=2, rounds=5))


def row(number: int) -> RoundRow:
    return RoundRow(
        number=number,
        accuracy=0.5,
        cohort=2,
        accepted=2,
        rejected={},
        epsilon_server=1.0,
        epsilon_clients=0.5,
    )


def test_what_is_said_stays_and_what_is_redrawn_goes(scenario: Scenario) -> None:
    out = terminal.Terminal()
    with demo_run.Display(out, scenario) as display:
        for number in range(1, 5):
            display.round(row(number))
        display.say("this line stays")
        display.doing("owners end")
    assert "owners end" in out.getvalue()
    assert out.screen() == ["this line stays"]


def test_the_time_left_is_by_the_rounds_alone(scenario: Scenario) -> None:
    out = terminal.Terminal()
    display = demo_run.Display(out, scenario)
    # As if the parts had taken ten minutes to start.
    steps = display.tasks[0]
    assert steps.start_time is not None
    steps.start_time -= 600
    with display:
        assert "0/5 0:10:0" in unstyle(out.getvalue())
        display.rounds_begin()
        display.round(row(1))
    assert "1/5 0:00:0" in unstyle(out.getvalue())


def test_an_epsilon_that_bounds_nothing_is_called_so() -> None:
    result = dict.fromkeys(
        ("epsilon_exact_server", "epsilon_exact_clients", "version"), 1
    )
    for level, said in (
        (2585940.9, "over 100  a whole data owner (too large"),
        (3.25, "3.25  a"),
    ):
        out = io.StringIO()
        demo_run._guarantees({**result, "epsilon_exact_client_level": level}).show(out)
        assert said in out.getvalue()


def test_where_nothing_can_be_redrawn_a_wait_is_a_line_now_and_then(
    scenario: Scenario,
) -> None:
    out = io.StringIO()
    with demo_run.Display(out, scenario) as display:
        for enrolled in range(10):
            display.doing(f"owners enrol: {enrolled} of 10")
        display.round(row(1))
    lines = out.getvalue().splitlines()
    assert lines[0] == "owners enrol: 0 of 10"
    assert [line for line in lines if "owners enrol" in line] == lines[:1]
    assert lines[1].startswith("round   1/5: accuracy 50.0%")


@pytest.mark.parametrize(
    "variable", ["FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"]
)
def test_no_variable_makes_a_terminal(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log has other readers than the owner at a terminal."""
    monkeypatch.setenv(variable, "1")
    out = io.StringIO()
    say(("one", "bold red"), out=out)
    assert out.getvalue() == "one\n"
    assert not redraws(out)


# `precad status --watch`

ROUNDS = 4


def reply(version: int, phase: str, **more: object) -> pb.StatusReply:
    return pb.StatusReply(
        role="server-a", task_name="wards", phase=phase, version=version, rounds=ROUNDS,
        enrolled=3, model_digest=bytes(32), kernel="numpy",
        participations={"ward-1": version},
        **cast("Document", more),
    )  # fmt: skip


def watched(*answers: pb.StatusReply | PeerUnavailable, out: io.StringIO) -> str:
    found = (
        (each if isinstance(each, PeerUnavailable) else facts_of(each))
        for each in answers
    )
    follow(out, Mock(side_effect=found), 5.0, clock.LeapingClock())
    return unstyle(out.getvalue())


def test_a_file_or_a_pipe_gets_a_line_for_each_change_and_none_for_each_look() -> None:
    gone = PeerUnavailable("refused")
    shown = watched(
        gone, gone,
        reply(0, "enrolling", missing=["ward-3"], enrolment_left_s=7200, most_owners=3),
        reply(0, "enrolling", missing=["ward-3"], enrolment_left_s=7190, most_owners=3),
        reply(0, "training", bytes_by_link={"a to b": 1}),
        reply(0, "training", bytes_by_link={"a to b": 2}),
        reply(2, "training"), reply(2, "training"), gone, gone,
        reply(2, "training", error="server-b is away"),
        reply(3, "training", rejected={"absent": 1}),
        reply(4, "done", rejected={"absent": 1}),
        out=io.StringIO(),
    )  # fmt: skip
    begun = (
        "server-a, wards: training: round 2 of 4, 10 s each, about 20 s left; 3 owners"
        " enrolled"
    )
    assert shown.splitlines() == [
        "no answer (refused); asking again every 5 s",
        (
            "server-a, wards: enrolling: round 0 of 4; 3 owners enrolled; enrolment"
            " takes 0 to 3 owners, for 2.0 hours more; not enrolled yet: ward-3"
        ),
        "server-a, wards: training: round 0 of 4; 3 owners enrolled",
        begun,
        f"{begun}; no answer (refused); asking again every 5 s",
        f"{begun}; server-b is away",
        (
            "server-a, wards: training: round 3 of 4, 15 s each, about 15 s left; 3"
            " owners enrolled; rejected: absent 1"
        ),
        (
            "server-a, wards: done: round 4 of 4, 12 s each; 3 owners enrolled;"
            " rejected: absent 1"
        ),
    ]


def test_what_a_server_says_moves_no_cursor(tmp_path: Path) -> None:
    for out in (terminal.Terminal(), io.StringIO()):
        shown = watched(
            reply(1, "stopped", error="\x1b[2J\x1b]0;x\x07[red]gone[/]"), out=out
        )
        assert "\x1b]" not in shown
        assert "\x1b[2J" not in out.getvalue()
        assert "[red]gone[/]" in shown
    # A live screen is no document.
    watch = ("status", "127.0.0.1:1", "--identity", tmp_path, "--watch", "--json")
    assert "choose one of them" in commands.refused(*watch)
