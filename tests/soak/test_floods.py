"""Server A flooded by two certified clients, one enrolled and one not: rounds go on,
memory stays.

Each in its way asks without end, whatever the method: whole messages of half a
megabyte, streams that are begun and left half open, answers that nobody reads,
connections made anew. Real processes.
"""

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

import grpc
import pytest
from benchmarks.crowd.resident import resident_mib
from examples.demo.local_processes import LocalDeployment
from google.protobuf.message import Message
from tests.rig.crew import CHANGES, CLIENTS, deployed, until, version
from tests.rig.documents import Document
from tests.rig.light_client import LightClient
from tests.rig.waiting import beside

from precad.client.connection import Servers
from precad.common.identifiers import ClientId, Role
from precad.common.identity import deployment_keys, mutual_tls, party_certificate
from precad.common.identity.credentials import Identity
from precad.common.task import Task
from precad.protos import precad_pb2 as pb

A = Role.SERVER_A
ENROLLED, STRANGER = ClientId("enrolled"), ClientId("stranger")
BIG = bytes(500_000)
TOO_BIG = bytes(600_000)
SERVICES = pb.DESCRIPTOR.services_by_name
METHODS = [
    f"/precad.v1.{s}/{each.name}" for s in SERVICES for each in SERVICES[s].methods
]
THREADS = 4  # Of each client in each way
ROUNDS = 20
MORE_MIB = 60.0  # What a server may grow by


class Flood:
    def __init__(self, address: str, identity: Identity, task: Task) -> None:
        self._address = address
        self._identity = identity
        self._task = task
        self.calls: Counter[str] = Counter()  # By how they ended

    def of(
        self, way: Callable[["Flood", grpc.Channel, str], None]
    ) -> AbstractContextManager[None]:
        """Each method in turn, in this way."""
        return beside(*(partial(self._run, way, number) for number in range(THREADS)))

    def request(self, method: str) -> bytes:
        """A good one of this client, where the method has such a thing.

        But no watch: who watches and sends nothing is waited for some rounds
        (test_inbox).
        """
        own: Document = {
            "task_digest": self._task.digest.value,
            "client": self._identity.principal.name,
        }
        rate = self._task.privacy.record_rate / 2
        model = pb.ModelRequest(task_digest=own["task_digest"], version=0)
        good: dict[str, Message] = {
            "Enrol": pb.EnrolRequest(**own, records=10, record_rate=rate),
            **dict.fromkeys(("FetchModel", "ModelDigest"), model),
            "Opening": pb.OpeningRequest(**own, attempt=0),
            "Statement": pb.StatementRequest(**own),
        }
        made = good.get(method.rpartition("/")[2])
        return b"" if made is None else bytes(made.SerializeToString())

    def _run(self, way: Callable[..., None], first: int, over: threading.Event) -> None:
        for method in itertools.islice(itertools.cycle(METHODS), first, None):
            if over.is_set():
                return
            with mutual_tls.open_channel(self._address, self._identity, A) as channel:
                try:
                    way(self, channel, method)
                    self.calls["OK"] += 1
                except grpc.RpcError as error:
                    self.calls[error.code().name] += 1


def messages(flood: Flood, channel: grpc.Channel, method: str) -> None:
    """As many as fit into a connection's life, of every size."""
    for body in (flood.request(method), BIG, TOO_BIG):
        with contextlib.suppress(grpc.RpcError):
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
            call = channel.unary_unary(method)
            call(body, timeout=20)


def half_open(flood: Flood, channel: grpc.Channel, method: str) -> None:
    """Thirty-two streams with a message each; no more of them come."""
    silence = threading.Event()

    def begun() -> Iterator[bytes]:
        yield flood.request(method)
        silence.wait(30.0)

    call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(method)
    calls = [call(begun(), timeout=10) for _ in range(32)]
    with contextlib.suppress(grpc.RpcError):
        next(calls[0], None)
    silence.set()
    for each in calls:
        each.cancel()


def unread(flood: Flood, channel: grpc.Channel, method: str) -> None:
    """Asked for whatever streams; nobody takes it."""
    call: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(method)
    calls = [call(flood.request(method), timeout=10) for _ in range(32)]
    with contextlib.suppress(grpc.RpcError):
        next(calls[0], None)
    for each in calls:
        each.cancel()


@pytest.fixture(scope="module")
def besieged(
    tmp_path_factory: pytest.TempPathFactory, make_task: Callable[..., Task]
) -> Iterator[tuple[LocalDeployment, Path]]:
    """A training whose rounds nobody disturbs yet; one enrolled client has left."""
    changes = {
        "validation": "proof",
        "enrolment.clients": CLIENTS + 1,
        "deadlines.rejoin": 1.0,
    }
    task = make_task(4096, CHANGES | changes)
    folder = tmp_path_factory.mktemp("floods")
    with deployed(folder / "run", task, "") as (deployment, crowd), crowd.at_work():
        authority = deployment_keys.Deployment.open(folder / "run" / "keys")
        for who in (ENROLLED, STRANGER):
            authority.issue(
                party_certificate.Principal.client(who.name), out=folder / who.name
            )
        addresses = [deployment.addresses[role.value] for role in (A, Role.SERVER_B)]
        keys = Identity.load(folder / ENROLLED.name)
        client = LightClient(
            Servers(
                task,
                ENROLLED,
                server_a=addresses[0],
                server_b=addresses[1],
                identity=keys,
            )
        )
        client.join()
        # Its watch is there: it will be known to have gone.
        client.opened()
        client.close()
        until(deployment, lambda: version(deployment) >= ROUNDS)
        yield deployment, folder


@pytest.mark.parametrize("way", [messages, half_open, unread])
def test_rounds_go_on_and_memory_stays_however_clients_flood_a_server(
    besieged: tuple[LocalDeployment, Path],
    way: Callable[[Flood, grpc.Channel, str], None],
) -> None:
    deployment, folder = besieged
    process = deployment.processes[A.value].pid
    before, first = resident_mib(process), version(deployment)
    floods = [
        Flood(
            deployment.addresses[A.value],
            Identity.load(folder / who.name),
            deployment.task,
        )
        for who in (ENROLLED, STRANGER)
    ]
    with ExitStack() as stack:
        for flood in floods:
            stack.enter_context(flood.of(way))
        until(deployment, lambda: version(deployment) >= first + ROUNDS)
        until(
            deployment,
            lambda: min(flood.calls.total() for flood in floods) > len(METHODS),
        )
        more = resident_mib(process) - before
    assert more < MORE_MIB, more
    assert "a bug" not in deployment.log(A.value)
    assert "Traceback" not in deployment.log(A.value)
