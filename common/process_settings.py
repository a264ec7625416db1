"""Settings of a process from its TOML file, with the addresses of other parties.

gRPC takes a proxy from the environment by itself and without a word; precad's channels
don't. Who needs a proxy names it in the settings, and what looks at a connection (to
say why it fails) takes the same way as gRPC.
"""

import base64
import ipaddress
import re
import socket
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Self
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, Field

from precad.common import (
    CLOCK,
    Clock,
    MayPass,
    Misconfiguration,
    Retries,
    RetryPolicy,
    Secret,
    frozen_dataclass,
    log,
    parsed_toml,
)

_MOST_PORT = 2**16 - 1
_LONGEST_NAME = 253
"""Longest name of a host, in characters (RFC 1035)."""
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?", re.IGNORECASE | re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,5}", re.ASCII)
_PROXY = re.compile(
    r"http://(?:(?P<login>[^@/]*)@)?(?P<address>[^@/]*)/?", re.IGNORECASE
)
LISTEN_S = 60.0
"""Seconds for which a process waits for an address that it can't listen on yet."""
_WAITS = RetryPolicy(first_s=0.5, longest_s=5.0)


def split_address(address: str) -> tuple[str, int]:
    """Return host, without brackets, and port of an address.

    ``address_fault`` must find nothing wrong with it.
    """
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def address_fault(address: str, *, least_port: int = 1) -> str | None:
    """Return what is wrong with ``host:port``, as a remedy; None where nothing is.

    The host is a name, an IPv4 address, or an IPv6 address in brackets. ``least_port``
    is 0 where port 0, a free one, may be given.
    """
    host, _, port = address.rpartition(":")
    if not _is_host(host) or not _DIGITS.fullmatch(port):
        return "give host:port, such as 127.0.0.1:7301, [::1]:7301 or a.example:7301"
    if not least_port <= int(port) <= _MOST_PORT:
        return f"a port is {least_port} to {_MOST_PORT}"
    return None


def wait_for_address(field: str, address: str | None, clock: Clock = CLOCK) -> None:
    """Wait until this machine can listen on an address; None is no address.

    It waits for ``LISTEN_S`` seconds: at boot an address may not be up yet, and a
    process that ends holds its port for a while.

    Raises MayPass: it still can't; Misconfiguration: this user may not use that port.
    """
    if address is None:
        return
    host, port = split_address(address)
    retries = Retries(
        total_s=LISTEN_S,
        policy=_WAITS,
        clock=clock,
    )
    while True:
        try:
            family, _, _, _, bound = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family) as tried:
                # As gRPC's own: connections that end there hold nobody up.
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(bound)
        except PermissionError as error:
            raise Misconfiguration(
                field,
                address,
                f"can't listen there ({error.strerror}); name a port above 1023",
            ) from None
        except OSError as error:
            remedy = f"can't listen there ({error.strerror}): taken, or not up yet"
            fault = MayPass(field, address, remedy)
            if retries.remaining() == LISTEN_S:
                log.warning("%s; waiting for %.0f s", fault, LISTEN_S)
            retries.wait(fault)
        else:
            return


def _is_host(text: str) -> bool:
    """Return whether a text is a host's name or its IP address, IPv6 in brackets."""
    in_brackets = text.startswith("[") and text.endswith("]")
    if not in_brackets and not re.fullmatch(r"[0-9.]+", text):
        return len(text) <= _LONGEST_NAME and bool(_NAME.fullmatch(text))
    try:
        version = ipaddress.ip_address(text.strip("[]")).version
    except ValueError:
        return False
    return version == (6 if in_brackets else 4)


@frozen_dataclass
class HttpProxy:
    """A proxy that connects callers to a host and port by HTTP's CONNECT."""

    address: str
    """The proxy's own ``host:port``."""
    authorization: Secret | None = None
    """User and password, as the value of the header ``Proxy-Authorization``."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the proxy of a URL, ``http://[user:password@]host:port``.

        Raises Misconfiguration, without the value: it has another form.
        """
        url = _PROXY.fullmatch(text)
        if url is None or address_fault(url["address"]):
            raise Misconfiguration(
                "proxy",
                "…",
                "give http://host:port, with user:password@ before the host if it asks"
                " for it",
            )
        if url["login"] is None:
            return cls(url["address"])
        # As in every URL, what isn't a letter or digit may be written like %40.
        login = base64.b64encode(unquote(url["login"]).encode())
        return cls(url["address"], Secret(b"Basic " + login))

    def request(self, address: str) -> bytes:
        """Return the request that asks the proxy for a connection to ``address``."""
        lines = [f"CONNECT {address} HTTP/1.1".encode(), f"Host: {address}".encode()]
        if self.authorization is not None:
            lines.append(b"Proxy-Authorization: " + self.authorization.reveal())
        return b"\r\n".join([*lines, b"", b""])


class ProxiedAddress(str):
    """A ``host:port`` that is dialled through a proxy; printed, the address alone."""

    __slots__ = ("proxy",)
    proxy: HttpProxy


def by_proxy(address: str, proxy: str | None) -> str:
    """Return the address as it is dialled: through the proxy of a URL, or straight.

    Raises Misconfiguration: the URL has another form than ``HttpProxy.parse`` takes.
    """
    if proxy is None:
        return address
    proxied = ProxiedAddress(address)
    proxied.proxy = HttpProxy.parse(proxy)
    return proxied


def proxy_of(address: str) -> HttpProxy | None:
    """Return the proxy through which an address is dialled; None: straight."""
    return address.proxy if isinstance(address, ProxiedAddress) else None


def _without_fault(text: str, *, least_port: int = 1) -> str:
    """Return an address as ``address_fault`` takes it; raises ValueError for pydantic."""
    fault = address_fault(text, least_port=least_port)
    if fault:
        raise ValueError(fault)
    return text


Address = Annotated[str, AfterValidator(_without_fault)]
"""Where a party is reached, ``host:port``."""
ListenAddress = Annotated[str, AfterValidator(partial(_without_fault, least_port=0))]
"""Where a party listens, ``host:port``; port 0 takes a free one."""


class ProcessSettings(BaseModel, frozen=True, extra="forbid"):
    """Settings that every process needs; relative paths start at the settings file."""

    task: Path
    """The task file (TOML); the same bytes for everybody."""
    identity: Path
    """Folder with ca.pem, cert.pem and key.pem, as `precad keys` writes it."""
    key_passphrase_file: Path | None = None
    """A file with the passphrase of an encrypted key.pem. Unless given it is the one
    that the variable PRECAD_KEY_PASSPHRASE_FILE names, or systemd's credential
    key-passphrase."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the settings of a TOML file, with absolute paths.

        Raises Misconfiguration, which names file, field and remedy: the file can't be
        read, or a setting is missing, unknown or wrong.
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
    """Names of the settings that are the others' addresses; one may be None."""

    proxy: Annotated[str | None, Field(repr=False)] = None
    """`http://[user:password@]host:port` of an HTTP proxy that leads to the others;
    they are dialled straight unless given, whatever the environment names."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the settings as ``ProcessSettings.load``; addresses know the proxy.

        Raises Misconfiguration as there, or where the proxy's URL is wrong.
        """
        settings = super().load(path)
        dialled = {}
        for name in cls.DIALS:
            address = getattr(settings, name)
            if address is not None:
                dialled[name] = by_proxy(address, settings.proxy)
        return settings.model_copy(update=dialled)
