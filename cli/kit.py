"""`precad kit`: an archive for one party; `precad setup`: all parties' folders here.

A kit holds no key. What stands in it for people and for their machines' supervisors is
in `machines/`.
"""

import gzip
import io
import os
import re
import tarfile
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated, Self

import click
from pydantic import BaseModel, Field

from precad.cli import (
    ARGUMENT,
    REQUIRED,
    accounts_beside,
    command,
    earlier_account,
    remarks_on_records,
    require_folder,
    to_toml,
)
from precad.cli import local_deployment as local
from precad.common import (
    FOLDER_MODE,
    PRIVATE_MODE,
    PUBLIC_MODE,
    Address,
    ClientId,
    Digest,
    Misconfiguration,
    Role,
    Task,
    continued,
    initial_vector,
    parsed_toml,
    require_dealer,
    write_file,
)
from precad.common.identity import (
    AUTHORITY_FOLDER,
    CA_FILE,
    Principal,
    create_local_keys,
    read_pem,
    summarise,
)
from precad.common.terminal import warn

Contents = dict[str, str | bytes]
"""An archive's files: what is in them, by path in the party's folder."""
IDENTITY = "keys"
"""The folder of a kit for the party's key and certificates."""
TASK = "task.toml"
"""The task's file in a kit."""
SETTINGS = "settings.toml"
"""The party's settings file in a kit."""
NEXT = "NEXT.txt"
"""The file of a kit that says what its reader does next."""


@command()
def kit(
    *,
    party: Annotated[
        str, "The party's role.", ARGUMENT, click.Choice([r.value for r in Role])
    ],
    name: Annotated[str, "The client's name; only clients have one.", ARGUMENT] = "",
    consortium: Annotated[Path, "The task and addresses (TOML)."] = Path(
        "consortium.toml"
    ),
    root: Annotated[
        Path, "The root's directory, as `precad keys init` makes it."
    ] = Path("root"),
    out: Annotated[Path, "The folder for the archive."] = Path(),
    further: Annotated[
        str | None,
        "For a party that runs already: this further task alone, by a name for its"
        " folder.",
        {"metavar": "TASK"},
    ],
) -> None:
    """Make one archive for a party: task, settings, how to start, next steps; no key.

    The party makes its own key, so the archive may travel by mail; fingerprints are
    printed to be read out. docs/ceremony.md leads the organisations through it.

    \b
        task = "task.toml"
        server_a = "north.example:7301"
        server_b = "south.example:7302"
        dealer = "west.example:7303"        # not where norms are proved
        owners = { data = "records.csv" }   # what all owners' settings have besides

    is a consortium's file. The same consortium and root give the same bytes.

    \b
        precad kit server-a
        precad kit client ward-3 --out post

    A further task on the same servers has a consortium's file of its own, with other
    ports:

    \b
        precad kit server-a --further clinics --consortium clinics-consortium.toml
    """  # noqa: D301 -- click reads the control character
    principal = Principal.named(party, name)
    agreement = Consortium.load(consortium)
    task = Task.load(agreement.task)
    fingerprints = {"the task": str(task.digest)}
    title = principal.name
    if further is None:
        authority = root / AUTHORITY_FOLDER / CA_FILE
        ca_file = read_pem(
            authority, "--root", "precad keys init ROOT --root-only makes one"
        )
        fingerprints = {"the root": summarise(authority)[0].fingerprint, **fingerprints}
        contents = _first_kit(
            principal,
            agreement,
            ca_file=ca_file.decode("ascii"),
            fingerprints=fingerprints,
        )
    else:
        title = f"{title}-{further}"
        contents = _further_kit(
            principal,
            agreement,
            task=further,
            digest=fingerprints["the task"],
        )
    if task.model.initial_file is not None and principal.role in _START:
        _add_weights(contents, task, agreement.task)
    require_folder("--out", out)
    archive = _packed(principal.name, contents, keys=further is None)
    path = out / f"{title}-kit.tar.gz"
    write_file(path, archive, mode=PUBLIC_MODE)
    click.echo(path)
    fingerprints["this archive"] = str(Digest.of(archive))
    for subject, fingerprint in fingerprints.items():
        click.echo(f"    SHA-256 of {subject}: {fingerprint}")


