"""What the organisations agreed on, in one file that all have alike."""

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from precad.common.checks import read_toml, refusal
from precad.common.errors import Misconfiguration
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
