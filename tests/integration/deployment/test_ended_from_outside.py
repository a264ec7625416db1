"""Whoever is told to end while it has parts running on this machine ends them too."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rig.stops import RESULTS, play, runs
from tests.rig.tasks import task_with
from tests.rig.waiting import DEADLINE_S, until
from tests.rig.warm import forked

from precad.cli.local_deployment import task_to_toml

PROGRAM = """
import sys, time, tomllib
from pathlib import Path

from precad.common.task import Task
from precad.cli.local_deployment import LocalDeployment

with LocalDeployment(Path(sys.argv[1]), Task.parse(tomllib.loads(sys.argv[2])), {}) as deployment:
    deployment.start_server("dealer")
    print(deployment.processes["dealer"].pid, flush=True)
    try:
        time.sleep(600)
    except SystemExit:
        time.sleep(float(sys.argv[3]))
        raise
"""


@pytest.mark.parametrize("goes_on_s", [0, 600])
def test_a_program_that_is_told_to_end_ends_its_parts(tmp_path: Path, goes_on_s: float) -> None:
    """Also where it catches the exception that comes of it, and where a part stands still."""
    task = task_to_toml(task_with({}))
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), task, str(goes_on_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with program:
        assert program.stdout is not None
        part = int(program.stdout.readline())
        try:
            if goes_on_s:
                os.kill(part, signal.SIGSTOP)
            program.terminate()
            assert program.wait(DEADLINE_S) == 128 + signal.SIGTERM
            until(lambda: not runs(part), "the dealer's end")
        finally:
            program.kill()
            if runs(part):
                os.kill(part, signal.SIGKILL)


def test_a_training_is_ended_part_by_part_while_norms_are_checked(tmp_path: Path) -> None:
    recorded = json.loads(RESULTS.read_text("utf-8"))["validating"]["seconds"]
    assert list(play("validating", tmp_path, forked)) == list(recorded)
