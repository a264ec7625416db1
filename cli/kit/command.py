"""`precad kit`: one archive for a party."""

from pathlib import Path

import click

from precad.cli.options import PATH
from precad.common.identifiers import Role


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
def kit(party: str, name: str, consortium: Path, root: Path, out: Path) -> None:
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
    """  # noqa: D301 -- click reads the control character
    from precad.cli.kit.archive import machine, packed  # noqa: PLC0415
    from precad.cli.kit.consortium import IDENTITY, TASK, Consortium  # noqa: PLC0415
    from precad.cli.kit.words import next_steps  # noqa: PLC0415
    from precad.common.durable import PUBLIC_MODE, write_file  # noqa: PLC0415
    from precad.common.errors import Misconfiguration  # noqa: PLC0415
    from precad.common.identifiers import Digest  # noqa: PLC0415
    from precad.common.identity.certificate import read_file  # noqa: PLC0415
    from precad.common.identity.credentials import CA_FILE  # noqa: PLC0415
    from precad.common.identity.deployment import AUTHORITY_FOLDER  # noqa: PLC0415
    from precad.common.identity.principal import Principal  # noqa: PLC0415
    from precad.common.identity.summary import summarise  # noqa: PLC0415
    from precad.common.task import Task  # noqa: PLC0415
    from precad.experiments.local.files import to_toml  # noqa: PLC0415

    role = Role(party)
    principal = Principal.client(name) if role is Role.CLIENT else Principal(role, name or party)
    agreed = Consortium.load(consortium)
    task = Task.load(agreed.task)
    authority = root / AUTHORITY_FOLDER / CA_FILE
    public = read_file(authority, "--root", "precad keys init ROOT --root-only makes one")
    if not out.is_dir():
        raise Misconfiguration("--out", str(out), "there is no such folder; make it first")
    fingerprints = {
        "the root": summarise(authority)[0].fingerprint,
        "the task": str(task.digest),
    }
    contents = {
        f"{IDENTITY}/{CA_FILE}": public.decode("ascii"),
        "NEXT.txt": next_steps(principal, fingerprints),
        **machine(principal),
    }
    if principal.role is not Role.OPERATOR:
        contents[TASK] = agreed.task.read_text(encoding="utf-8")
        contents["settings.toml"] = to_toml(agreed.settings(principal))
    archive = packed(principal.name, contents)
    path = out / f"{principal.name}-kit.tar.gz"
    write_file(path, archive, mode=PUBLIC_MODE)
    click.echo(path)
    for of, value in {**fingerprints, "this archive": str(Digest.of(archive))}.items():
        click.echo(f"    SHA-256 of {of}: {value}")
