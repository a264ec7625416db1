"""Real processes that die at named points and are started again; what must hold."""

import json
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from examples.demo.local_processes import LocalDeployment
from tests.conftest import small_task
from tests.rig.documents import Document
from tests.rig.stores import Row, charges, rows
from tests.rig.waiting import until
from tests.rig.warm import forked

from precad.cli.local_deployment import servers_of
from precad.client.account_file import AccountCharge, AccountFile
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import ClientId, Role

ENDLESS = 100_000  # Rounds of a training that the test breaks off
CLIENTS = 2
FEATURES, CLASSES, RECORDS = 2, 2, 20
DEADLINES = {"enrol": 60.0, "collect": 5.0, "rejoin": 1.0, "peer": 3.0, "outage": 300.0}
SERVER_ROLES = (Role.SERVER_A.value, Role.SERVER_B.value)


class Order(NamedTuple):
    party: str
    when: str
    point: str

    @classmethod
    def parse(cls, text: str) -> "Order":
        """From ``"server-a after Attempts.prepare"``."""
        return cls(*text.split(" "))


class FaultyDeployment(LocalDeployment):
    """Every part a real process, killed on order and started again."""

    def __init__(
        self,
        folder: Path,
        rounds: int = ENDLESS,
        *,
        strangers: int = 0,
        poisoned: bool = False,
        validation: str = "crypten",
        epsilon_limit: float | None = None,
        databases: Mapping[str, str] | None = None,
        further: Document | None = None,
    ) -> None:
        random, data = np.random.default_rng(7), {}
        for n in range(CLIENTS + strangers):
            x = random.normal(size=(RECORDS, FEATURES)).astype(np.float32)
            data[ClientId(f"ward-{n}")] = x, random.integers(0, CLASSES, RECORDS)
        if poisoned:
            data[ClientId("ward-0")][0][0] = 3e38
        weight = {"name": "1.weight", "shape": [CLASSES, FEATURES]}
        changes = {
            "name": "faults",
            "model.architecture": "logistic",
            "model.parameters": [weight, {"name": "1.bias", "shape": [CLASSES]}],
            "enrolment": {
                "clients": len(data),
                "max_expected_records": 10.0,
                "planned_units": CLIENTS * RECORDS,
            },
            "validation": validation,
            "deadlines": DEADLINES,
            "training.rounds": rounds,
            # As `task new` writes it: a server may sign and serve another step.
            "training.compact_release": True,
            "privacy.epsilon_limit": epsilon_limit,
        }
        task = small_task(changes=changes | (further or {}))
        self.orders = folder / "orders"
        launch, orders = ("-m", "tests.faults.launch"), str(self.orders)
        instead: dict[str, tuple[str, ...]] = {
            name: (*launch, name, orders, "serve", name.removeprefix("server-"))
            for name in servers_of(task)
        }
        instead |= {
            client.name: (*launch, client.name, orders, "join") for client in data
        }
        super().__init__(folder, task, data, instead=instead, popen=forked)
        self.clients, self.strangers = self.clients[:CLIENTS], self.clients[CLIENTS:]
        self.parties = (*self.servers, *(client.name for client in self.clients))
        self.orders.mkdir(exist_ok=True)
        self.restarts: list[str] = []
        self.databases = databases or {}
        for name, url in self.databases.items():
            with (folder / f"{name}.toml").open("a", encoding="utf-8") as file:
                file.write(f'database = "{url}"\n')

    def reroute(self, party: str, other: str, address: str) -> None:
        """Let ``party`` look for ``other`` (itself: listen) at ``address``."""
        path = self.folder / f"{party}.toml"
        text = path.read_text(encoding="utf-8")
        assert self.addresses[other] in text
        path.write_text(text.replace(self.addresses[other], address), encoding="utf-8")

    def hold(self, *orders: Order) -> None:
        self.order(orders)
        self.wait_for((self.orders / f"{orders[0].party}.paused").exists)

    def wait_for(self, ready: Callable[[], bool]) -> None:
        until(ready, self.explain)

    def let_go(self, party: str) -> None:
        paused = self.orders / f"{party}.paused"
        self.wait_for(paused.exists)
        paused.unlink()

    def start(self, name: str) -> None:
        self._start(name)

    def start_all(self) -> None:
        for name in self.parties:
            self.start(name)

    def order(self, orders: Iterable[Order]) -> None:
        by_party = defaultdict[str, list[str]](list)
        for order in orders:
            by_party[order.party].append(f"{order.when} {order.point}\n")
        for party, lines in by_party.items():
            draft = self.orders / f"{party}.draft"
            draft.write_text("".join(lines), encoding="utf-8")
            draft.replace(self.orders / f"{party}.orders")

    def open_orders(self) -> list[str]:
        files = self.orders.glob("*.orders")
        return [
            f"{each.stem} {line}"
            for each in files
            for line in each.read_text().splitlines()
        ]

    def restart_the_dead(self) -> list[str]:
        dead = []
        for name in self.parties:
            status = self.processes[name].poll() if name in self.processes else None
            tail = self.log_tail(name, 40) if status not in (None, 0) else ""
            assert status in (
                None,
                -signal.SIGKILL,
                0,
            ), f"{name} ended with {status}:\n{tail}"
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
            ended = all(
                self.processes[client.name].poll() == 0 for client in self.clients
            )
            return ended and not self.open_orders()

        self.wait_for(over)

    def done(self) -> int:
        rounds = [self.rounds(role).values() for role in SERVER_ROLES]
        return min(
            len([state for state, *_ in each if state == "done"]) for each in rounds
        )

    def explain(self) -> str:
        tails = [f"--- {name}\n{self.log_tail(name, 15)}" for name in self.parties]
        return "\n".join([f"not struck: {self.open_orders()}", *tails])

    def rounds(self, role: str) -> dict[int, Row]:
        query = (
            "SELECT attempt.attempt, state, attempt.version, attempt.valid_set,"
            " share_digest, next_model FROM attempt LEFT JOIN ledger ON ledger.attempt"
            " = attempt.attempt AND event = 'prepared'"
        )
        found = rows(self.database(role), query)
        return {number: tuple(rest) for number, *rest in found}

    def charges(self, role: str) -> dict[int, set[str]]:
        return charges(self.database(role))

    def database(self, role: str) -> Path | str:
        path = self.folder / "state" / role / "state.db"
        return self.databases.get(role, path)

    def notes(self, name: str, kind: str = "notes") -> list[Document]:
        path = self.orders / f"{name}.{kind}"
        if not path.exists():
            return []
        # The last line may be half written.
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]


