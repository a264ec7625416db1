"""Parts that are forked from a warm parent are processes like others."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.deployment.test_ended_from_outside import TASK

from precad.cli.demo.warm import Forked, WarmStarter
from precad.common.task import Task
from precad.experiments.local import LocalDeployment, environment_of_parts
from precad.experiments.local.deployment import OWNERS


def _start(starter: WarmStarter, log: Path, group: int | None, *arguments: str) -> Any:
    with log.open("ab") as file:
        return starter(
            [sys.executable, "-m", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment_of_parts(),
            process_group=group,
        )


def test_a_forked_part_with_children_of_its_own_is_stopped_as_a_group(
    starter: WarmStarter, tmp_path: Path
) -> None:
    process = _start(starter, tmp_path / "log", 0, "http.server", "--bind", "127.0.0.1", "0")
    assert isinstance(process, Forked)
    # Its own group is made in the child: it may not have come to it yet.
    while os.getpgid(process.pid) != process.pid:
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL


def test_a_forked_parts_output_and_status_are_its_own(starter: WarmStarter, tmp_path: Path) -> None:
    process = _start(starter, tmp_path / "log", None, "precad", "no-such-command")
    assert process.wait(60) == 2
    assert "no-such-command" in (tmp_path / "log").read_text()
    assert isinstance(process, Forked)


@contextmanager
def _ended_unheard(starter: WarmStarter, process: Forked) -> Iterator[None]:
    """It has ended and its parent has waited for it; that it told so isn't read before the end."""
    deadline = time.monotonic() + 60
    with starter._changed:
        while Path(f"/proc/{process.pid}").exists():
            assert time.monotonic() < deadline, "the part goes on"
            time.sleep(0.01)
        assert process.poll() is None
        yield


@pytest.mark.parametrize("group", [None, 0], ids=["in this group", "in a group of its own"])
def test_a_part_that_ends_as_it_is_signalled_is_no_error(
    starter: WarmStarter, tmp_path: Path, group: int | None
) -> None:
    """``Popen`` has no such moment: a process stays until it itself has waited for it."""
    task = Task.parse(tomllib.loads(TASK))
    with LocalDeployment(tmp_path / "deployment", task, {}) as deployment:
        part = _start(starter, tmp_path / "log", group, "timeit", "-n", "1", "-r", "1", "pass")
        deployment.processes[OWNERS] = part
        with _ended_unheard(starter, part):
            deployment.ask_owners_where()
            deployment.tell_to_stop()
            part.kill()
        assert part.wait(60) == 0


LEADER = """
import os, pathlib, signal, subprocess, sys
from precad.cli.demo.warm import WarmStarter
from precad.experiments.local import environment_of_parts
starter = WarmStarter()
PARTS = "import os, time; own = os.fork(); own and print(own, 'child', flush=True); time.sleep(600)"
with open(sys.argv[1], "ab") as log:
    part = starter(
        [sys.executable, "-m", "timeit", "-n", "1", "-r", "1", PARTS], stdout=log,
        stderr=subprocess.STDOUT, env=environment_of_parts(), process_group=0,
    )
while not pathlib.Path(sys.argv[1]).read_text().endswith("child\\n"):
    assert part.poll() is None
print(part.pid, pathlib.Path(sys.argv[1]).read_text(), flush=True)
os.killpg(0, int(sys.argv[2])) if sys.argv[3] == "group" else os.kill(os.getpid(), int(sys.argv[2]))
signal.pause()
"""


@pytest.mark.parametrize(
    ("number", "whom"),
    [(signal.SIGKILL, "alone"), (signal.SIGTERM, "group")],
    ids=lambda each: each,
)
def test_whoever_gives_the_orders_is_killed_and_leaves_no_part_behind(
    tmp_path: Path, number: signal.Signals, whom: str
) -> None:
    """`timeout 100 precad demo` ends a group: the parts have groups of their own, and children."""
    done = subprocess.run(
        [sys.executable, "-c", LEADER, str(tmp_path / "log"), str(int(number)), whom],
        capture_output=True, text=True, timeout=120, check=False, env=environment_of_parts(),
        start_new_session=True,
    )  # fmt: skip
    assert done.returncode == -number, done.stderr
    deadline = time.monotonic() + 60
    for pid in done.stdout.split()[:2]:
        part = Path(f"/proc/{pid}/cmdline")
        while part.exists() and part.read_bytes():
            assert time.monotonic() < deadline, "a part is left over"
            time.sleep(0.05)
