"""Types for names, roles, digests and secret bytes, so that none passes for another."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from enum import Enum
from typing import Self

from precad.common import Misconfiguration, frozen_dataclass

DIGEST_BYTES = 32
"""Length of a SHA-256 value."""
ATTEMPTS = 2**40
"""All attempts have numbers below this. At one a second they last for 30,000 years, and
numbers that are computed from them fit a database's integers. Without the bound, a peer
could name so large a number that no attempt could follow it."""
_CLIENT_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Role(Enum):
    """Which part a party plays; part of every domain separation."""

    SERVER_A = "server-a"
    SERVER_B = "server-b"
    DEALER = "dealer"
    CLIENT = "client"
    OPERATOR = "operator"

    @property
    def title(self) -> str:
        """Return the role as people read it: ``server A``, ``dealer``."""
        is_server = self in (Role.SERVER_A, Role.SERVER_B)
        return f"server {self.value[-1].upper()}" if is_server else self.value


SERVERS = (Role.SERVER_A, Role.SERVER_B)
"""Both servers, in the order in which pairs name them."""


@frozen_dataclass
class Digest:
    """A SHA-256 value of public data, such as a task, a model or a valid set.

    Raises Misconfiguration: the value hasn't 32 bytes.
    """

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != DIGEST_BYTES:
            raise Misconfiguration(
                "digest", f"{len(self.value)} bytes", "a digest has 32 bytes"
            )

    @classmethod
    def of(cls, data: bytes | memoryview) -> Self:
        """Return the SHA-256 of ``data``."""
        return cls(hashlib.sha256(data).digest())

    def __str__(self) -> str:
        return self.value.hex()


@dataclass(frozen=True, slots=True, order=True)
class ClientId:
    """A client's name: 1 to 63 lower-case letters, digits and inner hyphens.

    Raises Misconfiguration: the name has another form.
    """

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _CLIENT_NAME.fullmatch(self.name):
            raise Misconfiguration(
                "client",
                self.name,
                "use 1 to 63 of a-z, 0-9 and hyphens inside, like ward-3",
            )

    def __str__(self) -> str:
        return self.name

    def encoded(self) -> bytes:
        """Return the bytes that stand for this client in hashes and derivations."""
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
        """Return ``length`` fresh bytes from the operating system's CSPRNG."""
        return cls(secrets.token_bytes(length))

    def reveal(self) -> bytes:
        """Return the secret bytes."""
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


def submission_id(ctx: bytes) -> str:
    """Return what all parties call a submission in logs and ledgers: 12 hex digits.

    They begin ``ctx``, the context's digest, which the dealer is told anyway. A random
    nonce is in it, so that it tells nobody whose submission it is.
    """
    return ctx.hex()[:12]
