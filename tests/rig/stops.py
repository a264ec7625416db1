"""Every long-running command in the states in which it waits, to be told to end there.

A scene is a deployment that goes from one state to the next: it gives each process that
waits, as ``command: state``, and goes on once that process has ended. ``stopped`` tells
it to end.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from examples.demo.local_processes import LocalDeployment, environment_of_parts
from tests.rig import leftovers, warm
from tests.rig.tasks import logistic, task_with
from tests.rig.waiting import DEADLINE_S, until

from precad.cli.forked import Process
from precad.cli.local_deployment import to_toml
from precad.common.errors import PrecadError
from precad.common.identifiers import ClientId, Role
from precad.common.task import Task
from precad.common.wire.calls import ServerStatus

OWNERS = ("ward-1", "ward-2")
FEATURES = 30


@dataclass(slots=True)
class Scene:
    """Files of a deployment, what was started, and ports that say nothing."""

    folder: Path
    popen: Callable[..., Process]
    opened: ExitStack
    validation: str = "crypten"
    deployment: LocalDeployment = field(init=False)

    def __post_init__(self) -> None:
        changes = logistic(FEATURES) | {
            "training.rounds": 1000,
            "validation": self.validation,
        }
        changes |= {
            "enrolment": {"clients": 2, "min_clients": 2, "max_expected_records": 100.0}
        }
        waits = ("enrol", "collect", "peer", "outage", "rejoin")
        changes |= {"deadlines": dict.fromkeys(waits, 3600.0)}
        x, y = np.zeros((4, FEATURES), dtype=np.float32), np.zeros(4, dtype=np.int64)
        data = {ClientId(name): (x, y) for name in OWNERS}
        self.deployment = LocalDeployment(
            self.folder, task_with(changes), data, popen=self.popen
        )
        self.opened.enter_context(self.deployment)
        self.opened.callback(self._wake)

    def __getitem__(self, name: str) -> Process:
        return self.deployment.processes[name]

    def settings(self, part: str, **values: str | int) -> str:
        path = self.folder / f"{part}.toml"
        path.write_text(
            to_toml(tomllib.loads(path.read_text("utf-8")) | values), "utf-8"
        )
        return str(path)

    def start(self, name: str, *command: str, module: str = "precad") -> Process:
        return self._run(name, "-m", module, *command)

    def _run(self, name: str, *program: str) -> Process:
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            command, env = [sys.executable, *program], environment_of_parts()
            env |= {"PYTHONPATH": warm.SOURCES}
            process = self.popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)
        self.deployment.processes[name] = process
        return process

    def part(self, name: str) -> Process:
        return self.start(name, *self._command(name))

    def held(self, name: str, point: str) -> None:
        orders = self.folder / "orders"
        orders.mkdir(exist_ok=True)
        (orders / f"{name}.orders").write_text(
            f"pause-before {point}\n", encoding="utf-8"
        )
        self._run(
            name, "-m", "tests.faults.launch", name, str(orders), *self._command(name)
        )

    def _command(self, name: str) -> tuple[str, ...]:
        what = ("join",) if name in OWNERS else ("serve", name.removeprefix("server-"))
        return *what, "--config", f"{self.folder}/{name}.toml"

    def gone(self) -> tuple[str, Callable[[Process], None]]:
        """The address of a host that is gone; how to wait until a process dials it."""
        listener = self.opened.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        # One connection fills the queue; whatever comes after it is dropped.
        listener.listen(0)
        self.opened.enter_context(socket.create_connection(listener.getsockname()))
        port = listener.getsockname()[1]
        dialling = re.compile(rf":{port:04X} 02 ")

        def dialled(process: Process) -> None:
            connections = Path(f"/proc/{process.pid}/net/tcp")
            until(
                lambda: dialling.search(connections.read_text("utf-8")),
                "a connection's start",
            )

        return f"127.0.0.1:{port}", dialled

    def said(self, name: str, *words: str) -> None:
        log = self.deployment.log
        until(
            lambda: all(each in log(name) for each in words),
            lambda: log(name),
            poll_s=0.1,
        )

    def reached(self, role: Role, look: Callable[[ServerStatus], object]) -> None:
        def there() -> bool:
            with suppress(PrecadError):
                return bool(look(self.deployment.operator(role).status()))
            return False

        until(there, lambda: self.deployment.log_tail(role.value, 20), poll_s=0.2)

    def _wake(self) -> None:
        for process in self.deployment.processes.values():
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)


Waiting = tuple[str, Process]  # What waits for what, and its process
# Of each scene, the machine's load, and the seconds until each command and all of its
# had ended.
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "stops.json"


def nobody_there(scene: Scene) -> Iterator[Waiting]:
    """No other part runs: its port refuses connections, or its host is gone."""
    for name, words, what in (
        ("server-a", "refuses connections", "serve a"),
        ("server-b", "serves task", "serve b"),
        ("dealer", "deals for task", "serve dealer"),
        (OWNERS[0], "refuses connections", "join"),
    ):
        process = scene.part(name)
        scene.said(name, words)
        yield f"{what}: no server", process
    several = [
        word for name in OWNERS for word in ("--config", f"{scene.folder}/{name}.toml")
    ]
    logs = ("--logs", f"{scene.folder}/logs", "--wait", "9")
    owners = scene.start("owners", "join", *several, *logs)
    for name in OWNERS:
        (scene.folder / "logs" / f"{name}.log").touch()
    scene.said(OWNERS[1], "refuses connections")
    yield "join: no server, two owners with logs", owners
    operator = ("--identity", f"{scene.folder}/keys/operator")
    a = scene.deployment.addresses["server-a"]
    watching = scene.start("watch", "status", a, "--watch", *operator)
    scene.said("watch", "no answer")
    yield "status --watch: no server", watching

    address, dialled = scene.gone()
    owner_settings = scene.settings(OWNERS[0], server_a=address, server_b=address)
    for what, command in {
        "serve a": (
            "serve",
            "a",
            "--config",
            scene.settings("server-a", server_b=address),
        ),
        "join": ("join", "--config", owner_settings),
        "doctor": ("doctor", "--wait", "3600", "--config", owner_settings),
    }.items():
        process = scene.start(what, *command)
        dialled(process)
        yield f"{what}: no server, its host gone", process


def silence(scene: Scene) -> Iterator[Waiting]:
    """Whoever is called takes the connection and says nothing."""
    part = partial(_with_silence, scene)
    both = {"server_a": "ADDRESS", "server_b": "ADDRESS"}
    yield part("serve a: server silent", "server-a", "serve", "a", server_b="ADDRESS")
    yield part("join: server silent", OWNERS[0], "join", **both)
    yield part("doctor: server silent", OWNERS[0], "doctor", "--wait", "3600", **both)
    yield part(
        "health: server silent", "dealer", "health", "--wait", "99", listen="ADDRESS"
    )
    yield part("join: proxy silent", OWNERS[0], "join", **_PROXY)
    yield part("doctor: proxy silent", OWNERS[0], "doctor", "--wait", "3600", **_PROXY)
    yield part("serve a: proxy silent", "server-a", "serve", "a", **_PROXY)
    database = "postgresql://precad@ADDRESS/precad"
    yield part("serve b: database silent", "server-b", "serve", "b", database=database)
    yield part("ledger show: database silent", "", "ledger", "show", database)
    yield part("report: database silent", "", "report", database)
    operator = ("--identity", f"{scene.folder}/keys/operator")
    for what, *more in (
        ("status",),
        ("status --watch",),
        ("allow", "coin", "--version", "1"),
    ):
        command = (*what.split(), *more, *operator)
        yield part(f"{what}: server silent", "", *command, "ADDRESS")
        through = ("a.example:7301", "--proxy", "http://ADDRESS")
        yield part(f"{what}: proxy silent", "", *command, *through)


def on_the_way_to_the_dealer(scene: Scene) -> Iterator[Waiting]:
    """B calls the dealer alone, once A has called and owners are enrolled."""
    for name in ("dealer", "server-a", *OWNERS):
        scene.part(name)
    b = "server-b", "serve", "b"
    yield _with_silence(
        scene, "serve b: server silent, the dealer", *b, dealer="ADDRESS"
    )
    yield _with_silence(scene, "serve b: proxy silent", *b, **_PROXY)


def _with_silence(
    scene: Scene, what: str, name: str, *command: str, **values: str
) -> Waiting:
    """A command that calls ADDRESS, a port that takes connections and says nothing.

    It stands in the settings of the part ``name``, or without one in the command
    itself.
    """
    listener = scene.opened.enter_context(socket.create_server(("127.0.0.1", 0)))
    listener.settimeout(DEADLINE_S)
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    changed = {key: text.replace("ADDRESS", address) for key, text in values.items()}
    settings = ("--config", scene.settings(name, **changed)) if name else ()
    told = (each.replace("ADDRESS", address) for each in command)
    process = scene.start(what, *told, *settings)
    scene.opened.enter_context(listener.accept()[0])
    return what, process


_PROXY = {"proxy": "http://ADDRESS"}


def enrolling(scene: Scene) -> Iterator[Waiting]:
    scene.deployment.start_servers()
    owner = scene.part(OWNERS[0])
    scene.reached(
        Role.SERVER_A, lambda said: (said.phase, said.enrolled) == ("enrolling", 1)
    )
    yield "join: enrolling, another owner missing", owner
    yield "serve a: enrolling", scene["server-a"]
    yield "serve b: enrolling, server A gone", scene["server-b"]
    if scene.deployment.task.has_dealer:
        yield "serve dealer: enrolling, both servers gone", scene["dealer"]


def collecting(scene: Scene) -> Iterator[Waiting]:
    _train(scene, OWNERS[1])
    yield "join: collecting, another owner silent", scene[OWNERS[0]]
    yield "serve b: collecting", scene["server-b"]
    scene.said("server-a", "server B")
    if scene.deployment.task.has_dealer:
        yield "serve dealer: paused, server B gone", scene["dealer"]
    yield "serve a: paused, server B gone", scene["server-a"]


def validating(scene: Scene, first: str = "server-a") -> Iterator[Waiting]:
    """The dealer stands still: norms can't be checked. Both servers are told to end."""
    _train(scene, "dealer")
    last, waits = _OTHER[first]
    told = _OTHER[last.value][1]
    yield "join: validating, the dealer silent", scene[OWNERS[0]]
    yield f"{told}: validating, the dealer silent", scene[first]
    # Owners follow A, and A follows B.
    follows = {
        "server-a": (OWNERS[1], "reconnecting"),
        "server-b": ("server-a", "server B"),
    }
    scene.said(*follows[first])
    yield f"join: paused, {first} gone", scene[OWNERS[1]]
    yield f"{waits}: paused, {first} gone", scene[last.value]


