"""Chaos for hundreds of versions, simulated and at the doors of real processes.

    python -m tests.soak.chaos --versions 300 --output benchmarks/results/chaos.json
    python -m tests.soak.chaos --validation proof --output
    benchmarks/results/chaos_proof.json

Pieces of 20 simulated versions (`tests/faults/test_random_schedules.py`). Beside each a
training of six versions on real processes, with hundreds of idle connections, bad calls
of every kind, a record without a finite gradient, and deaths at random steps. After
each piece the result is written: a run that is broken off goes on where it stopped.
"""

import argparse
import json
import os
import platform
import shutil
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random

import grpc
from google.protobuf.message import Message
from tests.faults.invariants import TELLING
from tests.faults.processes import (
    SERVER_ROLES,
    FaultyDeployment,
    Order,
    check,
    kill_all,
)
from tests.faults.test_random_schedules import piece
from tests.rig.connections import idle_flood
from tests.rig.documents import Document
from tests.rig.waiting import beside
from tests.soak.test_faults_of_processes import GROUPS, state, until, url

from precad.aggregator.store import audit_ledger, compare_ledgers
from precad.common.identifiers import ClientId, Role
from precad.common.identity import credentials, mutual_tls
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

VERSIONS = 20
CONNECTIONS = 300  # Idle ones, at each server; 64 may be silent
MOST_DESCRIPTORS = 256
DEATHS = 5
START_S = 60.0
CLAIMS = ((10**18, 0.2), (2**31, 0.2), (0, 0.2), (20, 1e-15), (20, 0.11), (20, 2.0))


class Besieger:
    """One certificate's bad calls at both servers."""

    def __init__(
        self, deployment: FaultyDeployment, client: ClientId, random: Random
    ) -> None:
        self._addresses, self._random = deployment.addresses, random
        self._own: Document = {
            "task_digest": deployment.task.digest.value,
            "client": client.name,
        }
        self._identity = credentials.Identity.load(
            deployment.folder / "keys" / client.name
        )
        self.read: list[str] = []  # Texts of errors
        self.codes: Counter[str] = Counter()
        self.taken: list[str] = []  # Bad calls that were taken

    def enrol_badly(self) -> None:
        """A good claim at A; at B none, or another one."""
        good = pb.EnrolRequest(**self._own, records=20, record_rate=0.2)
        self._call(Role.SERVER_A, "Enrol", good, START_S)
        if self._random.random() < 0.5:
            other = pb.EnrolRequest(**self._own, records=21, record_rate=0.2)
            self._call(Role.SERVER_B, "Enrol", other, START_S)

    def call_badly(self, over: threading.Event) -> None:
        body = pb.StatementBody(version=2**40, attempt=2**40).SerializeToString()
        forged = pb.Signed(body=body, signature=b"x", certificates=[b"y"])
        others = self._own | {"client": "ward-0"}
        bad = [
            *(
                ("Enrol", pb.EnrolRequest(**self._own, records=n, record_rate=q))
                for n, q in CLAIMS
            ),
            ("Opening", pb.OpeningRequest(**self._own, attempt=10**6)),
            ("Opening", pb.OpeningRequest(**others, attempt=0)),
            ("Statement", pb.StatementRequest(**others)),
            ("Statement", pb.StatementRequest(**self._own, shown=forged)),
        ]
        while not over.wait(0.1):
            role = self._random.choice((Role.SERVER_A, Role.SERVER_B))
            name, request = self._random.choice(bad)
            if self._call(role, name, request):
                self.taken.append(f"{role.value}: {name} {request}")

    def _call(
        self, role: Role, name: str, request: Message, wait_s: float | None = None
    ) -> bool:
        with mutual_tls.open_channel(
            self._addresses[role.value], self._identity, role
        ) as channel:
            call = getattr(AggregationStub(channel), name)
            try:
                call(request, wait_for_ready=wait_s is not None, timeout=wait_s or 2.0)
            except grpc.RpcError as error:
                self.codes[error.code().name] += 1
                self.read.append(str(error.details()))
                return False
        return True


