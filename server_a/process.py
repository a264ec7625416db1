"""Server A as a process."""

from contextlib import closing
from functools import partial

from precad.aggregator.rpc.peer_transport import dial
from precad.aggregator.rpc.process import peers_of, run_server
from precad.aggregator.settings import ServerASettings
from precad.aggregator.training.session import Session
from precad.aggregator.workers.worker_pairs import ValidationWorkers
from precad.common.identifiers import Role
from precad.server_a.lead import lead

SETTINGS = ServerASettings


async def serve(settings: ServerASettings) -> int:
    """Run server A from its settings until its training is over. Returns the exit status."""

    def training_loop(session: Session) -> None:
        with closing(ValidationWorkers(session, settings, settings.server_b)) as workers:
            patience_s = session.task.deadlines.peer
            other_server = partial(dial, settings.server_b, session.identity, patience_s)
            lead(session, peers_of(session, settings.dealer, other_server, workers))

    return await run_server(Role.SERVER_A, settings, training_loop)