_START = (Role.SERVER_A, Role.SERVER_B, Role.CLIENT)
"""Roles that begin with the model's weights."""
_MOUNTED = re.compile(r"^( *- )\./(\S*)task\.toml:(\S*)task\.toml:ro$", re.MULTILINE)
"""The line of a compose.yml that mounts the task's file."""


def _add_weights(contents: Contents, task: Task, task_file: Path) -> None:
    """Add the file of the model's first weights beside the task, also in a container.

    Raises Misconfiguration: it doesn't lie beside the task's file, or holds other
    weights.
    """
    weights = Path(task.model.initial_file or "")
    if weights.parent != task_file.resolve().parent:
        raise Misconfiguration(
            "model.initial_file",
            weights,
            f"must lie beside {task_file}: name the file alone",
        )
    initial_vector(task.model)
    packed_task = next(path for path in map(Path, contents) if path.name == TASK)
    contents[str(packed_task.with_name(weights.name))] = weights.read_bytes()
    compose = str(packed_task.with_name("compose.yml"))
    mounted = rf"\g<0>\n\1./\2{weights.name}:\3{weights.name}:ro"
    contents[compose] = _MOUNTED.sub(mounted, str(contents[compose]))


_WRITTEN = (
    "task",
    "identity",
    "client",
    "server_a",
    "server_b",
    "state",
    "token",
    "epsilon_limit",
    "plan",
)
"""What [owners] mustn't have: the kit writes it into an owner's settings, or the owner
does, whose limit and token are nobody else's."""
_FILES = ("identity", "data", "held_out")
"""Settings whose files a further task shares with the first."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""A further task's name, and that of its folder."""
_TAKEN = ("journal", "keys", "spool", "state")
"""Folders of a party that no further task can be named like."""


class Consortium(BaseModel, frozen=True, extra="forbid"):
    """A consortium's file (TOML): the task, and where its services are reached."""

    task: Path
    """The task's file; in the consortium's file its path is relative to that file."""
    server_a: Address
    server_b: Address
    dealer: Address | None = None
    """None where the task has `validation = "proof"`."""
    owners: dict[str, object] = Field(default_factory=dict)
    """What every owner's settings have besides: data, model, loss, columns."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a consortium's file.

        Raises Misconfiguration, which names the file or the field and a remedy.
        """
        consortium = parsed_toml(cls, "consortium", path)
        written = sorted(set(consortium.owners) & set(_WRITTEN))
        if written:
            raise Misconfiguration(
                "owners",
                written[0],
                f"the kit writes {', '.join(_WRITTEN)} itself: leave it out of [owners]",
            )
        task = path.resolve().parent / consortium.task
        require_dealer(Task.load(task), consortium.dealer)
        return consortium.model_copy(update={"task": task})

    def settings(self, party: Principal) -> dict[str, object]:
        """Return a party's settings, as in the folder of its kit.

        The operator has none. Raises Misconfiguration: a dealer's, where the task has
        none.
        """
        common = {"task": TASK, "identity": IDENTITY}
        servers = {"dealer": self.dealer, "state": "state", "journal": "journal"}
        match party.role:
            case Role.DEALER:
                if self.dealer is None:
                    raise Misconfiguration(
                        "party",
                        party.name,
                        'a task with validation = "proof" has no dealer: it needs'
                        " no kit",
                    )
                return {**common, "listen": _everywhere(self.dealer)}
            case Role.SERVER_B:
                return {
                    **common,
                    "listen": _everywhere(self.server_b),
                    **servers,
                }
            case Role.SERVER_A:
                return {
                    **common,
                    "listen": _everywhere(self.server_a),
                    "server_b": self.server_b,
                    **servers,
                }
            case Role.CLIENT:
                return {
                    **common,
                    "client": party.name,
                    "state": "state",
                    "server_a": self.server_a,
                    "server_b": self.server_b,
                    "data": "records.csv",
                    **self.owners,
                }
            case Role.OPERATOR:
                return {}

    def further(self, party: Principal, task: str) -> dict[str, object]:
        """Return a party's settings for a further task of this name.

        They are for a folder of that name below the first task's. Keys and records are
        the first task's, and so is an owner's account; each task has its own state.
        """
        settings = self.settings(party)
        for name in _FILES:
            if name in settings:
                settings[name] = f"../{settings[name]}"
        for name in ("state", "journal"):
            if name in settings:
                settings[name] = f"../{name}/{task}"
        if party.role is Role.CLIENT:
            settings["account"] = "../state"
        return settings


