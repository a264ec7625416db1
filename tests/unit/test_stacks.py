"""A process that hangs says where, and goes on."""

import os
import signal
import subprocess
import sys

HANGS = """
import os, sys, time
from precad.common.stacks import says_where_it_hangs

says_where_it_hangs()


def stuck(secret):
    print(os.getpid(), flush=True)
    sys.stdin.readline()


if os.fork() == 0:
    stuck("hush")
    print("went on", flush=True)
else:
    os.wait()
"""


def test_a_process_says_where_it_hangs_and_goes_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HANGS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        os.kill(int(process.stdout.readline()), signal.SIGUSR1)
        said = [process.stderr.readline() for _ in range(3)]
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "went on\n"
        assert process.wait(60) == 0
    assert "in stuck" in "".join(said)
    assert "hush" not in "".join(said)
