"""Parts that are forked from a warm parent are processes like others."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.rig.waiting import until
from tests.rig.warm import SOURCES

from precad.cli.local_deployment import OWNERS, LocalDeployment, environment_of_parts
from precad.cli.warm_starter import Forked, WarmStarter
from precad.common.task import Task


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
    until(lambda: os.getpgid(process.pid) == process.pid, "a group of its own")
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
    with starter._changed:
        until(lambda: not Path(f"/proc/{process.pid}").exists(), "the part's end")
        assert process.poll() is None
        yield


@pytest.mark.parametrize("group", [None, 0], ids=["in this group", "in a group of its own"])
def test_a_part_that_ends_as_it_is_signalled_is_no_error(
    starter: WarmStarter, tmp_path: Path, make_task: Callable[[], Task], group: int | None
) -> None:
    """``Popen`` has no such moment: a process stays until it itself has waited for it."""
    with LocalDeployment(tmp_path / "deployment", make_task(), {}) as deployment:
        part = _start(starter, tmp_path / "log", group, "timeit", "-n", "1", "-r", "1", "pass")
        deployment.processes[OWNERS] = part
        with _ended_unheard(starter, part):
            deployment.ask_owners_where()
            deployment.tell_to_stop()
            part.kill()
        assert part.wait(60) == 0


LEADER = """
import os, pathlib, signal, subprocess, sys
from precad.cli.warm_starter import WarmStarter
from precad.cli.local_deployment import environment_of_parts
from tests.rig.waiting import until
starter = WarmStarter()
PARTS = (
    "import os, signal; own = os.fork(); own and print(own, 'child', flush=True); signal.pause()"
)
with open(sys.argv[1], "ab") as log:
    part = starter(
        [sys.executable, "-m", "timeit", "-n", "1", "-r", "1", PARTS], stdout=log,
        stderr=subprocess.STDOUT, env=environment_of_parts(), process_group=0,
    )
until(lambda: pathlib.Path(sys.argv[1]).read_text().endswith("child\\n"), "two processes")
print(part.pid, pathlib.Path(sys.argv[1]).read_text(), flush=True)
os.killpg(0, int(sys.argv[2])) if sys.argv[3] == "group" else os.kill(os.getpid(), int(sys.argv[2]))
signal.pause()
"""


def check_that_no_part_is_left(log: Path, number: signal.Signals, whom: str) -> None:
    """The one that has started parts is ended, alone or with its group."""
    done = subprocess.run(
        [sys.executable, "-c", LEADER, str(log), str(int(number)), whom],
        capture_output=True, text=True, check=False, start_new_session=True,
        env=environment_of_parts() | {"PYTHONPATH": SOURCES},
    )  # fmt: skip
    assert done.returncode == -number, done.stderr
    for pid in done.stdout.split()[:2]:
        until(partial(ended, Path(f"/proc/{pid}/cmdline")), "the end of every part")


def ended(part: Path) -> bool:
    try:
        return not part.read_bytes()
    except FileNotFoundError:
        return True


def test_whoever_gives_the_orders_is_killed_and_leaves_no_part_behind(tmp_path: Path) -> None:
    check_that_no_part_is_left(tmp_path / "log", signal.SIGKILL, "alone")
