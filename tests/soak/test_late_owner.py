"""`precad demo` where an owner doesn't end: on a busy machine one took over a minute.

The first version failed then, after the training: no summary, no plot, no model.
"""

import json
import os
import signal
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path

from tests.rig.stops import runs
from tests.rig.waiting import until

from precad.cli.command_options import DemoRequest
from precad.cli.demo_run import Display, run
from precad.cli.demo_training import RoundRow, Scenario, make_scenario
from precad.common.model import load_model
from precad.common.task import Task

ROUNDS = 4
COLLECT_S = 60.0
"""With 8 s an owner's first submission came too late beside a process of higher priority."""


def owners_of(folder: Path) -> list[int]:
    """The processes of this run's owners: by where they write."""
    found = []
    for each in Path("/proc").glob("[0-9]*/fd/1"):
        with suppress(OSError):
            log = each.readlink()
            if log.parent == folder / "logs" and log.name.startswith("owner-"):
                found.append(int(each.parts[2]))
    return found


class Halting(Display):
    """Stops one owner's process in the midst of the training."""

    def __init__(self, out: StringIO, scenario: Scenario, folder: Path) -> None:
        super().__init__(out, scenario)
        self._folder = folder
        self.halted: int | None = None

    def round(self, row: RoundRow) -> None:
        super().round(row)
        if self.halted is None and row.number >= ROUNDS - 2:
            self.halted = owners_of(self._folder)[0]
            os.kill(self.halted, signal.SIGSTOP)


def test_a_late_owner_costs_neither_the_summary_nor_the_plot_nor_the_model(tmp_path: Path) -> None:
    request = DemoRequest(clients=5, rounds=ROUNDS, attack="wraparound", attackers=2)
    scenario = make_scenario(request)
    deadlines = scenario.task.deadlines.model_copy(update={"collect": COLLECT_S})
    task: Task = scenario.task.model_copy(update={"deadlines": deadlines})
    folder, said = tmp_path / "run", StringIO()
    display = Halting(said, scenario, folder)
    outcome, result = run(replace(scenario, task=task), folder, display, owners_s=3.0)
    assert display.halted is not None
    assert "haven't ended within 3 s and are stopped" in said.getvalue()
    assert len(outcome.rows) == result["version"] == ROUNDS
    # It was absent from the version that it stood still in, and nobody else was.
    assert (result["honest_rejected"], set(result["rejected"])) == (0, {"norm-exceeded", "absent"})
    assert json.loads((folder / "summary.json").read_text()) == result
    assert (folder / "training.png").read_bytes().startswith(b"\x89PNG")
    model = load_model(folder / "model.safetensors", task)
    assert str(model.digest) == result["model_digest_a"] == result["model_digest_b"]
    # It was killed at the very end: the system takes a moment to end it.
    halted = display.halted
    until(lambda: not runs(halted) and not owners_of(folder), "the late owner's end")
