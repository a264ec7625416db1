"""Settings of one process, from a TOML file. Unknown keys are refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from precad.common.errors import Misconfiguration
from precad.common.identifiers import ADDRESS_PATTERN
from precad.common.parsed import read_toml, refusal

Address = Annotated[str, Field(pattern=ADDRESS_PATTERN)]
TABLES = "tasks"
"""What holds a table a task, in a settings file of several (``common/several.py``)."""


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
