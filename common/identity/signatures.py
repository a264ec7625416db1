"""Signatures with a party's certificate: clients' over submissions, servers' over what they say.

A client's certificate, not only its connection, stands for what it sends. What a server
says and signs can be held against it later: the two servers keep each other's signed
statements, and owners keep both servers' (docs/protocol.md). Whoever has lost a
database meets its own signature again.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import lru_cache
from typing import Never, Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from precad.common import clock, errors
from precad.common.identifiers import ClientId, Role
from precad.common.identity import party_certificate as certificates
from precad.common.identity.credentials import CA_FILE, Identity, check_certificate
from precad.common.identity.party_certificate import Principal
from precad.common.ring import encode_context
from precad.common.submission import Signature, Signer

_ALGORITHM = ec.ECDSA(hashes.SHA256())


class CertificateSigner:
    """Signs with the key of the identity's certificate: ECDSA on P-256 with SHA-256."""

    def __init__(self, identity: Identity) -> None:
        source = str(identity.path)
        chain = certificates.read_certificates(identity.cert, source=source)
        self._key = certificates.own_key(identity.key, chain[0], source=source)
        self._certificates = tuple(
            each.public_bytes(serialization.Encoding.DER) for each in chain
        )

    def sign(self, signed: bytes) -> Signature:
        """As ``Signer``, with the certificate and intermediate ones."""
        return Signature(self._key.sign(signed, _ALGORITHM), self._certificates)


class CertificateVerifier:
    """Believes what the identity's authorities issued and its revocation list doesn't name."""

    def __init__(self, identity: Identity) -> None:
        source = str(identity.path / CA_FILE)
        self._authorities = certificates.read_certificates(identity.ca, source=source)
        self._revocations = identity.revocations

    def admit(self, signature: Signature, client: ClientId) -> None:
        """As ``Verifier``: the certificate is of our authorities, valid now, and not revoked."""
        principal = self._principal(signature)
        if principal != Principal.client(client.name):
            _refuse(
                f"the certificate is {principal}'s, the submission is client {client}'s"
            )

    def check_server(
        self,
        signature: Signature,
        role: Role,
        signed: bytes,
        *,
        kept: bool = False,
    ) -> None:
        """The signature is that server's over ``signed``, by a certificate that counts now.

        ``kept``: it was made earlier: a certificate that has expired since still
        counts, one that was revoked doesn't.

        Raises PeerViolation: it isn't; PeerUnavailable: its certificate has expired or
        was revoked, and it may come with another.
        """
        try:
            moment = None
            if kept:
                # As it was: the key's holder has a newer certificate by now.
                moment = min(
                    clock.wall(), certificates_of(signature)[0].not_valid_after_utc
                )
            principal = self._principal(signature, moment)
            self.check(signature, signed)
        except errors.RejectedSubmission as error:
            lapsed = self._lapsed(signature)
            kind = errors.PeerUnavailable if lapsed else errors.PeerViolation
            raise kind(f"what {role.value} is to have signed: {error.detail}") from None
        if principal != Principal.service(role):
            raise errors.PeerViolation(
                f"what {role.value} is to have signed was signed by {principal}"
            )

    def _principal(
        self, signature: Signature, now: datetime | None = None
    ) -> Principal:
        chain = certificates_of(signature)
        try:
            return check_certificate(
                chain=chain,
                authorities=self._authorities,
                revocations=self._revocations,
                source="signature",
                now=now,
            )
        except errors.Misconfiguration as error:
            _refuse(f"the certificate can't be used: {error}")

    def _lapsed(self, signature: Signature) -> bool:
        try:
            own = certificates_of(signature)[0]
        except errors.RejectedSubmission:
            return False
        return certificates.validity_fault(
            own
        ) is not None or self._revocations.revokes(own)

    def check(self, signature: Signature, signed: bytes) -> None:
        """The signature is its certificate's over ``signed``.

        Raises RejectedSubmission.
        """
        key = certificates_of(signature)[0].public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            _refuse("the certificate's key isn't ECDSA on P-256")
        try:
            key.verify(signature.value, signed, _ALGORITHM)
        except InvalidSignature:
            _refuse("the signature isn't over what it came with")


def certificates_of(signature: Signature) -> tuple[x509.Certificate, ...]:
    """The certificates that came with ``signature``.

    Raises RejectedSubmission: malformed.
    """
    return _certificates(signature.certificates)


# A submission's are asked for three times, and the same come with its client's next
# one.
@lru_cache(maxsize=1024)
def _certificates(chain: tuple[bytes, ...]) -> tuple[x509.Certificate, ...]:
    try:
        found = tuple(x509.load_der_x509_certificate(each) for each in chain)
        for each in found:
            certificates.require_whole(each)
    except certificates.MALFORMED:
        _refuse("the certificates aren't X.509 in DER")
    return found


def _refuse(detail: str) -> Never:
    raise errors.RejectedSubmission(errors.Rejection.BAD_SIGNATURE, detail)


class SignedKind(Enum):
    """What a server signs; one kind never passes for another."""

    ROSTER = "roster"
    COIN_COMMITMENT = "coin-commitment"
    COIN_OPENING = "coin-opening"
    HEAD = "head"
    COUNTERSIGNATURE = "countersignature"
    """Of the other server's ledger's head, by one that has prepared the same attempt
    itself."""
    MODEL = "model"
    NOT_PREPARED = "not-prepared"
    """For this attempt; the other's prepared entry may be voided."""
    OPENING = "opening"
    """To an owner, before it shares anything for an attempt; a statement is of its
    account."""
    STATEMENT = "statement"


@dataclass(frozen=True, slots=True)
class ServerSigned:
    """A body and a server's signature over it."""

    body: bytes
    signature: Signature = field(repr=False)


class ServerVerifier(Protocol):
    """Checks servers' signatures by their certificates."""

    def check_server(
        self,
        signature: Signature,
        role: Role,
        signed: bytes,
        *,
        kept: bool = False,
    ) -> None:
        """As ``CertificateVerifier`` has it. Raises PeerViolation, PeerUnavailable."""


def sign_as_server(
    signer: Signer,
    role: Role,
    kind: SignedKind,
    body: bytes,
) -> ServerSigned:
    """Sign ``body`` as ``role``; the body names its task."""
    return ServerSigned(body, signer.sign(_signed(role, kind, body)))


def check_server_signed(
    verifier: ServerVerifier,
    role: Role,
    kind: SignedKind,
    message: ServerSigned,
    *,
    kept: bool = False,
) -> bytes:
    """The body, which ``role`` has signed as a ``kind``, now or earlier.

    Raises PeerViolation.
    """
    verifier.check_server(
        message.signature, role, _signed(role, kind, message.body), kept=kept
    )
    return message.body


def _signed(role: Role, kind: SignedKind, body: bytes) -> bytes:
    return encode_context(f"seal/{kind.value}", role.value.encode(), body)
