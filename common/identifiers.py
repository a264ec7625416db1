"""Identifiers, roles and secret bytes as types of their own."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from enum import Enum
from typing import Self

from precad.common.errors import Misconfiguration

DIGEST_BYTES = 32
ATTEMPTS = 2**40
"""Attempts have numbers below it: one a second lasts for 30,000 years, and what is
reckoned with such numbers fits a database. Who could name a larger one would leave none
for the next."""
_CLIENT_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Role(Enum):
    """Who a party is; part of every domain separation."""

    SERVER_A = "server-a"
    SERVER_B = "server-b"
    DEALER = "dealer"
    CLIENT = "client"
    OPERATOR = "operator"

    @property
    def title(self) -> str:
        """``server A``, ``dealer``, …: what sentences for people call it."""
        server = self in (Role.SERVER_A, Role.SERVER_B)
        return f"server {self.value[-1].upper()}" if server else self.value


@dataclass(frozen=True, slots=True)
class Digest:
    """A SHA-256 value of something public: a task, a model, a set."""

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != DIGEST_BYTES:
            raise Misconfiguration(
                "digest", f"{len(self.value)} bytes", "a digest has 32 bytes"
            )

    @classmethod
    def of(cls, data: bytes | memoryview) -> Self:
        """SHA-256 of ``data``."""
        return cls(hashlib.sha256(data).digest())

    def __str__(self) -> str:
        return self.value.hex()


@dataclass(frozen=True, slots=True, order=True)
class ClientId:
    """An enrolled client's name: lower-case letters, digits and inner hyphens, at most 63."""

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _CLIENT_NAME.fullmatch(self.name):
            remedy = "use 1 to 63 of a-z, 0-9 and hyphens inside, like ward-3"
            raise Misconfiguration("client", self.name, remedy)

    def __str__(self) -> str:
        return self.name

    def encoded(self) -> bytes:
        """The bytes that stand for this client in commitments and derivations."""
        return self.name.encode()


class Secret:
    """Secret bytes, which ``reveal()`` alone shows.

    ``repr`` and ``str`` show the length only; equality takes constant time; pickling is
    refused.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = bytes(data)

    @classmethod
    def random(cls, length: int = 32) -> Self:
        """Fresh bytes from the operating system's CSPRNG."""
        return cls(secrets.token_bytes(length))

    def reveal(self) -> bytes:
        """The bytes."""
        return self._data

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._data)} bytes>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._data, other._data)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> str:
        raise TypeError(f"{type(self).__name__} is never pickled")