def in_a_round(scene: Scene, still: str) -> Iterator[Waiting]:
    other, waits = _OTHER[still]
    _train(scene, still, other)
    names = {"join": OWNERS[0], "serve dealer": "dealer", waits: other.value}
    for what, name in names.items():
        yield f"{what}: server silent, {still} in a round", scene[name]


def proving(scene: Scene, still: str, step: str) -> Iterator[Waiting]:
    """A server stands still before it sends its part of a step of the proofs' check."""
    other, waits = _OTHER[still]
    point = {"coin": "PeerLink.send/proof-coin", "words": "PeerLink.send/proof"}[step]
    for name in (*scene.deployment.servers, *OWNERS):
        if name == still:
            scene.held(name, point)
        else:
            scene.part(name)
    paused = scene.folder / "orders" / f"{still}.paused"
    until(paused.exists, lambda: scene.deployment.log_tail(still, 20))
    for what, name in {"join": OWNERS[0], waits: other.value}.items():
        yield f"{what}: proof's {step}, {still} silent", scene[name]


_OTHER = {
    "server-a": (Role.SERVER_B, "serve b"),
    "server-b": (Role.SERVER_A, "serve a"),
}


def with_workers(scene: Scene) -> Iterator[Waiting]:
    for part in ("server-a", "server-b"):
        scene.settings(part, workers=1)
    _train(scene, "dealer")
    yield "serve b: validating, a worker, the dealer silent", scene["server-b"]
    yield "serve a: paused, a worker, server B gone", scene["server-a"]


