"""`precad setup`: keys and settings of every party, to train on one machine at first."""

import os
from pathlib import Path
from typing import Annotated

import click

from precad.cli.options import ARGUMENT, REQUIRED, with_options
from precad.common.errors import Misconfiguration

LINGER_S = 60.0


@click.command()
@with_options
def setup(
    folder: Annotated[Path, "The folder to make; it must not exist.", ARGUMENT],
    task: Annotated[Path, "The task file."],
    data: Annotated[
        tuple[Path, ...],
        "An owner's records (.csv, .parquet, .npz); the file's name is its own.",
        REQUIRED,
    ],
    model: Annotated[str | None, "A model of your own, MODULE:NAME, from this folder."],
    loss: Annotated[str | None, "A loss of your own, MODULE:NAME."],
) -> None:
    """Make keys and settings for the servers and each owner, all on this machine.

    Two servers, and a dealer where the task's check of norms needs one.

    It shows what every party needs, and trains for real; only the trust is
    missing, while one person has all keys. docs/deployment.md says how the
    parts get machines, keys and operators of their own.

        precad setup run --task task.toml --data ward-1.csv --data ward-2.csv
    """
    from precad.cli import local_deployment  # noqa: PLC0415
    from precad.common.identifiers import ClientId  # noqa: PLC0415
    from precad.common.identity.deployment_keys import create_local_keys  # noqa: PLC0415
    from precad.common.task import Task  # noqa: PLC0415

    if folder.exists():
        raise Misconfiguration("folder", str(folder), "exists already: name a new one")
    agreed = Task.load(task)
    enrolment, servers = agreed.enrolment, local_deployment.servers_of(agreed)
    names = [ClientId(path.stem.lower().replace("_", "-").replace(" ", "-")).name for path in data]
    if not enrolment.min_clients <= len(set(names)) == len(names) <= enrolment.clients:
        raise Misconfiguration(
            "data",
            names,
            f"the task takes {enrolment.min_clients} to {enrolment.clients} owners, each with a "
            "file and a name of its own",
        )
    for path in data:
        if not path.is_file():
            raise Misconfiguration("data", str(path), "there is no such file")
    folder.mkdir(parents=True)
    own = {key: value for key, value in (("model", model), ("loss", loss)) if value is not None}
    owners = {
        name: {"data": os.path.relpath(path, folder), **own}
        for name, path in zip(names, data, strict=True)
    }
    create_local_keys(folder / "keys", names, dealer=agreed.has_dealer)
    addresses = dict(zip(servers, local_deployment.free_addresses(len(servers)), strict=True))
    local_deployment.write_parties(
        folder, os.path.relpath(task, folder), owners, addresses, linger_s=LINGER_S
    )
    for name in servers:
        part = name.removeprefix("server-")
        click.echo(f"precad serve {part} --config {folder / name}.toml &")
    click.echo(f"precad doctor --config {folder / names[0]}.toml")
    configs = " ".join(f"--config {folder / name}.toml" for name in names)
    click.echo(f"precad join {configs}")
