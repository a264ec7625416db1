"""`precad keys`: who is who, in files."""

import json
from pathlib import Path
from typing import Annotated

import typer

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.identity.accept import accept as take
from precad.common.identity.deployment import (
    AUTHORITY_FOLDER,
    Deployment,
    create_local_keys,
    create_request,
)
from precad.common.identity.pki import PARTY_DAYS
from precad.common.identity.principal import Principal
from precad.common.identity.summary import request_summary, summarise

app = typer.Typer(
    help="""Make, renew, revoke and show the keys and certificates of a deployment.

    One command makes all that a local deployment needs; each party then gets its own folder:

        precad keys init keys --clients 10

    A client that makes its own key, so that nobody else ever holds it:

        precad keys request ward-3 client ward-3            (the client)
        precad keys issue keys client ward-3 --request ward-3/request.pem   (the operator)

    With an authority of your own, send it the request: docs/identity.md says what it must put in.
    """,
    no_args_is_help=True,
)

Directory = Annotated[Path, typer.Argument(help="The deployment's directory.", show_default=False)]
Party = Annotated[Role, typer.Argument(help="The party's role.", show_default=False)]
Name = Annotated[str, typer.Argument(help="The client's name; only clients have one.")]
Days = Annotated[int, typer.Option("--days", help="Until the certificate expires.", min=1)]
Out = Annotated[Path | None, typer.Option("--out", help="The party's folder.")]
Force = Annotated[bool, typer.Option("--force", help="Replace keys that are there.")]


@app.command()
def init(
    directory: Directory,
    clients: Annotated[
        int, typer.Option("--clients", min=0, help="How many clients: client-1, client-2, ….")
    ] = 0,
    client: Annotated[
        list[str] | None, typer.Option("--client", help="A client's name; may be repeated.")
    ] = None,
    root_only: Annotated[
        bool,
        typer.Option("--root-only", help="The root alone: every party makes a key of its own."),
    ] = False,
    days: Days = PARTY_DAYS,
    force: Force = False,
) -> None:
    """A root, both servers, the dealer, the operator and clients: all of a local deployment.

    Where parties are organisations of their own, no private key should travel: make the root
    alone, and a certificate for each party's request:

        precad keys init keys --root-only
        precad keys request server-a server-a                       (server A's organisation)
        precad keys issue keys server-a --request request.pem --out for-server-a
    """
    if root_only:
        if clients or client:
            raise Misconfiguration(
                "--root-only", "with clients", "leave clients out: each makes its own request"
            )
        typer.echo(Deployment.create(directory, replace=force).directory / AUTHORITY_FOLDER)
        return
    names = [*(f"client-{number}" for number in range(1, clients + 1)), *(client or ())]
    folders = create_local_keys(directory, names, days=days, replace=force)
    for folder in folders:
        typer.echo(folder)
    typer.echo(
        f"Keep {directory / 'ca'} to yourself: who holds its key can name anybody.", err=True
    )


@app.command()
def issue(
    directory: Directory,
    role: Party,
    name: Name = "",
    *,
    out: Out = None,
    request: Annotated[
        Path | None, typer.Option("--request", help="A signing request; the key stays away.")
    ] = None,
    days: Days = PARTY_DAYS,
    force: Force = False,
) -> None:
    """One more party: its key and certificate, or a certificate for its request."""
    principal = _principal(role, name)
    deployment = Deployment.open(directory)
    typer.echo(deployment.issue(principal, out=out, request=request, days=days, replace=force))


@app.command("request")
def make_request(
    folder: Annotated[Path, typer.Argument(help="The party's folder.", show_default=False)],
    role: Party,
    name: Name = "",
    force: Force = False,
) -> None:
    """A new key in the folder, and a signing request for it; only the request is sent away."""
    typer.echo(create_request(folder, _principal(role, name), replace=force))


@app.command()
def accept(
    folder: Annotated[Path, typer.Argument(help="The party's folder.", show_default=False)],
    offered: Annotated[
        Path, typer.Argument(help="What precad keys issue made.", show_default=False)
    ],
) -> None:
    """Put a certificate that came back beside its key; any but this key's is refused."""
    typer.echo(f"{take(folder, offered).principal}: complete")


@app.command()
def renew(
    directory: Directory,
    role: Party,
    name: Name = "",
    *,
    out: Out = None,
    days: Days = PARTY_DAYS,
    revoke_old: Annotated[
        bool, typer.Option("--revoke-old", help="Revoke the certificate that is replaced.")
    ] = False,
) -> None:
    """A new key and certificate for the same party, in place of those in its folder."""
    principal = _principal(role, name)
    deployment = Deployment.open(directory)
    typer.echo(deployment.renew(principal, out=out, days=days, revoke_old=revoke_old))


@app.command()
def revoke(
    directory: Directory,
    role: Annotated[Role | None, typer.Argument(help="The party's role.")] = None,
    name: Name = "",
    serial: Annotated[
        str | None, typer.Option("--serial", help="One certificate only, by its serial number.")
    ] = None,
) -> None:
    """Put a party's certificates on the revocation list, which running servers read anew."""
    if (role is None) == (serial is None):
        raise Misconfiguration("party", role and role.value, "give a role, or --serial")
    deployment = Deployment.open(directory)
    if role is not None:
        serials = deployment.current_serials(_principal(role, name))
    else:
        serials = [_serial(serial or "")]
    written = deployment.revoke(serials)
    for path in written:
        typer.echo(path)
    typer.echo("Copy the first of these lists to every machine of the deployment.", err=True)


@app.command()
def show(
    path: Annotated[
        Path,
        typer.Argument(
            help="A deployment's directory, a party's folder, a PEM file or a request.",
            show_default=False,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Whose certificates these are, until when, and whether they count. Shows no key."""
    if (asked := request_summary(path)) is not None:
        party, fingerprint = asked
        document = {"party": party, "state": "request", "fingerprint": fingerprint}
        lines = f"{party}: asks for a certificate\n    SHA-256 of its key {fingerprint}"
        typer.echo(json.dumps([document], indent=2) if as_json else lines)
        return
    summaries = summarise(path)
    if as_json:
        typer.echo(json.dumps([each.to_json() for each in summaries], indent=2))
        return
    for each in summaries:
        typer.echo(f"{each.party}: {each.state} until {each.ends:%Y-%m-%d %H:%M} UTC")
        typer.echo(f"    serial {each.serial}")
        typer.echo(f"    SHA-256 {each.fingerprint}")


def _principal(role: Role, name: str) -> Principal:
    if role is Role.CLIENT:
        return Principal.client(name)
    return Principal(role, name or role.value)


def _serial(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise Misconfiguration("serial", text, "hexadecimal, as precad keys show prints") from None
