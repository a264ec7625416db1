"""A deployment of real processes that die at named points and are started again."""

import json
import signal
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.conftest import small_task
from tests.rig.waiting import until
from tests.rig.warm import forked

from precad.cli.local_deployment import LocalDeployment, servers_of
from precad.common.identifiers import ClientId, Role
from precad.common.task import Task

ENDLESS = 100_000  # Rounds of a training that the test breaks off
CLIENTS = 2
FEATURES, CLASSES, RECORDS = 2, 2, 20
SERVER_ROLES = (Role.SERVER_A.value, Role.SERVER_B.value)


@dataclass(frozen=True, slots=True)
class Order:
    party: str
    when: str
    point: str

    @classmethod
    def parse(cls, text: str) -> "Order":
        """From ``"server-a after Attempts.prepare"``."""
        return cls(*text.split(" "))


def task_of(
    rounds: int,
    validation: str = "crypten",
    epsilon_limit: float | None = None,
    collect_s: float = 5.0,
    client_rate: float = 1.0,
    clients: int = CLIENTS,
) -> Task:
    weight = {"name": "1.weight", "shape": [CLASSES, FEATURES]}
    bias = {"name": "1.bias", "shape": [CLASSES]}
    deadlines = {"enrol": 60.0, "collect": collect_s, "rejoin": 1.0, "peer": 3.0, "outage": 300.0}
    changes = {
        "name": "faults",
        "model": {"architecture": "logistic", "parameters": [weight, bias]},
        "enrolment": {"clients": clients, "max_expected_records": 10.0},
        "validation": validation,
        "deadlines": deadlines,
        "training.rounds": rounds,
        "privacy.client_rate": client_rate,
    }
    limit = {} if epsilon_limit is None else {"privacy.epsilon_limit": epsilon_limit}
    return small_task(changes=changes | limit)


class FaultyDeployment(LocalDeployment):
    """Every part a real process, killed on order and started again."""

    def __init__(
        self, folder: Path, rounds: int, *, strangers: int = 0, poisoned: bool = False, **task: Any
    ) -> None:
        self.orders = folder / "orders"
        random, data = np.random.default_rng(7), {}
        for n in range(CLIENTS + strangers):
            x = random.normal(size=(RECORDS, FEATURES)).astype(np.float32)
            data[ClientId(f"ward-{n}")] = x, random.integers(0, CLASSES, RECORDS)
        if poisoned:
            data[ClientId("ward-0")][0][0] = 3e38
        made = task_of(rounds, clients=CLIENTS + strangers, **task)
        commands = {name: ("serve", name.removeprefix("server-")) for name in servers_of(made)}
        commands |= {client.name: ("join",) for client in data}
        launch = ("-m", "tests.faults.launch")
        instead = {n: (*launch, n, str(self.orders), *command) for n, command in commands.items()}
        super().__init__(folder, made, data, instead=instead, popen=forked)
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
        self.order(orders)
        self.wait_for(self._paused(orders[0].party).exists)

    def wait_for(self, ready: Callable[[], bool]) -> None:
        until(ready, self.explain)

    def let_go(self, party: str) -> None:
        self.wait_for(self._paused(party).exists)
        self._paused(party).unlink()

    def _paused(self, party: str) -> Path:
        return self.orders / f"{party}.paused"

    def start(self, name: str) -> None:
        self._start(name)

    def start_all(self) -> None:
        for name in self.parties:
            self.start(name)

    @property
    def parties(self) -> tuple[str, ...]:
        return (*servers_of(self.task), *(client.name for client in self.clients))

    def order(self, orders: Iterable[Order]) -> None:
        by_party = defaultdict[str, list[str]](list)
        for order in orders:
            by_party[order.party].append(f"{order.when} {order.point}\n")
        for party, lines in by_party.items():
            draft = self.orders / f"{party}.draft"
            draft.write_text("".join(lines), encoding="utf-8")
            draft.replace(self.orders / f"{party}.orders")

    def open_orders(self) -> list[str]:
        open_ones = {path.stem: path.read_text("utf-8") for path in self.orders.glob("*.orders")}
        return [
            f"{party} {line}" for party, text in open_ones.items() for line in text.splitlines()
        ]

    def restart_the_dead(self) -> list[str]:
        dead = []
        for name in self.parties:
            status = self.processes[name].poll() if name in self.processes else None
            tail = self.log_tail(name, 40) if status not in (None, 0) else ""
            assert status in (None, -signal.SIGKILL, 0), f"{name} ended with {status}:\n{tail}"
            if status:
                self.start(name)
                dead.append(name)
        self.restarts += dead
        return dead

    def strike(self, orders: Iterable[Order]) -> None:
        """Give orders; wait until all have struck and two further rounds are done."""
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
        def over() -> bool:
            self.restart_the_dead()
            ended = all(self.processes[client.name].poll() == 0 for client in self.clients)
            return ended and not self.open_orders()

        self.wait_for(over)

    def done(self) -> int:
        rounds = [self.rounds(role).values() for role in SERVER_ROLES]
        return min(len([state for state, *_ in each if state == "done"]) for each in rounds)

    def explain(self) -> str:
        tails = [f"--- {name}\n{self.log_tail(name, 15)}" for name in self.parties]
        return "\n".join([f"not struck: {self.open_orders()}", *tails])

    def rounds(self, role: str) -> dict[int, tuple[Any, ...]]:
        query = (
            "SELECT attempt.attempt, state, attempt.version, attempt.valid_set, share_digest, "
            "next_model FROM attempt LEFT JOIN ledger "
            "ON ledger.attempt = attempt.attempt AND event = 'prepared'"
        )
        return {number: tuple(rest) for number, *rest in self._select(role, query)}

    def charges(self, role: str) -> dict[int, set[str]]:
        charges = defaultdict[int, set[str]](set)
        query = (
            "SELECT charge.attempt, client FROM charge JOIN attempt "
            "ON attempt.attempt = charge.attempt WHERE state != 'voided'"
        )
        for number, client in self._select(role, query):
            charges[number].add(client)
        return dict(charges)

    def notes(self, name: str, kind: str = "notes") -> list[dict[str, Any]]:
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
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)) as database:
            try:
                return database.execute(query).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return []
                raise