def check(deployment: FaultyDeployment) -> None:
    # The training was broken off: what both servers have done is settled, the rest is
    # open.
    settled = deployment.done()
    a, b = (deployment.rounds(role) for role in SERVER_ROLES)
    for rounds in (a, b):
        versions = sorted(
            version for state, version, *_ in rounds.values() if state == "done"
        )
        assert versions[:settled] == list(range(settled)), (
            "a version is done twice, or never"
        )
        for state, version, *_ in rounds.values():
            assert version >= settled or state in {"done", "voided", "abandoned"}
    charges = [deployment.charges(role) for role in SERVER_ROLES]
    for number, (state, version, valid_set, _, model) in a.items():
        if version < settled and state == "done":
            theirs = b[number]
            same = (*theirs[:3], theirs[4]) == ("done", version, valid_set, model)
            assert same, f"round {number}: different sets or models, or not done"
            assert charges[0].get(number) == charges[1].get(number), (
                f"round {number}: ledgers"
            )
        if version < settled and state == "voided":
            assert b[number][0] == "voided"
    for role in SERVER_ROLES:
        check_what_left(deployment, role)
        spent = [
            tuple(note["spent"]) for note in deployment.notes(role) if "spent" in note
        ]
        assert len(spent) == len(set(spent)), f"{role} wanted to use a triple twice"
    for client in deployment.clients:
        account = own_account(deployment, client.name)
        pairs: dict[int, set[str]] = defaultdict(set)
        for note in deployment.notes(client.name):
            if "submitted" in note:
                pairs[note["submitted"]].add(note["commitment"])
        assert all(len(commitments) == 1 for commitments in pairs.values()), (
            "a second sample"
        )
        version_of = {number: row[1] for each in (a, b) for number, row in each.items()}
        assert {version_of[n] for n in pairs if n in version_of} <= account, (
            "sent and not counted"
        )
        for charged in charges:
            counted = {
                version_of[n] for n, names in charged.items() if client.name in names
            }
            assert counted <= account, "a server charged what the owner doesn't know of"


def check_what_left(deployment: FaultyDeployment, role: str) -> None:
    rounds = deployment.rounds(role).values()
    shares = {
        digest.hex(): state for state, _, _, digest, _ in rounds if digest is not None
    }
    left = {note["left"] for note in deployment.notes(role) if "left" in note}
    assert left, "nothing was released at all"
    assert left <= set(shares), "bytes left that are no round's persisted share"
    assert not any(shares[digest] == "voided" for digest in left), "a voided share left"


def own_account(deployment: FaultyDeployment, client: str) -> set[int]:
    path = deployment.folder / "state" / client / "participations.log"
    return {
        entry.version
        for entry in AccountFile(path).new_entries()
        if isinstance(entry, AccountCharge)
    }


def kill_all(deployment: FaultyDeployment) -> None:
    for process in deployment.processes.values():
        process.kill()
        process.wait()
    deployment.stop()


class Operators:
    def __init__(self, deployment: FaultyDeployment) -> None:
        self._deployment, self._looks = deployment, 0

    def look(self) -> None:
        self._looks += 1
        if self._looks % 50 != 1:
            return
        both = [
            self._deployment.operator(role) for role in (Role.SERVER_A, Role.SERVER_B)
        ]
        for server in both:
            # Whoever is being started again is asked the next time.
            with suppress(PeerUnavailable, PeerViolation):
                said = server.status().error
                if found := re.search(r"precad allow (\S+) .*--version (\d+)", said):
                    for each in both:
                        each.allow(found[1], int(found[2]))