def _everywhere(address: str) -> str:
    """Return the address's port, on every address of the machine that listens.

    How others reach it is a matter of names and firewalls.
    """
    return f"0.0.0.0:{address.rpartition(':')[2]}"


_WHEN = {
    Role.DEALER: (
        "It comes first: both servers call it. No client needs to reach its port."
    ),
    Role.SERVER_B: (
        "Before server A, which must reach its port, as every data owner must."
    ),
    Role.SERVER_A: "After server B. Every data owner must reach its port.",
    Role.CLIENT: "After the servers. It listens nowhere.",
}


def _command(role: Role) -> str:
    """Return the `precad` command that runs a party of this role."""
    if role is Role.CLIENT:
        return "join"
    return f"serve {role.value.removeprefix('server-')}"


def _first_kit(
    party: Principal,
    agreement: Consortium,
    *,
    ca_file: str,
    fingerprints: dict[str, str],
) -> Contents:
    """Return the files of a party's kit for its first task.

    ``ca_file`` is the root's certificate (PEM); ``fingerprints`` are to be read out, by
    what they are of. The operator runs nothing: its kit has no settings.
    """
    is_client = party.role is Role.CLIENT
    values = {
        "name": party.name,
        "who": f"client {party.name}" if is_client else party.name,
        "read_out": "\n".join(
            f"| {subject} | `{fingerprint}` |"
            for subject, fingerprint in fingerprints.items()
        ),
    }
    next_steps = _filled("first.txt", **values)
    contents: Contents = {f"{IDENTITY}/{CA_FILE}": ca_file, NEXT: next_steps}
    if party.role is Role.OPERATOR:
        return contents
    contents[NEXT] = next_steps + _filled(
        "first-start.txt",
        **values,
        when=_WHEN[party.role],
        own=_filled("first-owner.txt", **values) if is_client else "",
        command=f"precad {_command(party.role)} --config {party.name}/{SETTINGS}",
    )
    contents[TASK] = agreement.task.read_text(encoding="utf-8")
    contents[SETTINGS] = to_toml(agreement.settings(party))
    contents["compose.yml"] = _text(f"{party.role.value}.yml")
    contents[f"precad-{party.name}.service"] = _service(party, party.name, SETTINGS)
    return contents


def _further_kit(
    party: Principal,
    agreement: Consortium,
    *,
    task: str,
    digest: str,
) -> Contents:
    """Return the files of a party's kit for a further task, in a folder of its name.

    ``digest`` is the task's fingerprint. Raises Misconfiguration: no folder can have
    this name.
    """
    if not _NAME.fullmatch(task) or task in _TAKEN:
        raise Misconfiguration(
            "--further",
            task,
            "use 1 to 63 of a-z, 0-9 and hyphens inside, like wards-2, and no name that"
            " is taken",
        )
    values = {"name": party.name, "task": task}
    next_steps = _filled("further.txt", **values, digest=digest)
    if party.role is Role.OPERATOR:
        next_steps += _filled(
            "further-operator.txt",
            **values,
            server_a=agreement.server_a,
            server_b=agreement.server_b,
        )
        return {f"{task}/{NEXT}": next_steps}
    role_template = "further-service.txt"
    if party.role is Role.CLIENT:
        role_template = "further-client.txt"
    next_steps += _filled(role_template, **values)
    settings_file = f"{task}/{SETTINGS}"
    command = f"precad {_command(party.role)} --config {party.name}/{settings_file}"
    next_steps += _filled("further-start.txt", **values, command=command)
    settings = agreement.further(party, task)
    service = f"{party.name}-{task}"
    return {
        f"{task}/{NEXT}": next_steps,
        f"{task}/{TASK}": agreement.task.read_text(encoding="utf-8"),
        settings_file: to_toml(settings),
        f"{task}/compose.yml": _further_compose(
            party.role, task, str(settings.get("listen"))
        ),
        f"{task}/precad-{service}.service": _service(party, service, settings_file),
    }


def _service(party: Principal, service: str, settings: str) -> str:
    """Return the unit file of a systemd service that runs the party."""
    return _filled(
        "precad.service",
        party=party.name,
        service=service,
        settings=settings,
        command=_command(party.role),
    )


