"""The demo's terminal: what stands there stays, and what happens is said from the beginning."""

import io

import pytest
from click import unstyle
from tests.rig.terminal import Terminal

from precad.cli.demo import DemoRequest, Display, conclude
from precad.cli.demo_training import Outcome, RoundRow, Scenario, make_scenario
from precad.common.terminal import redraws, say

RESULT = {
    "accuracy": 0.5,
    "delta": 1e-5,
    "rejected": {},
    "version": 5,
    **dict.fromkeys(("model_digest_a", "model_digest_b"), "00"),
    **dict.fromkeys(("accepted", "honest_rejected", "seconds"), 1),
    **dict.fromkeys(("epsilon_clt_server", "epsilon_exact_clients", "epsilon_exact_server"), 1.0),
}


@pytest.fixture
def scenario() -> Scenario:
    return make_scenario(DemoRequest(dataset="breast-cancer", clients=2, rounds=5))


def row(number: int) -> RoundRow:
    return RoundRow(number, 0.5, 2, 2, {}, 1.0, 0.5)


def test_what_is_said_stays_and_what_is_redrawn_goes(scenario: Scenario) -> None:
    out = Terminal()
    with Display(out, scenario) as display:
        for number in range(1, 5):
            display.round(row(number))
        display.say("this line stays")
        display.doing("owners end")
    assert "owners end" in out.getvalue()
    assert out.screen() == ["this line stays"]


def test_the_time_left_is_by_the_rounds_alone(scenario: Scenario) -> None:
    out = Terminal()
    display = Display(out, scenario)
    # As if the parts had taken ten minutes to start.
    (steps,) = display.tasks
    assert steps.start_time is not None
    steps.start_time -= 600
    with display:
        assert "0/5 0:10:0" in unstyle(out.getvalue())
        display.rounds_begin()
        display.round(row(1))
    assert "1/5 0:00:0" in unstyle(out.getvalue())


def test_an_epsilon_that_bounds_nothing_is_called_so(scenario: Scenario) -> None:
    for level, said in ((2585940.9, "over 100  a whole data owner (too large"), (3.25, "3.25  a")):
        out = io.StringIO()
        conclude(out, Outcome(scenario), {**RESULT, "epsilon_exact_client_level": level}, [])
        assert said in out.getvalue()


def test_where_nothing_can_be_redrawn_a_wait_is_a_line_now_and_then(scenario: Scenario) -> None:
    out = io.StringIO()
    with Display(out, scenario) as display:
        for enrolled in range(10):
            display.doing(f"owners enrol: {enrolled} of 10")
        display.round(row(1))
    lines = out.getvalue().splitlines()
    assert lines[0] == "owners enrol: 0 of 10"
    assert [line for line in lines if "owners enrol" in line] == lines[:1]
    assert lines[1].startswith("round   1/5: accuracy 50.0%")


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"])
def test_no_variable_makes_a_terminal(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log has other readers than the owner at a terminal."""
    monkeypatch.setenv(variable, "1")
    out = io.StringIO()
    say(out, ("one", "bold red"))
    assert out.getvalue() == "one\n"
    assert not redraws(out)
