"""`precad keys`: the keys and certificates by which parties know each other."""

from pathlib import Path
from typing import Annotated

import click

from precad.cli import ARGUMENT, AsJson, command, print_json
from precad.common import Misconfiguration, Role
from precad.common.identity import (
    AUTHORITY_FOLDER,
    PARTY_DAYS,
    Deployment,
    Principal,
    create_local_keys,
    credentials,
    deployment_keys,
)


@click.group()
def keys() -> None:
    """Make, renew, revoke and show the keys and certificates of a deployment.

    One command makes all that a local deployment needs; each party then gets its own
    folder:

        precad keys init keys --clients 10

    A client that makes its own key, so that nobody else ever holds it:

        precad keys request ward-3 client ward-3            (the client)
        precad keys issue keys client ward-3 --request ward-3/request.pem   (the
        operator)

    With an authority of your own, send it the request: docs/identity.md says what it
    must put in. Where PRECAD_KEY_PASSPHRASE_FILE names a file with a passphrase, keys
    are written encrypted.
    """


# Arguments and options that several commands have.
_ROLE = click.Choice([role.value for role in Role])
Directory = Annotated[Path, "The deployment's directory.", ARGUMENT]
Folder = Annotated[Path, "The party's folder.", ARGUMENT]
PartyRole = Annotated[str, "The party's role.", ARGUMENT, _ROLE]
Name = Annotated[str, "The client's name; only clients have one.", ARGUMENT]
Days = Annotated[int, "Until the certificate expires.", click.IntRange(min=1)]
Out = Annotated[Path | None, "The party's folder."]
Force = Annotated[bool, "Replace keys that are there."]


@command(keys)
def init(
    *,
    directory: Directory,
    clients: Annotated[
        int, "How many clients: client-1, client-2, ….", click.IntRange(min=0)
    ] = 0,
    client: Annotated[tuple[str, ...], "A client's name; may be repeated."],
    no_dealer: Annotated[bool, 'For tasks with validation = "proof" alone.'],
    root_only: Annotated[bool, "The root alone: every party makes a key of its own."],
    days: Days = PARTY_DAYS,
    force: Force,
) -> None:
    """Make all keys of a local deployment: root, servers, dealer, operator, clients.

    Where parties are organisations of their own, no private key should travel: make the
    root alone, and a certificate for each party's request:

    \b
        precad keys init keys --root-only
        precad keys request server-a server-a           (server A's organisation)
        precad keys issue keys server-a --request request.pem --out for-server-a
    """  # noqa: D301 -- click reads the control character
    if root_only:
        if clients or client:
            raise Misconfiguration(
                "--root-only",
                "with clients",
                "leave clients out: each makes its own request",
            )
        click.echo(
            Deployment.create(directory, replace=force).directory / AUTHORITY_FOLDER
        )
        return
    numbered = [f"client-{number}" for number in range(1, clients + 1)]
    folders = create_local_keys(
        directory,
        [*numbered, *client],
        dealer=not no_dealer,
        days=days,
        replace=force,
    )
    click.echo("\n".join(map(str, folders)))
    click.echo(
        f"Keep {directory / 'ca'} to yourself: who holds its key can name anybody.",
        err=True,
    )


@command(keys)
def issue(
    *,
    directory: Directory,
    role: PartyRole,
    name: Name = "",
    out: Out,
    request: Annotated[Path | None, "A signing request; the key stays away."],
    days: Days = PARTY_DAYS,
    force: Force,
) -> None:
    """One more party: its key and certificate, or a certificate for its request.

    A folder with a key is for the user who made it alone. For another one, as a
    container's, give it away as root: chown -R 10001:10001 FOLDER.
    """
    principal = Principal.named(role, name)
    folder = Deployment.open(directory).issue(
        principal,
        out=out,
        request=request,
        days=days,
        replace=force,
    )
    click.echo(folder)
    if request is None:
        click.echo(
            f"This user alone can read {folder}: chown -R it to the one who runs the"
            " part.",
            err=True,
        )


@command(keys, "request")
def make_request(
    *,
    folder: Folder,
    role: PartyRole,
    name: Name = "",
    renew: Annotated[
        Path | None,
        "The party's present folder: its root and, of a server, its coin key are taken"
        " over.",
        {"metavar": "OLD"},
    ],
    force: Force,
) -> None:
    """Make a key in the folder, and a signing request: only the request is sent away.

    A certificate that ends soon is renewed in a new folder, and the old one stays in
    use until the new one is complete:

        precad keys request server-a/keys-new server-a --renew server-a/keys
    """
    principal = Principal.named(role, name)
    click.echo(
        credentials.create_request(folder, principal, replace=force, renew=renew)
    )


@command(keys)
def accept(
    folder: Folder, offered: Annotated[Path, "What keys issue made.", ARGUMENT]
) -> None:
    """Put a certificate that came back beside its key; another key's is refused."""
    identity = credentials.accept(folder, offered)
    click.echo(f"{identity.principal}: complete")


@command(keys)
def renew(
    *,
    directory: Directory,
    role: PartyRole,
    name: Name = "",
    out: Out,
    days: Days = PARTY_DAYS,
    revoke_old: Annotated[bool, "Revoke the certificate that is replaced."],
) -> None:
    """A new key and certificate for the same party, in place of those in its folder."""
    principal = Principal.named(role, name)
    click.echo(
        Deployment.open(directory).renew(
            principal,
            out=out,
            days=days,
            revoke_old=revoke_old,
        )
    )


@command(keys)
def revoke(
    *,
    directory: Directory,
    role: Annotated[str | None, "The party's role.", ARGUMENT, _ROLE],
    name: Name = "",
    serial: Annotated[str | None, "One certificate only, by its serial number."],
) -> None:
    """Revoke a party's certificates; running servers read the revocation list anew."""
    if (role is None) == (serial is None):
        raise Misconfiguration("party", role, "give a role, or --serial")
    deployment = Deployment.open(directory)
    try:
        serials = [] if serial is None else [int(serial, 16)]
    except ValueError:
        raise Misconfiguration(
            "serial", serial, "hexadecimal, as precad keys show prints"
        ) from None
    if role is not None:
        serials = deployment.current_serials(Principal.named(role, name))
    click.echo("\n".join(map(str, deployment.revoke(serials))))
    click.echo(
        "Copy the first of these lists to every machine of the deployment.", err=True
    )


@command(keys)
def show(
    path: Annotated[
        Path, "A deployment's or party's folder, a PEM file or a request.", ARGUMENT
    ],
    as_json: AsJson,
) -> None:
    """Whose certificates these are, until when, and whether they count.

    Shows no key.
    """
    request = deployment_keys.request_summary(path)
    if request is None:
        summaries = deployment_keys.summarise(path)
        rows = [summary.to_json() for summary in summaries]
        lines = [
            f"{summary.party}: {summary.state} until {summary.ends:%Y-%m-%d %H:%M}"
            f" UTC\n    serial {summary.serial}\n    SHA-256 {summary.fingerprint}"
            for summary in summaries
        ]
    else:
        party, fingerprint = request
        rows = [
            {
                "party": party,
                "state": "request",
                "fingerprint": fingerprint,
            }
        ]
        lines = [
            f"{party}: asks for a certificate\n    SHA-256 of its key {fingerprint}"
        ]
    if as_json:
        print_json(rows, indent=2)
    else:
        click.echo("\n".join(lines))
