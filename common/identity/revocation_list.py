"""The revocation list, a file that a running server reads again when it changes."""

import re
import threading
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from precad.common import Misconfiguration, file_stamp, log
from precad.common.identity import MALFORMED, read_pem

_PEM_BLOCK = re.compile(
    rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL
)
_OF_A_PART = (x509.IssuingDistributionPoint, x509.DeltaCRLIndicator)
"""Extensions of lists that don't say all that their authority revokes."""
_Scope = tuple[bytes, ...]
"""What a list is about: its authority's name and key, and which of its certificates.

Authorities may have one name, as all that ``precad keys init`` makes; so a name alone
says nothing. One authority may publish several lists beside each other: parts, and
additions to a whole one. Each has a number and a date of its own.
"""
_Lists = dict[_Scope, x509.CertificateRevocationList]
"""The newest list of each scope."""


class RevocationList:
    """The certificates that no longer count, by issuer and serial number.

    The file is read again whenever it changes. One that goes missing, is damaged or
    badly signed doesn't bring a revoked certificate back, nor does one that lacks an
    authority's list or has an older one: of each authority the newest list that was
    read stays in force, and the log says so.
    """

    def __init__(self, path: Path, authorities: list[x509.Certificate]) -> None:
        """Read the list; a missing file revokes nothing until it appears.

        Raises Misconfiguration: the file is there but isn't a list signed by an
        authority.
        """
        self._path = path
        self._authorities = authorities
        self._lock = threading.Lock()
        self._stamp = file_stamp(path)
        self._lists: _Lists = {}
        if self._stamp is not None:
            self._lists = self._read()
            listed = {key for key, *_ in self._lists}
            for authority in authorities:
                if _key_of(authority) not in listed:
                    log.warning(
                        "%s holds no list of %s (serial %x): nothing of it is revoked",
                        path,
                        authority.subject.rfc4514_string(),
                        authority.serial_number,
                    )
        self._revoked = _revoked_by(self._lists)

    def revokes(self, certificate: x509.Certificate) -> bool:
        """Return whether the newest good list holds the certificate."""
        with self._lock:
            self._reload()
            revoked = self._revoked
        return (certificate.issuer.public_bytes(), certificate.serial_number) in revoked

    def _reload(self) -> None:
        """Take over of a file that has changed each good list that isn't older."""
        stamp = file_stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        if stamp is None:
            log.warning("%s is gone; the list read before stays in force", self._path)
            return
        try:
            read = self._read()
        except Misconfiguration as fault:
            log.warning("%s; the list read before stays in force", fault)
            return
        for scope, held in self._lists.items():
            came = read.get(scope)
            if came is None or _order(came) < _order(held):
                read[scope] = held
                log.warning(
                    "%s %s of %s, issued %s; the one in force stays",
                    self._path,
                    "lacks the list" if came is None else "has an older list",
                    held.issuer.rfc4514_string(),
                    held.last_update_utc,
                )
        self._lists = read
        self._revoked = _revoked_by(read)

    def lists(self) -> list[x509.CertificateRevocationList]:
        """Return the lists in force, the newest of each authority."""
        with self._lock:
            self._reload()
            return list(self._lists.values())

    def _read(self) -> _Lists:
        pem = read_pem(self._path, "crl", "let this process's user read it")
        lists = read_revocation_lists(pem, self._authorities, self._path)
        return _newest_of(lists, self._authorities)


def _revoked_by(lists: _Lists) -> frozenset[tuple[bytes, int]]:
    """Return issuers and serial numbers of what these lists revoke."""
    return frozenset(
        (revocations.issuer.public_bytes(), entry.serial_number)
        for revocations in lists.values()
        for entry in revocations
    )


def read_revocation_lists(
    pem: bytes, authorities: list[x509.Certificate], source: object
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
            _ = (
                revocations.issuer,
                revocations.last_update_utc,
                revocations.extensions,
                list(revocations),
            )
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


def newest_lists(authorities: list[x509.Certificate], *pems: bytes) -> bytes:
    """Return the PEM of the newest list of each authority, among those of these files.

    Raises Misconfiguration: as ``read_revocation_lists``.
    """
    lists = read_revocation_lists(b"\n".join(pems), authorities, "crl.pem")
    return b"".join(
        revocations.public_bytes(Encoding.PEM)
        for revocations in _newest_of(lists, authorities).values()
    )


def _newest_of(
    lists: list[x509.CertificateRevocationList], authorities: list[x509.Certificate]
) -> _Lists:
    """Return the newest list of each scope; each is signed by one of ``authorities``.

    The newest has the highest CRL number, and of the same number the latest date.
    """
    newest = {}
    for revocations in sorted(lists, key=_order):
        authority = next(each for each in authorities if _signed(revocations, each))
        parts = [
            extension.value.public_bytes()
            for extension in revocations.extensions
            if isinstance(extension.value, _OF_A_PART)
        ]
        newest[_key_of(authority), *parts] = revocations
    return newest


def _key_of(authority: x509.Certificate) -> bytes:
    """Return an authority's name and key, which outlast a renewal of its certificate."""
    key = authority.public_key().public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )
    return authority.subject.public_bytes() + key


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
