"""The revocation list: a file that a running server reads again when it changes."""

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
"""Issuers and serial numbers, and when the list was issued."""


class RevocationList:
    """The certificates that no longer count, by issuer and serial number.

    A file that goes missing, is damaged, badly signed or older than what was read
    before doesn't bring a revoked certificate back: the last good list stays in force
    and the log says so.
    """

    def __init__(self, path: Path, authorities: list[x509.Certificate]) -> None:
        """Read the list; a missing file revokes nothing until it appears.

        Raises Misconfiguration: the file is there but isn't a list signed by an
        authority.
        """
        self._path = path
        self._authorities = authorities
        self._lock = threading.Lock()
        self._stamp = self._look()
        nothing: _Revoked = frozenset(), datetime.min.replace(tzinfo=UTC)
        self._revoked, self._issued_at = (
            nothing if self._stamp is None else self._read()
        )

    def revokes(self, certificate: x509.Certificate) -> bool:
        """Whether the newest good list holds the certificate."""
        with self._lock:
            self._reload()
            revoked = self._revoked
        return (certificate.issuer.public_bytes(), certificate.serial_number) in revoked

    def _reload(self) -> None:
        stamp = self._look()
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

    def _look(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> _Revoked:
        data = read_pem(self._path, "crl", "let this process's user read it")
        lists = read_revocation_lists(data, self._authorities, source=str(self._path))
        revoked = (
            (each.issuer.public_bytes(), entry.serial_number)
            for each in lists
            for entry in each
        )
        return frozenset(revoked), min(each.last_update_utc for each in lists)


def read_revocation_lists(
    pem: bytes, authorities: list[x509.Certificate], *, source: str
) -> list[x509.CertificateRevocationList]:
    """The lists of a PEM file, one or more, each signed by one of the authorities.

    Raises Misconfiguration: no list inside, or one that no authority signed.
    """
    try:
        lists = [x509.load_pem_x509_crl(block) for block in _PEM_BLOCK.findall(pem)]
        # Parts are parsed when asked for: a damaged one must show here.
        for each in lists:
            _ = (each.issuer, each.last_update_utc, each.extensions, list(each))
    except MALFORMED as error:
        raise Misconfiguration(
            "crl", source, f"not a revocation list ({error})"
        ) from None
    if not lists:
        raise Misconfiguration("crl", source, "holds no PEM revocation list")
    if not all(
        any(_signed(each, authority) for authority in authorities) for each in lists
    ):
        raise Misconfiguration("crl", source, "not signed by an authority in ca.pem")
    return lists


def newest_lists(*pems: bytes) -> bytes:
    """PEM of the lists in these files, of each authority the one with the highest CRL number."""
    newest: dict[bytes, x509.CertificateRevocationList] = {}
    for block in _PEM_BLOCK.findall(b"\n".join(pems)):
        each = x509.load_pem_x509_crl(block)
        held = newest.setdefault(each.issuer.public_bytes(), each)
        if _order(each) > _order(held):
            newest[each.issuer.public_bytes()] = each
    return b"".join(each.public_bytes(Encoding.PEM) for each in newest.values())


def _order(revocations: x509.CertificateRevocationList) -> tuple[int, datetime]:
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
    if revocations.issuer != authority.subject:
        return False
    # Authorities' keys are of the kinds that sign lists; any other raises TypeError.
    try:
        return revocations.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except MALFORMED:
        return False
