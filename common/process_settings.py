"""Settings of a process from a TOML file, for one task or for several. Unknown keys are refused.

A file of several tasks has a table for each, beside what all of them share:

    identity = "keys"
    state = "state"

    [tasks.wards]
    task = "wards.toml"
    listen = "0.0.0.0:7401"

A task's values are its own before the shared ones; below a shared state and journal it has a folder
of its own name. A file without such tables is one task's.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from precad.common.checks import read_toml, refusal
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ADDRESS_PATTERN, Digest
from precad.common.task import Task

Address = Annotated[str, Field(pattern=ADDRESS_PATTERN)]
TABLES = "tasks"
"""What holds a table a task, in a settings file of several (``common/process_settings.py``)."""


class Settings(BaseModel):
    """What every process needs. Relative paths are relative to the settings file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Path
    """The task file (TOML); the same bytes for everybody."""
    identity: Path
    """Folder with ca.pem, cert.pem and key.pem, as `precad keys` writes it."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Settings from a TOML file. Raises Misconfiguration naming file, field and remedy."""
        values = read_toml("config", path)
        if TABLES in values:
            raise Misconfiguration("config", str(path), "has several tasks; give one task's file")
        return cls.of(values, path)

    @classmethod
    def of(cls, values: Mapping[str, object], path: Path) -> Self:
        """Settings from what stands in the file at ``path``. Raises as ``load``."""
        try:
            return cls.model_validate(values).relative_to(path.resolve().parent)
        except ValidationError as error:
            remedies = {
                "extra_forbidden": f"unknown key in {path}; remove it or mend its name",
                "missing": f"is required in {path}",
                "string_pattern_mismatch": "give host:port, such as 127.0.0.1:7301",
            }
            raise refusal(error, remedies) from None

    def relative_to(self, folder: Path) -> Self:
        """The same with relative paths taken from ``folder``."""
        paths = {name: value for name, value in self if isinstance(value, Path)}
        for name, value in paths.items():
            if "\0" in str(value):
                raise Misconfiguration(name, str(value), "isn't a path")
        return self.model_copy(update={name: folder / value for name, value in paths.items()})


S = TypeVar("S", bound=Settings)

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_OWN = (
    *("task", "listen", "server_b", "dealer", "worker_listen", "metrics"),
    *("state", "journal", "database"),
)
"""What no two tasks have alike: one would be the other's."""
_ANY_PORT = ":0"


def values_by_task(path: Path) -> dict[str, dict[str, object]]:
    """What stands in the settings file at ``path`` for each task, unchecked, by the task's name.

    Returns:
        Under the empty name alone where the file has no tables of tasks.

    Raises:
        Misconfiguration: the file can't be read, or a task's name or table is none.
    """
    shared = read_toml("config", path)
    if TABLES not in shared:
        return {"": shared}
    tables = shared.pop(TABLES)
    if not isinstance(tables, dict) or not tables:
        raise Misconfiguration(TABLES, tables, f"give each task a table, [tasks.NAME], in {path}")
    found = {}
    for name, table in tables.items():
        check_name(name)
        if not isinstance(table, dict):
            raise Misconfiguration(f"{TABLES}.{name}", table, "give it a table, [tasks.NAME]")
        found[name] = _below(shared, name) | table
    return found


def check_name(name: str) -> None:
    """Raises Misconfiguration: it can't be a task's, in settings."""
    if not _NAME.fullmatch(name):
        what = "use 1 to 63 of a-z, 0-9 and hyphens inside, like wards-2"
        raise Misconfiguration(TABLES, name, what)


def settings_by_task(kind: type[S], path: Path) -> dict[str, tuple[S, Digest]]:
    """Each task's settings and its description's digest, by the task's name.

    Args:
        kind: of settings.
        path: a file with tables of tasks.

    Raises:
        Misconfiguration: as ``values_by_task``; a value can't be used; two tasks have one address,
            folder or database, or are the same.
    """
    found = {}
    for name, values in values_by_task(path).items():
        if "linger" in kind.model_fields:
            # The finished model is on offer, and says so, until its table is taken out.
            values.setdefault("linger", math.inf)
        try:
            settings = kind.of(values, path)
        except Misconfiguration as error:
            field = f"{TABLES}.{name}.{error.field}"
            raise Misconfiguration(field, error.value, error.remedy) from None
        try:
            digest = Task.load(settings.task).digest
        except Misconfiguration as error:
            field = f"{TABLES}.{name}.task"
            raise Misconfiguration(field, str(settings.task), str(error)) from None
        found[name] = settings, digest
    _refuse_alike(found)
    return found


def _below(shared: Mapping[str, object], name: str) -> dict[str, object]:
    """The shared values, with folders of the task's own below the shared ones."""
    values = dict(shared)
    state = shared.get("state")
    if isinstance(state, str):
        # Beside all states, never below them: no backup of them brings a journal back.
        values["journal"] = f"{shared.get('journal', f'{state}-journal')}/{name}"
        values["state"] = f"{state}/{name}"
    return values


def _refuse_alike(found: Mapping[str, tuple[S, Digest]]) -> None:
    for field in _OWN:
        holders: dict[str, str] = {}
        for name, (settings, _) in found.items():
            value = getattr(settings, field, None)
            if value is None or str(value).endswith(_ANY_PORT):
                continue
            if (other := holders.setdefault(str(value), name)) != name:
                raise Misconfiguration(
                    f"{TABLES}.{name}.{field}",
                    str(value),
                    f"tasks.{other} has the same; give each task its own",
                )
    digests: dict[Digest, str] = {}
    for name, (settings, digest) in found.items():
        if (other := digests.setdefault(digest, name)) != name:
            raise Misconfiguration(
                f"{TABLES}.{name}.task",
                str(settings.task),
                f"is the task of tasks.{other}, whose coins and submissions it would share; give "
                "the task another name in its file, at every party",
            )
