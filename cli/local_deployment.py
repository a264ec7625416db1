"""A whole deployment on this machine: every part its own process, over localhost gRPC."""

import json
import math
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import Popen
from typing import NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from precad.client.records.read_records import write_client_data
from precad.common.clock import STOP_S, end_within
from precad.common.errors import PeerUnavailable
from precad.common.files import make_folder, write_file
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import create_local_keys
from precad.common.process import PIECES
from precad.common.task import Task
from precad.common.wire.calls import OperatorConnection

LINGER_S = 600.0
"""Servers of a local deployment stay until whoever started them stops them."""

Data = tuple[NDArray[np.float32], NDArray[np.int64]]
Way = Callable[[str, str], str]
"""The address at which a part, by its name, reaches another part's address."""


def straight(_who: str, address: str) -> str:
    """Nothing in between."""
    return address


def free_addresses(count: int) -> list[str]:
    """Addresses on loopback whose ports are free now.

    Below the range that Linux takes outgoing connections' ports from (32768 on): none
    of those gets one of these before a part listens on it.
    """
    found: list[str] = []
    with ExitStack() as held:
        while len(found) < count:
            candidate = held.enter_context(socket.socket())
            with suppress(OSError):
                candidate.bind(("127.0.0.1", 10_000 + secrets.randbelow(22_000)))
                found.append(f"127.0.0.1:{candidate.getsockname()[1]}")
    return found


def to_toml(values: Mapping[str, object]) -> str:
    """A TOML document of strings, numbers, booleans, lists and tables, the tables last."""
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    flat = {key: value for key, value in values.items() if key not in tables}
    below = (f"\n[{_toml_key(key)}]\n{_lines(table)}" for key, table in tables.items())
    return _lines(flat) + "".join(below)


def _lines(values: Mapping[str, object]) -> str:
    """A key a line; tables within are written in the line."""
    return "".join(
        f"{_toml_key(key)} = {toml_value(value)}\n" for key, value in values.items()
    )


