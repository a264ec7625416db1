"""Server A as a process."""

from pathlib import Path

from precad.common.aggregator.service.peers import dialling, outside_of
from precad.common.aggregator.service.process import run_server
from precad.common.aggregator.settings import ServerASettings
from precad.common.aggregator.training.session import Session
from precad.common.identifiers import Role
from precad.server_a.lead import lead


async def serve(config: Path) -> int:
    """Run server A from its settings until its training is over. Returns the exit status."""
    settings = ServerASettings.load(config)

    def conduct(session: Session) -> None:
        outside = outside_of(session, settings.dealer, dialling(session, settings.server_b))
        lead(session, outside)

    return await run_server(Role.SERVER_A, settings, conduct)
