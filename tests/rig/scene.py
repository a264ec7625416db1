"""A deployment on a stage: parts that stand still at a step, servers that are gone or silent."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.rig.tasks import logistic, task_with
from tests.rig.waiting import DEADLINE_S, until
from tests.rig.warm import SOURCES

from precad.cli.local_deployment import LocalDeployment, environment_of_parts
from precad.common.errors import PrecadError
from precad.common.identifiers import ClientId, Role
from precad.common.wire.calls import ServerStatus

OWNERS = ("ward-1", "ward-2")
FEATURES = 30
_HELD = """
import sys
from pathlib import Path

from tests.faults.launch import child

name, orders, log, *command = sys.argv[1:]
child(name, command, Path(orders), Path(log))
"""


@dataclass(slots=True)
class Scene:
    """Files of a deployment, what was started, and ports that take connections and say nothing.

    Args:
        folder: of all parts.
        popen: starts a process.
        opened: ends all of it.
        validation: the task's.
    """

    folder: Path
    popen: Callable[..., Any]
    opened: ExitStack
    validation: str = "crypten"
    deployment: LocalDeployment = field(init=False)
    _dialled: dict[str, socket.socket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        changes = {
            **logistic(FEATURES),
            "training.rounds": 1000,
            "validation": self.validation,
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
        return self._run(name, "-m", "precad", *command)

    def _run(self, name: str, *program: str) -> Any:
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            process = self.popen(
                [sys.executable, *program],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment_of_parts() | {"PYTHONPATH": SOURCES},
            )
        self.deployment.processes[name] = process
        return process

    def part(self, name: str) -> Any:
        """A part of the deployment, started as people start it."""
        return self.start(name, *self._command(name))

    def held(self, name: str, point: str) -> None:
        """Start a part that stands still when it first comes to a step."""
        orders = self.folder / "orders"
        orders.mkdir(exist_ok=True)
        (orders / f"{name}.orders").write_text(f"pause-before {point}\n", encoding="utf-8")
        log = f"{self.folder}/logs/{name}.log"
        self._run(name, "-c", _HELD, name, str(orders), log, *self._command(name))

    def stands(self, name: str) -> None:
        """Wait until a held part stands still."""
        paused = self.folder / "orders" / f"{name}.paused"
        until(paused.exists, lambda: self.deployment.log_tail(name, 20))

    def _command(self, name: str) -> tuple[str, ...]:
        kind = {
            "dealer": ("serve", "dealer"),
            "server-a": ("serve", "a"),
            "server-b": ("serve", "b"),
        }
        return *kind.get(name, ("join",)), "--config", f"{self.folder}/{name}.toml"

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

    def gone(self) -> tuple[str, Callable[[Any], None]]:
        """The address of a host that is gone, and how to wait until a process dials it."""
        listener = self.opened.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        # One connection fills the queue; whatever comes after it is dropped.
        listener.listen(0)
        self.opened.enter_context(socket.create_connection(listener.getsockname()))
        port = listener.getsockname()[1]
        dialling = re.compile(rf":{port:04X} 02 ")

        def dialled(process: Any) -> None:
            connections = Path(f"/proc/{process.pid}/net/tcp")
            until(lambda: dialling.search(connections.read_text("utf-8")), "a connection's start")

        return f"127.0.0.1:{port}", dialled

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