def _toml_key(key: str) -> str:
    """Quoted where a blank, a dot or a letter beyond ASCII would mean another key, or none."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def toml_value(value: object) -> str:
    """A value as TOML; a list of tables has a line for each."""
    match value:
        case dict():
            pairs = (
                f"{_toml_key(key)} = {toml_value(one)}" for key, one in value.items()
            )
            return f"{{ {', '.join(pairs)} }}"
        case [dict(), *_]:
            return "[\n" + "".join(f"  {toml_value(row)},\n" for row in value) + "]"
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
        case float() if not math.isfinite(value):
            return str(value)
    # JSON's strings, numbers and booleans are TOML's too, but for one control
    # character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def task_to_toml(task: Task) -> str:
    """A task file that reads back as ``task``."""
    return to_toml(task.model_dump(mode="json", exclude_none=True))


def write_parties(
    folder: Path,
    task: str,
    owners: Mapping[str, Mapping[str, object]],
    addresses: Mapping[str, str],
    *,
    linger_s: float,
    way: Way = straight,
) -> None:
    """Write the settings of servers, owners and the dealer, if there is one, a file each.

    Paths in them are relative to ``folder``. Addresses are of server-a, server-b and,
    where the task has one, the dealer; ``owners`` has, by name, what each has besides
    name, addresses and state. Servers whose training ended stay for ``linger_s``.
    """
    a = addresses["server-a"]
    b = addresses["server-b"]
    dealer = addresses.get("dealer")
    settings: dict[str, dict[str, object]] = {
        "server-a": {"listen": a, "server_b": way("server-a", b)},
        "server-b": {"listen": b},
    }
    for server in ("server-a", "server-b"):
        if dealer is not None:
            settings[server]["dealer"] = way(server, dealer)
        settings[server] |= {"state": f"state/{server}", "linger": linger_s}
    if dealer is not None:
        settings["dealer"] = {"listen": dealer}
    for name, own in owners.items():
        servers = {"server_a": way(name, a), "server_b": way(name, b)}
        settings[name] = {"client": name, **servers, **own, "state": f"state/{name}"}
    for name, values in settings.items():
        whole = {"task": task, "identity": f"keys/{name}", **values}
        # An owner's token goes there, or a database's password.
        write_file(folder / f"{name}.toml", to_toml(whole).encode())


def servers_of(task: Task) -> tuple[str, ...]:
    """The parts that serve a task, in the order in which they are started."""
    return ("dealer",) * task.has_dealer + ("server-b", "server-a")


def environment_of_parts() -> dict[str, str]:
    """The environment of a part's process.

    One thread a process: the parts share this machine's cores. And vectors go back to
    the system when they are freed; glibc would keep up to 32 MiB of each kind.
    """
    own = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return os.environ | own | {"MALLOC_MMAP_THRESHOLD_": str(PIECES)}


class LocalDeployment:
    """Servers, dealer and clients as processes of this machine.

    A context manager: whatever happens, its processes are stopped. In the main thread
    SIGTERM raises SystemExit meanwhile, unless this process has its own way with it.

    ``folder`` receives settings, keys, records, states, logs, one folder or file a
    party; ``bad`` has clients that misbehave, and how
    (``simulation.bad_client.KINDS``); ``instead`` parts by name that another program
    plays: what the interpreter is given for it, before the part's own ``--config``;
    ``linger_s`` and ``way`` are those of ``write_parties``.
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
        self._popen = Popen if popen is None else popen
        self.folder = folder
        self.task = task
        self.clients = tuple(data)
        self._instead = dict(instead or {})
        for client, kind in (bad or {}).items():
            played = ("-m", "precad.simulation.bad_client", "--kind", kind)
            self._instead.setdefault(client.name, played)
        self.servers = servers_of(task)
        self.addresses = dict(
            zip(self.servers, free_addresses(len(self.servers)), strict=True)
        )
        self.processes: dict[str, Popen[bytes]] = {}
        self._connections: dict[Role, OperatorConnection] = {}
        self._takes_sigterm = False
        records = folder / "records"
        make_folder(folder / "logs")
        make_folder(records)
        create_local_keys(
            folder / "keys", [each.name for each in data], dealer=task.has_dealer
        )
        (folder / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
        files = {
            c.name: write_client_data(records, c, x, y) for c, (x, y) in data.items()
        }
        owners = {
            name: {"data": f"records/{file.name}"} for name, file in files.items()
        }
        write_parties(
            folder,
            "task.toml",
            owners,
            self.addresses,
            linger_s=linger_s,
            way=way,
        )

    def __enter__(self) -> Self:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            # Else it would end this process alone, and leave the others running.
            signal.signal(signal.SIGTERM, self._told_to_end)
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
        """Start one of ``servers``."""
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
        """Start one client, good or bad."""
        self._start(client.name, "-m", "precad", "join")

    def operator(self, role: Role) -> OperatorConnection:
        """An operator's connection to server A or B."""
        if role not in self._connections:
            identity = Identity.load(self.folder / "keys" / "operator")
            self._connections[role] = OperatorConnection(
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
        """Everything that ``name`` logged so far."""
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    def log_tail(self, name: str, lines: int = 8) -> str:
        """The end of ``name``'s log."""
        return "\n".join(self.log(name).splitlines()[-lines:])

    def wait(self, names: Iterable[str], timeout_s: float) -> dict[str, int]:
        """Wait for these processes to end by themselves.

        Raises PeerUnavailable at the deadline.
        """
        deadline = time.monotonic() + timeout_s
        statuses = {}
        for name in names:
            try:
                statuses[name] = self.processes[name].wait(
                    max(0.0, deadline - time.monotonic())
                )
            except subprocess.TimeoutExpired:
                late = f"{name} didn't end within {timeout_s:g} s"
                raise PeerUnavailable(f"{late}:\n{self.log_tail(name)}") from None
        return statuses

    def tell_to_stop(self) -> list[Popen[bytes]]:
        """Tell whatever still runs to stop. Returns it, without waiting for it."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        running = [p for p in self.processes.values() if p.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        return running

    def stop(self) -> None:
        """Stop whatever still runs."""
        running = self.tell_to_stop()
        # Each ends by itself within STOP_S, on a machine that isn't too busy.
        deadline = time.monotonic() + 2 * STOP_S
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _told_to_end(self, number: int, _frame: object) -> NoReturn:
        """Its parts hear of it here: what the exception meets may catch it, or wait for them."""
        for process in self.processes.values():
            process.send_signal(number)
        end_within(STOP_S, 128 + number, self._kill)
        sys.exit(128 + number)

    def _kill(self) -> None:
        for process in self.processes.values():
            process.kill()

    def _start(self, name: str, *command: str) -> None:
        played = self._instead.get(name, command)
        arguments = [
            sys.executable,
            *played,
            "--config",
            str(self.folder / f"{name}.toml"),
        ]
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            both = subprocess.STDOUT
            environment = environment_of_parts()
            self.processes[name] = self._popen(
                arguments,
                stdout=log,
                stderr=both,
                env=environment,
            )
