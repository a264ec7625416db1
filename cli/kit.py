"""`precad kit`: one archive for a party, without a key; `precad setup`: all parties' folders here.

What stands in a kit for people and for their machines' supervisors is in `machines/`.
"""

import gzip
import io
import os
import re
import tarfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated, Any, Self, TypeAlias

import click
from pydantic import BaseModel, ConfigDict, Field

from precad.cli import local_deployment as local
from precad.cli.local_deployment import to_toml
from precad.cli.main import ARGUMENT, REQUIRED, command, require_folder
from precad.common.checks import parsed_toml
from precad.common.errors import Misconfiguration
from precad.common.files import FOLDER_MODE, PRIVATE_MODE, PUBLIC_MODE, write_file
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.credentials import CA_FILE
from precad.common.identity.deployment_keys import (
    AUTHORITY_FOLDER,
    create_local_keys,
    summarise,
)
from precad.common.identity.party_certificate import Principal, read_pem
from precad.common.model import initial_vector
from precad.common.process_settings import Address
from precad.common.task import Task, require_dealer

Contents: TypeAlias = dict[str, str | bytes]
"""Of an archive, by path."""
IDENTITY = "keys"
TASK = "task.toml"
SETTINGS = "settings.toml"
NEXT = "NEXT.txt"


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
    """Make one archive for a party: task, settings, how to start it, next steps; no key.

    The party makes its own key, so the archive may travel by mail; fingerprints are printed to
    be read out. docs/ceremony.md leads the organisations through it.

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

    A further task on the same servers has a consortium's file of its own, with other ports:

    \b
        precad kit server-a --further clinics --consortium clinics-consortium.toml
    """  # noqa: D301 -- click reads the control character
    principal = Principal.named(party, name)
    agreed = Consortium.load(consortium)
    made = Task.load(agreed.task)
    fingerprints = {"the task": str(made.digest)}
    title = principal.name
    if further is None:
        authority = root / AUTHORITY_FOLDER / CA_FILE
        public = read_pem(
            authority, "--root", "precad keys init ROOT --root-only makes one"
        )
        fingerprints = {"the root": summarise(authority)[0].fingerprint, **fingerprints}
        contents = _first(principal, agreed, public.decode("ascii"), fingerprints)
    else:
        title = f"{title}-{further}"
        contents = _further(
            principal,
            task=further,
            agreed=agreed,
            digest=fingerprints["the task"],
        )
    if made.model.initial_file is not None and principal.role in _START:
        _add_weights(contents, made, agreed.task)
    require_folder("--out", out)
    archive = _packed(principal.name, contents, keys=further is None)
    path = out / f"{title}-kit.tar.gz"
    write_file(path, archive, mode=PUBLIC_MODE)
    click.echo(path)
    for of, value in {**fingerprints, "this archive": str(Digest.of(archive))}.items():
        click.echo(f"    SHA-256 of {of}: {value}")


_START = (Role.SERVER_A, Role.SERVER_B, Role.CLIENT)
"""Who begins with the model's weights."""
_MOUNTED = re.compile(r"^( *- )\./(\S*)task\.toml:(\S*)task\.toml:ro$", re.MULTILINE)


def _add_weights(contents: Contents, made: Task, task: Path) -> None:
    """Add the file of weights beside the task, also in a container.

    Raises Misconfiguration.
    """
    weights = Path(made.model.initial_file or "")
    if weights.parent != task.resolve().parent:
        remedy = f"must lie beside {task}: name the file alone"
        raise Misconfiguration("model.initial_file", str(weights), remedy)
    initial_vector(made.model)
    beside = next(path for path in map(Path, contents) if path.name == TASK)
    contents[str(beside.with_name(weights.name))] = weights.read_bytes()
    compose = str(beside.with_name("compose.yml"))
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
)
"""Of an owner's settings: by the kit, or by its owner, whose limit and token are nobody
else's."""
_FILES = ("identity", "data", "held_out")
"""What a further task has from the first."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_TAKEN = ("journal", "keys", "spool", "state")
"""What a party's folder has besides."""


