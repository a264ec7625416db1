"""Signatures with a party's certificate: of submissions and of servers' statements.

A client's certificate, not only its connection, stands for what it sends. What a server
states and signs can be held against it later: the two servers keep each other's signed
statements, and owners keep both servers' (docs/protocol.md). A server that has lost its
database meets its own signature again.
"""

from datetime import datetime
from enum import Enum
from functools import lru_cache
from typing import Never

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from precad.common import (
    ClientId,
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    RejectedSubmission,
    Rejection,
    Role,
    Signature,
    clock,
    encode_context,
)
from precad.common.identity import (
    CA_FILE,
    MALFORMED,
    Identity,
    Principal,
    check_certificate,
    own_key,
    read_certificates,
    require_whole,
    validity_fault,
)

_ALGORITHM = ec.ECDSA(hashes.SHA256())


class CertificateSigner:
    """Signs with the key of the identity's certificate: ECDSA on P-256 with SHA-256.

    A renewed certificate and its key are used from the next signature on.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._renewed: CertificateSigner | None = None
        """What signs since the identity was renewed, and after further renewals."""
        source = identity.path
        chain = read_certificates(identity.cert, source)
        self._key = own_key(identity.key, chain[0], source=source)
        self._certificates = tuple(
            certificate.public_bytes(serialization.Encoding.DER)
            for certificate in chain
        )

    def sign(self, signed: bytes) -> Signature:
        """Return the signature over ``signed``, with the identity's certificates."""
        newest = self._identity.current()
        if newest is not self._identity:
            self._renewed = self._renewed or CertificateSigner(newest)
            return self._renewed.sign(signed)
        return Signature(self._key.sign(signed, _ALGORITHM), self._certificates)


class CertificateVerifier:
    """Checks signatures by certificates of the identity's authorities.

    A certificate that the identity's revocation list names doesn't count.
    """

    def __init__(self, identity: Identity) -> None:
        source = identity.path / CA_FILE
        self._identity = identity
        self._authorities = read_certificates(identity.ca, source)
        self._revocations = identity.revocations

    def admit(self, signature: Signature, client: ClientId) -> None:
        """Check that the signature's certificate is ``client``'s and counts now.

        Raises RejectedSubmission (BAD_SIGNATURE): it is another party's, of no
        authority of ours, not valid now, or revoked.
        """
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
        """Check that a server signed ``signed``, and that its certificate counts.

        ``role`` is the server's. ``kept`` is true of an earlier signature: for it
        a certificate that has expired since still counts, a revoked one doesn't.

        Raises PeerViolation: the signature isn't that server's; PeerUnavailable: its
        certificate has expired or was revoked, and it may come with another.
        """
        try:
            moment = None
            if kept:
                # As it was then: the key's holder has a newer certificate by now.
                end = certificates_of(signature)[0].not_valid_after_utc
                moment = min(clock.wall(), end)
            principal = self._principal(signature, moment)
            self.check(signature, signed)
        except RejectedSubmission as error:
            error_type = PeerUnavailable if self._lapsed(signature) else PeerViolation
            raise error_type(
                f"what {role.value} is to have signed: {error.detail}"
            ) from None
        if principal != Principal.service(role):
            raise PeerViolation(
                f"what {role.value} is to have signed was signed by {principal}"
            )

    def _principal(
        self, signature: Signature, now: datetime | None = None
    ) -> Principal:
        """Return the party of the signature's certificate, which must count at ``now``.

        Raises RejectedSubmission (BAD_SIGNATURE): it doesn't count.
        """
        chain = certificates_of(signature)
        try:
            principal = check_certificate(
                chain=chain,
                authorities=self._authorities,
                revocations=self._revocations,
                source="signature",
                now=now,
            )
        except Misconfiguration as error:
            _refuse(f"the certificate can't be used: {error}")
        if now is None:
            self._identity.met[principal] = chain[0].not_valid_after_utc
        return principal

    def _lapsed(self, signature: Signature) -> bool:
        """Return whether the signature's certificate isn't valid now or was revoked."""
        try:
            certificate = certificates_of(signature)[0]
        except RejectedSubmission:
            return False
        if validity_fault(certificate) is not None:
            return True
        return self._revocations.revokes(certificate)

    def check(self, signature: Signature, signed: bytes) -> None:
        """Check that the signature is its certificate's over ``signed``.

        Raises RejectedSubmission (BAD_SIGNATURE): it isn't, or the certificates are
        malformed.
        """
        key = certificates_of(signature)[0].public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            _refuse("the certificate's key isn't ECDSA on P-256")
        try:
            key.verify(signature.value, signed, _ALGORITHM)
        except InvalidSignature:
            _refuse("the signature isn't over what it came with")


def certificates_of(signature: Signature) -> tuple[x509.Certificate, ...]:
    """Return the certificates that came with a signature, the signer's own one first.

    Raises RejectedSubmission (BAD_SIGNATURE): one is malformed.
    """
    return _certificates(signature.certificates)


# Kept, because a submission's certificates are asked for three times, and the client's
# next submission brings the same.
@lru_cache(maxsize=1024)
def _certificates(chain: tuple[bytes, ...]) -> tuple[x509.Certificate, ...]:
    """Return certificates from DER; see ``certificates_of``."""
    try:
        parsed = tuple(x509.load_der_x509_certificate(der) for der in chain)
        for certificate in parsed:
            require_whole(certificate)
    except MALFORMED:
        _refuse("the certificates aren't X.509 in DER")
    return parsed


def _refuse(detail: str) -> Never:
    raise RejectedSubmission(Rejection.BAD_SIGNATURE, detail)


class SignedKind(Enum):
    """Kinds of statements that a server signs; one never passes for another."""

    ROSTER = "roster"
    COIN_COMMITMENT = "coin-commitment"
    COIN_OPENING = "coin-opening"
    HEAD = "head"
    """The head of the server's own ledger."""
    COUNTERSIGNATURE = "countersignature"
    """The head of the other server's ledger, signed by a server that has prepared the
    same attempt itself."""
    MODEL = "model"
    NOT_PREPARED = "not-prepared"
    """This server hasn't prepared the attempt; the other's prepared entry may be
    voided."""
    OPENING = "opening"
    """To an owner, before it shares anything for an attempt."""
    STATEMENT = "statement"
    """To an owner, of its account."""


def server_signed_bytes(role: Role, kind: SignedKind, body: bytes) -> bytes:
    """Return the bytes that a server signs, bound to its role and the kind.

    ``body`` names the task itself.
    """
    return encode_context(f"seal/{kind.value}", role.value.encode(), body)
