"""Server A as a process."""

from precad.common.aggregator.service.process import run_server
from precad.common.aggregator.service.settings import ServerASettings
from precad.common.identifiers import Role
from precad.server_a.lead import lead


async def serve(settings: ServerASettings) -> int:
    """Run server A until its training is over. Returns the exit status."""
    return await run_server(Role.SERVER_A, settings, lead)
