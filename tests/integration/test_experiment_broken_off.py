"""A cell of the papers' experiments that is broken off, or killed, goes on to the same values."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import precad
from precad.experiments.papers import liu_fig1, liu_votes, precad_check
from precad.experiments.papers.precad_backdoor import BACKDOOR
from precad.experiments.papers.precad_common import train
from precad.experiments.study import Scale, Surroundings
from precad.experiments.study.checkpoint import Checkpoint
from precad.experiments.study.run import PARTIAL

DEADLINE_S = 60.0
TRAINING = {
    **BACKDOOR[Scale.SMALL],
    "rounds": 40,
    "noise_multiplier": 1.0,
    "client_clip": 5.0,
    "attackers": 3,
    "seed": 2,
}
CHECK = {**TRAINING, "algorithm": "precad", "check": "published"}
VOTES = {**liu_fig1.SETTINGS[Scale.SMALL], "models": 12, "steps": 40, "seed": 1, "tested": 50}
CELLS: dict[str, tuple[Callable[..., Mapping[str, Any]], dict[str, Any], int]] = {
    "precad": (train, {**TRAINING, "algorithm": "precad"}, 27),
    "local-dp": (train, {**TRAINING, "algorithm": "local-dp"}, 27),
    "non-private": (train, {**TRAINING, "algorithm": "non-private"}, 27),
    "check": (precad_check.measure, CHECK, 27),
    "dp": (liu_votes.measure, {**VOTES, "arm": "dp", "noise_multiplier": 1.0}, 27),
    "bagging": (liu_votes.measure, {**VOTES, "arm": "bagging", "bag": 2000}, 1100),
}
"""What measures, the settings, and after which of its steps it is broken off."""
PLUGIN = """
from precad.experiments.papers.precad_common import train
from precad.experiments.study import EXPERIMENTS, Experiment, Scale, Table

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


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_that_is_broken_off_goes_on_to_the_same_values(tmp_path: Path, name: str) -> None:
    measure, settings, stops = CELLS[name]
    told: list[int] = []

    def stop(done: int, _all: int) -> None:
        if done == stops:
            raise KeyboardInterrupt

    def progress(done: int, _all: int) -> None:
        told.append(done)

    def around(told: Callable[[int, int], object]) -> Surroundings:
        return Surroundings(progress=told, checkpoint=Checkpoint(tmp_path / "cell.npz"))

    whole = measure(settings, Surroundings())
    with pytest.raises(KeyboardInterrupt):
        measure(settings, around(stop))
    assert measure(settings, around(progress)) == whole
    assert 1 < told[0] <= stops


def started(folder: Path, plugin: Path) -> "subprocess.Popen[bytes]":
    words = ["experiment", "run", "killed", "--no-plot", "--plugin", str(plugin)]
    found = str(Path(precad.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-m", "precad", *words, "--output", str(folder)],
        env=os.environ | {"PYTHONPATH": found, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )


def test_a_killed_run_goes_on_to_the_same_values(tmp_path: Path) -> None:
    plugin, folder = tmp_path / "own.py", tmp_path / "kept"
    settings = {**TRAINING, "rounds": 100}
    plugin.write_text(PLUGIN.replace("SETTINGS", repr(settings)))
    first = started(folder, plugin)
    until = time.monotonic() + DEADLINE_S
    while not list((folder / PARTIAL).glob("*.npz")):
        assert first.poll() is None, "over before it was killed"
        assert time.monotonic() < until
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not list(folder.glob("*.json"))
    assert started(folder, plugin).wait(2 * DEADLINE_S) == 0
    (cell,) = json.loads((folder / "killed-small.json").read_text())["cells"]
    assert cell["values"] == train({**settings, "algorithm": "precad"}, Surroundings())
    assert not list((folder / PARTIAL).glob("*.npz"))
