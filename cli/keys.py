"""`precad keys`: who is who, in files."""

import json
from pathlib import Path

import click

from precad.cli.options import PATH, json_option
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.identity.authority import PARTY_DAYS
from precad.common.identity.certificate_request import accept as take
from precad.common.identity.certificate_request import create_request
from precad.common.identity.deployment_keys import (
    AUTHORITY_FOLDER,
    Deployment,
    create_local_keys,
    request_summary,
    summarise,
)
from precad.common.identity.party_certificate import Principal


@click.group()
def keys() -> None:
    """Make, renew, revoke and show the keys and certificates of a deployment.

    One command makes all that a local deployment needs; each party then gets its own folder:

        precad keys init keys --clients 10

    A client that makes its own key, so that nobody else ever holds it:

        precad keys request ward-3 client ward-3            (the client)
        precad keys issue keys client ward-3 --request ward-3/request.pem   (the operator)

    With an authority of your own, send it the request: docs/identity.md says what it must put in.
    """


_ROLE = click.Choice([role.value for role in Role])

directory_argument = click.argument("directory", type=PATH, help="The deployment's directory.")
party_argument = click.argument("role", type=_ROLE, help="The party's role.")
name_argument = click.argument("name", default="", help="The client's name; only clients have one.")
days_option = click.option(
    "--days", type=click.IntRange(min=1), default=PARTY_DAYS, help="Until the certificate expires."
)
out_option = click.option("--out", type=PATH, help="The party's folder.")
force_option = click.option("--force", is_flag=True, help="Replace keys that are there.")


@keys.command()
@directory_argument
@click.option(
    "--clients",
    type=click.IntRange(min=0),
    default=0,
    help="How many clients: client-1, client-2, ….",
)
@click.option("--client", multiple=True, help="A client's name; may be repeated.")
@click.option("--no-dealer", is_flag=True, help='For tasks with validation = "proof" alone.')
@click.option(
    "--root-only", is_flag=True, help="The root alone: every party makes a key of its own."
)
@days_option
@force_option
def init(
    directory: Path,
    clients: int,
    client: tuple[str, ...],
    no_dealer: bool,
    root_only: bool,
    days: int,
    force: bool,
) -> None:
    """A root, both servers, the dealer, the operator and clients: all of a local deployment.

    Where parties are organisations of their own, no private key should travel: make the root
    alone, and a certificate for each party's request:

    \b
        precad keys init keys --root-only
        precad keys request server-a server-a                       (server A's organisation)
        precad keys issue keys server-a --request request.pem --out for-server-a
    """  # noqa: D301 -- click reads the control character
    if root_only:
        if clients or client:
            raise Misconfiguration(
                "--root-only", "with clients", "leave clients out: each makes its own request"
            )
        click.echo(Deployment.create(directory, replace=force).directory / AUTHORITY_FOLDER)
        return
    names = [*(f"client-{number}" for number in range(1, clients + 1)), *client]
    folders = create_local_keys(directory, names, dealer=not no_dealer, days=days, replace=force)
    for folder in folders:
        click.echo(folder)
    click.echo(
        f"Keep {directory / 'ca'} to yourself: who holds its key can name anybody.", err=True
    )


@keys.command()
@directory_argument
@party_argument
@name_argument
@out_option
@click.option("--request", type=PATH, help="A signing request; the key stays away.")
@days_option
@force_option
def issue(
    directory: Path,
    role: str,
    name: str,
    out: Path | None,
    request: Path | None,
    days: int,
    force: bool,
) -> None:
    """One more party: its key and certificate, or a certificate for its request."""
    principal = Principal.named(role, name)
    deployment = Deployment.open(directory)
    click.echo(deployment.issue(principal, out=out, request=request, days=days, replace=force))


@keys.command("request")
@click.argument("folder", type=PATH, help="The party's folder.")
@party_argument
@name_argument
@click.option(
    "--renew",
    type=PATH,
    metavar="OLD",
    help="The party's present folder: its root and, of a server, its coin key are taken over.",
)
@force_option
def make_request(folder: Path, role: str, name: str, renew: Path | None, force: bool) -> None:
    """A new key in the folder, and a signing request for it; only the request is sent away.

    A certificate that ends soon is renewed in a new folder, and the old one stays in use until the
    new one is complete:

        precad keys request server-a/keys-new server-a --renew server-a/keys
    """
    click.echo(create_request(folder, Principal.named(role, name), replace=force, renew=renew))


@keys.command()
@click.argument("folder", type=PATH, help="The party's folder.")
@click.argument("offered", type=PATH, help="What precad keys issue made.")
def accept(folder: Path, offered: Path) -> None:
    """Put a certificate that came back beside its key; any but this key's is refused."""
    click.echo(f"{take(folder, offered).principal}: complete")


@keys.command()
@directory_argument
@party_argument
@name_argument
@out_option
@days_option
@click.option("--revoke-old", is_flag=True, help="Revoke the certificate that is replaced.")
def renew(
    directory: Path, role: str, name: str, out: Path | None, days: int, revoke_old: bool
) -> None:
    """A new key and certificate for the same party, in place of those in its folder."""
    principal = Principal.named(role, name)
    deployment = Deployment.open(directory)
    click.echo(deployment.renew(principal, out=out, days=days, revoke_old=revoke_old))


@keys.command()
@directory_argument
@click.argument("role", type=_ROLE, required=False, help="The party's role.")
@name_argument
@click.option("--serial", help="One certificate only, by its serial number.")
def revoke(directory: Path, role: str | None, name: str, serial: str | None) -> None:
    """Put a party's certificates on the revocation list, which running servers read anew."""
    if (role is None) == (serial is None):
        raise Misconfiguration("party", role, "give a role, or --serial")
    deployment = Deployment.open(directory)
    if role is not None:
        serials = deployment.current_serials(Principal.named(role, name))
    else:
        serials = [_serial(serial or "")]
    written = deployment.revoke(serials)
    for path in written:
        click.echo(path)
    click.echo("Copy the first of these lists to every machine of the deployment.", err=True)


@keys.command()
@click.argument(
    "path", type=PATH, help="A deployment's directory, a party's folder, a PEM file or a request."
)
@json_option
def show(path: Path, as_json: bool) -> None:
    """Whose certificates these are, until when, and whether they count. Shows no key."""
    if (asked := request_summary(path)) is not None:
        party, fingerprint = asked
        document = {"party": party, "state": "request", "fingerprint": fingerprint}
        lines = f"{party}: asks for a certificate\n    SHA-256 of its key {fingerprint}"
        click.echo(json.dumps([document], indent=2) if as_json else lines)
        return
    summaries = summarise(path)
    if as_json:
        click.echo(json.dumps([each.to_json() for each in summaries], indent=2))
        return
    for each in summaries:
        click.echo(f"{each.party}: {each.state} until {each.ends:%Y-%m-%d %H:%M} UTC")
        click.echo(f"    serial {each.serial}")
        click.echo(f"    SHA-256 {each.fingerprint}")


def _serial(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise Misconfiguration("serial", text, "hexadecimal, as precad keys show prints") from None
