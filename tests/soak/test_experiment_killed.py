"""A cell of the papers' experiments whose process is killed goes on to the same values."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from research.papers.precad_backdoor import BACKDOOR
from research.papers.precad_common import train
from research.study import Scale, Surroundings
from research.study.run import PARTIAL
from tests.rig.waiting import until

SETTINGS = {
    **BACKDOOR[Scale.SMALL],
    "rounds": 100,
    "noise_multiplier": 1.0,
    "client_clip": 5.0,
    "attackers": 3,
    "seed": 2,
}
PLUGIN = """
from research.papers.precad_common import train
from research.study import EXPERIMENTS, Experiment, Scale, Table

EXPERIMENTS.register("killed")(
    Experiment(
        paper="none",
        figure="none",
        claim="It goes on.",
        does="One cell.",
        settings=dict.fromkeys(Scale, SETTINGS),
        cells=lambda scale: [{"algorithm": "precad"}],
        measure=train,
        table=lambda results: Table(["cells"], [[str(len(results))]]),
        plot=lambda results, figure: None,
    )
)
"""


def started(folder: Path, plugin: Path) -> "subprocess.Popen[bytes]":
    words = ["run", "killed", "--no-plot", "--plugin", str(plugin)]
    root = Path(__file__).parents[2]
    found = f"{root / 'src'}:{root}"
    return subprocess.Popen(
        [sys.executable, "-m", "research", *words, "--output", str(folder)],
        env=os.environ | {"PYTHONPATH": found, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )


def test_a_killed_run_goes_on_to_the_same_values(tmp_path: Path) -> None:
    plugin, folder = tmp_path / "own.py", tmp_path / "kept"
    plugin.write_text(PLUGIN.replace("SETTINGS", repr(SETTINGS)))
    first = started(folder, plugin)
    until(lambda: list((folder / PARTIAL).glob("*.npz")), "a state that is kept")
    assert first.poll() is None, "over before it was killed"
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not list(folder.glob("*.json"))
    assert started(folder, plugin).wait() == 0
    (cell,) = json.loads((folder / "killed-small.json").read_text())["cells"]
    assert cell["values"] == train({**SETTINGS, "algorithm": "precad"}, Surroundings())
    assert not list((folder / PARTIAL).glob("*.npz"))
