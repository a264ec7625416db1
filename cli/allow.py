"""`precad allow`: the operators' word on what only both servers' operators can decide."""

from pathlib import Path
from typing import Annotated

import typer

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role


def allow(
    word: Annotated[str, typer.Argument(help="attempts, write-off or coin.")],
    address: Annotated[str, typer.Argument(help="The server, as host:port.")],
    server: Annotated[str, typer.Option(help="Which one it must be: a or b.")] = "a",
    *,
    version: Annotated[int, typer.Option(help="The version that waits, as its status says.")],
    identity: Annotated[
        Path, typer.Option(help="The operator's folder, as `precad keys` writes it.")
    ],
) -> None:
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
    typer.echo(f"{role.value} has the word: {word} for version {version}, up to attempt {until}")
