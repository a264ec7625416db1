"""Real keys, made once a process: what tests sign, check and serve with."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from precad.aggregator.server_messages import ServerSignatures
from precad.common.files import PUBLIC_MODE, write_file
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.authority import Authority, key_to_pem, new_key, to_pem
from precad.common.identity.credentials import Identity
from precad.common.identity.party_certificate import Principal
from precad.common.identity.revocation_list import RevocationList
from precad.common.identity.signatures import CertificateSigner, CertificateVerifier

_NO_FOLDER = Path("/nonexistent")
_root = cache(Authority.create)
_LOCK = threading.Lock()


def identity(principal: Principal) -> Identity:
    """Of the one root that all of a process's tests share; nothing is revoked."""
    # Threads that ask at once must not make two roots.
    with _LOCK:
        return _identity(principal)


@cache
def _identity(principal: Principal) -> Identity:
    root, key = _root(), new_key()
    revoked = RevocationList(_NO_FOLDER / "crl.pem", [root.certificate])
    return Identity(
        path=_NO_FOLDER,
        principal=principal,
        ca=to_pem(root.certificate),
        key=key_to_pem(key),
        revocations=revoked,
        cert=to_pem(root.issue(principal, key.public_key())),
    )


@cache
def signer(client: ClientId) -> CertificateSigner:
    return CertificateSigner(identity(Principal.client(client.name)))


def signatures(task: Digest, role: Role) -> ServerSignatures:
    pen = CertificateSigner(identity(Principal.service(role)))
    return ServerSignatures(task=task, role=role, signer=pen, verifier=verifier())


@cache
def verifier() -> CertificateVerifier:
    return CertificateVerifier(identity(Principal.service(Role.SERVER_A)))


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: EllipticCurvePrivateKey,
    starts: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts)
        .not_valid_after(ends)
    )


def _within(starts_days: float, ends_days: float) -> tuple[datetime, datetime]:
    now = datetime.now(UTC)
    return now + timedelta(days=starts_days), now + timedelta(days=ends_days)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def earlier_identity(principal: Principal) -> Identity:
    """With a certificate that expired a minute ago, and that has been renewed."""
    return _ending(principal, datetime.now(UTC) - timedelta(minutes=1))


def write_folder(folder: Path, principal: Principal, ends: datetime) -> Path:
    """A party's, with a fresh key and a certificate that ends then."""
    made = _ending(principal, ends)
    folder.mkdir(exist_ok=True)
    write_file(folder / "key.pem", made.key.reveal())
    for name, pem in (("ca.pem", made.ca), ("cert.pem", made.cert)):
        write_file(folder / name, pem, mode=PUBLIC_MODE)
    return folder


def _ending(principal: Principal, ends: datetime) -> Identity:
    current, root, key = identity(principal), _root(), new_key()
    starts = min(root.certificate.not_valid_before_utc, ends - timedelta(minutes=1))
    certificate = _certificate(
        x509.Name([]), root.certificate.subject, key, starts, ends
    )
    for each in x509.load_pem_x509_certificate(current.cert).extensions:
        if not isinstance(each.value, x509.SubjectKeyIdentifier):
            certificate = certificate.add_extension(each.value, critical=each.critical)
    signed = certificate.sign(root.key, hashes.SHA256())
    return Identity(
        path=current.path,
        principal=principal,
        ca=current.ca,
        cert=to_pem(signed),
        key=key_to_pem(key),
        revocations=current.revocations,
    )


def revoke(*revoked: Identity, folder: Path) -> RevocationList:
    root = _root()
    entry = x509.RevokedCertificateBuilder().revocation_date(datetime.now(UTC))
    serials = [
        x509.load_pem_x509_certificate(each.cert).serial_number for each in revoked
    ]
    entries = [entry.serial_number(serial).build() for serial in serials]
    path = folder / "crl.pem"
    made = root.revocation_list(entries, number=1)
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return RevocationList(path, [root.certificate])


BOTH_PURPOSES = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)


def forged(
    base: Identity,
    authority: Authority,
    *names: str,
    purposes: Sequence[x509.ObjectIdentifier] = BOTH_PURPOSES,
    starts_days: int = -1,
    ends_days: int = 1,
    self_signed: bool = False,
) -> Identity:
    """``base`` with another certificate, such as no command of ours makes."""
    key, name = new_key(), _named("server-a.precad")
    issuer = name if self_signed else authority.certificate.subject
    builder = _certificate(name, issuer, key, *_within(starts_days, ends_days))
    if purposes:
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if names:
        alternative = x509.SubjectAlternativeName(
            [x509.DNSName(each) for each in names]
        )
        builder = builder.add_extension(alternative, critical=False)
    certificate = builder.sign(key if self_signed else authority.key, hashes.SHA256())
    return replace(base, cert=to_pem(certificate), key=key_to_pem(key))


def unchecked(folder: Path, donor: Identity) -> Identity:
    """A folder as it is, without the check at start-up that would refuse it."""
    key = type(donor.key)((folder / "key.pem").read_bytes())
    return replace(donor, cert=(folder / "cert.pem").read_bytes(), key=key)


AUTHORITY = x509.BasicConstraints(ca=True, path_length=None)


def company_authority(
    name: str,
    key: EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: EllipticCurvePrivateKey,
    *,
    starts_days: float = -0.001,
    ends_days: float = 9,
    constraints: x509.BasicConstraints | None = AUTHORITY,
    names: str | None = None,
) -> x509.Certificate:
    valid = _within(starts_days, ends_days)
    builder = _certificate(_named(name), _named(issuer), key, *valid)
    if constraints is not None:
        builder = builder.add_extension(constraints, critical=True)
    if names is not None:
        permitted = x509.NameConstraints([x509.DNSName(names)], excluded_subtrees=None)
        builder = builder.add_extension(permitted, critical=True)
    return builder.sign(issuer_key, hashes.SHA256())
