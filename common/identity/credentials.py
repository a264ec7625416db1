"""A party's identity on disk: its key and certificate, its authority, its revocation list.

One folder holds ``ca.pem`` (the authorities), ``cert.pem`` (the certificate, then any
intermediate ones), ``key.pem`` (PKCS #8, mode 0600) and, where revocation is in use, ``crl.pem``
(``revocation_list``). What can be wrong is found at start-up, not in the first handshake.
"""

import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Self

from cryptography import x509

from precad.common import clock
from precad.common.errors import Misconfiguration, PeerUnavailable, WrongTime
from precad.common.identity import party_certificate as certificates
from precad.common.identity.authority import key_to_pem, to_pem
from precad.common.identity.party_certificate import Principal
from precad.common.identity.revocation_list import RevocationList
from precad.common.secret import Secret

CA_FILE = "ca.pem"
CERTIFICATE_FILE = "cert.pem"
KEY_FILE = "key.pem"
REVOCATION_FILE = "crl.pem"
_MAKE_ONE = "make it with precad keys init or keys issue"
_NEW_ONE = "ask the operator for a new one (precad keys renew)"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a party shows and whom it believes. ``repr`` shows who and where, no key."""

    path: Path
    principal: Principal
    ca: bytes = field(repr=False)
    """PEM: the authorities that this party believes."""
    cert: bytes = field(repr=False)
    """PEM: the own certificate, then any intermediate ones."""
    key: Secret = field(repr=False)
    """PEM, PKCS #8, unencrypted."""
    revocations: RevocationList = field(repr=False, compare=False)
    """Read anew when the file changes."""

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read and check a folder that ``precad keys`` made or the operator's own authority filled.

        Raises Misconfiguration: a file is missing, malformed or readable by others; the certificate
        is expired, not yet valid, revoked, of another authority or key, for another purpose, or
        names no precad party. Names the file and the remedy.
        """
        path = Path(folder)
        ca, cert, key = (path / name for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE))
        authorities = certificates.certificates_in(ca, "identity", _MAKE_ONE)
        if not all(certificates.is_authority(each) for each in authorities):
            raise Misconfiguration("ca", str(ca), "holds a certificate of no authority")
        chain = certificates.certificates_in(cert, "identity", _MAKE_ONE)
        own = certificates.own_key(_read_key(key), chain[0], source=str(key))
        revocations = RevocationList(path / REVOCATION_FILE, authorities)
        principal = check_certificate(chain, authorities, revocations, source=str(cert))
        # Written anew: gRPC reads PEM more narrowly, and says nothing where it can't.
        believed, shown = (b"".join(map(to_pem, each)) for each in (authorities, chain))
        return cls(path, principal, believed, shown, key_to_pem(own), revocations)

    def check_time(self) -> None:
        """Look whether the own certificate holds now.

        Before a server begins anything: while its clock is wrong it believes nobody.

        Raises PeerUnavailable: it doesn't, by this machine's clock.
        """
        own = certificates.read_certificates(self.cert, source=str(self.path))[0]
        if (fault := certificates.validity_fault(own)) is not None:
            raise PeerUnavailable(
                f"by this machine's clock ({clock.wall():%Y-%m-%d %H:%M} UTC) its own certificate "
                f"is {fault}: set the clock, or {_NEW_ONE}"
            )


def check_certificate(
    chain: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
    revocations: RevocationList,
    *,
    source: str,
    now: datetime | None = None,
) -> Principal:
    """The party whose certificate counts: valid, of our authorities, for its purpose, unrevoked.

    The chain is the certificate, then any intermediate ones; ``source`` stands in the error.

    Raises Misconfiguration: says what is wrong with it, and what would do.
    """
    own, *intermediates = chain
    certificates.check_algorithm(own.public_key(), source=source)
    fault = certificates.validity_fault(own, now)
    if fault is not None:
        raise WrongTime(
            "certificate",
            source,
            f"{fault} (valid from {own.not_valid_before_utc:%Y-%m-%d %H:%M} to "
            f"{own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, and this machine's clock says "
            f"{now or clock.wall():%Y-%m-%d %H:%M}): set the clock, or {_NEW_ONE}",
        )
    if not certificates.has_chain(own, intermediates, authorities, now):
        raise Misconfiguration(
            "certificate",
            source,
            f"not issued by a valid authority in {CA_FILE}; take both files from one operator",
        )
    try:
        principal = certificates.principal_of(own)
    except Misconfiguration as error:
        raise Misconfiguration("certificate", source, str(error)) from None
    certificates.check_purpose(own, principal, source=source)
    if revocations.revokes(own):
        raise Misconfiguration("certificate", source, f"revoked: {_NEW_ONE}")
    return principal


def _read_key(path: Path) -> Secret:
    data = Secret(certificates.read_pem(path, "identity", _MAKE_ONE))
    # On Windows lists of access decide, and every file's mode says that all may read it.
    shared = stat.S_IMODE(path.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO)
    if shared and sys.platform != "win32":
        raise Misconfiguration("key", str(path), f"others can read it; run chmod 600 {path}")
    return data