def over(scene: Scene) -> Iterator[Waiting]:
    """The training is over, its model on offer; the dealer stands still."""
    path = scene.folder / "task.toml"
    whole = tomllib.loads(path.read_text("utf-8"))
    whole["training"]["rounds"] = 40
    path.write_text(to_toml(whole), encoding="utf-8")
    scene.deployment.task = Task.load(path)
    _train(scene)
    for name in ("server-a", "server-b"):
        scene.reached(Role(name), lambda said: said.phase == "done")
    os.kill(scene["dealer"].pid, signal.SIGSTOP)
    for name in ("a", "b"):
        yield f"serve {name}: done, the dealer silent", scene[f"server-{name}"]


def _train(scene: Scene, still: str = "", role: Role = Role.SERVER_A) -> None:
    """Until the first version is done; then a part stands still, and so do all."""
    scene.deployment.start_servers()
    for name in OWNERS:
        scene.part(name)
    scene.reached(Role.SERVER_A, lambda said: said.version >= 1)
    if not still:
        return
    os.kill(scene[still].pid, signal.SIGSTOP)
    seen = deque[int](maxlen=12)

    def stands(said: ServerStatus) -> bool:
        seen.append(said.version)
        return len(seen) == 12 and len(set(seen)) == 1

    scene.reached(role, stands)


