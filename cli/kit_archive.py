"""A party's archive: the same bytes whoever packs it, so that its SHA-256 can be read out."""

import gzip
import io
import tarfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from precad.common.checks import read_toml, refusal
from precad.common.errors import Misconfiguration
from precad.common.files import FOLDER_MODE, PUBLIC_MODE
from precad.common.identifiers import Role
from precad.common.identity.party_certificate import Principal
from precad.common.process_settings import Address

IDENTITY = "keys"
TASK = "task.toml"


class Consortium(BaseModel):
    """A consortium's file (TOML): the task and where the three services are reached."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Path
    """The task file, relative to this one."""
    server_a: Address
    server_b: Address
    dealer: Address
    owners: dict[str, Any] = Field(default_factory=dict)
    """What every owner's settings have besides: data, model, loss, columns."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """The consortium from a TOML file. Raises Misconfiguration naming file, field, remedy."""
        data = read_toml("consortium", path)
        try:
            found = cls.model_validate(data)
        except ValidationError as error:
            remedies = {
                "extra_forbidden": f"unknown key in {path}; remove it or mend its name",
                "missing": f"is required in {path}",
                "string_pattern_mismatch": "give host:port, such as server-a.example:7301",
            }
            raise refusal(error, remedies) from None
        taken = sorted(set(found.owners) & set(_OWNERS))
        if taken:
            remedy = f"the kit writes {', '.join(_OWNERS)} itself: leave it out of [owners]"
            raise Misconfiguration("owners", taken[0], remedy)
        return found.model_copy(update={"task": path.resolve().parent / found.task})

    def settings(self, party: Principal) -> dict[str, object]:
        """A party's settings file, in the folder of its kit. The operator has none."""
        same: dict[str, object] = {"task": TASK, "identity": IDENTITY}
        dealer = {"dealer": self.dealer}
        kept = {"state": "state", "journal": "journal"}
        match party.role:
            case Role.DEALER:
                return same | {"listen": _everywhere(self.dealer)}
            case Role.SERVER_B:
                return same | {"listen": _everywhere(self.server_b)} | dealer | kept
            case Role.SERVER_A:
                listen = {"listen": _everywhere(self.server_a), "server_b": self.server_b}
                return same | listen | dealer | kept
            case Role.CLIENT:
                servers = {"server_a": self.server_a, "server_b": self.server_b}
                own = {"client": party.name, "state": "state"}
                return same | own | servers | {"data": "records.csv"} | self.owners
            case Role.OPERATOR:
                return {}

    def further(self, party: Principal, task: str) -> dict[str, object]:
        """A party's values for a further task, whose files lie in a folder of its name.

        A server's or the dealer's are for a table of its settings; an owner's are a file of their
        own, in that folder.
        """
        values = self.settings(party)
        match party.role:
            case Role.OPERATOR:
                return {}
            case Role.CLIENT:
                above = {"identity": f"../{IDENTITY}", "account": "../state"}
                files = {name: f"../{values[name]}" for name in _FILES if name in values}
                return values | above | files | {"state": f"../state/{task}"}
        kept = {name: f"{values[name]}/{task}" for name in ("state", "journal") if name in values}
        return values | {"task": f"{task}/{TASK}"} | kept


_FILES = ("data", "held_out")
"""Of an owner's settings."""
_OWNERS = ("task", "identity", "client", "server_a", "server_b", "state", "token", "epsilon_limit")
"""An owner's limit is its own, and so is its token: nobody else writes them."""


def _everywhere(address: str) -> str:
    """On every address of the machine: how others reach it is for names and firewalls."""
    return f"0.0.0.0:{address.rpartition(':')[2]}"


_SERVED = {Role.SERVER_A: "a", Role.SERVER_B: "b", Role.DEALER: "dealer"}
UNIT = "precad.service"


def packed(folder: str, contents: Mapping[str, str], *, keys: bool = True) -> bytes:
    """A .tar.gz of text files in one folder; no time, owner or order of this machine's in it.

    Args:
        folder: in which all of them lie.
        contents: text by path within it.
        keys: whether it has a folder for keys, its owner's alone from the first.
    """
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        if keys:
            place = tarfile.TarInfo(f"{folder}/{IDENTITY}")
            place.type, place.mode = tarfile.DIRTYPE, FOLDER_MODE
            archive.addfile(place)
        for name in sorted(contents):
            data = contents[name].encode()
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode = len(data), PUBLIC_MODE
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


def machine(party: Principal) -> dict[str, str]:
    """The two ways to keep the party's process running: a compose file, a unit for systemd.

    None for the operator, who has no process.
    """
    if party.role is Role.OPERATOR:
        return {}
    folder = files("precad.cli") / "machines"
    command = "join" if party.role is Role.CLIENT else f"serve {_SERVED[party.role]}"
    unit = Template((folder / UNIT).read_text(encoding="utf-8"))
    return {
        "compose.yml": (folder / f"{party.role.value}.yml").read_text(encoding="utf-8"),
        f"precad-{party.name}.service": unit.substitute(party=party.name, command=command),
    }
