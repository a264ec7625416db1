"""Which tasks and parts may be watched: an audit's own, on this machine."""

from precad.common.errors import Misconfiguration
from precad.common.task import Task

NAME = "audit"
"""Of every task that is made for an audit; no other one is watched."""
_HERE = ("127.0.0.1", "localhost", "[::1]")


def require_own(task: Task, *addresses: str) -> None:
    """Refuse to watch a training that isn't an audit's own.

    Raises:
        Misconfiguration: the task has another name, or a part is on another machine.
    """
    if task.name != NAME:
        raise Misconfiguration(
            "task.name", task.name, f"what watches an audit runs {NAME!r} alone: use `precad serve`"
        )
    for address in addresses:
        if address.rpartition(":")[0] not in _HERE:
            raise Misconfiguration(
                "address", address, "an audit's parts are on this machine: 127.0.0.1"
            )
