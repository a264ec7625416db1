"""`precad allow`: the operators' word on what only both servers' operators can decide."""

from pathlib import Path

import click

from precad.cli.options import PATH
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role


@click.command()
@click.argument("word", help="attempts, write-off or coin.")
@click.argument("address", help="The server, as host:port.")
@click.option("--server", default="a", help="Which one it must be: a or b.")
@click.option(
    "--version", type=int, required=True, help="The version that waits, as its status says."
)
@click.option(
    "--identity",
    type=PATH,
    required=True,
    help="The operator's folder, as `precad keys` writes it.",
)
def allow(word: str, address: str, server: str, version: int, identity: Path) -> None:
    """Let a training go on that waits for the operators of both servers.

    `precad status` says what it waits for. The operators of the other server say the same to
    theirs; before both have, nothing happens.

    attempts: go on trying a version of which many attempts failed, or of which a release may have
    left already: releasing it again costs every drawn owner privacy, and the ledgers count it.

    write-off: give an attempt up that the other server has lost. Its charge stands.

    coin: take new coins for the version, because a server has lost its coin key.

        precad allow attempts a.example:7301 --version 7 --identity keys/operator
    """
    from precad.common.identity.credentials import Identity  # noqa: PLC0415
    from precad.common.wire.operator import OperatorConnection  # noqa: PLC0415

    if server not in ("a", "b"):
        raise Misconfiguration("--server", server, "use a or b")
    role = Role.SERVER_A if server == "a" else Role.SERVER_B
    connection = OperatorConnection(address, role, Identity.load(identity))
    try:
        until = connection.allow(word, version)
    finally:
        connection.close()
    click.echo(f"{role.value} has the word: {word} for version {version}, up to attempt {until}")
