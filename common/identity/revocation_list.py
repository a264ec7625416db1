"""The revocation list, a file that a running server reads again when it changes."""

import logging
import re
import threading
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from precad.common.errors import Misconfiguration
from precad.common.identity.party_certificate import MALFORMED, read_pem

_log = logging.getLogger(__name__)
_PEM_BLOCK = re.compile(
    rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL
)
_Revoked = tuple[frozenset[tuple[bytes, int]], datetime]
"""Issuers and serial numbers of revoked certificates, and when a list was issued."""


class RevocationList:
    """The certificates that no longer count, by issuer and serial number.

    The file is read again whenever it changes. One that goes missing, is damaged, badly
    signed or older than what was read before doesn't bring a revoked certificate back:
    the last good list stays in force, and the log says so.
    """

    def __init__(self, path: Path, authorities: list[x509.Certificate]) -> None:
        """Read the list; a missing file revokes nothing until it appears.

        Raises Misconfiguration: the file is there but isn't a list signed by an
        authority.
        """
        self._path = path
        self._authorities = authorities
        self._lock = threading.Lock()
        self._stamp = self._file_stamp()
        self._revoked: frozenset[tuple[bytes, int]] = frozenset()
        self._issued_at = datetime.min.replace(tzinfo=UTC)
        if self._stamp is not None:
            self._revoked, self._issued_at = self._read()

    def revokes(self, certificate: x509.Certificate) -> bool:
        """Return whether the newest good list holds the certificate."""
        with self._lock:
            self._reload()
            revoked = self._revoked
        return (certificate.issuer.public_bytes(), certificate.serial_number) in revoked

    def _reload(self) -> None:
        """Take over a file that has changed, if it is a good and newer list."""
        stamp = self._file_stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        if stamp is None:
            _log.warning("%s is gone; the list read before stays in force", self._path)
            return
        try:
            revoked, issued_at = self._read()
        except Misconfiguration as fault:
            _log.warning("%s; the list read before stays in force", fault)
            return
        if issued_at < self._issued_at:
            _log.warning("%s is older than the list in force, which stays", self._path)
            return
        self._revoked = revoked
        self._issued_at = issued_at

    def _file_stamp(self) -> tuple[int, int, int] | None:
        """Return what differs once the file has changed; None where it is missing."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> _Revoked:
        pem = read_pem(self._path, "crl", "let this process's user read it")
        lists = read_revocation_lists(pem, self._authorities, source=str(self._path))
        revoked = frozenset(
            (revocations.issuer.public_bytes(), entry.serial_number)
            for revocations in lists
            for entry in revocations
        )
        return revoked, min(revocations.last_update_utc for revocations in lists)


def read_revocation_lists(
    pem: bytes, authorities: list[x509.Certificate], *, source: str
) -> list[x509.CertificateRevocationList]:
    """Return the lists of a PEM file, one or more, each signed by an authority.

    ``source`` names the file in errors.

    Raises Misconfiguration: no list inside, a damaged one, or one that no authority
    signed.
    """
    try:
        lists = [x509.load_pem_x509_crl(block) for block in _PEM_BLOCK.findall(pem)]
        # Parts are parsed when asked for: a damaged one must show here.
        for revocations in lists:
            _ = revocations.issuer
            _ = revocations.last_update_utc
            _ = revocations.extensions
            _ = list(revocations)
    except MALFORMED as error:
        raise Misconfiguration(
            "crl", source, f"not a revocation list ({error})"
        ) from None
    if not lists:
        raise Misconfiguration("crl", source, "holds no PEM revocation list")
    for revocations in lists:
        if not any(_signed(revocations, authority) for authority in authorities):
            raise Misconfiguration(
                "crl", source, "not signed by an authority in ca.pem"
            )
    return lists


def newest_lists(*pems: bytes) -> bytes:
    """Return the PEM of the newest list of each authority, among those of these files.

    The newest has the highest CRL number, and of the same number the latest date.
    """
    newest: dict[bytes, x509.CertificateRevocationList] = {}
    for block in _PEM_BLOCK.findall(b"\n".join(pems)):
        revocations = x509.load_pem_x509_crl(block)
        issuer = revocations.issuer.public_bytes()
        held = newest.setdefault(issuer, revocations)
        if _order(revocations) > _order(held):
            newest[issuer] = revocations
    return b"".join(
        revocations.public_bytes(Encoding.PEM) for revocations in newest.values()
    )


def _order(revocations: x509.CertificateRevocationList) -> tuple[int, datetime]:
    """Return CRL number, −1 where there is none, and date: the greater, the newer."""
    try:
        number = revocations.extensions.get_extension_for_class(
            x509.CRLNumber
        ).value.crl_number
    except x509.ExtensionNotFound:
        number = -1
    return number, revocations.last_update_utc


def _signed(
    revocations: x509.CertificateRevocationList, authority: x509.Certificate
) -> bool:
    """Return whether a list is an authority's and carries its signature."""
    if revocations.issuer != authority.subject:
        return False
    # Authorities' keys are of the kinds that sign lists; any other raises TypeError.
    try:
        key = authority.public_key()
        return revocations.is_signature_valid(key)  # type: ignore[arg-type]
    except MALFORMED:
        return False
