"""`precad status`: ask a server where its training stands."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role


def status(
    address: Annotated[str, typer.Argument(help="The server, as host:port.")],
    server: Annotated[str, typer.Option(help="Which one it must be: a or b.")] = "a",
    *,
    identity: Annotated[
        Path, typer.Option(help="The operator's folder, as `precad keys` writes it.")
    ],
    json_output: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Ask a server where its training stands: for operators.

    Phase, rounds done, the model's digest, who took part how often, what was rejected and why:

        precad status a.example:7301 --identity keys/operator
    """
    from precad.common.identity.credentials import Identity  # noqa: PLC0415
    from precad.common.wire.operator import OperatorConnection  # noqa: PLC0415

    if server not in ("a", "b"):
        raise Misconfiguration("--server", server, "use a or b")
    role = Role.SERVER_A if server == "a" else Role.SERVER_B
    connection = OperatorConnection(address, role, Identity.load(identity))
    try:
        reply = connection.status(timeout_s=10)
    finally:
        connection.close()
    facts = {
        "role": reply.role,
        "task": reply.task_name,
        "task_digest": reply.task_digest.hex(),
        "phase": reply.phase,
        "error": reply.error,
        "enrolled": reply.enrolled,
        "version": reply.version,
        "rounds": reply.rounds,
        "model_digest": reply.model_digest.hex(),
        "rejected": dict(reply.rejected),
        "participations": dict(reply.participations),
        "bytes": dict(reply.bytes_by_link),
        "redrawn_coins": reply.redrawn_coins,
        "kernel": reply.kernel,
        "workers": reply.workers,
    }
    if json_output:
        print(json.dumps(facts))  # noqa: T201 -- the document that was asked for
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        shown = (
            ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        )
        table.add_row(name.replace("_", " "), str(shown) or "–")
    Console().print(table, highlight=False)
