"""Settings of a process from its TOML file. Unknown keys are refused."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from precad.common.checks import read_toml, refusal
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ADDRESS_PATTERN

Address = Annotated[str, Field(pattern=ADDRESS_PATTERN)]


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
        try:
            settings = cls.model_validate(read_toml("config", path))
        except ValidationError as error:
            remedies = {
                "extra_forbidden": f"unknown key in {path}; remove it or mend its name",
                "missing": f"is required in {path}",
                "string_pattern_mismatch": "give host:port, such as 127.0.0.1:7301",
            }
            raise refusal(error, remedies) from None
        paths = {name: value for name, value in settings if isinstance(value, Path)}
        for name, value in paths.items():
            if "\0" in str(value):
                raise Misconfiguration(name, str(value), "isn't a path")
        folder = path.resolve().parent
        return settings.model_copy(update={name: folder / value for name, value in paths.items()})
