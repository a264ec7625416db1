"""Owners of one machine that are started together: a process each, loaded once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.rig.waiting import until

import precad
from precad.cli.local_deployment import task_to_toml, write_parties
from precad.client import owners_together
from precad.client.own_account import OwnAccount
from precad.common.errors import Misconfiguration
from precad.common.task import Task

SOURCES = str(Path(precad.__file__).parents[1])
STARTS = """
import json, os, signal, sys
from pathlib import Path
from precad.client.owners_together import split

# Whoever runs the tests in the background of a script has them ignore it, and so their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
loaded = []
def load():
    loaded.append(os.getpid())

own = split([Path(name) for name in sys.argv[2:]], load, Path(sys.argv[1]))
if own is None:
    sys.exit(0)
print(json.dumps([own.stem, os.getpid(), os.getppid(), loaded]), flush=True)
if own.stem == "waits":
    signal.pause()
sys.exit(3 if own.stem == "fails" else 0)
"""


def start(logs: Path, *names: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", STARTS, str(logs), *(f"{name}.toml" for name in names)]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": SOURCES})


def test_each_settings_file_gets_a_process_that_nobody_loads_again(tmp_path: Path) -> None:
    parent = start(tmp_path, "one", "two")
    assert parent.wait() == 0
    said = [json.loads((tmp_path / f"{name}.log").read_text()) for name in ("one", "two")]
    assert [each[0] for each in said] == ["one", "two"]
    assert len({each[1] for each in said} | {parent.pid}) == 3
    assert [each[2:] for each in said] == [[parent.pid, [parent.pid]]] * 2


def test_the_status_is_that_of_an_owner_that_failed(tmp_path: Path) -> None:
    assert start(tmp_path, "one", "fails", "two").wait() == 3
    assert (tmp_path / "two.log").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_of_them(tmp_path: Path, number: int) -> None:
    parent = start(tmp_path, "one", "waits")
    log = tmp_path / "waits.log"
    until(lambda: log.exists() and log.read_text(), "the second owner")
    child = json.loads(log.read_text())[1]
    parent.send_signal(number)
    assert parent.wait() == 1
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_system_that_cannot_split_processes_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(Misconfiguration, match="one by one: give one file"):
        owners_together.split([Path("one.toml"), Path("two.toml")], lambda: None, None)


AHEAD = """
import sys, threading
from collections import Counter
from pathlib import Path
from precad.client.account_file import Charge
from precad.client.own_account import exact_epsilon
from precad.client.owners_together import load_for, load_owner
from precad.accounting.exact import ExactAccountant
from precad.common.task import Task

load_owner()
before = set(sys.modules)
assert "precad.client.data_owner" in before
load_owner()
assert set(sys.modules) == before
load_for([Path(name) for name in sys.argv[2:]])
# No thread but the first, and no channel of gRPC's: nothing that must not be split.
assert threading.active_count() == 1
assert len(list(Path("/proc/self/task").iterdir())) == 1
task = Task.load(Path(sys.argv[1]))
privacy = task.privacy
privacy_of = {"noise_multiplier": privacy.noise_multiplier, "delta": privacy.delta}
step = Charge(task.digest, "", 0, 0, record_rate=privacy.record_rate, **privacy_of,
              validation=task.validation).event
ExactAccountant.epsilon = None
print([exact_epsilon(Counter({step: n + 1}), privacy.delta) for n in range(task.training.rounds)])
"""


def test_what_owners_need_is_loaded_and_added_up_once_also_beside_a_broken_one(
    make_task: Callable[..., Task], tmp_path: Path
) -> None:
    task = make_task(8, {"training.rounds": 3})
    (tmp_path / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
    addresses = {"server-a": "127.0.0.1:1", "server-b": "127.0.0.1:2", "dealer": "127.0.0.1:3"}
    owners = {name: {"data": "records.npz"} for name in ("one", "two")}
    write_parties(tmp_path, "task.toml", owners, addresses, linger_s=1.0)
    (tmp_path / "broken.toml").write_text("client = 3")
    files = [str(tmp_path / name) for name in ("broken.toml", "one.toml", "two.toml")]
    run = subprocess.run(
        [sys.executable, "-c", AHEAD, str(tmp_path / "task.toml"), *files],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    step = OwnAccount(task, task.privacy.record_rate, None, None)
    expected = []
    for version in range(3):
        step.charge(version)
        expected.append(step.epsilon())
    assert json.loads(run.stdout) == expected


def test_a_signal_between_a_childs_end_and_its_removal_still_reaches_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler runs as soon as a wait returns: before its result is anywhere."""
    numbers, reached, ended = iter((71, 72)), [], iter((71, 72))

    def wait() -> tuple[int, int]:
        pid = next(ended)
        if pid == 71:
            signal.raise_signal(signal.SIGTERM)
        return pid, 0

    def kill(pid: int, _number: int) -> None:
        if pid == 71:
            raise ProcessLookupError
        reached.append(pid)

    usual = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(os, "fork", lambda: next(numbers))
    monkeypatch.setattr(os, "wait", wait)
    monkeypatch.setattr(os, "kill", kill)
    try:
        owners_together.split([Path("one.toml"), Path("two.toml")], lambda: None, None)
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), usual, strict=True):
            signal.signal(number, handler)
    assert reached == [72]
