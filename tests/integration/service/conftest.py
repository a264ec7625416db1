"""Both servers behind real gRPC with mutual TLS, and no training: tests open the rounds."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from tests.conftest import small_task
from tests.integration.hostile.conftest import session_of
from tests.rig.loop import LoopThread
from tests.rig.waiting import DEADLINE_S

from precad.aggregator.collect.matching import describe, match
from precad.aggregator.rounds.states import Opened
from precad.aggregator.rpc.aggregation_service import AggregationService
from precad.aggregator.rpc.limits import Limits
from precad.aggregator.training.session import RoundOpened, Session
from precad.cli.local_deployment import task_to_toml
from precad.client.connection import Receipt, Servers
from precad.client.pending_update import Pair
from precad.common.clock import CLOCK, Clock
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel
from precad.common.task import Task
from precad.common.wire.serving import SERVER_OPTIONS
from precad.protos.precad_pb2_grpc import AggregationStub

ONE, TWO = ClientId("ward-1"), ClientId("ward-2")
A, B = Role.SERVER_A, Role.SERVER_B


class Deployed:
    """Servers A and B on one event loop."""

    def __init__(self, folder: Path, keys: Path, task: Task, limits: Limits | None) -> None:
        self.folder, self.task = folder, task
        self.owners = {client: Identity.load(keys / client.name) for client in (ONE, TWO)}
        self.sessions: dict[Role, Session] = {}
        self.services: dict[Role, AggregationService] = {}
        (folder / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
        self.loop = LoopThread()

        def make(role: Role) -> grpc.aio.Server:
            self.sessions[role] = session_of(role, folder, keys)
            self.services[role] = AggregationService(self.sessions[role], limits)
            server = grpc.aio.server(options=SERVER_OPTIONS)
            self.services[role].add_to(server)
            return server

        self.addresses = {
            role: self.loop.serve(partial(make, role), Identity.load(keys / role.value))
            for role in (A, B)
        }

    def close(self) -> None:
        self.loop.stop()
        for session in self.sessions.values():
            session.store.close()

    def opened(self, *counted: ClientId, cohort: Any = (ONE, TWO)) -> Opened:
        model = self.sessions[A].model_store.current.digest
        return Opened(0, 0, cohort, model, frozenset(counted))

    def open_round(self) -> None:
        for session in self.sessions.values():
            session.inbox.open(self.opened())

    def announce(self) -> None:
        """Server A tells of an attempt of the first client alone."""
        opened = RoundOpened(self.opened(ONE, cohort=(ONE,)), 1.0)
        self.sessions[A].event_log.publish(opened)

    def connect(self, client: ClientId, clock: Clock = CLOCK) -> Servers:
        addresses, identity = (self.addresses[A], self.addresses[B]), self.owners[client]
        patience: dict[str, Any] = {"patience_s": DEADLINE_S, "clock": clock}
        servers = Servers(self.task, client, *addresses, identity, **patience)
        # A server ends a handshake that a busy machine draws out, and the channel tries again.
        for channel in servers._channels.values():
            grpc.channel_ready_future(channel).result(timeout=DEADLINE_S)
        return servers

    @contextmanager
    def stub(self, role: Role, owner: ClientId = ONE) -> Iterator[AggregationStub]:
        """An owner's, for what its SDK wouldn't send."""
        with open_channel(self.addresses[role], self.owners[owner], role) as channel:
            yield AggregationStub(channel)

    def pair(self, servers: Servers, attempt: int = 0) -> Pair:
        x, stated = np.arange(self.task.dimension), servers.stated_for_proof(0)
        return servers.prepare(0, attempt, self.opened().model, x, stated)

    def outcome(self) -> dict[ClientId, Rejection | str]:
        opened = self.opened(ONE, TWO)
        collected = {role: session.inbox.close() for role, session in self.sessions.items()}
        of_a, of_b = (
            match(opened, own, collected[own], describe(collected[other]))
            for own, other in ((A, B), (B, A))
        )
        assert of_a.rejections == of_b.rejections
        assert list(of_a.submissions) == list(of_b.submissions)
        return {**of_a.rejections, **dict.fromkeys(of_a.submissions, "counted")}


Deploy = Callable[..., Deployed]


@pytest.fixture
def deploy(keys: Path, tmp_path: Path) -> Iterator[Deploy]:
    """``deploy({"deadlines.collect": 0.6})``: servers of a small task, until the test ends."""
    with ExitStack() as stack:

        def start(changes: Any = None, own: Path = keys, limits: Limits | None = None) -> Deployed:
            task = small_task(8, {"deadlines.rejoin": 1.0, **(changes or {})})
            deployed = Deployed(tmp_path, own, task, limits)
            stack.callback(deployed.close)
            return deployed

        yield start


@pytest.fixture
def deployed(deploy: Deploy) -> Deployed:
    """Servers in a round, attempt 0."""
    made = deploy()
    made.open_round()
    return made


def reasons(receipts: tuple[Receipt, Receipt]) -> list[Rejection | None]:
    return [receipt.rejection for receipt in receipts]
