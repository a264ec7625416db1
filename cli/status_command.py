"""`precad status`: ask a server where its training stands."""

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from precad.cli.options import PATH, json_option, print_json
from precad.cli.watch import watch as follow
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.terminal import Table

if TYPE_CHECKING:
    from precad.common.wire.operator_connection import ServerStatus

TIMEOUT_S = 10.0


@click.command()
@click.argument("address", help="The server, as host:port.")
@click.option("--server", default="a", help="Which one it must be: a or b.")
@click.option(
    "--identity",
    type=PATH,
    required=True,
    help="The operator's folder, as `precad keys` writes it.",
)
@click.option("--watch", "-w", is_flag=True, help="A live screen, until the training is over.")
@click.option(
    "--every", type=click.FloatRange(min=0.2), default=2.0, help="Seconds between two looks."
)
@json_option
def status(
    address: str, server: str, identity: Path, watch: bool, every: float, as_json: bool
) -> None:
    """Ask a server where its training stands: for operators.

    Phase, rounds done, the model's digest, who took part how often, what was rejected and why:

        precad status a.example:7301 --identity keys/operator

    With --watch the screen follows the training, through a server's absence too, and ends with it;
    into a file or a pipe it writes a line for each change.
    """
    from precad.common.identity.credentials import Identity  # noqa: PLC0415
    from precad.common.wire.operator_connection import OperatorConnection  # noqa: PLC0415

    if server not in ("a", "b"):
        raise Misconfiguration("--server", server, "use a or b")
    if watch and as_json:
        raise Misconfiguration("--watch", "with --json", "choose one of them")
    role = Role.SERVER_A if server == "a" else Role.SERVER_B
    with closing(OperatorConnection(address, role, Identity.load(identity))) as connection:

        def ask() -> dict[str, Any]:
            return facts_of(connection.status(timeout_s=TIMEOUT_S))

        if watch:
            follow(sys.stdout, ask, every)
        elif as_json:
            print_json(ask())
        else:
            _table(ask()).show(sys.stdout)


def facts_of(reply: "ServerStatus") -> dict[str, Any]:
    """What the server says, as plain values."""
    return {
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
        "most_owners": reply.most_owners,
        "least_owners": reply.least_owners,
        "enrolment_left_s": round(reply.enrolment_left_s),
        "missing": list(reply.missing),
        "unused_tokens": reply.unused_tokens,
        "twice": dict(reply.twice),
    }


def _table(facts: dict[str, Any]) -> Table:
    table = Table("", "")
    for name, value in facts.items():
        shown = value
        if isinstance(value, dict):
            shown = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            shown = ", ".join(value)
        table.add(name.replace("_", " "), str(shown) or "–")
    return table
