"""Every long-running command ends when told to, wherever it waits, and leaves nothing
running.

``PRECAD_WRITE_STOPS=1`` writes how long each took into benchmarks/results/stops.json,
of the scenes that the file lacks: one that was broken off goes on, and without the file
all are measured anew.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.rig.documents import Document
from tests.rig.stops import RESULTS, SCENES, play


@pytest.mark.parametrize("scene", SCENES)
def test_whoever_waits_ends_when_told_to_and_nothing_is_left(
    scene: str, tmp_path: Path
) -> None:
    writes = bool(os.environ.get("PRECAD_WRITE_STOPS"))
    if writes and scene in _recorded():
        pytest.skip("is measured")
    seconds = play(scene, tmp_path, subprocess.Popen)
    if writes:
        load = round(os.getloadavg()[0], 1)
        taken = {what: round(each, 2) for what, each in seconds.items()}
        recorded = _recorded() | {scene: {"load": load, "seconds": taken}}
        in_order = {each: recorded[each] for each in SCENES if each in recorded}
        RESULTS.write_text(json.dumps(in_order, indent=1) + "\n", encoding="utf-8")
    assert list(_recorded()[scene]["seconds"]) == list(seconds)


def _recorded() -> Document:
    recorded: Document = (
        json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    )
    return recorded
