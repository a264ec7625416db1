"""A party's folder: it asks for its certificate, takes what came back, and loads what it has.

One folder holds ``ca.pem`` (the authorities), ``cert.pem`` (the certificate, then any
intermediate ones), ``key.pem`` (PKCS #8, mode 0600), where revocation is in use
``crl.pem`` (``revocation_list``), and a server's ``coin.key``. The key never leaves it.
What can be wrong is found at start-up, not in the first handshake.
"""

import contextlib
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from precad.common import clock
from precad.common.errors import (
    Misconfiguration,
    PeerUnavailable,
    StorageFailure,
    WrongTime,
)
from precad.common.files import PUBLIC_MODE, make_folder, write_file
from precad.common.identifiers import Digest, Role, Secret
from precad.common.identity import authority
from precad.common.identity import party_certificate as certificates
from precad.common.identity.party_certificate import Principal
from precad.common.identity.revocation_list import RevocationList, newest_lists

CA_FILE = "ca.pem"
CERTIFICATE_FILE = "cert.pem"
KEY_FILE = "key.pem"
REVOCATION_FILE = "crl.pem"
REQUEST_FILE = "request.pem"
COIN_FILE = "coin.key"
_OFFERED = (CA_FILE, REVOCATION_FILE, CERTIFICATE_FILE)
"""The certificate last: a folder with one is whole."""
DRAWING_ROLES = (Role.SERVER_A, Role.SERVER_B)
"""The two servers draw each version's coin; a coin key stays when the signing key is
renewed."""
COIN_BYTES = 32
"""As every key that is expanded; their module would load NumPy into `precad keys`."""
_MAKE_ONE = "make it with precad keys init or keys issue"
_NEW_ONE = "ask the operator for a new one (precad keys renew)"


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read and check a folder that ``precad keys`` made or the operator's own authority filled.

        Raises Misconfiguration: a file is missing, malformed or readable by others; the
        certificate is expired, not yet valid, revoked, of another authority or key, for
        another purpose, or names no precad party. Names the file and the remedy.
        """
        path = Path(folder)
        ca, cert, key = (path / name for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE))
        authorities = certificates.certificates_in(ca, "identity", _MAKE_ONE)
        if not all(certificates.is_authority(each) for each in authorities):
            raise Misconfiguration("ca", str(ca), "holds a certificate of no authority")
        chain = certificates.certificates_in(cert, "identity", _MAKE_ONE)
        secret = Secret(certificates.read_pem(key, "identity", _MAKE_ONE))
        # On Windows lists of access decide, and every file's mode says that all may
        # read it.
        shared = stat.S_IMODE(key.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO)
        if shared and sys.platform != "win32":
            raise Misconfiguration(
                "key", str(key), f"others can read it; run chmod 600 {key}"
            )
        own = certificates.own_key(secret, chain[0], source=str(key))
        revocations = RevocationList(path / REVOCATION_FILE, authorities)
        principal = check_certificate(
            chain=chain,
            authorities=authorities,
            revocations=revocations,
            source=str(cert),
        )
        # Written anew: gRPC reads PEM more narrowly, and says nothing where it can't.
        believed, shown = (
            b"".join(map(authority.to_pem, each)) for each in (authorities, chain)
        )
        return cls(
            path=path,
            principal=principal,
            ca=believed,
            cert=shown,
            key=authority.key_to_pem(own),
            revocations=revocations,
        )

    def check_time(self) -> None:
        """Before a server begins anything: while its clock is wrong it believes nobody.

        Raises PeerUnavailable: the own certificate doesn't hold now, by this machine's
        clock.
        """
        own = certificates.read_certificates(self.cert, source=str(self.path))[0]
        fault = certificates.validity_fault(own)
        if fault is not None:
            raise PeerUnavailable(
                f"by this machine's clock ({clock.wall():%Y-%m-%d %H:%M} UTC) its own"
                f" certificate is {fault}: set the clock, or {_NEW_ONE}"
            )


def check_certificate(
    *,
    chain: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
    revocations: RevocationList,
    source: str,
    now: datetime | None = None,
) -> Principal:
    """The party whose certificate counts: valid, of our authorities, for its purpose, unrevoked.

    ``chain`` is the certificate, then any intermediate ones; ``source`` stands in the
    error.

    Raises Misconfiguration: says what is wrong with it, and what would do.
    """
    own, *intermediates = chain
    certificates.check_algorithm(own.public_key(), source=source)
    fault = certificates.validity_fault(own, now)
    if fault is not None:
        why = (
            f"{fault} (valid from {own.not_valid_before_utc:%Y-%m-%d %H:%M} to"
            f" {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, and this machine's clock"
            f" says {now or clock.wall():%Y-%m-%d %H:%M}): set the clock, or {_NEW_ONE}"
        )
        raise WrongTime("certificate", source, why)
    if not certificates.has_chain(
        own,
        intermediates=intermediates,
        authorities=authorities,
        now=now,
    ):
        remedy = (
            f"not issued by a valid authority in {CA_FILE}; take both files from one"
            " operator"
        )
        raise Misconfiguration("certificate", source, remedy)
    try:
        principal = certificates.principal_of(own)
    except Misconfiguration as error:
        raise Misconfiguration("certificate", source, str(error)) from None
    certificates.check_purpose(own, principal, source=source)
    if revocations.revokes(own):
        raise Misconfiguration("certificate", source, f"revoked: {_NEW_ONE}")
    return principal


def accept(folder: Path, offered: Path) -> Identity:
    """Put the certificate in ``offered`` beside the key in ``folder``, or change nothing.

    The party's folder holds its key and, from its kit, the root that was read out; what
    is offered are ca.pem, cert.pem and crl.pem, as ``precad keys issue`` makes them.

    Raises Misconfiguration: the certificate is of another key, another party than was
    asked for, or another root than the folder has; or it doesn't count.
    """
    remedy = "make the key with precad keys request"
    key = Secret(certificates.read_pem(folder / KEY_FILE, "folder", remedy))
    remedy = "give the folder that precad keys issue made"
    root, lists, certificate = (offered / name for name in _OFFERED)
    files = {
        name: certificates.read_pem(offered / name, "offered", remedy)
        for name in _OFFERED
    }
    chain = certificates.read_certificates(
        files[certificate.name], source=str(certificate)
    )
    certificates.own_key(key, chain[0], source=str(certificate))
    known = folder / root.name
    present = folder / lists.name
    if (
        known.exists()
        and certificates.read_pem(known, "folder", remedy) != files[root.name]
    ):
        why = (
            f"is another root than {known}, which was read out to you: ask who sent it"
        )
        raise Misconfiguration("offered", str(root), why)
    roots = certificates.read_certificates(files[root.name], source=str(root))
    # An older list than the folder's, an operator's mix-up or a thief's, brings nobody
    # back.
    for path in (present, lists):
        revocations = RevocationList(path, roots)
        principal = check_certificate(
            chain=chain,
            authorities=roots,
            revocations=revocations,
            source=str(certificate),
        )
    if present.exists():
        held = certificates.read_pem(present, "folder", remedy)
        files[lists.name] = newest_lists(held, files[lists.name])
    request = folder / REQUEST_FILE
    if request.exists():
        # The party that was asked for: the root may have been talked into another.
        asked = certificates.read_pem(request, "folder", "let this user read it")
        authority.read_request(asked, principal, source=str(request))
    for name in _OFFERED:
        write_file(folder / name, files[name], mode=PUBLIC_MODE)
    return Identity.load(folder)


def create_request(
    folder: Path,
    principal: Principal,
    *,
    replace: bool = False,
    renew: Path | None = None,
) -> Path:
    """Make a new key in the folder, and a signing request for it, whose path is returned.

    ``renew`` is the party's present folder, which stays as it is: the root and, of a
    server, the coin keys are taken over from it.

    Raises Misconfiguration: a key is there and ``replace`` is false; or ``renew`` is
    another party's folder, this one, or lacks a server's coin key.
    """
    if renew is not None:
        _take_over(renew, folder, principal)
    make_folder(folder)
    key = authority.new_key()
    write_key(folder, key, replace=replace)
    if principal.role in DRAWING_ROLES:
        make_coin_key(folder)
    path = folder / REQUEST_FILE
    publish(path, authority.make_request(key, principal))
    return path


def _take_over(old: Path, folder: Path, principal: Principal) -> None:
    """Put the old folder's root and coin keys into the new one, which it makes."""
    if old.resolve() == folder.resolve():
        why = "the new key needs a folder of its own, until its certificate came"
        raise Misconfiguration("--renew", str(old), why)
    remedy = "it has no certificate to renew; leave --renew out"
    held = certificates.certificates_in(old / CERTIFICATE_FILE, "--renew", remedy)
    whose = certificates.principal_of(held[0])
    if whose != principal:
        raise Misconfiguration("--renew", str(old), f"is {whose}'s, not {principal}'s")
    remedy = "put the root's certificate back there"
    root = certificates.read_pem(old / CA_FILE, "--renew", remedy)
    make_folder(folder)
    try:
        if principal.role in DRAWING_ROLES:
            path = old / COIN_FILE
            to = folder / COIN_FILE
            if not path.is_file():
                remedy = (
                    f"has no {COIN_FILE}: put the server's own back there. With a new"
                    " one no version that is open could be drawn again"
                )
                raise Misconfiguration("--renew", str(old), remedy)
            key = path.read_bytes()
            if to.exists() and to.read_bytes() != key:
                remedy = f"is another key than {path}: name a new folder"
                raise Misconfiguration("FOLDER", str(to), remedy)
            write_file(to, key)
        write_file(folder / CA_FILE, root, mode=PUBLIC_MODE)
    except OSError as error:
        raise Misconfiguration(
            "--renew", str(error.filename), f"{error.strerror}"
        ) from None