def _further_compose(role: Role, task: str, listen: str) -> str:
    """Return a compose.yml for a further task.

    It has the first task's service under another name, with this task's files and the
    port of ``listen``.
    """
    _, _, services = _text(f"{role.value}.yml").partition("services:\n")
    service, _, _ = services.partition("\n\n")
    port = listen.rpartition(":")[2]
    for pattern, replacement in (
        (r"^  (\w+):$", rf"  \1-{task}:"),
        (r"--config, settings", f"--config, {task}/settings"),
        (r"\./(task|settings)\.toml:/precad/", rf"./{task}/\1.toml:/precad/{task}/"),
        (r'"\d+:\d+"', f'"{port}:{port}"'),
    ):
        service = re.sub(pattern, replacement, service, flags=re.MULTILINE)
    return _filled("further-compose.txt", task=task) + service.rstrip() + "\n"


def _text(name: str) -> str:
    """Return the text of a file in `machines/`."""
    return (files("precad.cli") / "machines" / name).read_text(encoding="utf-8")


def _filled(template: str, /, **values: str) -> str:
    """Return the text of a file in `machines/` with these values in their places."""
    return Template(_text(template)).substitute(values)


def _packed(folder: str, contents: Contents, *, keys: bool) -> bytes:
    """Return a .tar.gz of files in one folder.

    There is no time, owner or order of this machine's in it: the same contents give the
    same bytes. With ``keys`` it has a folder for them, its owner's alone from the
    first.
    """
    packed = io.BytesIO()
    with tarfile.open(
        fileobj=packed,
        mode="w",
        format=tarfile.USTAR_FORMAT,
    ) as archive:
        if keys:
            key_folder = tarfile.TarInfo(f"{folder}/{IDENTITY}")
            key_folder.type = tarfile.DIRTYPE
            key_folder.mode = FOLDER_MODE
            archive.addfile(key_folder)
        for name in sorted(contents):
            content = contents[name]
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            # Its owner's token goes into the settings, or a database's password.
            member.mode = PRIVATE_MODE if name.endswith(SETTINGS) else PUBLIC_MODE
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=0)


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
    files = _owners_files(loaded, data)
    names = [*files]
    remarks: list[str | None] = []
    owners = {}
    anew = []
    for name, path in files.items():
        settings = folder / f"{name}.toml"
        remarks += remarks_on_records(loaded, name, path, settings=settings)
        records = os.path.relpath(path, folder)
        owners[name] = {"data": records, "model": model, "loss": loss}
        account = earlier_account(accounts, name, loaded)
        if account is None:
            anew.append(name)
        else:
            owners[name]["account"] = os.path.relpath(account, folder)
    if accounts is not None and len(anew) == len(names):
        raise Misconfiguration(
            "--accounts",
            accounts,
            f"has no settings of {', '.join(names)}: give the folder that setup made"
            " then, and name files as then",
        )
    if len(names) < loaded.enrolment.clients:
        remarks.append(
            f"the task is for {loaded.enrolment.clients} owners, and here are"
            f" {len(names)}: the first round waits for the others until"
            f" {loaded.deadlines.enrol_in_words} after the servers' start. Give their"
            " files too; or, to begin with these, write enrol_quorum ="
            f" {len(names)} into both servers' settings"
        )
    if anew and (accounts is not None or continued(loaded)):
        remarks.append(
            f"a privacy account of its own begins for {', '.join(anew)}: for who took"
            " part before, as in the training whose model this task goes on with, give"
            " --accounts RUN, that training's folder, and name its file as then, or"
            ' account = "…" in its settings, or the two don\'t add up'
        )
    if accounts is None:
        remarks.append(accounts_beside(folder, files))
    folder.mkdir(parents=True)
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
    for remark in remarks:
        warn(remark)


def _owners_files(task: Task, data: tuple[Path, ...]) -> dict[str, Path]:
    """Return the owners' files by their names, which are those of their files.

    Raises Misconfiguration: the task doesn't take so many owners, two have one name, or
    a file isn't there.
    """
    names = [
        ClientId(path.stem.lower().replace("_", "-").replace(" ", "-")).name
        for path in data
    ]
    least = task.enrolment.min_clients
    most = task.enrolment.clients
    if not least <= len(names) <= most or len(set(names)) < len(names):
        raise Misconfiguration(
            "data",
            names,
            f"the task takes {least} to {most} owners, each with a file and a name of"
            " its own",
        )
    for path in data:
        if not path.is_file():
            raise Misconfiguration("data", path, "there is no such file")
    return dict(zip(names, data, strict=True))
