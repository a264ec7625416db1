"""Both servers behind real gRPC with mutual TLS, and no training: tests open the rounds."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from tests.rig.loop import LoopThread

from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.collect.matching import describe, match
from precad.aggregator.enrol.admission import Admission
from precad.aggregator.enrol.register import Register
from precad.aggregator.rounds.aggregator import CoinKey
from precad.aggregator.rounds.states import Opened
from precad.aggregator.rpc.aggregation_service import AggregationService
from precad.aggregator.rpc.limits import Limits
from precad.aggregator.store import open_store
from precad.aggregator.training.connected_clients import ConnectedClients
from precad.aggregator.training.model_store import ModelStore
from precad.aggregator.training.session import EventLog, RoundOpened, Session
from precad.client.connection import Receipt, Servers
from precad.client.pending_update import Pair
from precad.common.clock import CLOCK, Clock
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Role, Secret
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel
from precad.common.identity.signatures import CertificateSigner, CertificateVerifier
from precad.common.task import Task
from precad.common.wire.serving import SERVER_OPTIONS

ONE, TWO = ClientId("ward-1"), ClientId("ward-2")
A, B = Role.SERVER_A, Role.SERVER_B
DEADLINE_S = 120.0


class Deployed:
    """Servers A and B on one event loop, without a training: rounds are opened by the test."""

    def __init__(
        self,
        folder: Path,
        task: Task,
        identities: dict[Role, Identity],
        owners: dict[ClientId, Identity],
        *,
        limits: Limits | None = None,
        admissions: dict[Role, Admission] | None = None,
    ) -> None:
        self.folder = folder
        self.task = task
        self.owners = owners
        self.sessions: dict[Role, Session] = {}
        self.services: dict[Role, AggregationService] = {}
        self.addresses: dict[Role, str] = {}
        self._thread = LoopThread()
        self.loop = self._thread.loop
        for role, identity in identities.items():
            admission = (admissions or {}).get(role, Admission())
            make = partial(self._make, role, identity, limits, admission)
            self.addresses[role] = self._thread.serve(make, identity)

    def on_loop(self, work: Any) -> None:
        self._thread.run(work)

    def _make(
        self, role: Role, identity: Identity, limits: Limits | None, admission: Admission
    ) -> grpc.aio.Server:
        state = self.folder / role.value
        state.mkdir(exist_ok=True)
        store = open_store(f"sqlite:///{state / 'state.db'}", self.task, role)
        session = Session(
            role=role,
            task=self.task,
            identity=identity,
            store=store,
            signer=CertificateSigner(identity),
            verifier=CertificateVerifier(identity),
            coin_key=CoinKey(Secret.random()),
            inbox=Inbox(role, self.task, CertificateVerifier(identity), state / "spool"),
            register=Register(self.task, store, admission),
            connected_clients=ConnectedClients(1.0),
            model_store=ModelStore(self.task, state / "model.safetensors"),
            event_log=EventLog(asyncio.get_running_loop()),
        )
        server = grpc.aio.server(options=SERVER_OPTIONS)
        self.services[role] = AggregationService(session, limits)
        self.services[role].add_to(server)
        self.sessions[role] = session
        return server

    def close(self) -> None:
        self._thread.stop()
        for session in self.sessions.values():
            session.store.close()

    def open_round(self, number: int = 0) -> None:
        for session in self.sessions.values():
            model = session.model_store.current.digest
            session.inbox.open(Opened(number, 0, (ONE, TWO), model, frozenset()))

    def connect(self, client: ClientId, clock: Clock = CLOCK) -> Servers:
        addresses, identity = (self.addresses[A], self.addresses[B]), self.owners[client]
        patience: dict[str, Any] = {"patience_s": DEADLINE_S, "clock": clock}
        servers = Servers(self.task, client, *addresses, identity, **patience)
        # A server ends a handshake that a busy machine draws out, and the channel tries again.
        for channel in servers._channels.values():
            grpc.channel_ready_future(channel).result(timeout=DEADLINE_S)
        return servers

    def channel(self, role: Role, owner: ClientId = ONE) -> grpc.Channel:
        """An owner's, for what its SDK wouldn't send."""
        return open_channel(self.addresses[role], self.owners[owner], role)

    def pair(self, servers: Servers) -> Pair:
        x = np.arange(self.task.dimension, dtype=np.int64)
        model = self.sessions[A].model_store.current.digest
        return servers.prepare(0, 0, model, x, servers.stated_for_proof(0))

    def outcome(self) -> dict[ClientId, Rejection | str]:
        model = self.sessions[A].model_store.current.digest
        opened = Opened(0, 0, (ONE, TWO), model, frozenset((ONE, TWO)))
        collected = {role: session.inbox.close() for role, session in self.sessions.items()}
        of_a, of_b = (
            match(opened, own, collected[own], describe(collected[other]))
            for own, other in ((A, B), (B, A))
        )
        assert of_a.rejections == of_b.rejections
        assert list(of_a.submissions) == list(of_b.submissions)
        return {**of_a.rejections, **dict.fromkeys(of_a.submissions, "counted")}

    def spooled(self) -> list[Path]:
        return list((self.folder / B.value / "spool").iterdir())


Deploy = Callable[..., Deployed]


@pytest.fixture(scope="module")
def identities(keys: Path) -> dict[ClientId, Identity]:
    return {client: Identity.load(keys / client.name) for client in (ONE, TWO)}


@pytest.fixture
def deploy(
    keys: Path, identities: dict[ClientId, Identity], tmp_path: Path, make_task: Any
) -> Iterator[Deploy]:
    started = []

    def start(*, changes: dict[str, Any] | None = None, **kw: Any) -> Any:
        parties = {role: Identity.load(keys / role.value) for role in (A, B)}
        deployed = Deployed(tmp_path, make_task(8, changes), parties, identities, **kw)
        started.append(deployed)
        return deployed

    yield start
    for deployed in started:
        deployed.close()


@pytest.fixture
def deployed(deploy: Deploy) -> Deployed:
    made: Deployed = deploy()
    return made


def reasons(receipts: tuple[Receipt, Receipt]) -> list[Rejection | None]:
    return [receipt.rejection for receipt in receipts]


def notice_of(session: Session) -> Any:
    return RoundOpened(
        Opened(0, 0, (ONE,), session.model_store.current.digest, frozenset((ONE,))), 1.0
    )
