"""What a person sees of an owner's training: where nobody looks nothing, waiting with its name."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.rig.terminal import Terminal

from precad.client import reporter as shown_by
from precad.client.participation import Evaluation, RoundInfo
from precad.client.reporter import NotebookDisplay, OwnerProgress, TerminalDisplay, display_for


def info(number: int = 12, **changes: Any) -> RoundInfo:
    values: dict[str, Any] = {
        "number": number,
        "rounds": 400,
        "drawn": True,
        "counted": True,
        "rejected": "",
        "epsilon": 0.9312,
        "epsilon_limit": 4.0,
        "seconds": 2.0,
    }
    return RoundInfo(**(values | changes))


@pytest.fixture(autouse=True)
def at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still."""
    monkeypatch.setattr(shown_by, "time", SimpleNamespace(monotonic=lambda: NOON))


NOON = 1000.0


def seen(*steps: Any) -> str:
    """The terminal's text after these calls."""
    out = Terminal()
    display = TerminalDisplay("ward-3", 400, out)
    display.start()
    for step in steps:
        step(display)
    display.stop()
    return out.getvalue()


def test_nobody_is_shown_anything_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    assert not sys.stderr.isatty()
    assert display_for("ward-3", 400) is None
    assert display_for("ward-3", 400, wanted=False) is None
    assert display_for("ward-3", 400, wanted=True) is None
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_the_round_and_what_it_cost() -> None:
    text = seen(lambda display: display.round(info()))
    for words in ("ward-3: round", "12/400", "counted; ε 0.932 of 4 spent"):
        assert words in text


def test_waiting_is_named_with_the_seconds_that_are_left() -> None:
    assert "waiting for server A, 110 s left" in seen(
        lambda display: display.doing("waiting for server A", NOON + 110)
    )


def test_what_is_waited_for_in_vain_has_no_seconds_left() -> None:
    shown = OwnerProgress("ward-3", 400)
    shown.doing("waiting for server A", NOON - 5)
    assert shown.activity() == "waiting for server A, 0 s left"
    shown.doing("x" * 500, None)
    assert len(shown.activity()) == 100


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"counted": False, "rejected": "absent"}, "rejected (absent)"),
        ({"counted": False, "drawn": False}, "not drawn"),
        ({"counted": False}, "sat out"),
        ({"validation": Evaluation(50, 0.2, 0.912)}, "91.2% right on own held-out records"),
        ({"validation": Evaluation(50, 0.2, None)}, "loss 0.2 on own held-out records"),
        ({"epsilon": None}, "counted"),
    ],
)
def test_a_round_is_told_in_words(changes: dict[str, Any], words: str) -> None:
    shown = OwnerProgress("ward-3", 400)
    shown.last = info(**changes)
    assert words in shown.result()


def test_a_notebook_gets_one_output_that_changes_and_needs_no_widgets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """IPython isn't needed for it: what is used of it is three names."""
    given: list[str] = []
    handle = SimpleNamespace(update=given.append)

    def display(markup: str, *, display_id: bool) -> Any:
        assert display_id
        given.append(markup)
        return handle

    ipython, drawing = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    drawing.HTML = str  # type: ignore[attr-defined]
    drawing.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", drawing)
    found = display_for("ward-<3>", 400)
    assert isinstance(found, NotebookDisplay)
    found.start()
    found.doing("waiting for server A", NOON + 60)
    assert "waiting for server A, 60 s left" in found.markup()
    found.round(info(400))
    found.stop()
    assert '<progress max="400" value="400"' in given[-1]
    assert "ward-&lt;3&gt;: round 400/400" in given[-1]
    assert "waiting" not in given[-1]
