"""Whoever is told to end while it has parts running on this machine ends them too."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.rig.waiting import until

PROGRAM = """
import sys, time, tomllib
from pathlib import Path

from precad.common.task import Task
from precad.cli.local_deployment import LocalDeployment

with LocalDeployment(Path(sys.argv[1]), Task.parse(tomllib.loads(sys.argv[2])), {}) as deployment:
    deployment.start_server("dealer")
    print(deployment.processes["dealer"].pid, flush=True)
    time.sleep(600)
"""
TASK = """
name = "ended"
[model]
architecture = "custom"
parameters = [{ name = "weight", shape = [3] }]
[privacy]
record_clip = 1.0
client_clip = 2.0
noise_multiplier = 2.0
record_rate = 0.2
client_rate = 1.0
[training]
learning_rate = 1.0
rounds = 1
[enrolment]
clients = 2
max_expected_records = 8.0
"""


def test_a_program_that_is_told_to_end_ends_its_parts(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), TASK],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with program:
        assert program.stdout is not None
        part = int(program.stdout.readline())
        try:
            program.terminate()
            assert program.wait() == 128 + signal.SIGTERM
            until(lambda: not runs(part), "the dealer's end")
        finally:
            program.kill()
            if runs(part):
                os.kill(part, signal.SIGKILL)


def runs(pid: int) -> bool:
    """Whether a process is there that hasn't ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
