"""Validation between two operating system processes, one CrypTen party each."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import precad

SCRIPT = Path(__file__).parent / "one_server.py"
SOURCES, ROOT = Path(precad.__file__).parents[1], Path(__file__).parents[3]
DIMENSION = 200_000
"""Bodies of 1.6 MB: several frames, more than a socket buffers."""


def test_two_processes_come_to_the_same_verdicts() -> None:
    ends = socket.socketpair()
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), role, str(end.fileno()), str(DIMENSION)],
            env={
                **os.environ,
                "PYTHONPATH": f"{SOURCES}{os.pathsep}{ROOT}",
                "OMP_NUM_THREADS": "1",
            },
            pass_fds=[end.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for role, end in zip(("server-a", "server-b"), ends, strict=True)
    ]
    for end in ends:
        end.close()
    for process in processes:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert json.loads(out) == [True, True, False, False, False, True]
