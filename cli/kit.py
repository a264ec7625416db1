"""`precad kit`: one archive for a party."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from precad.cli.options import PATH
from precad.common.identifiers import Role

if TYPE_CHECKING:
    from precad.cli.kit_archive import Consortium
    from precad.common.identity.party_certificate import Principal


@click.command()
@click.argument("party", type=click.Choice([role.value for role in Role]), help="The party's role.")
@click.argument("name", default="", help="The client's name; only clients have one.")
@click.option(
    "--consortium",
    type=PATH,
    default="consortium.toml",
    help="What was agreed on: task and addresses (TOML).",
)
@click.option(
    "--root",
    type=PATH,
    default="root",
    help="The root's directory, as `precad keys init` makes it.",
)
@click.option("--out", type=PATH, default=".", help="The folder for the archive.")
@click.option(
    "--further",
    metavar="TASK",
    help="For a party that runs already: this further task alone, by its name in settings.",
)
def kit(
    party: str, name: str, consortium: Path, root: Path, out: Path, further: str | None
) -> None:
    """Make one archive for a party: task, settings, how to start it, next steps; no key.

    The party makes its own key, so the archive may travel by mail; fingerprints are printed to
    be read out. docs/ceremony.md leads three organisations through it.

    \b
        task = "task.toml"
        server_a = "north.example:7301"
        server_b = "south.example:7302"
        dealer = "west.example:7303"
        owners = { data = "records.csv" }   # what all owners' settings have besides

    is a consortium's file. The same consortium and root give the same bytes.

    \b
        precad kit server-a
        precad kit client ward-3 --out post

    A further task on the same servers has a consortium's file of its own, with other ports:

    \b
        precad kit server-a --further clinics --consortium clinics-consortium.toml
    """  # noqa: D301 -- click reads the control character
    from precad.cli.kit_archive import Consortium, packed  # noqa: PLC0415
    from precad.common.errors import Misconfiguration  # noqa: PLC0415
    from precad.common.files import PUBLIC_MODE, write_file  # noqa: PLC0415
    from precad.common.identifiers import Digest  # noqa: PLC0415
    from precad.common.identity.party_certificate import Principal  # noqa: PLC0415
    from precad.common.task import Task  # noqa: PLC0415

    role = Role(party)
    principal = Principal.client(name) if role is Role.CLIENT else Principal(role, name or party)
    agreed = Consortium.load(consortium)
    fingerprints = {"the task": str(Task.load(agreed.task).digest)}
    if further is None:
        public, fingerprint = _root(root)
        fingerprints = {"the root": fingerprint, **fingerprints}
        title, contents = principal.name, _first(principal, agreed, public, fingerprints)
    else:
        title, contents = f"{principal.name}-{further}", _further(principal, further, agreed)
    if not out.is_dir():
        raise Misconfiguration("--out", str(out), "there is no such folder; make it first")
    archive = packed(principal.name, contents, keys=further is None)
    path = out / f"{title}-kit.tar.gz"
    write_file(path, archive, mode=PUBLIC_MODE)
    click.echo(path)
    for of, value in {**fingerprints, "this archive": str(Digest.of(archive))}.items():
        click.echo(f"    SHA-256 of {of}: {value}")


def _root(root: Path) -> tuple[str, str]:
    """The root's certificate and its fingerprint."""
    from precad.common.identity.certificate_summary import summarise  # noqa: PLC0415
    from precad.common.identity.credentials import CA_FILE  # noqa: PLC0415
    from precad.common.identity.deployment_keys import AUTHORITY_FOLDER  # noqa: PLC0415
    from precad.common.identity.party_certificate import read_file  # noqa: PLC0415

    authority = root / AUTHORITY_FOLDER / CA_FILE
    public = read_file(authority, "--root", "precad keys init ROOT --root-only makes one")
    return public.decode("ascii"), summarise(authority)[0].fingerprint


def _first(
    party: "Principal", agreed: "Consortium", public: str, fingerprints: dict[str, str]
) -> dict[str, str]:
    """What a party begins with."""
    from precad.cli.kit_archive import (  # noqa: PLC0415
        IDENTITY,
        TASK,
        machine,
    )
    from precad.cli.kit_texts import next_steps  # noqa: PLC0415
    from precad.cli.local_deployment import to_toml  # noqa: PLC0415
    from precad.common.identity.credentials import CA_FILE  # noqa: PLC0415

    contents = {
        f"{IDENTITY}/{CA_FILE}": public,
        "NEXT.txt": next_steps(party, fingerprints),
        **machine(party),
    }
    if party.role is not Role.OPERATOR:
        contents[TASK] = agreed.task.read_text(encoding="utf-8")
        contents["settings.toml"] = to_toml(agreed.settings(party))
    return contents


def _further(party: "Principal", task: str, agreed: "Consortium") -> dict[str, str]:
    from precad.cli.kit_texts import contents  # noqa: PLC0415
    from precad.common.errors import Misconfiguration  # noqa: PLC0415
    from precad.common.process_settings import check_name  # noqa: PLC0415

    check_name(task)
    if task in _TAKEN:
        raise Misconfiguration(
            "--further", task, "a party's folder has something of that name; choose another"
        )
    return contents(party, task, agreed)


_TAKEN = ("first", "journal", "keys", "spool", "state")
