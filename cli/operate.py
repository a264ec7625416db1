"""`precad serve`, `health`, `allow` and `backup`: what those who run a server ask for."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import click

from precad.cli import start
from precad.cli.options import ARGUMENT, AskedServer, with_options
from precad.common.errors import Misconfiguration


@click.command()
@with_options
def serve(
    part: Annotated[Literal["a", "b", "dealer"], "Which server.", ARGUMENT],
    config: Annotated[Path, "The settings file.", "--config", "-c"],
) -> None:
    """Run server A, server B or the dealer from its settings file (TOML).

    a: the leader, selects the cohort, drives rounds, serves the model. b: the
    helper, holds the second share, adds its own noise, checks what A proposes.
    dealer: correlated randomness for the two; sees no client data. A task whose
    owners prove their norms has none.

    Start the dealer, if any, then B, then A; each waits for the others within the task's deadlines.
    A settings file for A:

    \b
        task = "task.toml"
        listen = "0.0.0.0:7301"
        server_b = "server-b.example:7302"
        dealer = "dealer.example:7303"      # not where norms are proved
        state = "state-a"
        identity = "keys/server-a"

    B's has no server_b, the dealer's only task, listen and identity. Each task has a settings
    file and a process of its own (docs/several-tasks.md).
    """  # noqa: D301 -- click reads the control character
    sys.exit(start.serve(part, config))


@click.command()
@with_options
def allow(
    word: Annotated[str, "attempts, write-off, claimed or coin.", ARGUMENT],
    at: AskedServer,
    version: Annotated[int, "The version that waits, as its status says."],
) -> None:
    """Let a training go on that waits for the operators of both servers.

    `precad status` says what it waits for. The operators of the other server say the same to
    theirs; before both have, nothing happens.

    attempts: go on trying a version of which many attempts failed, or of which a release may have
    left already: releasing it again costs every drawn owner privacy, and the ledgers count it.

    write-off: give an attempt up that the other server has lost. Its charge stands.

    claimed: charge attempts that one server alone has heard of, three more with each word.

    coin: take new coins for the version, because a server has lost its coin key.

    \b
        precad allow attempts a.example:7301 --version 7 --identity keys/operator
    """  # noqa: D301 -- click reads the control character
    with at.connection() as connection:
        until = connection.allow(word, version)
    click.echo(
        f"server-{at.server} has the word: {word} for version {version}, up to attempt {until}"
    )


@click.command()
@with_options
def backup(
    state: Annotated[Path, "The server's state folder.", ARGUMENT],
    copy: Annotated[Path, "The folder to make; it must not exist.", ARGUMENT],
) -> None:
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
@with_options
def health(
    config: Annotated[Path, "The part's settings file.", "--config", "-c"],
    wait: Annotated[float, "Seconds that it may take to answer.", click.FloatRange(min=0.1)] = 5.0,
) -> None:
    """Ask the server or dealer of this machine whether it serves: 0 if so, else 1.

    By gRPC's health protocol, at the port of its own settings and with its own certificate; for
    containers, systemd and Kubernetes, which then start it again.

        precad health --config settings.toml
    """
    from precad.common.checks import read_toml  # noqa: PLC0415
    from precad.common.identity.credentials import Identity  # noqa: PLC0415
    from precad.common.wire.calls import is_serving  # noqa: PLC0415

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
