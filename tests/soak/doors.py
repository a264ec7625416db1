"""Real processes beset at their doors while any of them dies, and one owner has a bad record.

Idle connections by the hundred on both servers, enrolments at one server only or differently at
the other, claims that no task allows, calls about others: all of one good certificate, throughout.
"""

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from random import Random
from typing import Any, Self

import grpc
from tests.faults.invariants import TELLING
from tests.faults.operators import Operators
from tests.faults.process_invariants import check, kill_all
from tests.faults.processes import SERVER_ROLES, FaultyDeployment, Forks, Order
from tests.rig.idle_flood import IdleFlood
from tests.soak.test_crash_matrix import GROUPS

from precad.aggregator.store import audit_ledger, compare_ledgers
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

CONNECTIONS = 300
"""Idle ones, at each server; 64 may be silent."""
MOST_DESCRIPTORS = 256
DEATHS = 5
START_S = 60.0
CLAIMS = ((10**18, 0.2), (2**31, 0.2), (0, 0.2), (20, 1e-15), (20, 0.11), (20, 2.0))


class Besieger:
    """One certificate's bad calls at both servers, in a thread of its own."""

    def __init__(self, deployment: FaultyDeployment, client: ClientId, random: Random) -> None:
        self._deployment = deployment
        self._client = client
        self._random = random
        self._identity = Identity.load(deployment.folder / "keys" / client.name)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.read: list[str] = []
        """Texts of errors."""
        self.codes: Counter[str] = Counter()
        self.taken: list[str] = []
        """Bad calls that were taken."""

    def enrol_badly(self) -> None:
        """A good claim at A; at B none, or another one."""
        self._call(Role.SERVER_A, "Enrol", self._claim(20, 0.2), wait=True)
        if self._random.random() < 0.5:
            self._call(Role.SERVER_B, "Enrol", self._claim(21, 0.2), wait=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            role = self._random.choice((Role.SERVER_A, Role.SERVER_B))
            name, request = self._random.choice(
                [("Enrol", self._claim(*claim)) for claim in CLAIMS]
                + [
                    ("Opening", self._opening(self._client.name, 10**6)),
                    ("Opening", self._opening("ward-0", 0)),
                    ("Statement", self._statement("ward-0")),
                    ("Statement", self._statement(self._client.name, forged=True)),
                ]
            )
            if self._call(role, name, request, wait=False):
                self.taken.append(f"{role.value}: {name} {request}")

    def _claim(self, records: int, rate: float) -> pb.EnrolRequest:
        digest = self._deployment.task.digest.value
        return pb.EnrolRequest(
            task_digest=digest, client=self._client.name, records=records, record_rate=rate
        )

    def _opening(self, name: str, attempt: int) -> pb.OpeningRequest:
        digest = self._deployment.task.digest.value
        return pb.OpeningRequest(task_digest=digest, client=name, attempt=attempt)

    def _statement(self, name: str, *, forged: bool = False) -> pb.StatementRequest:
        request = pb.StatementRequest(task_digest=self._deployment.task.digest.value, client=name)
        if forged:
            body = pb.StatementBody(version=2**40, attempt=2**40).SerializeToString()
            request.shown.CopyFrom(pb.Signed(body=body, signature=b"x", certificates=[b"y"]))
        return request

    def _call(self, role: Role, name: str, request: Any, *, wait: bool) -> bool:
        address = self._deployment.addresses[role.value]
        with open_channel(address, self._identity, role) as channel:
            call = getattr(AggregationStub(channel), name)
            try:
                call(request, wait_for_ready=wait, timeout=START_S if wait else 2.0)
            except grpc.RpcError as error:
                self.codes[error.code().name] += 1
                self.read.append(str(error.details()))
                return False
        return True


def besieged(
    seed: int, folder: Path, forks: Forks, versions: int = 6, validation: str = "crypten"
) -> dict[str, Any]:
    """One training of real processes; raises AssertionError where a client gets in charge."""
    random = Random(f"doors {seed}")
    deployment = FaultyDeployment(
        folder, forks, versions, strangers=1, poisoned=True, validation=validation
    )
    (stranger,) = deployment.strangers
    besieger = Besieger(deployment, stranger, random)
    lines = [line for group in GROUPS.values() for line in group if ", " not in line]
    orders = [Order.parse(line) for line in random.sample(lines, DEATHS)]
    try:
        for name in ("dealer", *SERVER_ROLES):
            deployment.start(name)
        besieger.enrol_badly()
        keys = folder / "keys" / stranger.name
        with ExitStack() as stack:
            floods = [
                stack.enter_context(IdleFlood(deployment.addresses[role], keys, CONNECTIONS))
                for role in SERVER_ROLES
            ]
            stack.enter_context(besieger)
            for client in deployment.clients:
                deployment.start(client.name)
            for each in orders:
                # Not where the training ends before it gets there.
                deployment.order([each])
                until(deployment, lambda: not deployment.open_orders() or finished(deployment))
            for path in deployment.orders.glob("*.orders"):
                with suppress(FileNotFoundError):
                    path.unlink()
            until(deployment, lambda: finished(deployment))
            deployment.wait_for(lambda: min(each.made for each in floods) >= CONNECTIONS)
            for role in SERVER_ROLES:
                descriptors = Path(f"/proc/{deployment.processes[role].pid}/fd")
                deployment.wait_for(
                    lambda: len(list(descriptors.iterdir())) < MOST_DESCRIPTORS  # noqa: B023
                )
        shown = {"deaths": list(deployment.restarts), "codes": dict(besieger.codes)}
        kill_all(deployment)
        require_nobody_in_charge(deployment, besieger, stranger, versions)
        return {"seed": seed, "versions": versions, "connections": CONNECTIONS, **shown}
    finally:
        kill_all(deployment)


def until(deployment: FaultyDeployment, over: Callable[[], bool]) -> None:
    """Until it is over; whoever dies is started again, and operators do what they are told."""
    operators = Operators(deployment)

    def ready() -> bool:
        deployment.restart_the_dead()
        operators.look()
        return over()

    deployment.wait_for(ready)


def finished(deployment: FaultyDeployment) -> bool:
    return all(deployment.processes[c.name].poll() == 0 for c in deployment.clients)


def require_nobody_in_charge(
    deployment: FaultyDeployment, besieger: Besieger, stranger: ClientId, versions: int
) -> None:
    """T is reached, ledgers are alike and sound, every honest owner counted, nothing was told."""
    check(deployment)
    urls = [f"sqlite:///{deployment.folder / 'state' / role / 'state.db'}" for role in SERVER_ROLES]
    assert compare_ledgers(*urls) == ()
    for role, url in zip(SERVER_ROLES, urls, strict=True):
        assert audit_ledger(url).findings == ()
        done = {version for state, version, *_ in deployment.rounds(role).values()}
        assert done == set(range(versions)), f"{role} has versions {sorted(done)}"
        log = deployment.log(role)
        assert "Too many open files" not in log
        assert "a bug stopped the training" not in log
        assert stranger not in roster(deployment, role)
        names = {name for each in deployment.charges(role).values() for name in each}
        assert names == {client.name for client in deployment.clients}
    assert besieger.taken == [], "a bad call was taken"
    others = {client.name for client in deployment.clients}
    for text in besieger.read:
        assert not set(text.lower().replace(":", " ").split()) & (others | TELLING), text
    for client in deployment.clients:
        # What stopped a server stands in that server's log alone.
        assert "training stopped" not in deployment.log(client.name)
        assert "Traceback" not in deployment.log(client.name)


def roster(deployment: FaultyDeployment, role: str) -> set[ClientId]:
    path = deployment.folder / "state" / role / "state.db"
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT client FROM enrolment WHERE in_roster").fetchall()
    return {ClientId(name) for (name,) in rows}
