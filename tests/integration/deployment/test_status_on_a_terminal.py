"""`precad status --watch` on a real terminal: one screen, drawn anew, however narrow it is."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tests.rig.browser import browsing, faults
from tests.rig.pane import terminal

if TYPE_CHECKING:
    from tests.integration.deployment.conftest import Running


COLUMNS = 44
"""A narrow one; that of several tasks is wide (``test_several_tasks.py``)."""


def test_the_live_screen_follows_the_rounds_in_place(running: "Running", tmp_path: Path) -> None:
    zero = np.zeros(running.task.dimension, dtype=np.int64)
    bad = zero.copy()
    bad[0] = 2**32
    running.play({3: bad}, zero)
    address = running.deployment.addresses["server-a"]
    identity = running.deployment.folder / "keys" / "operator"
    watch = ["status", address, "--identity", str(identity), "--watch", "--every", "0.5"]
    with terminal([sys.executable, "-m", "precad", *watch], COLUMNS) as pane:
        first = round_of(pane.wait_for(lambda text: "training: round" in text))
        running.play({}, zero)
        text = pane.wait_for(lambda text: round_of(text) > first)
        page = tmp_path / f"status-{COLUMNS}.html"
        page.write_text(pane.page("precad status --watch"), encoding="utf-8")
    # Each line once: the screen was drawn over itself, and no line was broken into two.
    assert text.count("server-a, ") == text.count("training: round") == 1
    assert len(text.splitlines()) == 7
    assert "24 owners enrolled" in text
    assert "norm-exceeded " in text
    # Whole, however narrow the terminal is.
    assert text.splitlines()[2] == "━" * min(60, COLUMNS - 1)
    with browsing(tmp_path) as seen:
        seen.open(page.as_uri(), (900, 260))
        assert {kind: found for kind, found in faults(seen).items() if found} == {}
        assert seen.errors() == []
        seen.picture(tmp_path / f"status-{COLUMNS}.png")


def round_of(text: str) -> int:
    found = re.search(r"training: round (\d+) of", text)
    return int(found[1]) if found else -1
