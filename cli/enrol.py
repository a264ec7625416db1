"""`precad enrol`: the operator lets clients in, one token each."""

from pathlib import Path
from typing import Annotated, TypeAlias

import click

from precad.cli.options import REQUIRED, AsJson, digest_of, print_json, with_options
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId, Digest


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


States: TypeAlias = Annotated[
    tuple[Path, ...], "A server's state folder; may be repeated.", "--state", REQUIRED
]


@enrol.command()
@with_options
def token(
    *,
    state: States,
    count: Annotated[int, "How many.", click.IntRange(min=1, max=10_000)] = 1,
    digest: Annotated[
        tuple[Digest, ...], "Accept the token of this digest, made elsewhere.", digest_of
    ],
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
    for folder in state:
        book = ByToken(folder)
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
        listing = {
            folder: [{"digest": digest, "client": client} for digest, client in found.items()]
            for folder, found in tokens.items()
        }
        print_json(listing)
        return
    for folder, found in tokens.items():
        for digest, client in found.items():
            click.echo(f"{folder} {digest} {client or 'unused'}")
