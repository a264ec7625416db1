"""Parts that are forked from a warm parent are processes like others."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from precad.cli.demo.warm import Forked, WarmStarter
from precad.experiments.local import environment_of_parts


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
