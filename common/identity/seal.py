"""What a server says and signs, so that it can be held against it later.

The two servers keep each other's seals, and owners keep both servers' (docs/protocol.md): whoever
has lost a database meets its own signature again.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from precad.common.identifiers import Role
from precad.common.keystream import encode_context
from precad.common.share.signature import Signature


class Kind(Enum):
    """What a sealed body is; one kind never passes for another."""

    ROSTER = "roster"
    """The frozen roster's digest."""
    COIN_COMMITMENT = "coin-commitment"
    COIN_OPENING = "coin-opening"
    HEAD = "head"
    """The own ledger's newest head."""
    COUNTERSIGNATURE = "countersignature"
    """The other server's head, by one that has prepared the same attempt itself."""
    MODEL = "model"
    """The digest of a version's model, which both servers hold."""
    NOT_PREPARED = "not-prepared"
    """For this attempt; the other's prepared entry may be voided."""
    OPENING = "opening"
    """To an owner, before it shares anything for an attempt."""
    STATEMENT = "statement"
    """To an owner, of its account."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A body and a server's signature over it."""

    body: bytes
    signature: Signature = field(repr=False)


class SealSigner(Protocol):
    """A server's pen."""

    def sign(self, signed: bytes) -> Signature:
        """The signature over ``signed``."""


class SealVerifier(Protocol):
    """Who knows the servers' certificates."""

    def check_server(
        self, signature: Signature, role: Role, signed: bytes, *, kept: bool = False
    ) -> None:
        """The signature is that server's over ``signed``. Raises PeerViolation.

        ``kept``: made earlier; its certificate may have expired since.
        """


def seal(signer: SealSigner, role: Role, kind: Kind, body: bytes) -> Sealed:
    """Sign ``body`` as ``role``; the body names its task."""
    return Sealed(body, signer.sign(_signed(role, kind, body)))


def check_seal(
    verifier: SealVerifier, role: Role, kind: Kind, sealed: Sealed, *, kept: bool = False
) -> bytes:
    """The body, which ``role`` has signed as a ``kind``, now or earlier. Raises PeerViolation."""
    verifier.check_server(sealed.signature, role, _signed(role, kind, sealed.body), kept=kept)
    return sealed.body


def _signed(role: Role, kind: Kind, body: bytes) -> bytes:
    return encode_context(f"seal/{kind.value}", role.value.encode(), body)
