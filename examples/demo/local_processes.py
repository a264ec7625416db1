"""A whole deployment on this machine: each part its own process, by localhost gRPC."""

import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from subprocess import Popen
from typing import IO, Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from examples.demo.training_watch import TrainingWatch
from precad.cli import forked
from precad.cli.local_deployment import (
    free_addresses,
    servers_of,
    to_toml,
    write_parties,
)
from precad.common.clock import STOP_S, end_within
from precad.common.errors import PeerUnavailable
from precad.common.files import make_folder, write_file
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import create_local_keys
from precad.common.process import PIECES
from precad.common.task import Task

LINGER_S = 600.0
"""Seconds for which servers stay after the training: until whoever started them stops
them, in practice."""

Way = Callable[[str, str], str]
"""The address at which a part, by its name, reaches another part's address."""


def straight(_who: str, address: str) -> str:
    """Return the address itself: nothing stands in between."""
    return address


Data = tuple[NDArray[np.float32], NDArray[np.int64]]
"""A client's records, ``[records, …]``, and their labels, ``[records]``."""

PARTS = (
    "precad.aggregator.validate.crypten_comparisons",
    "precad.dealer.process",
    "precad.server_a.process",
    "precad.server_b.process",
    *forked.OWNERS,
)
"""What is imported once for all parts of a deployment."""


def environment_of_parts() -> dict[str, str]:
    """Return the environment of a part's process.

    One thread a process: the parts share this machine's cores. And vectors go back to
    the system when they are freed; glibc would keep up to 32 MiB of each kind.
    """
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "MALLOC_MMAP_THRESHOLD_": str(PIECES),
    }


def forked_part(
    arguments: Sequence[str],
    *,
    stdout: IO[bytes] | None,
    env: Mapping[str, str],
    **options: Any,
) -> forked.Process:
    """Start a part as ``forked.start`` does; all parts share their imports.

    Raises Misconfiguration: this system can't split processes.
    """
    forked.begin(env, PARTS)
    return forked.start(arguments, stdout=stdout, env=env, **options)


def write_client_data(
    folder: Path,
    client: ClientId,
    x: NDArray[np.float32],
    y: NDArray[np.int64],
) -> Path:
    """Write a client's inputs ``[n, …]`` and labels ``[n]``; return the file's path.

    The file is ``folder/<client>.npz``.
    """
    path = folder / f"{client}.npz"
    np.savez(path, x=x, y=y)
    return path


