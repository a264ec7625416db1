"""Every long-running command in the states in which it waits, to be told to end there.

A scene is a deployment that goes from one state to the next: it gives each process that waits, with
what it waits for, and goes on once that process has ended. ``stopped`` tells it to end.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.rig.tasks import task_with
from tests.rig.waiting import DEADLINE_S, until
from tests.rig.warm import SOURCES

from precad.cli.local_deployment import LocalDeployment, environment_of_parts
from precad.common.errors import PrecadError
from precad.common.identifiers import ClientId, Role
from precad.common.task import Task
from precad.common.wire.operator_connection import ServerStatus

Waiting = tuple[str, Any]
"""What waits for what, and its process."""
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "stops.json"
"""Seconds until each had ended with all that it had started, by scene."""
OWNERS = ("ward-1", "ward-2")
FEATURES = 30


@dataclass(slots=True)
class Scene:
    """Files of a deployment, what was started, and ports that take connections and say nothing."""

    folder: Path
    popen: Callable[..., Any]
    opened: ExitStack
    deployment: LocalDeployment = field(init=False)
    _dialled: dict[str, socket.socket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        weight = {"name": "1.weight", "shape": [2, FEATURES]}
        changes = {
            "model.architecture": "logistic",
            "model.parameters": [weight, {"name": "1.bias", "shape": [2]}],
            "training.rounds": 1000,
            "enrolment.clients": len(OWNERS),
            "enrolment.min_clients": len(OWNERS),
            "deadlines": dict.fromkeys(("enrol", "collect", "peer", "outage", "rejoin"), 3600.0),
        }
        x, y = np.zeros((4, FEATURES), dtype=np.float32), np.zeros(4, dtype=np.int64)
        self.deployment = LocalDeployment(
            self.folder,
            task_with(changes),
            {ClientId(name): (x, y) for name in OWNERS},
            popen=self.popen,
        )
        self.opened.enter_context(self.deployment)
        self.opened.callback(self._wake)

    def settings(self, part: str, **values: str | int) -> str:
        """The part's settings file, with these values instead."""
        path = self.folder / f"{part}.toml"
        kept = path.read_text("utf-8").splitlines()
        kept = [line for line in kept if line.partition(" =")[0] not in values]
        lines = [f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {v}" for k, v in values.items()]
        path.write_text("\n".join([*lines, *kept, ""]), encoding="utf-8")
        return str(path)

    def start(self, name: str, *command: str) -> Any:
        """A command's process, whose output is the log of that name."""
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            process = self.popen(
                [sys.executable, "-m", "precad", *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment_of_parts() | {"PYTHONPATH": SOURCES},
            )
        self.deployment.processes[name] = process
        return process

    def part(self, name: str) -> Any:
        """A part of the deployment, started as people start it."""
        kind = {
            "dealer": ("serve", "dealer"),
            "server-a": ("serve", "a"),
            "server-b": ("serve", "b"),
        }
        return self.start(
            name, *kind.get(name, ("join",)), "--config", f"{self.folder}/{name}.toml"
        )

    def silent(self) -> str:
        """The address of a port that takes connections and says nothing."""
        listener = self.opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(DEADLINE_S)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        self._dialled[address] = listener
        return address

    def dialled(self, address: str) -> None:
        """Wait until somebody has connected to a silent port."""
        self.opened.enter_context(self._dialled[address].accept()[0])

    def said(self, name: str, *words: str) -> None:
        """Wait until these words stand in a log."""
        log = self.deployment.log
        until(lambda: all(each in log(name) for each in words), lambda: log(name), poll_s=0.1)

    def status(self, role: Role) -> ServerStatus | None:
        """What a server says of itself; None while it isn't there."""
        try:
            return self.deployment.operator(role).status()
        except PrecadError:
            return None

    def reached(self, role: Role, look: Callable[[ServerStatus], object]) -> None:
        """Wait until ``look`` is true of what a server says."""

        def there() -> bool:
            said = self.status(role)
            return said is not None and bool(look(said))

        until(there, lambda: self.deployment.log_tail(role.value, 20), poll_s=0.2)

    def halt(self, name: str) -> None:
        """Let a part stand still, as on a machine that is gone."""
        os.kill(self.deployment.processes[name].pid, signal.SIGSTOP)

    def _wake(self) -> None:
        for process in self.deployment.processes.values():
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)


# --- the scenes ----------------------------------------------------------------------------------


def nobody_there(scene: Scene) -> Iterator[Waiting]:
    """No other part runs."""
    server = scene.part("server-a")
    scene.said("server-a", "refuses connections")
    yield "serve a: nobody there", server
    server = scene.part("server-b")
    scene.said("server-b", "serves task")
    yield "serve b: nobody there", server
    dealer = scene.part("dealer")
    scene.said("dealer", "deals for task")
    yield "serve dealer: nobody there", dealer
    owner = scene.part(OWNERS[0])
    scene.said(OWNERS[0], "refuses connections")
    yield "join: no server", owner
    several = [word for name in OWNERS for word in ("--config", f"{scene.folder}/{name}.toml")]
    owners = scene.start(
        "owners", "join", *several, "--logs", f"{scene.folder}/logs", "--wait", "9"
    )
    for name in OWNERS:
        (scene.folder / "logs" / f"{name}.log").touch()
    scene.said(OWNERS[1], "refuses connections")
    yield "join, two owners with logs: no server", owners
    watching = scene.start("watch", "status", scene.deployment.addresses["server-a"], "--watch",
                           "--identity", f"{scene.folder}/keys/operator")  # fmt: skip
    scene.said("watch", "no answer")
    yield "status --watch: no server", watching


def silence(scene: Scene) -> Iterator[Waiting]:
    """Whoever is called takes the connection and says nothing."""
    operator = ("--identity", f"{scene.folder}/keys/operator")

    def waits(what: str, *command: str) -> Waiting:
        """A command that calls ADDRESS, a silent port's."""
        address = scene.silent()
        process = scene.start(what, *(each.replace("ADDRESS", address) for each in command))
        scene.dialled(address)
        return what, process

    def part(what: str, name: str, *command: str, **values: str) -> Waiting:
        """A command whose settings name such a port."""
        address = scene.silent()
        changed = {key: text.replace("ADDRESS", address) for key, text in values.items()}
        process = scene.start(what, *command, "--config", scene.settings(name, **changed))
        scene.dialled(address)
        return what, process

    both = {"server_a": "ADDRESS", "server_b": "ADDRESS"}
    yield part("serve a: server B silent", "server-a", "serve", "a", server_b="ADDRESS")
    yield part("join: servers silent", OWNERS[0], "join", **both)
    yield part("doctor: servers silent", OWNERS[0], "doctor", "--wait", "3600", **both)
    yield part("join: its proxy silent", OWNERS[0], "join", proxy="http://ADDRESS")
    yield part("health: the part silent", "dealer", "health", "--wait", "99", listen="ADDRESS")
    database = "postgresql://precad@ADDRESS/precad"
    yield part("serve b: its database silent", "server-b", "serve", "b", database=database)
    yield waits("status: server silent", "status", "ADDRESS", *operator)
    yield waits("allow: server silent", "allow", "coin", "ADDRESS", "--version", "1", *operator)
    yield waits("ledger show: the database silent", "ledger", "show", database)


def enrolling(scene: Scene) -> Iterator[Waiting]:
    """One of two owners is there; then each part but the dealer loses the next."""
    scene.deployment.start_servers()
    owner = scene.part(OWNERS[0])
    scene.reached(Role.SERVER_A, lambda said: (said.phase, said.enrolled) == ("enrolling", 1))
    yield "join: enrolled, another owner missing", owner
    yield "serve a: enrolling", scene.deployment.processes["server-a"]
    yield "serve b: enrolling, server A gone", scene.deployment.processes["server-b"]
    yield "serve dealer: both servers gone", scene.deployment.processes["dealer"]


def collecting(scene: Scene) -> Iterator[Waiting]:
    """An owner stands still in the midst of the training: its update doesn't come."""
    _train(scene)
    scene.halt(OWNERS[1])
    _no_version_more(scene)
    yield "join: a round open, another owner silent", scene.deployment.processes[OWNERS[0]]
    yield "serve b: collecting", scene.deployment.processes["server-b"]
    scene.said("server-a", "server B")
    yield "serve a: paused, server B gone", scene.deployment.processes["server-a"]


def validating(scene: Scene) -> Iterator[Waiting]:
    """The dealer stands still: norms can't be checked."""
    _train(scene)
    scene.halt("dealer")
    _no_version_more(scene)
    yield "serve a: validating, the dealer silent", scene.deployment.processes["server-a"]
    scene.said(OWNERS[0], "reconnecting")
    yield "join: paused, server A gone", scene.deployment.processes[OWNERS[0]]
    yield "serve b: paused, server A gone", scene.deployment.processes["server-b"]


def with_workers(scene: Scene) -> Iterator[Waiting]:
    """As ``validating``, by workers of each server."""
    for part in ("server-a", "server-b"):
        scene.settings(part, workers=1)
    _train(scene)
    scene.halt("dealer")
    _no_version_more(scene)
    yield "serve b, a worker: validating, the dealer silent", scene.deployment.processes["server-b"]
    yield "serve a, a worker: paused, server B gone", scene.deployment.processes["server-a"]


def over(scene: Scene) -> Iterator[Waiting]:
    """The training is over, its model on offer; the dealer, to be told so, stands still."""
    path = scene.folder / "task.toml"
    text = path.read_text("utf-8")
    assert "rounds = 1000" in text
    path.write_text(text.replace("rounds = 1000", "rounds = 40"), encoding="utf-8")
    scene.deployment.task = Task.load(path)
    _train(scene)
    for name in ("server-a", "server-b"):
        scene.reached(Role(name), lambda said: said.phase == "done")
    scene.halt("dealer")
    for name in ("a", "b"):
        yield f"serve {name}: done, the dealer silent", scene.deployment.processes[f"server-{name}"]


def _train(scene: Scene) -> None:
    scene.deployment.start_servers()
    for name in OWNERS:
        scene.part(name)
    scene.reached(Role.SERVER_A, lambda said: said.version >= 1)


def _no_version_more(scene: Scene) -> None:
    """Until no further version comes about."""
    seen: list[int] = []

    def stands() -> bool:
        if (said := scene.status(Role.SERVER_A)) is not None:
            seen.append(said.version)
        return len(set(seen[-_LOOKS:])) == 1 and len(seen) >= _LOOKS

    until(stands, lambda: scene.deployment.log_tail("server-a", 20), poll_s=0.5)


_LOOKS = 5


def demos(scene: Scene) -> Iterator[Waiting]:
    """The demo as it loads, as its owners come, and in a round; with a part that stands still."""
    for number, (state, words) in enumerate(
        (("loading", "loading torch"), ("enrolling", "enrol: "), ("training", "round  10/"))
    ):
        demo, name = None, f"demo-{number}"
        demo = scene.start(name, "demo", "--output", f"{scene.folder}/{name}", "--rounds", "500")
        scene.said(name, words)
        yield f"demo: {state}", demo
    demo = scene.start("demo-9", "demo", "--output", f"{scene.folder}/demo-9", "--rounds", "500")
    scene.said("demo-9", "round  10/")
    halted = next(each for each in descendants(demo.pid) if _writes_to(each, "dealer.log"))
    os.kill(halted, signal.SIGSTOP)
    yield "demo: the dealer stands still", demo


def _writes_to(pid: int, name: str) -> bool:
    return Path(f"/proc/{pid}/fd/1").readlink().name == name


def computing(scene: Scene) -> Iterator[Waiting]:
    """A training in one process."""
    task = str(scene.folder / "task.toml")
    process = scene.start("simulate", "simulate", task, "--dataset", "breast-cancer")
    scene.said("simulate", "round")
    yield "simulate: computing", process


SCENES = {
    each.__name__: each
    for each in (
        *(nobody_there, silence, enrolling, collecting, validating, with_workers, over),
        *(demos, computing),
    )
}


# --- what is told to end -------------------------------------------------------------------------


def descendants(pid: int) -> set[int]:
    """Processes that this one has started, and those that these have."""
    parents = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                state, parent = (each / "stat").read_text("utf-8").rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                parents[int(each.name)] = int(parent)
    found = {pid}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def runs(pid: int) -> bool:
    """Whether a process is there that hasn't ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state not in "ZX"


def stopped(process: Any) -> float:
    """Tell a process to end; seconds until it and all that it started have."""
    started = descendants(process.pid)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(DEADLINE_S)
    until(lambda: not any(map(runs, started)), lambda: f"the end of {started}")
    return time.monotonic() - began


def play(name: str, folder: Path, popen: Callable[..., Any]) -> dict[str, float]:
    """Seconds by what waited for what, of one scene."""
    with ExitStack() as opened:
        scene = Scene(folder, popen, opened)
        return {what: stopped(process) for what, process in SCENES[name](scene)}
