"""Identifiers as types of their own, and the roles."""

import hashlib
import re
from dataclasses import dataclass
from enum import Enum

from precad.common.errors import Misconfiguration

DIGEST_BYTES = 32
ATTEMPTS = 2**40
"""Attempts have numbers below it: one a second lasts for 30,000 years, and what is reckoned with
such numbers fits a database. Who could name a larger one would leave none for the next."""
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
            raise Misconfiguration("digest", f"{len(self.value)} bytes", "a digest has 32 bytes")

    @classmethod
    def of(cls, data: bytes | memoryview) -> "Digest":
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
            raise Misconfiguration(
                "client", self.name, "use 1 to 63 of a-z, 0-9 and hyphens inside, like ward-3"
            )

    def __str__(self) -> str:
        return self.name

    def encoded(self) -> bytes:
        """The bytes that stand for this client in commitments and derivations."""
        return self.name.encode()
