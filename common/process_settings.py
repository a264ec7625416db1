"""Settings of a process from its TOML file. Unknown keys are refused."""

from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from precad.common.addresses import address_fault, by_proxy
from precad.common.checks import parsed_toml
from precad.common.errors import Misconfiguration


def _address(text: str, least_port: int = 1) -> str:
    if fault := address_fault(text, least_port=least_port):
        raise ValueError(fault)
    return text


Address = Annotated[str, AfterValidator(_address)]
"""Where somebody is reached."""
ListenAddress = Annotated[str, AfterValidator(lambda text: _address(text, 0))]
"""Where somebody listens; port 0 takes a free one."""


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
        settings = parsed_toml(cls, "config", path)
        paths = {name: value for name, value in settings if isinstance(value, Path)}
        for name, value in paths.items():
            if "\0" in str(value):
                raise Misconfiguration(name, str(value), "isn't a path")
        folder = path.resolve().parent
        return settings.model_copy(update={name: folder / value for name, value in paths.items()})


class DiallingSettings(Settings):
    """Settings of a process that dials others."""

    DIALS: ClassVar[tuple[str, ...]]
    """Which of the settings are their addresses; one may be None."""

    proxy: Annotated[str | None, Field(repr=False)] = None
    """`http://[user:password@]host:port` of an HTTP proxy that leads to the others; they are
    dialled straight unless given, whatever the environment names."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Settings from a TOML file. Raises Misconfiguration naming file, field and remedy."""
        settings = super().load(path)
        given = ((name, getattr(settings, name)) for name in cls.DIALS)
        dialled = {name: by_proxy(at, settings.proxy) for name, at in given if at is not None}
        return settings.model_copy(update=dialled)