class Consortium(BaseModel):
    """A consortium's file (TOML): the task, relative to it, and where services are reached."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Path
    server_a: Address
    server_b: Address
    dealer: Address | None = None
    """None where the task has `validation = "proof"`."""
    owners: dict[str, Any] = Field(default_factory=dict)
    """What every owner's settings have besides: data, model, loss, columns."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file. Raises Misconfiguration naming file, field, remedy."""
        found = parsed_toml(cls, "consortium", path)
        taken = sorted(set(found.owners) & set(_WRITTEN))
        if taken:
            remedy = (
                f"the kit writes {', '.join(_WRITTEN)} itself: leave it out of [owners]"
            )
            raise Misconfiguration("owners", taken[0], remedy)
        agreed = found.model_copy(update={"task": path.resolve().parent / found.task})
        require_dealer(Task.load(agreed.task), agreed.dealer)
        return agreed

    def settings(self, party: Principal) -> dict[str, object]:
        """A party's settings file, in the folder of its kit. The operator has none."""
        same: dict[str, object] = {"task": TASK, "identity": IDENTITY}
        dealer = {} if self.dealer is None else {"dealer": self.dealer}
        kept = {"state": "state", "journal": "journal"}
        match party.role:
            case Role.DEALER:
                if self.dealer is None:
                    remedy = (
                        'a task with validation = "proof" has no dealer: it needs'
                        " no kit"
                    )
                    raise Misconfiguration("party", party.name, remedy)
                return same | {"listen": _everywhere(self.dealer)}
            case Role.SERVER_B:
                return same | {"listen": _everywhere(self.server_b)} | dealer | kept
            case Role.SERVER_A:
                listen = {
                    "listen": _everywhere(self.server_a),
                    "server_b": self.server_b,
                }
                return same | listen | dealer | kept
            case Role.CLIENT:
                own = {"client": party.name, "state": "state"}
                servers = {"server_a": self.server_a, "server_b": self.server_b}
                return same | own | servers | {"data": "records.csv"} | self.owners
            case Role.OPERATOR:
                return {}

    def further(self, party: Principal, task: str) -> dict[str, object]:
        """A party's settings file for a further task, in a folder of its name below the kit's."""
        values = self.settings(party)
        above = {name: f"../{values[name]}" for name in _FILES if name in values}
        kept = {
            name: f"../{name}/{task}" for name in ("state", "journal") if name in values
        }
        if party.role is Role.CLIENT:
            above["account"] = "../state"
        return values | above | kept


def _everywhere(address: str) -> str:
    """On every address of the machine: how others reach it is for names and firewalls."""
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
    return (
        "join" if role is Role.CLIENT else f"serve {role.value.removeprefix('server-')}"
    )


def _first(
    party: Principal,
    agreed: Consortium,
    public: str,
    shown: dict[str, str],
) -> Contents:
    client = party.role is Role.CLIENT
    named = {
        "name": party.name,
        "who": f"client {party.name}" if client else party.name,
        "read_out": "\n".join(f"| {of} | `{value}` |" for of, value in shown.items()),
    }
    begin = _filled("first.txt", named)
    contents: Contents = {f"{IDENTITY}/{CA_FILE}": public, NEXT: begin}
    if party.role is Role.OPERATOR:
        return contents
    command = f"precad {_command(party.role)} --config {party.name}/{SETTINGS}"
    own = _filled("first-owner.txt", named) if client else ""
    when = _WHEN[party.role]
    contents[NEXT] = begin + _filled(
        "first-start.txt",
        named,
        when=when,
        own=own,
        command=command,
    )
    return contents | {
        TASK: agreed.task.read_text(encoding="utf-8"),
        SETTINGS: to_toml(agreed.settings(party)),
        "compose.yml": _text(f"{party.role.value}.yml"),
        f"precad-{party.name}.service": _unit(party, party.name, SETTINGS),
    }


def _further(
    party: Principal,
    *,
    task: str,
    agreed: Consortium,
    digest: str,
) -> Contents:
    if not _NAME.fullmatch(task) or task in _TAKEN:
        what = (
            "use 1 to 63 of a-z, 0-9 and hyphens inside, like wards-2, and no name that"
            " is taken"
        )
        raise Misconfiguration("--further", task, what)
    named = {"name": party.name, "task": task}
    contents = {NEXT: _filled("further.txt", named, digest=digest)}
    if party.role is Role.OPERATOR:
        servers = {"server_a": agreed.server_a, "server_b": agreed.server_b}
        contents[NEXT] += _filled("further-operator.txt", named, **servers)
    else:
        settings = agreed.further(party, task)
        service = f"{party.name}-{task}"
        client = party.role is Role.CLIENT
        command = (
            f"precad {_command(party.role)} --config {party.name}/{task}/{SETTINGS}"
        )
        contents[NEXT] += _filled(
            "further-client.txt" if client else "further-service.txt", named
        )
        contents[NEXT] += _filled("further-start.txt", named, command=command)
        contents[TASK] = agreed.task.read_text(encoding="utf-8")
        contents[SETTINGS] = to_toml(settings)
        contents["compose.yml"] = _further_compose(party, task, settings)
        contents[f"precad-{service}.service"] = _unit(
            party, service, f"{task}/{SETTINGS}"
        )
    return {f"{task}/{name}": text for name, text in contents.items()}


