"""Signed submissions: a client's certificate, not only its connection, stands for what it sends.

`signer_for` and `verifier_for` are the one place that decides whether submissions are signed: with
an identity always, in plaintext never (there are no certificates, and plaintext is for one
machine's tests). A server with an identity refuses an unsigned submission, and one in plaintext
refuses a signed one.
"""

from datetime import datetime
from typing import Never

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from precad.common.errors import Misconfiguration, RejectedSubmission, Rejection
from precad.common.identifiers import ClientId
from precad.common.identity.access import Context, peer_certificate
from precad.common.identity.certificate import (
    MALFORMED,
    check_algorithm,
    check_purpose,
    has_chain,
    principal_of,
    read_certificates,
    require_whole,
    validity_fault,
)
from precad.common.identity.credentials import CA_FILE, CERTIFICATE_FILE, Identity, Plaintext
from precad.common.identity.principal import Principal
from precad.common.share.signature import UNSIGNED, Signature, Signer, Verifier

_ALGORITHM = ec.ECDSA(hashes.SHA256())


def signer_for(identity: Identity | Plaintext) -> Signer:
    """A client's signer: its certificate's key, or none in plaintext."""
    return UNSIGNED if isinstance(identity, Plaintext) else CertificateSigner(identity)


def verifier_for(identity: Identity | Plaintext) -> Verifier:
    """A server's verifier: its authorities and revocation list, or none in plaintext."""
    return UNSIGNED if isinstance(identity, Plaintext) else CertificateVerifier(identity)


class CertificateSigner:
    """Signs with the key of the identity's certificate: ECDSA on P-256 with SHA-256."""

    def __init__(self, identity: Identity) -> None:
        key = serialization.load_pem_private_key(identity.key.reveal(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise Misconfiguration("key", str(identity.path), "must be ECDSA on P-256")
        self._key = key
        source = str(identity.path / CERTIFICATE_FILE)
        self._certificates = tuple(
            each.public_bytes(serialization.Encoding.DER)
            for each in read_certificates(identity.cert, source=source)
        )

    def sign(self, signed: bytes) -> Signature:
        """The signature over ``signed``, with the certificate and intermediate ones."""
        return Signature(self._key.sign(signed, _ALGORITHM), self._certificates)


class CertificateVerifier:
    """Believes what the identity's authorities issued and its revocation list doesn't name."""

    def __init__(self, identity: Identity) -> None:
        self._authorities = read_certificates(identity.ca, source=str(identity.path / CA_FILE))
        self._revocations = identity.revocations

    def admit(
        self, signature: Signature | None, client: ClientId, *, now: datetime | None = None
    ) -> None:
        """The certificate is ``client``'s, of our authorities, valid now, and not revoked.

        Raises:
            RejectedSubmission: BAD_SIGNATURE, with what is wrong.
        """
        if signature is None:
            _refuse("the submission isn't signed")
        own, *intermediates = _parse(signature)
        try:
            principal = principal_of(own)
            check_algorithm(own.public_key(), source="submission")
            check_purpose(own, principal, source="submission")
            issued = has_chain(own, intermediates, self._authorities, now)
            fault = validity_fault(own, now)
        except (Misconfiguration, *MALFORMED) as error:
            _refuse(f"the certificate can't be used: {error}")
        if principal != Principal.client(client.name):
            _refuse(f"the certificate is {principal}'s, the submission is client {client}'s")
        if not issued:
            _refuse("the certificate isn't of an authority in this server's ca.pem")
        if fault is not None:
            _refuse(f"the certificate is {fault}")
        if self._revocations.revokes(own):
            _refuse("the certificate was revoked")

    def check(self, signature: Signature | None, signed: bytes) -> None:
        """The signature is its certificate's over ``signed``.

        Raises:
            RejectedSubmission: BAD_SIGNATURE.
        """
        if signature is None:
            _refuse("the submission isn't signed")
        key = _public_key(_parse(signature)[0])
        if not isinstance(key, ec.EllipticCurvePublicKey):
            _refuse("the certificate's key isn't ECDSA on P-256")
        try:
            key.verify(signature.value, signed, _ALGORITHM)
        except InvalidSignature:
            _refuse(
                "the signature isn't over this task, round, client, model, nonce and these two "
                "shares"
            )


def check_own_key(
    context: Context, identity: Identity | Plaintext, signature: Signature | None
) -> None:
    """The signature's key is the connection's: whoever calls now holds the key that signed.

    Args:
        context: of the upload's call.
        identity: what the port was opened with.
        signature: from the upload's header.

    Raises:
        RejectedSubmission: BAD_SIGNATURE.
        AccessDenied: the connection has no certificate.
    """
    if isinstance(identity, Plaintext) or signature is None:
        # Whether a signature must be there, and may, is the verifier's to say.
        return
    if _public_key(_parse(signature)[0]) != peer_certificate(context).public_key():
        _refuse("signed with another key than this connection's certificate has")


def _parse(signature: Signature) -> list[x509.Certificate]:
    try:
        found = [x509.load_der_x509_certificate(each) for each in signature.certificates]
        for each in found:
            require_whole(each)
    except MALFORMED:
        _refuse("the certificates aren't X.509 in DER")
    return found


def _public_key(certificate: x509.Certificate) -> object:
    try:
        return certificate.public_key()
    except MALFORMED:
        _refuse("the certificate's key can't be read")


def _refuse(detail: str) -> Never:
    raise RejectedSubmission(Rejection.BAD_SIGNATURE, detail)
