"""Processes that are split off from one that has imported everything are processes like others."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.rig.commands import precad, python
from tests.rig.stops import runs
from tests.rig.tasks import logistic, task_with
from tests.rig.waiting import until
from tests.rig.warm import forked, said

from precad.cli import forked as forking
from precad.cli.forked import Forked
from precad.cli.local_deployment import environment_of_parts, task_to_toml
from precad.common.errors import Misconfiguration


def start(log: Path, *arguments: str, **environment: str) -> Any:
    with log.open("ab") as file:
        return forked(
            [sys.executable, "-m", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment_of_parts() | environment,
        )


def test_output_and_status_are_a_processes_own_also_when_killed(tmp_path: Path) -> None:
    process = start(tmp_path / "log", "precad", "no-such-command")
    assert isinstance(process, Forked)
    assert process.wait(60) == 2
    assert "no-such-command" in (tmp_path / "log").read_text()
    # Who has ended can't be signalled, and nobody minds.
    process.terminate()
    process = start(tmp_path / "log", "http.server", "--bind", "127.0.0.1", "0")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    # What is read when Python starts needs a start.
    other = start(tmp_path / "log", "precad", "--version", PYTHONWARNINGS="ignore")
    assert isinstance(other, subprocess.Popen)
    assert other.wait() == 0


LEADER = """
import os, pathlib, signal, subprocess, sys
from precad.cli import forked
from tests.rig.waiting import until
log = pathlib.Path(sys.argv[1])
forked.begin(os.environ, ())
with log.open("ab") as file:
    part = forked.start(
        [sys.executable, "-m", "timeit", "-n1", "-r1", "print('here', flush=True); " + PAUSE],
        stdout=file, stderr=subprocess.STDOUT, env=os.environ,
    )
until(lambda: log.read_text(), "the part")
print(part.pid, flush=True)
os.killpg(0, signal.SIGTERM) if sys.argv[2] == "group" else os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
""".replace("PAUSE", repr("import signal; signal.pause()"))


@pytest.mark.parametrize(("whom", "number"), [("alone", signal.SIGKILL), ("group", signal.SIGTERM)])
def test_whoever_starts_parts_leaves_none_behind(tmp_path: Path, whom: str, number: int) -> None:
    """As `timeout 100 precad demo` ends a group."""
    done = python("-c", LEADER, tmp_path / "log", whom, start_new_session=True)
    assert done.returncode == -number, done.stderr
    until(lambda: not runs(int(done.stdout)), "the end of the part")


def test_a_system_that_cannot_split_processes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(forking, "_of_server", {})
    with pytest.raises(Misconfiguration, match="one by one"):
        forking.begin(os.environ)


def test_the_status_is_that_of_an_owner_that_failed_and_each_has_its_log(tmp_path: Path) -> None:
    configs = [tmp_path / f"{name}.toml" for name in ("one", "two")]
    for config in configs:
        config.write_text("client = 3")
    arguments = [part for config in configs for part in ("--config", config)]
    assert said(tmp_path, "join", "--logs", tmp_path, *arguments)[0] == 2
    for config in configs:
        log = config.with_suffix(".log")
        assert f"required in {config}" in log.read_text()
        # Refusals quote cells, and accounts stand there: nobody else's to read.
        assert log.stat().st_mode & 0o777 == 0o600
    log.unlink()
    log.mkdir()
    status, told = said(tmp_path, "join", "--logs", tmp_path, *arguments)
    assert (status, "can't be written" in told) == (2, True)
    assert said(tmp_path, "join", "--logs", tmp_path / "none", *arguments)[0] == 2


def test_a_signal_ends_all_owners(tmp_path: Path) -> None:
    owners = {"enrolment.clients": 2, "enrolment.min_clients": 2}
    task, run = tmp_path / "task.toml", tmp_path / "run"
    task.write_text(task_to_toml(task_with(logistic(3) | owners)), encoding="utf-8")
    files = [tmp_path / f"{name}.npz" for name in ("one", "two")]
    for file in files:
        np.savez(file, x=np.zeros((4, 3), np.float32), y=np.zeros(4, np.int64))
    data = [word for file in files for word in ("--data", file)]
    # Nobody is there.
    assert precad("setup", run, "--task", task, *data).exit_code == 0
    configs = [word for name in ("one", "two") for word in ("--config", str(run / f"{name}.toml"))]
    process = start(tmp_path / "log", "precad", "join", "--logs", str(run), *configs)
    logs = [run / f"{name}.log" for name in ("one", "two")]
    until(
        lambda: all(log.exists() and "connect" in log.read_text() for log in logs),
        lambda: "\n".join(log.read_text() for log in logs if log.exists()),
    )
    process.terminate()
    assert process.wait(60) == 1
