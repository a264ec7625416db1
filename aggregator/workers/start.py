"""What a worker is told when it is started; nothing of it is secret."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from precad.common.process_settings import Address


class WorkerStart(BaseModel):
    """Where a worker finds what its server has on the disk, and whom it calls."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["server-a", "server-b"]
    """Whose worker it is."""
    task: Path
    identity: Path
    """The server's own: on this machine, or the same folder on the worker's."""
    dealer: Address
    listen: Address
