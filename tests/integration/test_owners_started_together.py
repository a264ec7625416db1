"""Owners of one machine that are started together: a process each, loaded once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import precad
from precad.client import together
from precad.common.errors import Misconfiguration

SOURCES = str(Path(precad.__file__).parents[1])
STARTS = """
import json, os, sys, time
from pathlib import Path
from precad.client.together import split

loaded = []
def load():
    loaded.append(os.getpid())

own = split([Path(name) for name in sys.argv[2:]], load, Path(sys.argv[1]))
if own is None:
    sys.exit(0)
print(json.dumps([own.stem, os.getpid(), os.getppid(), loaded]), flush=True)
if own.stem == "waits":
    time.sleep(60)
sys.exit(3 if own.stem == "fails" else 0)
"""


def start(logs: Path, *names: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", STARTS, str(logs), *(f"{name}.toml" for name in names)]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": SOURCES})


def test_each_settings_file_gets_a_process_that_nobody_loads_again(tmp_path: Path) -> None:
    parent = start(tmp_path, "one", "two")
    assert parent.wait(30) == 0
    said = [json.loads((tmp_path / f"{name}.log").read_text()) for name in ("one", "two")]
    assert [each[0] for each in said] == ["one", "two"]
    assert len({each[1] for each in said} | {parent.pid}) == 3
    assert [each[2:] for each in said] == [[parent.pid, [parent.pid]]] * 2


def test_the_status_is_that_of_an_owner_that_failed(tmp_path: Path) -> None:
    assert start(tmp_path, "one", "fails", "two").wait(30) == 3
    assert (tmp_path / "two.log").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_of_them(tmp_path: Path, number: int) -> None:
    parent = start(tmp_path, "one", "waits")
    log = tmp_path / "waits.log"
    while not log.exists() or not log.read_text():
        assert parent.poll() is None
        time.sleep(0.02)
    child = json.loads(log.read_text())[1]
    parent.send_signal(number)
    assert parent.wait(30) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_system_that_cannot_split_processes_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(Misconfiguration, match="one by one: give one file"):
        together.split([Path("one.toml"), Path("two.toml")], lambda: None, None)


def test_loading_leaves_nothing_that_must_not_be_split() -> None:
    """No thread but the first, no gRPC channel, and the modules of the first gradient."""
    program = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from precad.client.together import load_owner\n"
        "load_owner()\n"
        "assert threading.active_count() == 1\n"
        "assert len(list(Path('/proc/self/task').iterdir())) == 1\n"
        "before = set(sys.modules)\n"
        "load_owner()\n"
        "assert set(sys.modules) == before\n"
        "assert 'precad.client.data_owner' in before\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
