"""A small certificate authority for a deployment: X.509 with ECDSA on P-256.

It issues the parties' certificates and signs the revocation list.

Why not Ed25519: gRPC's BoringSSL doesn't offer it in handshakes (tried with grpcio 1.76
and 1.85), so that a party with such a key can't connect. It would do for the root's
signature alone; one kind of key for all is simpler.
"""

from collections.abc import Iterable
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Self, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from precad.common import Misconfiguration, Secret, frozen_dataclass
from precad.common.identity import Principal
from precad.common.identity import party_certificate as certificates

Public = (
    x509.Certificate | x509.CertificateRevocationList | x509.CertificateSigningRequest
)
"""What anybody may read: a certificate, a revocation list or a signing request."""
AnyBuilder = TypeVar(
    "AnyBuilder", x509.CertificateBuilder, x509.CertificateSigningRequestBuilder
)
"""The builder of a certificate or of the request for one."""
ROOT_DAYS = 3650
"""Days that a new root is valid."""
PARTY_DAYS = 365
"""Days that a party's certificate is valid, unless told otherwise."""


def _key_usage(*, of_authority: bool) -> x509.KeyUsage:
    """Return the key usage of RFC 5280, section 4.2.1.3, of an authority or a party.

    An authority's key signs certificates and revocation lists, and nothing else; a
    party's key makes digital signatures, and nothing else.
    """
    return x509.KeyUsage(
        digital_signature=not of_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=of_authority,
        crl_sign=of_authority,
        encipher_only=False,
        decipher_only=False,
    )


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a fresh key on P-256, from the operating system's CSPRNG."""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(
    key: ec.EllipticCurvePrivateKey, passphrase: Secret | None = None
) -> Secret:
    """Return the key as PKCS #8 PEM, encrypted if there is a passphrase.

    Without one a server restarts where nobody keeps one for it, and gRPC takes the key.
    """
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        encryption = serialization.BestAvailableEncryption(passphrase.reveal())
    return Secret(
        key.private_bytes(
            encoding=serialization.Encoding.PEM,
            format=serialization.PrivateFormat.PKCS8,
            encryption_algorithm=encryption,
        )
    )


def to_pem(public: Public) -> bytes:
    """Return a certificate, revocation list or signing request as PEM."""
    return public.public_bytes(serialization.Encoding.PEM)


def make_request(
    key: ec.EllipticCurvePrivateKey, principal: Principal
) -> x509.CertificateSigningRequest:
    """Return a signing request with the party's DNS name, for any authority."""
    return _as_party(x509.CertificateSigningRequestBuilder(), principal).sign(
        key, hashes.SHA256()
    )


def read_request(
    pem: bytes, expected: Principal | None, source: object
) -> tuple[Principal, ec.EllipticCurvePublicKey]:
    """Return the party that asks in a signing request, and its public key.

    ``expected`` is the party that it must be, None for any. ``source`` names the
    request in errors.

    Raises Misconfiguration: malformed, another party's, not signed by its own key, or
    not P-256.
    """
    try:
        request = x509.load_pem_x509_csr(pem)
        signed_by_own_key = request.is_signature_valid
        key = request.public_key()
    except certificates.MALFORMED as error:
        raise Misconfiguration(
            "request", source, f"not a PEM request ({error})"
        ) from None
    if not signed_by_own_key:
        raise Misconfiguration("request", source, "its signature doesn't match its key")
    principal = Principal.from_dns_names(certificates.dns_names(request))
    if expected is not None and principal != expected:
        raise Misconfiguration("request", source, f"is for {principal}, not {expected}")
    certificates.check_algorithm(key, source)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return principal, key


@frozen_dataclass
class Authority:
    """The root of a deployment: its key's holder decides which key is which party's."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(cls) -> Self:
        """Return a new root, good for names in .precad alone."""
        key = new_key()
        public = key.public_key()
        subject = _common_name("precad root")
        # A root that leaks, or that somebody installs elsewhere, can vouch for no other
        # names.
        names = x509.NameConstraints(
            [x509.DNSName(certificates.DOMAIN)], excluded_subtrees=None
        )
        certificate = (
            _builder(subject, public, ROOT_DAYS)
            .subject_name(subject)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(of_authority=True), critical=True)
            .add_extension(names, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(public), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    def issue(
        self,
        principal: Principal,
        key: ec.EllipticCurvePublicKey,
        *,
        days: int = PARTY_DAYS,
    ) -> x509.Certificate:
        """Return a certificate, good for ``days``, that the public key is that party's.

        Raises Misconfiguration: days below 1, or beyond the root's own end.
        """
        certificate = (
            _as_party(_builder(self.certificate.subject, key, days), principal)
            .add_extension(
                x509.BasicConstraints(ca=False, path_length=None), critical=True
            )
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key), critical=False
            )
            .add_extension(self._identifier, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        end = self.certificate.not_valid_after_utc
        if certificate.not_valid_after_utc > end:
            raise Misconfiguration(
                "days", days, f"the root itself ends on {end:%Y-%m-%d}"
            )
        return certificate

    def revocation_list(
        self,
        revoked: Iterable[x509.RevokedCertificate],
        *,
        number: int,
        now: datetime | None = None,
    ) -> x509.CertificateRevocationList:
        """Return a signed revocation list, issued ``now``.

        ``revoked`` are entries from ``revoked_entry`` or of an earlier list; ``number``
        is the CRL number, which grows from list to list.
        """
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now or datetime.now(UTC))
            # A list holds until the next one: no service would sign it anew.
            .next_update(self.certificate.not_valid_after_utc)
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(self._identifier, critical=False)
        )
        for entry in revoked:
            builder = builder.add_revoked_certificate(entry)
        return builder.sign(self.key, hashes.SHA256())

    @property
    def _identifier(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())


def revoked_entry(serial: int) -> x509.RevokedCertificate:
    """Return an entry of a revocation list: this serial number is revoked now."""
    builder = x509.RevokedCertificateBuilder().serial_number(serial)
    return builder.revocation_date(datetime.now(UTC)).build()


def _builder(
    issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    """Return what any certificate begins with: issuer, key, serial number, validity.

    Raises Misconfiguration: ``days`` is below 1 or leads beyond the calendar.
    """
    if days < 1:
        raise Misconfiguration("days", days, "a certificate holds at least one day")
    start = datetime.now(UTC)
    try:
        end = start + timedelta(days=days)
    except OverflowError:
        raise Misconfiguration("days", days, "beyond the calendar") from None
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # The other machine's clock may be a little behind this one's.
        .not_valid_before(start - timedelta(minutes=5))
        .not_valid_after(end)
    )


def _common_name(text: str) -> x509.Name:
    # The field holds 64 characters. It is for people: the subject alternative name is
    # what counts.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _as_party(builder: AnyBuilder, principal: Principal) -> AnyBuilder:
    """Add what a party's certificate states of it, and its request asks for."""
    alternative_name = x509.SubjectAlternativeName([x509.DNSName(principal.dns_name)])
    return (
        builder.subject_name(_common_name(principal.dns_name))
        .add_extension(alternative_name, critical=False)
        .add_extension(_key_usage(of_authority=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage(certificates.purposes(principal)), critical=False
        )
    )