def demos(scene: Scene) -> Iterator[Waiting]:
    """The demo as it loads, as its owners come, and in a round; a part stands still."""
    for state, words in {
        "loading": "loading torch",
        "enrolling": "enrol: ",
        "training": "round  10/",
        "the dealer stands still": "round  10/",
    }.items():
        name = state.replace(" ", "-")
        output = f"{scene.folder}/{name}"
        demo = scene.start(
            name, "--output", output, "--rounds", "500", module="examples.demo"
        )
        scene.said(name, words)
        if state.startswith("the dealer"):
            for pid in leftovers.descendants(demo.pid):
                if Path(f"/proc/{pid}/fd/1").readlink().name == "dealer.log":
                    os.kill(pid, signal.SIGSTOP)
        yield f"demo: {state}", demo


def computing(scene: Scene) -> Iterator[Waiting]:
    task = str(scene.folder / "task.toml")
    process = scene.start("simulate", "simulate", task, "--dataset", "breast-cancer")
    scene.said("simulate", "round")
    yield "simulate: computing", process


_BY_SHARES = (
    *(
        nobody_there,
        silence,
        on_the_way_to_the_dealer,
        enrolling,
        collecting,
        validating,
    ),
    *(with_workers, over, demos, computing),
)
SCENES: dict[str, tuple[Callable[[Scene], Iterator[Waiting]], str]] = {
    **{each.__name__: (each, "crypten") for each in _BY_SHARES},
    "validating_server-b_first": (partial(validating, first="server-b"), "crypten"),
    **{
        f"{name}_silent": (partial(in_a_round, still=name), "crypten")
        for name in _OTHER
    },
    **{
        f"{each.__name__}_by_proof": (each, "proof") for each in (enrolling, collecting)
    },
    **{
        f"{name}_silent_before_{step}": (
            partial(proving, still=name, step=step),
            "proof",
        )
        for name in _OTHER
        for step in ("coin", "words")
    },
}  # Each with how norms are checked in it


def runs(pid: int) -> bool:
    return pid in leftovers.processes()


def stopped(process: Process) -> float:
    started = leftovers.descendants(process.pid)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(DEADLINE_S)
    until(lambda: not any(map(runs, started)), lambda: f"the end of {started}")
    return time.monotonic() - began


def play(name: str, folder: Path, popen: Callable[..., Process]) -> dict[str, float]:
    with ExitStack() as opened:
        acts, validation = SCENES[name]
        scene = Scene(folder, popen, opened, validation)
        return {what: stopped(process) for what, process in acts(scene)}
