"""`precad status`: ask a server where its training stands."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from precad.cli.operate import own_address
from precad.cli.options import PATH
from precad.cli.watch import Ask
from precad.cli.watch import watch as follow
from precad.common.errors import Misconfiguration, PeerUnavailable
from precad.common.identifiers import Role
from precad.common.terminal.text import Table

if TYPE_CHECKING:
    from precad.common.identity.credentials import Identity
    from precad.common.wire.operator_connection import OperatorConnection, ServerStatus

TIMEOUT_S = 10.0


@click.command()
@click.argument("address", required=False, help="The server, as host:port.")
@click.option(
    "--config", "-c", type=PATH, help="In its place the server's settings file: all its tasks."
)
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
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def status(
    address: str | None,
    config: Path | None,
    server: str,
    identity: Path,
    watch: bool,
    every: float,
    as_json: bool,
) -> None:
    """Ask a server where its training stands: for operators.

    Phase, rounds done, the model's digest, who took part how often, what was rejected and why:

        precad status a.example:7301 --identity keys/operator

    With --watch the screen follows the training, through a server's absence too, and ends with it;
    into a file or a pipe it writes a line for each change.

    On the server's own machine --config lists the tasks of its settings file, a line each; with
    --watch it follows all of them, until the last is over:

        precad status --config settings.toml --identity keys/operator
    """
    from precad.common.identity.credentials import Identity  # noqa: PLC0415

    if server not in ("a", "b"):
        raise Misconfiguration("--server", server, "use a or b")
    if watch and as_json:
        raise Misconfiguration("--watch", "with --json", "choose one of them")
    if (address is None) == (config is None):
        raise click.UsageError("Give ADDRESS, or --config for all tasks of a server's settings.")
    operator = Identity.load(identity)
    if config is not None:
        places = _places(config)
    else:
        assert address is not None
        places = {"": (address, Role.SERVER_A if server == "a" else Role.SERVER_B)}
    with _questions(places, operator) as asks:
        if watch:
            follow(sys.stdout, asks, every)
        elif config is not None:
            _list(asks, as_json=as_json)
        else:
            facts = asks[""]()
            if as_json:
                click.echo(json.dumps(facts))
            else:
                _table(facts).show(sys.stdout)


def _places(config: Path) -> dict[str, tuple[str, Role]]:
    """Where this machine reaches each task of a server's settings file, by the task's name."""
    from precad.common.process_settings import values_by_task  # noqa: PLC0415

    found = {}
    for name, values in values_by_task(config).items():
        listen = values.get("listen")
        if not isinstance(listen, str) or "dealer" not in values:
            raise Misconfiguration("config", str(config), "needs listen and dealer, as a server's")
        role = Role.SERVER_A if "server_b" in values else Role.SERVER_B
        found[name] = own_address(listen), role
    return found


@contextmanager
def _questions(
    places: dict[str, tuple[str, Role]], identity: "Identity"
) -> Iterator[dict[str, Ask]]:
    """How each is asked. Connections end with the block, and questions that are under way."""
    from precad.common.wire.operator_connection import OperatorConnection  # noqa: PLC0415

    with ExitStack() as closing:
        asks: dict[str, Ask] = {}
        for name, (address, role) in places.items():
            connection = OperatorConnection(address, role, identity)
            closing.callback(connection.close)
            asks[name] = partial(_ask, connection)
        yield asks


def _ask(connection: "OperatorConnection") -> dict[str, Any]:
    return facts_of(connection.status(timeout_s=TIMEOUT_S))


def _list(asks: dict[str, Ask], *, as_json: bool) -> None:
    """A line for each task of a server's settings file; one that doesn't answer says why."""
    found: dict[str, dict[str, Any]] = {}
    for name, ask in asks.items():
        try:
            found[name] = ask()
        except PeerUnavailable as error:
            found[name] = {"phase": "no answer", "error": str(error)}
    if as_json:
        click.echo(json.dumps(found))
        return
    table = Table("table", "task", "phase", ">round", ">of", ">owners", "")
    for name, facts in found.items():
        shown = (facts.get(key, "–") for key in ("task", "phase", "version", "rounds", "enrolled"))
        table.add(name or "–", *map(str, shown), facts["error"])
    table.show(sys.stdout)


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
