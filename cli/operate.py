"""`precad allow`, `backup` and `health`: what a server's operators ask for."""

import sys
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
    from precad.common.wire.operator_connection import OperatorConnection  # noqa: PLC0415

    if server not in ("a", "b"):
        raise Misconfiguration("--server", server, "use a or b")
    role = Role.SERVER_A if server == "a" else Role.SERVER_B
    connection = OperatorConnection(address, role, Identity.load(identity))
    try:
        until = connection.allow(word, version)
    finally:
        connection.close()
    click.echo(f"{role.value} has the word: {word} for version {version}, up to attempt {until}")


@click.command()
@click.argument("state", type=PATH, help="The server's state folder.")
@click.argument("copy", type=PATH, help="The folder to make; it must not exist.")
def backup(state: Path, copy: Path) -> None:
    """Copy a server's state, while it runs, and look whether the copy is sound.

    Database, model, its seal and enrolment tokens, as of one moment. Never the journal file: put
    back, it would forget what left. docs/runbooks/backup.md says how a copy is put back.

        precad backup server-a/state backup/server-a-monday
    """
    from precad.aggregator.store.backup import back_up  # noqa: PLC0415

    audit = back_up(state, copy)
    for finding in audit.findings:
        click.echo(f"{finding.where}: {finding.what}")
    said = "BROKEN" if audit.findings else "sound"
    click.echo(f"{said}: {audit.entries} entries, head {audit.head}")
    if audit.findings:
        sys.exit(1)


@click.command()
@click.option("--config", "-c", type=PATH, required=True, help="The part's settings file.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0.1),
    default=5.0,
    help="Seconds that it may take to answer.",
)
def health(config: Path, wait: float) -> None:
    """Ask the server or dealer of this machine whether it serves: 0 if so, else 1.

    By gRPC's health protocol, at the port of its own settings and with its own certificate; for
    containers, systemd and Kubernetes, which then start it again.

        precad health --config settings.toml
    """
    from precad.common.checks import read_toml  # noqa: PLC0415
    from precad.common.identity.credentials import Identity  # noqa: PLC0415
    from precad.common.wire.health_check import is_serving  # noqa: PLC0415

    settings = read_toml("config", config)
    listen, folder = settings.get("listen"), settings.get("identity")
    if not isinstance(listen, str) or not isinstance(folder, str):
        raise Misconfiguration(
            "config", str(config), "needs listen and identity, as those of a server and a dealer"
        )
    host, _, port = listen.rpartition(":")
    own = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104
    identity = Identity.load(config.resolve().parent / folder)
    role = identity.principal.role
    serves = is_serving(f"{own}:{port}", role, identity, timeout_s=wait)
    click.echo(f"{role.value}: {'serving' if serves else 'not serving'}")
    sys.exit(0 if serves else 1)
