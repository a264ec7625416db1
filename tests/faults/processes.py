"""A deployment of real processes that die at named points and are started again."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from tests.conftest import task_values
from tests.rig.waiting import until

import precad
from precad.cli.local_deployment import LocalDeployment, servers_of
from precad.common.identifiers import ClientId, Role
from precad.common.task import Task

ENDLESS = 100_000
"""Rounds of a training that the test breaks off."""
CLIENTS = 2
FEATURES, CLASSES, RECORDS = 2, 2, 20
SERVER_ROLES = (Role.SERVER_A.value, Role.SERVER_B.value)


@dataclass(frozen=True, slots=True)
class Order:
    """A process, and the point at which it dies."""

    party: str
    when: str
    point: str

    @classmethod
    def parse(cls, text: str) -> "Order":
        """From ``"server-a after Attempts.prepare"``."""
        return cls(*text.split(" "))


def task_of(
    rounds: int,
    validation: str,
    epsilon_limit: float | None,
    collect_s: float = 5.0,
    client_rate: float = 1.0,
    clients: int = CLIENTS,
) -> Task:
    """A logistic regression of six parameters with short deadlines."""
    values = task_values()
    weight = {"name": "1.weight", "shape": [CLASSES, FEATURES]}
    bias = {"name": "1.bias", "shape": [CLASSES]}
    values |= {
        "name": "faults",
        "model": {"architecture": "logistic", "parameters": [weight, bias]},
        "enrolment": {"clients": clients, "max_expected_records": 10.0},
        "validation": validation,
        "deadlines": {
            "enrol": 60.0,
            "collect": collect_s,
            "rejoin": 1.0,
            "peer": 3.0,
            "outage": 300.0,
        },
    }
    values["training"]["rounds"] = rounds
    values["privacy"]["client_rate"] = client_rate
    if epsilon_limit is not None:
        values["privacy"]["epsilon_limit"] = epsilon_limit
    return Task.parse(values)


class Forks:
    """The parent of all processes (`launch.py`), and what it says about them.

    Args:
        prefix: command that starts it elsewhere, such as ``ip netns exec name``.
    """

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        sources = str(Path(precad.__file__).parents[1])
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": sources}
        self._parent = subprocess.Popen(
            [*prefix, sys.executable, str(Path(__file__).with_name("launch.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._changed = threading.Condition()
        self._started: dict[str, int] = {}
        self._ended: dict[int, int] = {}
        assert self._parent.stdout is not None
        told = (self._parent.stdout,)
        threading.Thread(target=self._listen, args=told, name="forks", daemon=True).start()

    def start(self, name: str, arguments: Iterable[str], folder: Path, log: Path) -> int:
        """Start ``precad *arguments``; its process number."""
        order = {
            "start": name,
            "arguments": list(arguments),
            "folder": str(folder),
            "log": str(log),
        }
        assert self._parent.stdin is not None
        with self._changed:
            self._started.pop(name, None)
            self._parent.stdin.write(json.dumps(order).encode() + b"\n")
            self._parent.stdin.flush()
            assert self._changed.wait_for(lambda: name in self._started, 60), "no process started"
            return self._started[name]

    def status(self, pid: int) -> int | None:
        """Exit status, None while it runs."""
        with self._changed:
            return self._ended.get(pid)

    def close(self) -> None:
        """Kill what still runs."""
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(60)
        assert self._parent.stdout is not None
        self._parent.stdout.close()

    def _listen(self, told: Iterable[bytes]) -> None:
        for line in told:
            said = json.loads(line)
            with self._changed:
                if "started" in said:
                    # The system gives numbers again: what is known of it was another process's.
                    self._ended.pop(said["pid"], None)
                    self._started[said["started"]] = said["pid"]
                else:
                    self._ended[said["ended"]] = said["status"]
                self._changed.notify_all()


@dataclass(slots=True)
class Child:
    """As much of ``subprocess.Popen`` as a deployment uses."""

    forks: Forks
    pid: int
    returncode: int | None = field(default=None)

    def poll(self) -> int | None:
        self.returncode = self.forks.status(self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # Its parent may have waited for it and not have said so yet.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:  # noqa: ARG002 -- as Popen's
        until(lambda: self.poll() is not None, f"the end of process {self.pid}")
        assert self.returncode is not None
        return self.returncode


class FaultyDeployment(LocalDeployment):
    """Every part a real process, killed on order and started again.

    Args:
        folder: of all parties.
        forks: starts the processes.
        rounds: T.
        elsewhere: parties that other parents start.
        collect_s: the deadline for submissions.
        client_rate: q.
        strangers: how many further certificates there are, for whom no process is started.
        poisoned: whether one record of the first client's gives no finite gradient.
        validation: how norms are checked.
        epsilon_limit: where owners stop counting.
    """

    def __init__(
        self,
        folder: Path,
        forks: Forks,
        rounds: int,
        elsewhere: Mapping[str, Forks] | None = None,
        collect_s: float = 5.0,
        client_rate: float = 1.0,
        *,
        strangers: int = 0,
        poisoned: bool = False,
        validation: str = "crypten",
        epsilon_limit: float | None = None,
    ) -> None:
        self._forks = forks
        self._elsewhere = elsewhere or {}
        self.orders = folder / "orders"
        random = np.random.default_rng(7)
        data = {
            ClientId(f"ward-{n}"): (
                random.normal(size=(RECORDS, FEATURES)).astype(np.float32),
                random.integers(0, CLASSES, RECORDS),
            )
            for n in range(CLIENTS + strangers)
        }
        if poisoned:
            data[ClientId("ward-0")][0][0] = 3e38
        task = task_of(
            rounds, validation, epsilon_limit, collect_s, client_rate, CLIENTS + strangers
        )
        super().__init__(folder, task, data)
        self.clients, self.strangers = self.clients[:CLIENTS], self.clients[CLIENTS:]
        self.orders.mkdir(exist_ok=True)
        self.restarts: list[str] = []

    def reroute(self, party: str, other: str, address: str) -> None:
        """Let ``party`` look for ``other`` (or listen, where that is itself) at ``address``."""
        path = self.folder / f"{party}.toml"
        text = path.read_text(encoding="utf-8")
        assert self.addresses[other] in text
        path.write_text(text.replace(self.addresses[other], address), encoding="utf-8")

    def hold(self, *orders: Order) -> None:
        """Wait until a process stands still at its point (``pause-before``, ``pause-after``)."""
        self.order(orders)
        self.wait_for(self._paused(orders[0].party).exists)

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Until ``ready()``; what the parties logged last stands in the error."""
        until(ready, self.explain)

    def let_go(self, party: str) -> None:
        """Let a process go on that stands still, or will soon."""
        self.wait_for(self._paused(party).exists)
        self._paused(party).unlink()

    def _paused(self, party: str) -> Path:
        return self.orders / f"{party}.paused"

    def start(self, name: str) -> None:
        """Start one party."""
        command = {
            "dealer": ("serve", "dealer"),
            "server-a": ("serve", "a"),
            "server-b": ("serve", "b"),
        }.get(name, ("join",))
        arguments = (*command, "--config", str(self.folder / f"{name}.toml"))
        log = self.folder / "logs" / f"{name}.log"
        forks = self._elsewhere.get(name, self._forks)
        pid = forks.start(name, arguments, self.orders, log)
        self.processes[name] = cast("subprocess.Popen[bytes]", Child(forks, pid))

    def start_all(self) -> None:
        """Start every party."""
        for name in self.parties:
            self.start(name)

    @property
    def parties(self) -> tuple[str, ...]:
        """Every process's name."""
        return (*servers_of(self.task), *(client.name for client in self.clients))

    def order(self, orders: Iterable[Order]) -> None:
        """Each party dies at its points, in this order."""
        by_party: dict[str, list[str]] = {}
        for order in orders:
            by_party.setdefault(order.party, []).append(f"{order.when} {order.point}\n")
        for party, lines in by_party.items():
            draft = self.orders / f"{party}.draft"
            draft.write_text("".join(lines), encoding="utf-8")
            draft.replace(self.orders / f"{party}.orders")

    def open_orders(self) -> list[str]:
        """Orders that nobody has come to yet."""
        return [
            f"{path.stem} {line}"
            for path in sorted(self.orders.glob("*.orders"))
            for line in path.read_text(encoding="utf-8").splitlines()
        ]

    def restart_the_dead(self) -> list[str]:
        """Start again whoever was killed; raises AssertionError for any other end."""
        dead = []
        for name in self.parties:
            process = self.processes.get(name)
            if process is not None and (status := process.poll()) is not None:
                assert status in (-signal.SIGKILL, 0), (
                    f"{name} ended with status {status}:\n{self.log_tail(name, 40)}"
                )
                if status != 0:
                    self.start(name)
                    self.restarts.append(name)
                    dead.append(name)
        return dead

    def strike(self, orders: Iterable[Order]) -> None:
        """Give orders; wait until all have struck and two further rounds are done.

        Whoever dies is started again at once.
        """
        self.order(orders)
        target: int | None = None

        def over() -> bool:
            nonlocal target
            if self.restart_the_dead():
                target = None
            if not self.open_orders() and target is None:
                target = self.done() + 2
            return target is not None and self.done() >= target

        self.wait_for(over)

    def until_done(self) -> None:
        """Until the training is over for everybody, restarting whoever dies."""
        clients = [client.name for client in self.clients]

        def over() -> bool:
            self.restart_the_dead()
            ended = all(self.processes[name].poll() == 0 for name in clients)
            return ended and not self.open_orders()

        self.wait_for(over)

    def done(self) -> int:
        """Rounds that both servers have done."""
        rounds = [self.rounds(role).values() for role in SERVER_ROLES]
        return min(len([state for state, *_ in each if state == "done"]) for each in rounds)

    def explain(self) -> str:
        """For a failed test: what is open and what each party said last."""
        tails = [f"--- {name}\n{self.log_tail(name, 15)}" for name in self.parties]
        return "\n".join([f"not struck: {self.open_orders()}", *tails])

    def rounds(self, role: str) -> dict[int, tuple[Any, ...]]:
        """(state, version, valid set, SHA-256 of the noisy share, next model) of each round."""
        return {
            number: tuple(rest)
            for number, *rest in self._select(
                role,
                "SELECT attempt.attempt, state, attempt.version, attempt.valid_set, share_digest, "
                "next_model FROM attempt LEFT JOIN ledger "
                "ON ledger.attempt = attempt.attempt AND event = 'prepared'",
            )
        }

    def charges(self, role: str) -> dict[int, set[str]]:
        """Each attempt's charged clients on a server; voided ones aren't."""
        charges: dict[int, set[str]] = {}
        query = (
            "SELECT charge.attempt, client FROM charge JOIN attempt "
            "ON attempt.attempt = charge.attempt WHERE state != 'voided'"
        )
        for number, client in self._select(role, query):
            charges.setdefault(number, set()).add(client)
        return charges

    def notes(self, name: str, kind: str = "notes") -> list[dict[str, Any]]:
        """What a party's processes noted, oldest first."""
        path = self.orders / f"{name}.{kind}"
        if not path.exists():
            return []
        # The last line may be half written.
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def _select(self, role: str, query: str) -> list[tuple[Any, ...]]:
        path = self.folder / "state" / role / "state.db"
        if not path.exists():
            return []
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)
        try:
            return database.execute(query).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise
        finally:
            database.close()
