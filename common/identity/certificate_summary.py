"""What a person may see of certificates: whose, which, until when, and whether they count."""

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Digest
from precad.common.identity.authority import read_request
from precad.common.identity.credentials import CA_FILE, CERTIFICATE_FILE, KEY_FILE, REVOCATION_FILE
from precad.common.identity.deployment_keys import AUTHORITY_FOLDER, Deployment
from precad.common.identity.party_certificate import (
    MALFORMED,
    Principal,
    dns_names,
    is_authority,
    own_key,
    principal_of,
    read_certificates,
    read_file,
    validity_fault,
)
from precad.common.identity.revocation_list import RevocationList
from precad.common.secret import Secret

NOT_ITS_KEYS = "not its key's"
"""A certificate beside a key of somebody else's, or an older one."""


@dataclass(frozen=True, slots=True)
class CertificateSummary:
    """One certificate, without any secret."""

    party: str
    """The DNS name, ``root`` for an authority's, or ``no precad party``."""
    state: str
    """``valid``, ``expired``, ``not yet valid``, ``revoked``, or ``NOT_ITS_KEYS``."""
    serial: str
    """Hexadecimal; ``precad keys revoke --serial`` takes it."""
    starts: datetime
    ends: datetime
    fingerprint: str
    """SHA-256 of the certificate, hexadecimal: what two people compare over the telephone."""

    def to_json(self) -> dict[str, str]:
        """The same as plain strings; times as ISO 8601."""
        return {
            key: value.isoformat() if isinstance(value, datetime) else value
            for key, value in asdict(self).items()
        }


def summarise(path: Path, *, now: datetime | None = None) -> list[CertificateSummary]:
    """The certificates of a deployment, of one party's folder, or of one PEM file.

    Args:
        path: a deployment's directory, a party's folder, or a file of certificates.
        now: instead of the clock's time.

    Raises:
        Misconfiguration: nothing of the kind there, or damaged.
    """
    if (path / AUTHORITY_FOLDER / CA_FILE).exists():
        deployment = Deployment.open(path)
        roots = _read(path / AUTHORITY_FOLDER / CA_FILE)
        lists = RevocationList(path / AUTHORITY_FOLDER / REVOCATION_FILE, roots)
        found = [*roots, *deployment.issued()]
    elif (path / CERTIFICATE_FILE).exists():
        roots = _read(path / CA_FILE)
        lists = RevocationList(path / REVOCATION_FILE, roots)
        found = [*_read(path / CERTIFICATE_FILE), *roots]
        if (path / KEY_FILE).exists() and not _has_its_key(path, found[0]):
            return [
                replace(_summary(found[0], lists, now), state=NOT_ITS_KEYS),
                *(_summary(each, lists, now) for each in found[1:]),
            ]
    else:
        lists, found = None, _read(path)
    return [_summary(each, lists, now) for each in found]


def request_summary(path: Path) -> tuple[str, str] | None:
    """Who asks in a request, and the SHA-256 of its public key, hexadecimal, to be read out.

    None where the path is no request's. Raises Misconfiguration: it is one, but damaged.
    """
    if not path.is_file() or _REQUEST not in (pem := path.read_bytes()):
        return None
    try:
        party = Principal.from_dns_names(dns_names(x509.load_pem_x509_csr(pem)))
    except MALFORMED as error:
        raise Misconfiguration("request", str(path), f"not a PEM request ({error})") from None
    key = read_request(pem, party, source=str(path))
    public = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return str(party), str(Digest.of(public))


_REQUEST = b"-----BEGIN CERTIFICATE REQUEST-----"


def _has_its_key(folder: Path, certificate: x509.Certificate) -> bool:
    path = folder / KEY_FILE
    try:
        own_key(Secret(path.read_bytes()), certificate, source=str(path))
    except Misconfiguration:
        return False
    return True


def _read(path: Path) -> list[x509.Certificate]:
    remedy = "give a directory of precad keys or a PEM file"
    return read_certificates(read_file(path, "path", remedy), source=str(path))


def _summary(
    certificate: x509.Certificate, lists: RevocationList | None, now: datetime | None
) -> CertificateSummary:
    if is_authority(certificate):
        party = "root"
    else:
        try:
            party = str(principal_of(certificate))
        except Misconfiguration:
            party = "no precad party"
    state = validity_fault(certificate, now) or "valid"
    if lists is not None and lists.revokes(certificate):
        state = "revoked"
    return CertificateSummary(
        party=party,
        state=state,
        serial=f"{certificate.serial_number:x}",
        starts=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
    )
