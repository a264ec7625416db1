"""Server B as a process."""

from contextlib import closing

import grpc

from precad.aggregator.rpc.peer_transport import add_link_to_server
from precad.aggregator.rpc.process import PeerService, peers_of, run_server
from precad.aggregator.settings import ServerBSettings
from precad.aggregator.training.session import Session
from precad.aggregator.workers.worker_pairs import ValidationWorkers
from precad.common.identifiers import Role
from precad.server_b.follow import follow

SETTINGS = ServerBSettings


async def serve(settings: ServerBSettings) -> int:
    """Run server B from its settings until its training is over. Returns the exit status."""
    services: list[PeerService] = []

    def add_peer_service(server: grpc.aio.Server, session: Session) -> None:
        services.append(PeerService(session))
        add_link_to_server(services[0].link, server)

    def training_loop(session: Session) -> None:
        with closing(ValidationWorkers(session, settings)) as workers:
            follow(session, peers_of(session, settings.dealer, services[0].reach, workers))

    return await run_server(Role.SERVER_B, settings, training_loop, add_peer_service)
