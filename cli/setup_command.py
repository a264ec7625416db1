"""`precad setup`: keys and settings of all parties, in one folder of this machine."""

import os
import sys
from pathlib import Path
from typing import Annotated

import click
import numpy as np

from precad.cli import local_deployment as local
from precad.cli.main import ARGUMENT, REQUIRED, command
from precad.client.class_shares import look_at_classes
from precad.client.owner_settings import JoinSettings
from precad.client.records.read_records import read_records
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.identity.deployment_keys import create_local_keys
from precad.common.model import continued
from precad.common.task import Task
from precad.common.terminal import say


@command()
def setup(
    *,
    folder: Annotated[Path, "The folder to make; it must not exist.", ARGUMENT],
    task: Annotated[Path, "The task file."],
    data: Annotated[
        tuple[Path, ...],
        "An owner's records (.csv, .parquet, .npz); the file's name is its own.",
        REQUIRED,
    ],
    model: Annotated[str | None, "A model of your own, MODULE:NAME, from this folder."],
    loss: Annotated[str | None, "A loss of your own, MODULE:NAME."],
    accounts: Annotated[
        Path | None,
        "An earlier run's folder, such as last month's: its owners' privacy accounts go"
        " on here.",
    ],
) -> None:
    """Make keys and settings for the servers and each owner, all on this machine.

    Two servers, and a dealer where the task's check of norms needs one.

    It shows what every party needs, and trains for real; only the trust is
    missing, while one person has all keys. docs/deployment.md says how the
    parts get machines, keys and operators of their own.

        precad setup run --task task.toml --data ward-1.csv --data ward-2.csv
    """
    if folder.exists():
        raise Misconfiguration("folder", folder, "exists already: name a new one")
    loaded = Task.load(task)
    names, rare = _owner_names(loaded, data)
    earlier = {} if accounts is None else _accounts_in(accounts, names)
    folder.mkdir(parents=True)
    own_code = {}
    if model is not None:
        own_code["model"] = model
    if loss is not None:
        own_code["loss"] = loss
    owners = {}
    for name, path in zip(names, data, strict=True):
        owners[name] = {"data": os.path.relpath(path, folder), **own_code}
        if name in earlier:
            owners[name]["account"] = os.path.relpath(earlier[name], folder)
    create_local_keys(folder / "keys", names, dealer=loaded.has_dealer)
    servers = local.servers_of(loaded)
    addresses = dict(zip(servers, local.free_addresses(len(servers)), strict=True))
    local.write_parties(
        folder,
        os.path.relpath(task, folder),
        owners,
        addresses,
        linger_s=60.0,
    )
    for name in servers:
        settings = folder / f"{name}.toml"
        click.echo(f"precad serve {name.removeprefix('server-')} --config {settings} &")
    click.echo(f"precad doctor --config {folder / names[0]}.toml")
    configs = " ".join(f"--config {folder / name}.toml" for name in names)
    click.echo(f"precad join {configs}")
    new_accounts = [name for name in names if name not in earlier]
    for text in (
        *rare,
        _waits_for_others(loaded, len(names)),
        _begin_anew(loaded, new_accounts),
    ):
        if text is not None:
            say(sys.stderr, f"! {text}", style="yellow")


def _waits_for_others(task: Task, owners: int) -> str | None:
    """Return how long these owners wait for others; None where they are all."""
    most = task.enrolment.clients
    if owners == most:
        return None
    return (
        f"the task is for up to {most} owners, and here are {owners}: the first round"
        f" waits for the others, {task.deadlines.enrol_in_words} after the servers'"
        " start at most. Give their files too; or, to start with these, enrol_quorum ="
        f" {owners} in both servers' settings"
    )


def _accounts_in(run: Path, names: list[str]) -> dict[str, Path]:
    """Return the folders of owners' privacy accounts in an earlier run's folder.

    Raises Misconfiguration: it has the settings of none of these owners, or they can't
    be read.
    """
    files = {name: run / f"{name}.toml" for name in names}
    found = {
        name: JoinSettings.load(file) for name, file in files.items() if file.is_file()
    }
    if not found:
        raise Misconfiguration(
            "--accounts",
            str(run),
            f"has no settings of {', '.join(names)}: give the folder that precad setup"
            " made for the earlier training",
        )
    return {
        name: settings.state if settings.account is None else settings.account
        for name, settings in found.items()
    }


def _begin_anew(task: Task, names: list[str]) -> str | None:
    """Return whose account begins anew though the task goes on with a model."""
    made_by = continued(task)
    if not made_by or not names:
        return None
    return (
        f"this task goes on with the model of task {made_by['task_name']}, and the"
        f" account of {', '.join(names)} begins anew: for who took part there give"
        ' --accounts RUN, that training\'s folder, or account = "…" in its settings, or'
        " the two don't add up"
    )


def _owner_names(task: Task, data: tuple[Path, ...]) -> tuple[list[str], list[str]]:
    """Return the owners' names, which are those of their files, and what to ask them.

    Raises Misconfiguration: the task doesn't take so many owners, two have one name, or
    a file isn't there, or can't be read as the task says.
    """
    names = [
        ClientId(path.stem.lower().replace("_", "-").replace(" ", "-")).name
        for path in data
    ]
    least = task.enrolment.min_clients
    most = task.enrolment.clients
    if not least <= len(names) <= most or len(set(names)) < len(names):
        takes = f"the task takes {least} to {most} owners"
        raise Misconfiguration(
            "data", names, f"{takes}, each with a file and a name of its own"
        )
    asked: list[str] = []
    for path in data:
        if not path.is_file():
            raise Misconfiguration("data", path, "there is no such file")
        # Without [data] an owner's own settings say the columns, later.
        if task.data is not None or path.suffix.lower() == ".npz":
            _, targets = read_records(path, task.data)
            found = look_at_classes(task, np.asarray(targets))
            asked += [f"{path}: {finding.text}" for finding in found]
    return names, asked
