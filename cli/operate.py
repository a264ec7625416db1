"""`precad serve`, `health`, `allow`, `backup` and `enrol`: what those who run a server ask for."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import click

from precad.cli import start
from precad.cli.main import ARGUMENT, REQUIRED, AsJson, digest_of, print_json, with_options
from precad.cli.status_command import AskedServer
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId, Digest


@click.command()
@with_options
def serve(
    part: Annotated[Literal["a", "b", "dealer"], "Which server.", ARGUMENT],
    config: Annotated[Path, "The settings file.", "--config", "-c"],
) -> None:
    """Run server A, server B or the dealer from its settings file (TOML).

    a: the leader, selects the cohort, drives rounds, serves the model. b: the helper, holds the
    second share, adds its own noise, checks what A proposes. dealer: correlated randomness for the
    two; sees no client data. A task whose owners prove their norms has none.

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
    about = f"{word} for version {version}, up to attempt {until}"
    click.echo(f"server-{at.server} has the word: {about}")


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
    from precad.cli.ledger_command import end_with  # noqa: PLC0415

    end_with(back_up(state, copy))


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
        remedy = "needs listen and identity, as those of a server and a dealer"
        raise Misconfiguration("config", str(config), remedy)
    host, _, port = listen.rpartition(":")
    own = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104
    identity = Identity.load(config.resolve().parent / folder)
    role = identity.principal.role
    serves = is_serving(f"{own}:{port}", role, identity, timeout_s=wait)
    click.echo(f"{role.value}: {'serving' if serves else 'not serving'}")
    sys.exit(0 if serves else 1)


@click.group()
def enrol() -> None:
    """Who may enrol in a task.

    A server's settings say which way it is:

    \b
        enrolment = "open"                 any client with a certificate (the default)
        enrolment = "roster"               those in the file that `roster` names,
        roster = "roster.toml"             with just these records and rates
        enrolment = "token"                who brings a token made here

    The roster, the same at both servers, has one table a client:

    \b
        [[clients]]
        client = "ward-3"
        records = 120
        record_rate = 0.2

    Always within the task's caps, and never once round 0 has begun.
    """  # noqa: D301 -- click reads the control character


States = Annotated[tuple[Path, ...], "A server's state folder; may be repeated.", REQUIRED]


@enrol.command()
@with_options
def token(
    *,
    state: States,
    count: Annotated[int, "How many.", click.IntRange(min=1, max=10_000)] = 1,
    digest: Annotated[tuple[Digest, ...], "Accept this digest's token, made elsewhere.", digest_of],
    client: Annotated[
        tuple[str, ...],
        "Whom a token is for; may be repeated. Nobody else can use it, and status says who is "
        "missing.",
    ],
    as_json: AsJson,
) -> None:
    """Make one-time tokens that these servers accept; each is its client's, or its first user's.

    A client needs one token for both servers. Where A and B have operators of their own, one
    makes the token and tells the other its digest, which is no secret and no token:

        precad enrol token --state state-a --client ward-3                  (A's operator)
        precad enrol token --state state-b --client ward-3 --digest 5d0c…   (B's operator)

    Each line on stdout is a token and, after the word digest, its digest.

    Servers keep digests only: a token is shown once, here. Give it to one client, over a channel
    that nobody else reads; it goes into the client's settings as `token = "…"`. Run this as the
    server's user; a running server takes new tokens at once.
    """
    from precad.aggregator.enrol.admission import ByToken, new_token, token_digest  # noqa: PLC0415

    if (digest or client) and count > 1:
        raise Misconfiguration("count", count, "leave it out beside --digest or --client")
    if digest and len(client) not in (0, len(digest)):
        raise Misconfiguration("client", len(client), "give one for each --digest, in its order")
    named: list[ClientId | None] = [ClientId(name) for name in client]
    made = [] if digest else [new_token() for _ in range(len(named) or count)]
    digests = [*digest] or [token_digest(each) for each in made]
    for book in map(ByToken, state):
        for accepted, whose in zip(digests, named or [None] * len(digests), strict=True):
            book.add(accepted, whose)
    if as_json:
        print_json({"tokens": made, "digests": [str(each) for each in digests]})
        return
    for number, accepted in enumerate(digests):
        click.echo(f"{made[number]} digest {accepted}" if made else f"digest {accepted}")


@enrol.command()
@with_options
def show(state: States, as_json: AsJson) -> None:
    """A server's tokens, by digest, and whose they became."""
    from precad.aggregator.enrol.admission import ByToken  # noqa: PLC0415

    tokens = {str(folder): ByToken(folder).owners() for folder in state}
    if as_json:
        pairs = {folder: found.items() for folder, found in tokens.items()}
        print_json({f: [{"digest": d, "client": c} for d, c in each] for f, each in pairs.items()})
        return
    for folder, found in tokens.items():
        for digest, client in found.items():
            click.echo(f"{folder} {digest} {client or 'unused'}")
