"""Servers A, B and the dealer with mutual TLS, on an event loop in a thread of this
process."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.rig.loop import LoopThread
from tests.rig.task_files import task_to_toml

from precad.aggregator import server_process
from precad.aggregator.rpc import peer_transport
from precad.aggregator.rpc.limits import IDLE_S
from precad.aggregator.settings import ServerSettings
from precad.aggregator.training.session import Session
from precad.common.identifiers import Role
from precad.common.identity import credentials, deployment_keys
from precad.common.task import Task
from precad.common.wire.guarded_port import CallRate, GuardedPort
from precad.common.wire.serving import add_health
from precad.dealer.dealer_role import DealerRole
from precad.dealer.dealing_service import DealingService

NOWHERE = "127.0.0.1:1"


def session_of(
    role: Role, folder: Path, keys: Path, dealer: str | None = NOWHERE
) -> Session:
    """As its process opens it; nobody dials the addresses of its settings here."""
    settings = ServerSettings(
        task=folder / "task.toml",
        identity=keys / role.value,
        listen=NOWHERE,
        dealer=dealer,
        state=folder / role.value,
    )
    return server_process.open_session(role, settings)


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    address: str
    port: GuardedPort
    opened: Session | None  # None: the dealer's

    @property
    def session(self) -> Session:
        assert self.opened is not None
        return self.opened


@dataclass(slots=True)
class Site:
    folder: Path
    task: Task
    loop: LoopThread
    started: list[Running] = field(default_factory=list)

    def identity(self, name: str) -> credentials.Identity:
        return credentials.Identity.load(self.folder / "keys" / name)

    def start(
        self, role: Role, idle_s: float = IDLE_S, rate: CallRate | None = None
    ) -> Running:
        """Server A, server B or the dealer, as its process would start it."""
        self.started.append(self.loop.run(self._start(role, idle_s, rate)))
        return self.started[-1]

    def stop(self, running: Running) -> None:
        """As a process's end would; its state stays."""
        self.started.remove(running)
        self.loop.run(running.port.stop(0))
        if running.opened is not None:
            running.opened.store.close()

    async def _start(self, role: Role, idle_s: float, rate: CallRate | None) -> Running:
        session = None
        if role is Role.DEALER:
            identity = self.identity("dealer")
            port = GuardedPort("the dealer", identity, rate=rate)
            service = DealingService(self.task, DealerRole.of(self.task), identity)
            service.add_to(port.server)
            add_health(port.server, identity, lambda: True)
        else:
            session = session_of(role, self.folder, self.folder / "keys")
            port = server_process.make_port(session, idle_s, rate)
            if role is Role.SERVER_B:
                peer_transport.add_link_to_server(
                    server_process.PeerService(session).link, port.server
                )
        address = f"127.0.0.1:{await port.listen('127.0.0.1:0')}"
        return Running(address, port, session)


MakeSite = Callable[..., Site]


@pytest.fixture(scope="module")
def make_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeSite]:
    """``make_site(task, "ward-1", …)``: keys for these clients, and room for
    servers."""
    sites: list[Site] = []
    with LoopThread() as loop:

        def make(task: Task, *clients: str) -> Site:
            folder = tmp_path_factory.mktemp("site")
            (folder / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
            deployment_keys.create_local_keys(folder / "keys", clients)
            sites.append(Site(folder, task, loop))
            return sites[-1]

        yield make
        for site in sites:
            for running in list(site.started):
                site.stop(running)
