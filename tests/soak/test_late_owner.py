"""`precad demo` where an owner doesn't end: on a busy machine one took over a minute.

The first version failed then, after the training: no summary, no plot, no model.
"""

import json
import os
import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path

from tests.rig.waiting import until

from precad.cli.demo_display import Display
from precad.cli.demo_outcome import RoundRow
from precad.cli.demo_run import run
from precad.cli.demo_scenario import Scenario, make_scenario
from precad.common.model import load_model
from precad.common.task import Task

ROUNDS = 4
COLLECT_S = 60.0
"""With 8 s an owner's first submission came too late beside a process of higher priority."""


def owners_of(folder: Path) -> list[int]:
    """The processes of this run's owners who were started together."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                command = (each / "cmdline").read_bytes().split(b"\0")
                parent = (each / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if b"join" in command and str(folder / "logs").encode() in command:
                found.append((int(each.name), int(parent)))
    pids = {pid for pid, _ in found}
    # Not the process that started them: its children alone.
    return [pid for pid, parent in found if parent in pids]


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


def alive(pid: int) -> bool:
    """Whether it is more than an entry that nobody has asked about."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_a_late_owner_costs_neither_the_summary_nor_the_plot_nor_the_model(tmp_path: Path) -> None:
    scenario = make_scenario("digits", "logistic", 5, ROUNDS, 1.0, "wraparound", 2, seed=1)
    deadlines = scenario.task.deadlines.model_copy(update={"collect": COLLECT_S})
    task: Task = scenario.task.model_copy(update={"deadlines": deadlines})
    folder, said = tmp_path / "run", StringIO()
    display = Halting(said, scenario, folder)
    outcome, result = run(replace(scenario, task=task), folder, display, owners_s=3.0)
    assert display.halted is not None
    assert "haven't ended within 3 s and are stopped" in said.getvalue()
    # Whoever still ran said where; the halted one couldn't.
    assert "together.py" in (folder / "logs" / "owners.log").read_text()
    assert len(outcome.rows) == result["version"] == ROUNDS
    # It was absent from the version that it stood still in, and nobody else was.
    assert result["honest_rejected"] == 0
    assert set(result["rejected"]) == {"norm-exceeded", "absent"}
    assert json.loads((folder / "summary.json").read_text()) == result
    assert (folder / "training.png").read_bytes().startswith(b"\x89PNG")
    model = load_model(folder / "model.safetensors", task)
    assert str(model.digest) == result["model_digest_a"] == result["model_digest_b"]
    # It was killed at the very end: the system takes a moment to end it.
    halted = display.halted
    until(lambda: not alive(halted) and not owners_of(folder), "the late owner's end")
