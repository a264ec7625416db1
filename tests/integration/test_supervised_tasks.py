"""What keeps several tasks' processes up, with processes that do as their settings say."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.rig.waiting import until

import precad
from precad.cli.supervise import supervise
from precad.common.errors import Misconfiguration
from precad.common.process_settings import Settings

SOURCES = str(Path(precad.__file__).parents[1])
DEPLOY = Path(__file__).parents[2] / "deploy"
AGAIN_S = 0.05
SUPERVISES = f"""
import logging, os, signal, sys
from pathlib import Path
from precad.cli.supervise import supervise
from precad.common.logs import start_log
from precad.common.process_settings import Settings

class Does(Settings):
    does: str

loads = []
start_log()
own = supervise(Does, Path(sys.argv[1]), lambda task: loads.append(task.name), {AGAIN_S})
if own is None:
    sys.exit(0)
logging.getLogger("precad").info(
    "begins %s as process %d, loaded %s", own.does, os.getpid(), sorted(set(loads))
)
if own.does.isdigit():
    sys.exit(int(own.does))
signal.pause()
"""


class Service:
    """A supervising process, its settings file and its log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "service.toml"
        self._log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def tasks(self, **does: str) -> None:
        """Write the settings: what each task's process does."""
        text = (DEPLOY / "task.toml").read_text(encoding="utf-8")
        tables = 'identity = "keys"\n'
        for name, what in does.items():
            (self.folder / f"{name}.toml").write_text(text.replace("digits-logistic", name))
            tables += f'[tasks.{name}]\ntask = "{name}.toml"\ndoes = "{what}"\n'
        self.config.write_text(tables)

    def start(self) -> None:
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SUPERVISES, str(self.config)],
                stderr=log,
                env=os.environ | {"PYTHONPATH": SOURCES},
            )

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def said(self, words: str) -> int:
        """How many lines have these words."""
        return sum(words in line for line in self._log.read_text().splitlines())

    def until(self, ready: Callable[[], object]) -> None:
        until(ready, self._log.read_text)

    def pid(self, name: str) -> int:
        """The newest process of a task that has begun, as it says itself."""
        lines = [x for x in self._log.read_text().splitlines() if f"{name}: begins " in x]
        return int(lines[-1].partition(" as process ")[2].partition(",")[0])

    def end(self) -> int:
        self.send(signal.SIGTERM)
        assert self.process is not None
        return self.process.wait()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def runs(pid: int) -> bool:
    """Whether it is there, and isn't dead and unburied."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_each_task_has_a_process_that_says_its_name(service: Service) -> None:
    service.tasks(wards="stay", clinics="stay")
    service.start()
    for name in ("wards", "clinics"):
        service.until(partial(service.said, f"{name}: begins stay"))
    # Loaded once, before either was split off.
    assert service.said("loaded ['clinics', 'wards']") == 2
    pids = {service.pid(name) for name in ("wards", "clinics")}
    for name in ("wards", "clinics"):
        service.until(partial(service.said, f"task {name} is process {service.pid(name)}"))
    assert len(pids | {service.process.pid if service.process else 0}) == 3
    assert service.end() == 0
    assert not any(runs(pid) for pid in pids)


def test_one_that_dies_is_started_again_and_the_other_is_left_alone(service: Service) -> None:
    service.tasks(wards="stay", clinics="stay")
    service.start()
    service.until(lambda: service.said("begins stay") == 2)
    wards, clinics = service.pid("wards"), service.pid("clinics")
    os.kill(wards, signal.SIGKILL)
    service.until(lambda: service.said("wards: begins stay") == 2)
    assert service.said("task wards ended with status -9 and is started again")
    assert service.pid("wards") != wards
    assert (service.pid("clinics"), runs(clinics)) == (clinics, True)


def test_one_that_is_over_or_cannot_run_is_not_started_again(service: Service) -> None:
    service.tasks(over="0", wrong="2", wards="stay", fails="1")
    service.start()
    service.until(lambda: service.said("fails: begins 1") == 3)
    assert service.said("task over is over") == 1
    assert service.said("task wrong can't run: mend what its last line names") == 1
    assert service.said("over: begins") == service.said("wrong: begins") == 1


def test_one_that_fails_ten_times_waits_for_a_person(service: Service) -> None:
    service.tasks(wards="1")
    service.start()
    service.until(lambda: service.said("task wards failed 10 times"))
    assert service.said("wards: begins 1") == 10
    service.send(signal.SIGHUP)
    service.until(lambda: service.said("wards: begins 1") > 10)


def test_a_changed_file_starts_and_stops_what_differs(service: Service) -> None:
    service.tasks(wards="stay", clinics="stay", old="stay")
    service.start()
    service.until(lambda: service.said("begins stay") == 3)
    wards, old = service.pid("wards"), service.pid("old")
    service.tasks(wards="stay", clinics="otherwise", new="stay")
    service.send(signal.SIGHUP)
    service.until(lambda: service.said("clinics: begins otherwise"))
    service.until(lambda: service.said("new: begins stay"))
    assert (service.pid("wards"), runs(wards), runs(old)) == (wards, True, False)


def test_a_file_that_cannot_be_used_changes_nothing(service: Service) -> None:
    service.tasks(wards="stay")
    service.start()
    service.until(lambda: service.said("wards: begins stay"))
    service.config.write_text(service.config.read_text() + "nonsense = 1\n")
    service.send(signal.SIGHUP)
    service.until(lambda: service.said("everything goes on as it was: tasks.wards.nonsense = 1"))
    assert runs(service.pid("wards"))
    assert service.end() == 0


def test_the_tasks_end_with_whoever_keeps_them(service: Service) -> None:
    service.tasks(wards="stay")
    service.start()
    service.until(lambda: service.said("wards: begins stay"))
    pid = service.pid("wards")
    service.send(signal.SIGKILL)
    service.until(lambda: not runs(pid))


def test_a_task_that_does_not_end_is_no_other_tasks_affair(service: Service) -> None:
    service.tasks(wards="stay", clinics="stay")
    service.start()
    service.until(lambda: service.said("begins stay") == 2)
    os.kill(service.pid("wards"), signal.SIGSTOP)
    os.kill(service.pid("clinics"), signal.SIGKILL)
    service.until(lambda: service.said("clinics: begins stay") == 2)
    os.kill(service.pid("wards"), signal.SIGCONT)
    assert service.end() == 0


def test_another_system_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(Misconfiguration, match="one by one: a settings file for each"):
        supervise(Settings, tmp_path / "settings.toml", lambda _: None)