def publish(path: Path, public: authority.Public) -> None:
    """Write or replace what anybody may read."""
    write_file(path, authority.to_pem(public), mode=PUBLIC_MODE)


def write_key(folder: Path, key: ec.EllipticCurvePrivateKey, *, replace: bool) -> None:
    """Write a key for its owner's eyes only; never over an existing one unless told."""
    path = folder / KEY_FILE
    try:
        write_file(path, authority.key_to_pem(key).reveal(), replace=replace)
    except FileExistsError:
        raise Misconfiguration(
            "file", str(path), "it exists; --force replaces it"
        ) from None


def make_coin_key(folder: Path) -> None:
    """Write a fresh coin key; one that is there stays. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        write_file(folder / COIN_FILE, Secret.random().reveal(), replace=False)


def read_coin_key(identity: Path, journal: Path, task: Digest) -> Secret:
    """A task's own coin key, or that of all tasks; a fresh one is written where there is none yet.

    ``coin.key`` lies beside the signing key, in the folder ``identity``. A task whose
    operators wanted new coins has a key of its own from then on, in its journal's
    folder: other tasks of this server go on drawing with theirs. The identity may be
    read-only, or in memory, as in containers; a journal is kept, on no disk and in no
    backup that the database comes back from.

    Raises Misconfiguration: the file isn't a key, or there is none and none can be
    written.
    """
    path = _task_coin_key(journal, task)
    field = "journal"
    earlier = _task_coin_key(identity, task)
    try:
        if not path.exists() and earlier.exists():
            # Where it was kept at first. Its coins are drawn, and older ones may be
            # known.
            write_file(path, earlier.read_bytes())
        if not path.exists():
            path = identity / COIN_FILE
            field = "identity"
            # Not over one that is there: the folder may be read-only.
            if not path.exists():
                make_coin_key(identity)
        key = Secret(path.read_bytes())
    except OSError as error:
        remedy = (
            f"no coin key can be read or written there ({error.strerror}): put the"
            " server's own back, or issue its keys anew with this version of precad"
        )
        raise Misconfiguration(field, str(path), remedy) from None
    if len(key) != COIN_BYTES:
        remedy = f"a coin key has {COIN_BYTES} bytes; put the right file back"
        raise Misconfiguration(field, str(path), remedy)
    return key


def replace_coin_key(journal: Path, task: Digest, key: Secret) -> None:
    """Write a task's own key: both operators want new coins for it.

    Raises StorageFailure.
    """
    path = _task_coin_key(journal, task)
    try:
        write_file(path, key.reveal())
    except OSError as error:
        raise StorageFailure(
            f"{path} can't be written ({error.strerror}); free or mend the disk of the"
            " settings' journal, then start this server again"
        ) from None


def _task_coin_key(journal: Path, task: Digest) -> Path:
    return journal / f"coin-{task}.key"
