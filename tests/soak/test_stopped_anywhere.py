"""Every long-running command ends when told to, wherever it waits, and leaves nothing running.

``PRECAD_WRITE_STOPS=1`` writes how long each took into benchmarks/results/stops.json.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.rig.stops import RESULTS, SCENES, play


@pytest.mark.parametrize("scene", SCENES)
def test_whoever_waits_ends_when_told_to_and_nothing_is_left(scene: str, tmp_path: Path) -> None:
    seconds = play(scene, tmp_path, subprocess.Popen)
    recorded = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    if os.environ.get("PRECAD_WRITE_STOPS"):
        recorded[scene] = {what: round(taken, 2) for what, taken in seconds.items()}
        RESULTS.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    assert list(recorded[scene]) == list(seconds)
