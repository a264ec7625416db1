"""Settings of a process from its TOML file, and its peers' addresses, checked, maybe by a proxy.

gRPC takes a proxy from the environment, by itself and without a word; precad's channels
don't. Who needs one names it in the settings, and what looks at a connection goes the
same way as gRPC.
"""

import base64
import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Self
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from precad.common.checks import parsed_toml
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Secret

_MOST_PORT = 2**16 - 1
_LONGEST_NAME = 253
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?", re.IGNORECASE | re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,5}", re.ASCII)
_PROXY = re.compile(
    r"http://(?:(?P<login>[^@/]*)@)?(?P<address>[^@/]*)/?", re.IGNORECASE
)


def split_address(address: str) -> tuple[str, int]:
    """Host, without brackets, and port of what ``address_fault`` finds nothing wrong with."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def address_fault(address: str, *, least_port: int = 1) -> str | None:
    """Return what is wrong with ``host:port``, as a remedy; None where nothing is.

    The host is a name, an IPv4 address, or an IPv6 address in brackets. ``least_port``:
    0 where a free port may be taken.
    """
    host, _, port = address.rpartition(":")
    if not _is_host(host) or not _DIGITS.fullmatch(port):
        return "give host:port, such as 127.0.0.1:7301, [::1]:7301 or a.example:7301"
    if not least_port <= int(port) <= _MOST_PORT:
        return f"a port is {least_port} to {_MOST_PORT}"
    return None


def _is_host(text: str) -> bool:
    in_brackets = text.startswith("[") and text.endswith("]")
    if not in_brackets and not re.fullmatch(r"[0-9.]+", text):
        return len(text) <= _LONGEST_NAME and bool(_NAME.fullmatch(text))
    try:
        return ipaddress.ip_address(text.strip("[]")).version == (
            6 if in_brackets else 4
        )
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """A proxy that connects callers to a host and port: HTTP's CONNECT."""

    address: str
    authorization: Secret | None = None
    """User and password, as a header's value."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``http://[user:password@]host:port``.

        Raises Misconfiguration, without the value.
        """
        found = _PROXY.fullmatch(text)
        if found is None or address_fault(found["address"]):
            remedy = (
                "give http://host:port, with user:password@ before the host if it asks"
                " for it"
            )
            raise Misconfiguration("proxy", "…", remedy)
        if found["login"] is None:
            return cls(found["address"])
        # As in every URL, what isn't a letter or digit may be written %40.
        login = base64.b64encode(unquote(found["login"]).encode())
        return cls(found["address"], Secret(b"Basic " + login))

    def request(self, address: str) -> bytes:
        """What asks the proxy for a connection to ``address``."""
        lines = [f"CONNECT {address} HTTP/1.1".encode(), f"Host: {address}".encode()]
        if self.authorization is not None:
            lines.append(b"Proxy-Authorization: " + self.authorization.reveal())
        return b"\r\n".join([*lines, b"", b""])


class ProxiedAddress(str):
    """``host:port`` that is reached by a proxy; printed, it is the address alone."""

    __slots__ = ("proxy",)
    proxy: HttpProxy


def by_proxy(address: str, proxy: str | None) -> str:
    """The address as it is dialled. Raises Misconfiguration, as ``HttpProxy.parse``."""
    if proxy is None:
        return address
    proxied = ProxiedAddress(address)
    proxied.proxy = HttpProxy.parse(proxy)
    return proxied


def proxy_of(address: str) -> HttpProxy | None:
    """The proxy by which an address is dialled; None: straight."""
    return address.proxy if isinstance(address, ProxiedAddress) else None


def _address(text: str, least_port: int = 1) -> str:
    fault = address_fault(text, least_port=least_port)
    if fault:
        raise ValueError(fault)
    return text


Address = Annotated[str, AfterValidator(_address)]
"""Where somebody is reached."""
ListenAddress = Annotated[str, AfterValidator(lambda text: _address(text, 0))]
"""Where somebody listens; port 0 takes a free one."""


class ProcessSettings(BaseModel):
    """What every process needs. Relative paths are relative to the settings file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Path
    """The task file (TOML); the same bytes for everybody."""
    identity: Path
    """Folder with ca.pem, cert.pem and key.pem, as `precad keys` writes it."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Settings from a TOML file.

        Raises Misconfiguration naming file, field and remedy.
        """
        settings = parsed_toml(cls, "config", path)
        paths = {name: value for name, value in settings if isinstance(value, Path)}
        for name, value in paths.items():
            if "\0" in str(value):
                raise Misconfiguration(name, str(value), "isn't a path")
        folder = path.resolve().parent
        return settings.model_copy(
            update={name: folder / value for name, value in paths.items()}
        )


class DiallingSettings(ProcessSettings):
    """Settings of a process that dials others."""

    DIALS: ClassVar[tuple[str, ...]]
    """Which of the settings are their addresses; one may be None."""

    proxy: Annotated[str | None, Field(repr=False)] = None
    """`http://[user:password@]host:port` of an HTTP proxy that leads to the others;
    they are dialled straight unless given, whatever the environment names."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """As of any settings; the dialled addresses know the proxy."""
        settings = super().load(path)
        given = ((name, getattr(settings, name)) for name in cls.DIALS)
        dialled = {
            name: by_proxy(at, settings.proxy) for name, at in given if at is not None
        }
        return settings.model_copy(update=dialled)