def besieged(
    seed: int, folder: Path, versions: int = 6, validation: str = "crypten"
) -> Document:
    """One training of real processes; raises AssertionError where a client gets in
    charge."""
    random = Random(f"doors {seed}")
    deployment = FaultyDeployment(
        folder, versions, strangers=1, poisoned=True, validation=validation
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
                stack.enter_context(
                    idle_flood(deployment.addresses[role], keys, CONNECTIONS)
                )
                for role in SERVER_ROLES
            ]
            stack.enter_context(beside(besieger.call_badly))
            for client in deployment.clients:
                deployment.start(client.name)
            for each in orders:
                # Not where the training ends before it gets there.
                deployment.order([each])
                until(
                    deployment,
                    lambda: not deployment.open_orders() or finished(deployment),
                )
            for path in deployment.orders.glob("*.orders"):
                path.unlink(missing_ok=True)
            until(deployment, lambda: finished(deployment))
            deployment.wait_for(lambda: min(map(len, floods)) >= CONNECTIONS)
            for role in SERVER_ROLES:
                files = Path(f"/proc/{deployment.processes[role].pid}/fd").iterdir
                deployment.wait_for(
                    lambda: len(list(files())) < MOST_DESCRIPTORS  # noqa: B023
                )
        shown = {"deaths": list(deployment.restarts), "codes": dict(besieger.codes)}
        kill_all(deployment)
        require_nobody_in_charge(deployment, besieger, stranger, versions)
        return {"seed": seed, "versions": versions, "connections": CONNECTIONS, **shown}
    finally:
        kill_all(deployment)


def finished(deployment: FaultyDeployment) -> bool:
    return all(deployment.processes[c.name].poll() == 0 for c in deployment.clients)


def require_nobody_in_charge(
    deployment: FaultyDeployment, besieger: Besieger, stranger: ClientId, versions: int
) -> None:
    """T is reached, ledgers are alike and sound, every honest owner counted, nothing
    was told."""
    check(deployment)
    assert compare_ledgers(*(url(deployment, role) for role in SERVER_ROLES)) == ()
    others = {client.name for client in deployment.clients}
    for role in SERVER_ROLES:
        assert audit_ledger(url(deployment, role)).findings == ()
        done = {version for _, version, *_ in deployment.rounds(role).values()}
        assert done == set(range(versions)), f"{role} has versions {sorted(done)}"
        log = deployment.log(role)
        assert "Too many open files" not in log
        assert "a bug stopped the training" not in log
        with closing(sqlite3.connect(state(deployment, role))) as database:
            rows = database.execute(
                "SELECT client FROM enrolment WHERE in_roster"
            ).fetchall()
        assert (stranger.name,) not in rows
        assert {
            name for each in deployment.charges(role).values() for name in each
        } == others
    assert besieger.taken == [], "a bad call was taken"
    for text in besieger.read:
        assert not set(text.lower().replace(":", " ").split()) & (others | TELLING), (
            text
        )
    for client in deployment.clients:
        # What stopped a server stands in that server's log alone.
        log = deployment.log(client.name)
        assert "training stopped" not in log
        assert "Traceback" not in log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--validation", choices=("crypten", "proof"), default="crypten")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    hardware = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
    }
    found: Document = {"what": "chaos.py", "validation": given.validation}
    found |= {"hardware": hardware, "pieces": []}
    if given.output.exists():
        found = json.loads(given.output.read_text(encoding="utf-8"))
    while sum(each["versions"] for each in found["pieces"]) < given.versions:
        seed = given.seed + len(found["pieces"])
        folder = Path(tempfile.mkdtemp())
        began = time.monotonic()
        try:
            made = piece(seed, VERSIONS, folder / "world", validation=given.validation)
            made["besieged"] = besieged(
                seed, folder / "doors", validation=given.validation
            )
        finally:
            shutil.rmtree(folder)
        found["pieces"].append(made | {"seconds": round(time.monotonic() - began, 1)})
        given.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        print(f"seed {seed}: {made}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
