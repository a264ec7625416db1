"""The demo's terminal: what stands there stays, and what happens is said from the beginning."""

import io

import pytest
from tests.rig.terminal import Terminal

from precad.cli.demo.outcome import RoundRow
from precad.cli.demo.scenario import Scenario, make_scenario
from precad.cli.demo.show import Display


@pytest.fixture
def scenario() -> Scenario:
    return make_scenario("breast-cancer", "logistic", 2, 5, 1.0, None, None, 1)


def row(number: int) -> RoundRow:
    return RoundRow(number, 0.5, 2, 2, {}, 1.0, 0.5)


def test_lines_above_are_not_wiped_when_it_is_shown_again(scenario: Scenario) -> None:
    out = Terminal()
    display = Display(out, scenario)
    with display:
        for number in range(1, 5):
            display.round(row(number))
    display.say("this line stays")
    display.doing("owners end")
    with display:
        assert "this line stays" in out.screen()
    assert "owners end" in out.getvalue()
    assert out.screen() == ["this line stays"]


def test_what_happens_is_said_before_the_first_round(scenario: Scenario) -> None:
    out = Terminal()
    with Display(out, scenario) as display:
        display.doing("owners enrol: 3 of 10")
    assert "owners enrol: 3 of 10 (0 s)" in out.getvalue()


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