class LocalDeployment:
    """Servers, dealer and clients as processes of this machine.

    It is a context manager: whatever happens, its processes are stopped. In the main
    thread SIGTERM raises SystemExit meanwhile, unless this process handles that signal
    in its own way.

    ``folder`` receives settings, keys, records, states and logs, one folder or file a
    party. ``data`` are the clients' records. ``bad`` has clients that misbehave, and
    how (``bad_client.KINDS``). ``instead`` has, by name, parts that another program
    plays: what the interpreter is given for it, before the part's own ``--config``.
    ``linger_s`` is that of ``write_parties``; ``way`` says at which address a part
    reaches another. ``popen`` starts the processes in place of ``subprocess.Popen``.
    """

    def __init__(
        self,
        folder: Path,
        task: Task,
        data: Mapping[ClientId, Data],
        *,
        bad: Mapping[ClientId, str] | None = None,
        instead: Mapping[str, Sequence[str]] | None = None,
        linger_s: float = LINGER_S,
        way: Way = straight,
        popen: Callable[..., Popen[bytes]] | None = None,
    ) -> None:
        """Write the parties' folders; their processes start on entering."""
        self._popen = Popen if popen is None else popen
        self.folder = folder
        self.task = task
        self.clients = tuple(data)
        self._instead = dict(instead or {})
        for client, kind in (bad or {}).items():
            program = ("-m", "examples.demo.bad_client", "--kind", kind)
            self._instead.setdefault(client.name, program)
        self.servers = servers_of(task)
        self.addresses = dict(
            zip(self.servers, free_addresses(len(self.servers)), strict=True)
        )
        self.processes: dict[str, Popen[bytes]] = {}
        self._connections: dict[Role, TrainingWatch] = {}
        self._takes_sigterm = False
        records = folder / "records"
        make_folder(folder / "logs")
        make_folder(records)
        create_local_keys(
            folder / "keys", [client.name for client in data], dealer=task.has_dealer
        )
        text = to_toml(task.model_dump(mode="json", exclude_none=True))
        (folder / "task.toml").write_text(text, encoding="utf-8")
        owners = {}
        for client, (x, y) in data.items():
            file = write_client_data(records, client, x, y)
            owners[client.name] = {"data": f"records/{file.name}"}
        write_parties(
            folder,
            "task.toml",
            owners,
            self.addresses,
            linger_s=linger_s,
        )
        for name in (*self.servers, *owners):
            self._redirect(name, way)

    def __enter__(self) -> Self:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            # Else it would end this process alone, and leave the others running.
            signal.signal(signal.SIGTERM, self._end_on_signal)
            self._takes_sigterm = True
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()
        if self._takes_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def start_servers(self) -> None:
        """Start the dealer, if the task has one, B and A."""
        for name in self.servers:
            self.start_server(name)

    def start_server(self, name: str) -> None:
        """Start one of ``servers``, by its name."""
        self._start(
            name,
            "-m",
            "precad",
            "serve",
            name.removeprefix("server-"),
        )

    def start_clients(self) -> None:
        """Start every client."""
        for client in self.clients:
            self.start_client(client)

    def start_client(self, client: ClientId) -> None:
        """Start one client: as an owner, or as what plays in its place."""
        self._start(client.name, "-m", "precad", "join")

    def operator(self, role: Role) -> TrainingWatch:
        """Return the operator's connection to server A or B."""
        if role not in self._connections:
            identity = Identity.load(self.folder / "keys" / "operator")
            self._connections[role] = TrainingWatch(
                self.addresses[role.value], role, identity
            )
        return self._connections[role]

    def check_alive(self) -> None:
        """Raise PeerUnavailable, with the end of its log, if a server has died."""
        for name in self.servers:
            process = self.processes.get(name)
            if process is not None and process.poll() not in (None, 0):
                ended = f"{name} ended with status {process.returncode}"
                raise PeerUnavailable(f"{ended}:\n{self.log_tail(name)}")

    def log(self, name: str) -> str:
        """Return everything that the part ``name`` logged so far."""
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    def log_tail(self, name: str, lines: int = 8) -> str:
        """Return the last lines of what the part ``name`` logged."""
        return "\n".join(self.log(name).splitlines()[-lines:])

    def wait(self, names: Iterable[str], timeout_s: float) -> dict[str, int]:
        """Wait for these parts to end by themselves, and return their exit statuses.

        Raises PeerUnavailable: one hasn't ended after ``timeout_s`` seconds in all.
        """
        deadline = time.monotonic() + timeout_s
        statuses = {}
        for name in names:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                statuses[name] = self.processes[name].wait(left_s)
            except subprocess.TimeoutExpired:
                late = f"{name} didn't end within {timeout_s:g} s"
                raise PeerUnavailable(f"{late}:\n{self.log_tail(name)}") from None
        return statuses

    def tell_to_stop(self) -> list[Popen[bytes]]:
        """Tell the processes that still run to stop; return them without waiting."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        running = [
            process for process in self.processes.values() if process.poll() is None
        ]
        for process in running:
            process.send_signal(signal.SIGTERM)
        return running

    def stop(self) -> None:
        """Stop the processes that still run: by SIGTERM, then by SIGKILL."""
        running = self.tell_to_stop()
        # Each ends by itself within STOP_S, on a machine that isn't too busy.
        deadline = time.monotonic() + 2 * STOP_S
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _end_on_signal(self, number: int, _frame: object) -> NoReturn:
        """Pass a signal on to all parts, and end this process; a signal handler.

        The parts hear of it here, not where SystemExit arrives: what it meets on its
        way may catch it, or wait for the parts. After ``STOP_S`` they are killed.
        """
        for process in self.processes.values():
            process.send_signal(number)
        end_within(STOP_S, 128 + number, self._kill)
        sys.exit(128 + number)

    def _redirect(self, name: str, way: Way) -> None:
        """Write into a part's settings at which addresses it reaches the others."""
        path = self.folder / f"{name}.toml"
        settings = tomllib.loads(path.read_text("utf-8"))
        for field in ("server_a", "server_b", "dealer"):
            if field in settings:
                settings[field] = way(name, settings[field])
        write_file(path, to_toml(settings).encode())

    def _kill(self) -> None:
        for process in self.processes.values():
            process.kill()

    def _start(self, name: str, *command: str) -> None:
        """Start a part by what the interpreter is given, or the program in its place.

        Both outputs go to the part's log.
        """
        program = self._instead.get(name, command)
        settings = str(self.folder / f"{name}.toml")
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            self.processes[name] = self._popen(
                [sys.executable, *program, "--config", settings],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment_of_parts(),
            )