def _unit(party: Principal, service: str, settings: str) -> str:
    named = {
        "party": party.name,
        "service": service,
        "settings": settings,
    }
    return _filled("precad.service", named, command=_command(party.role))


def _further_compose(
    party: Principal, task: str, settings: Mapping[str, object]
) -> str:
    """The first task's service under another name, with this task's files and port."""
    first = (
        _text(f"{party.role.value}.yml")
        .partition("services:\n")[2]
        .partition("\n\n")[0]
    )
    port = str(settings.get("listen")).rpartition(":")[2]
    for before, after in (
        (r"^  (\w+):$", rf"  \1-{task}:"),
        (r"--config, settings", f"--config, {task}/settings"),
        (r"\./(task|settings)\.toml:/precad/", rf"./{task}/\1.toml:/precad/{task}/"),
        (r'"\d+:\d+"', f'"{port}:{port}"'),
    ):
        first = re.sub(before, after, first, flags=re.MULTILINE)
    return _filled("further-compose.txt", {"task": task}) + first.rstrip() + "\n"


def _text(name: str) -> str:
    return (files("precad.cli") / "machines" / name).read_text(encoding="utf-8")


def _filled(name: str, values: Mapping[str, str], **others: str) -> str:
    return Template(_text(name)).substitute(values, **others)


def _packed(folder: str, contents: Contents, *, keys: bool) -> bytes:
    """A .tar.gz of files in one folder; no time, owner or order of this machine's in it.

    With ``keys`` it has a folder for them, its owner's alone from the first.
    """
    raw = io.BytesIO()
    with tarfile.open(
        fileobj=raw,
        mode="w",
        format=tarfile.USTAR_FORMAT,
    ) as archive:
        if keys:
            place = tarfile.TarInfo(f"{folder}/{IDENTITY}")
            place.type = tarfile.DIRTYPE
            place.mode = FOLDER_MODE
            archive.addfile(place)
        for name in sorted(contents):
            data = contents[name]
            data = data.encode() if isinstance(data, str) else data
            member = tarfile.TarInfo(f"{folder}/{name}")
            # Its owner's token goes into the settings, or a database's password.
            private = name.endswith(SETTINGS)
            member.size = len(data)
            member.mode = PRIVATE_MODE if private else PUBLIC_MODE
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


@command()
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
    if folder.exists():
        raise Misconfiguration("folder", str(folder), "exists already: name a new one")
    agreed = Task.load(task)
    enrolment = agreed.enrolment
    servers = local.servers_of(agreed)
    names = [
        ClientId(path.stem.lower().replace("_", "-").replace(" ", "-")).name
        for path in data
    ]
    if not enrolment.min_clients <= len(set(names)) == len(names) <= enrolment.clients:
        takes = f"the task takes {enrolment.min_clients} to {enrolment.clients} owners"
        raise Misconfiguration(
            "data", names, f"{takes}, each with a file and a name of its own"
        )
    for path in data:
        if not path.is_file():
            raise Misconfiguration("data", str(path), "there is no such file")
    folder.mkdir(parents=True)
    own = {
        key: value
        for key, value in (("model", model), ("loss", loss))
        if value is not None
    }
    paths = [os.path.relpath(path, folder) for path in data]
    owners = {
        name: {"data": path, **own} for name, path in zip(names, paths, strict=True)
    }
    create_local_keys(folder / "keys", names, dealer=agreed.has_dealer)
    addresses = dict(zip(servers, local.free_addresses(len(servers)), strict=True))
    local.write_parties(
        folder,
        os.path.relpath(task, folder),
        owners,
        addresses,
        linger_s=60.0,
    )
    for name in servers:
        click.echo(
            f"precad serve {name.removeprefix('server-')} --config"
            f" {folder / name}.toml &"
        )
    click.echo(f"precad doctor --config {folder / names[0]}.toml")
    configs = " ".join(f"--config {folder / name}.toml" for name in names)
    click.echo(f"precad join {configs}")
