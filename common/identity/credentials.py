"""A party's folder: it asks for its certificate, accepts what came back, and is loaded.

One folder holds ``ca.pem`` (the authorities), ``cert.pem`` (the certificate, then any
intermediate ones), ``key.pem`` (PKCS #8, mode 0600), where revocation is in use
``crl.pem`` (``revocation_list``), and a server's ``coin.key``. The key never leaves it.
Whatever may be wrong is found at start-up, not in the first handshake.
"""

import contextlib
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from precad.common import (
    PUBLIC_MODE,
    SERVERS,
    Digest,
    FileStamp,
    Misconfiguration,
    PeerUnavailable,
    Secret,
    WrongTime,
    clock,
    file_stamp,
    frozen_kw_only_dataclass,
    log,
    make_folder,
    write_file,
    writing,
)
from precad.common.identity import (
    Principal,
    Public,
    RevocationList,
    certificates_in,
    check_algorithm,
    check_purpose,
    has_chain,
    is_authority,
    key_passphrase,
    key_to_pem,
    make_request,
    new_key,
    newest_lists,
    own_key,
    principal_of,
    read_certificates,
    read_pem,
    read_request,
    to_pem,
    validity_fault,
)

CA_FILE = "ca.pem"
CERTIFICATE_FILE = "cert.pem"
KEY_FILE = "key.pem"
REVOCATION_FILE = "crl.pem"
REQUEST_FILE = "request.pem"
COIN_FILE = "coin.key"
"""The key with which a server draws each version's coin; it stays when the signing key
is renewed."""
_OFFERED = (CA_FILE, REVOCATION_FILE, CERTIFICATE_FILE)
"""Files that a party accepts, in the order of writing: the certificate comes last, so
that a folder with one has all."""
COIN_BYTES = 32
"""Bytes of a coin key, as of every key that is expanded (``ring.KEY_BYTES``, whose
module would load NumPy into `precad keys`)."""
_MAKE_ONE = "make it with precad keys init or keys issue"


def how_to_renew(principal: Principal) -> str:
    """Return the end of a sentence about a party's certificate: who renews it, how."""
    words = " ".join(dict.fromkeys((principal.role.value, principal.name)))
    return (
        f"whoever holds the root renews it (precad keys renew DIRECTORY {words}), and"
        " its party takes it up without a restart"
    )


@dataclass(slots=True)
class _Course:
    """What became of an identity since it was loaded; its renewals share it."""

    stamps: tuple[FileStamp | None, ...] = ()
    """Of the own key's and certificate's files, as they were read last."""
    renewed: "Identity | None" = None
    """The newest that those files held since, if any did."""


@frozen_kw_only_dataclass
class Identity:
    """What a party shows and whom it believes. ``repr`` shows who and where, no key."""

    path: Path
    """The party's folder."""
    principal: Principal
    ca: bytes = field(repr=False)
    """PEM: the authorities that this party believes."""
    cert: bytes = field(repr=False)
    """PEM: the own certificate, then any intermediate ones."""
    key: Secret
    """PEM, PKCS #8, unencrypted, as gRPC takes it."""
    revocations: RevocationList = field(repr=False, compare=False)
    passphrase_file: Path | None = field(default=None, compare=False)
    """Where the passphrase of the key's file is, if the settings say so: for whoever
    reads the folder again."""
    met: dict[Principal, datetime] = field(default_factory=dict, compare=False)
    """Until when the certificates of other parties are valid that were met so far."""
    course: _Course = field(default_factory=_Course, repr=False, compare=False)

    @classmethod
    def load(cls, folder: Path | str, passphrase_file: Path | None = None) -> Self:
        """Return the checked identity of a party's folder.

        ``precad keys`` made the folder, or the operator's own authority filled it. Its
        key may be encrypted (``party_certificate.key_passphrase``).

        Raises Misconfiguration, which names the file and the remedy: a file is missing,
        malformed or readable by others; or the certificate is expired, not yet valid,
        revoked, of another authority or key, for another purpose, or names no precad
        party.
        """
        path = Path(folder)
        # Before they are read: what changes meanwhile is read again.
        stamps = _stamps(path)
        ca_path = path / CA_FILE
        certificate_path = path / CERTIFICATE_FILE
        key_path = path / KEY_FILE
        authorities = certificates_in(ca_path, "identity", _MAKE_ONE)
        if not all(map(is_authority, authorities)):
            raise Misconfiguration("ca", ca_path, "holds a certificate of no authority")
        chain = certificates_in(certificate_path, "identity", _MAKE_ONE)
        pem = Secret(read_pem(key_path, "identity", _MAKE_ONE))
        _require_unshared(key_path)
        key = own_key(
            pem,
            chain[0],
            source=key_path,
            passphrase_file=passphrase_file,
        )
        revocations = RevocationList(path / REVOCATION_FILE, authorities)
        principal = check_certificate(
            chain=chain,
            authorities=authorities,
            revocations=revocations,
            source=certificate_path,
        )
        # PEM is written anew: gRPC reads it more narrowly, and says nothing where it
        # can't.
        return cls(
            path=path,
            principal=principal,
            ca=b"".join(map(to_pem, authorities)),
            cert=b"".join(map(to_pem, chain)),
            key=key_to_pem(key),
            revocations=revocations,
            passphrase_file=passphrase_file,
            course=_Course(stamps),
        )

    def current(self) -> "Identity":
        """Return this identity as its folder has it now, which may be renewed.

        Key and certificate are read again whenever their files change, so that a
        renewal needs no restart. Of what doesn't count, or is of another root, the log
        says so, and what was read before stays in use. It may be called in any thread.
        """
        course = self.course
        stamps = _stamps(self.path)
        # While a folder is replaced by a new one, it isn't there for a moment.
        if None not in stamps and stamps != course.stamps:
            course.stamps = stamps
            try:
                came = Identity.load(self.path, self.passphrase_file)
                renewed = replace(self, cert=came.cert, key=came.key)
                if came != renewed:
                    raise Misconfiguration(
                        "identity",
                        self.path,
                        "of another party or root: restart this part to use it",
                    )
            except Misconfiguration as fault:
                log.warning("%s; the certificate read before stays in use", fault)
            else:
                log.info("the certificate of %s was renewed", self.principal)
                course.renewed = renewed
        return course.renewed or self

    def check_time(self) -> None:
        """Check that the own certificate is valid now, by this machine's clock.

        For a server before it begins anything: while its clock is wrong it believes
        nobody.

        Raises PeerUnavailable: the certificate isn't valid now.
        """
        fault = validity_fault(read_certificates(self.current().cert, self.path)[0])
        if fault is not None:
            raise PeerUnavailable(
                f"by this machine's clock ({clock.wall():%Y-%m-%d %H:%M} UTC) its own"
                f" certificate, of {self.principal}, is {fault}: set the clock, or"
                f" {how_to_renew(self.principal)}"
            )


def _stamps(folder: Path) -> tuple[FileStamp | None, ...]:
    """Return what differs once a folder's key or certificate has changed."""
    return tuple(file_stamp(folder / name) for name in (KEY_FILE, CERTIFICATE_FILE))


def _require_unshared(key_path: Path) -> None:
    """Raise Misconfiguration where users other than the owner can read a key's file."""
    # On Windows access lists decide, and every file's mode says that all may read it.
    if sys.platform == "win32":
        return
    if stat.S_IMODE(key_path.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise Misconfiguration(
            "key", key_path, f"others can read it; run chmod 600 {key_path}"
        )


def check_certificate(
    *,
    chain: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
    revocations: RevocationList,
    source: object,
    now: datetime | None = None,
) -> Principal:
    """Return the party of a certificate that counts.

    It is valid, of one of ``authorities``, for its party's purpose, and not revoked.
    ``chain`` is the certificate, then any intermediate ones; errors name ``source``.
    ``now`` is the moment that is asked about, None for this machine's time.

    Raises Misconfiguration, which says what is wrong with it and what would do;
    WrongTime: it isn't valid at that moment.
    """
    certificate, *intermediates = chain
    check_algorithm(certificate.public_key(), source)
    try:
        principal = principal_of(certificate)
    except Misconfiguration as error:
        raise Misconfiguration("certificate", source, str(error)) from None
    fault = validity_fault(certificate, now)
    if fault is not None:
        raise WrongTime(
            "certificate",
            source,
            f"that of {principal} is {fault} (valid from"
            f" {certificate.not_valid_before_utc:%Y-%m-%d %H:%M}"
            f" to {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, and this"
            f" machine's clock says {now or clock.wall():%Y-%m-%d %H:%M}): set the"
            f" clock, or {how_to_renew(principal)}",
        )
    if not has_chain(
        certificate,
        intermediates=intermediates,
        authorities=authorities,
        now=now,
    ):
        raise Misconfiguration(
            "certificate",
            source,
            f"not issued by a valid authority in {CA_FILE}; take both files from one"
            " operator",
        )
    check_purpose(certificate, principal, source)
    if revocations.revokes(certificate):
        raise Misconfiguration(
            "certificate",
            source,
            f"that of {principal} was revoked: {how_to_renew(principal)}",
        )
    return principal


def accept(folder: Path, offered: Path) -> Identity:
    """Put the certificate in ``offered`` beside the key in ``folder``; load both.

    The party's folder holds its key and, from its kit, the root that was read out to
    it. The folder ``offered`` has ca.pem, cert.pem and crl.pem, as ``precad keys
    issue`` makes them. Either all of it is accepted or nothing changes.

    Raises Misconfiguration: the certificate is of another key, another party than was
    asked for, or another root than the folder has; or it doesn't count.
    """
    remedy = "make the key with precad keys request"
    key = Secret(read_pem(folder / KEY_FILE, "folder", remedy))
    remedy = "give the folder that precad keys issue made"
    offered_root = offered / CA_FILE
    offered_lists = offered / REVOCATION_FILE
    source = offered / CERTIFICATE_FILE
    files = {name: read_pem(offered / name, "offered", remedy) for name in _OFFERED}
    chain = read_certificates(files[CERTIFICATE_FILE], source)
    own_key(key, chain[0], source=source)
    known_root = folder / CA_FILE
    if known_root.exists():
        known = read_pem(known_root, "folder", remedy)
        if known != files[CA_FILE]:
            raise Misconfiguration(
                "offered",
                offered_root,
                f"is another root than {known_root}, which was read out to you: ask who"
                " sent it",
            )
    roots = read_certificates(files[CA_FILE], offered_root)
    # Both lists are asked: an older one than the folder's, an operator's mix-up or
    # a thief's, brings nobody back.
    known_lists = folder / REVOCATION_FILE
    for path in (known_lists, offered_lists):
        principal = check_certificate(
            chain=chain,
            authorities=roots,
            revocations=RevocationList(path, roots),
            source=source,
        )
    if known_lists.exists():
        known = read_pem(known_lists, "folder", remedy)
        files[REVOCATION_FILE] = newest_lists(roots, known, files[REVOCATION_FILE])
    request = folder / REQUEST_FILE
    if request.exists():
        # The party must be the one that was asked for: somebody may have talked the
        # root into issuing another's certificate.
        read_request(
            read_pem(request, "folder", "let this user read it"), principal, request
        )
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
    """Make a new key in ``folder``, and a signing request, whose path is returned.

    ``renew`` is the party's present folder, which stays as it is: the root and, of a
    server, the coin key are copied from it.

    Raises Misconfiguration: a key is there and ``replace`` is false; or ``renew`` is
    another party's folder, this one, or lacks a server's coin key.
    """
    if renew is not None:
        _copy_from_old_folder(renew, folder, principal)
    make_folder(folder)
    key = new_key()
    write_key(folder, key, replace=replace)
    if principal.role in SERVERS:
        make_coin_key(folder)
    path = folder / REQUEST_FILE
    publish(path, make_request(key, principal))
    return path


def _copy_from_old_folder(old_folder: Path, folder: Path, principal: Principal) -> None:
    """Make the new folder with the old one's root and, of a server, its coin key.

    Raises Misconfiguration: see ``create_request``.
    """
    if old_folder.resolve() == folder.resolve():
        raise Misconfiguration(
            "--renew",
            old_folder,
            "the new key needs a folder of its own, until its certificate came",
        )
    remedy = "it has no certificate to renew; leave --renew out"
    chain = certificates_in(old_folder / CERTIFICATE_FILE, "--renew", remedy)
    owner = principal_of(chain[0])
    if owner != principal:
        raise Misconfiguration(
            "--renew", old_folder, f"is {owner}'s, not {principal}'s"
        )
    remedy = "put the root's certificate back there"
    root = read_pem(old_folder / CA_FILE, "--renew", remedy)
    make_folder(folder)
    try:
        if principal.role in SERVERS:
            _copy_coin_key(old_folder, folder)
        write_file(folder / CA_FILE, root, mode=PUBLIC_MODE)
    except OSError as error:
        raise Misconfiguration(
            "--renew", str(error.filename), f"{error.strerror}"
        ) from None


def _copy_coin_key(old_folder: Path, folder: Path) -> None:
    """Copy a server's coin key to its new folder.

    Raises Misconfiguration: the old folder has none, or the new one has another;
    OSError: a file can't be read or written.
    """
    old_path = old_folder / COIN_FILE
    if not old_path.is_file():
        raise Misconfiguration(
            "--renew",
            old_folder,
            f"has no {COIN_FILE}: put the server's own back there. With a new"
            " one no version that is open could be drawn again",
        )
    key = old_path.read_bytes()
    path = folder / COIN_FILE
    if path.exists() and path.read_bytes() != key:
        raise Misconfiguration(
            "FOLDER", path, f"is another key than {old_path}: name a new folder"
        )
    write_file(path, key)


def publish(path: Path, public: Public) -> None:
    """Write, or replace, a certificate, list or request that anybody may read."""
    write_file(path, to_pem(public), mode=PUBLIC_MODE)


def write_key(folder: Path, key: ec.EllipticCurvePrivateKey, *, replace: bool) -> None:
    """Write a private key, which only its owner may read, to a folder.

    It is encrypted where the environment has a passphrase.

    Raises Misconfiguration: a key is there and ``replace`` is false.
    """
    path = folder / KEY_FILE
    pem = key_to_pem(key, key_passphrase())
    try:
        write_file(path, pem.reveal(), replace=replace)
    except FileExistsError:
        raise Misconfiguration("file", path, "it exists; --force replaces it") from None


def make_coin_key(folder: Path) -> None:
    """Write a fresh coin key; one that is there stays.

    Raises OSError: it can't be written.
    """
    with contextlib.suppress(FileExistsError):
        write_file(folder / COIN_FILE, Secret.random().reveal(), replace=False)


def read_coin_key(identity: Path, journal: Path, task: Digest) -> Secret:
    """Return a server's coin key for a task: the task's own, or that of all tasks.

    ``coin.key``, for all tasks, lies beside the signing key in the folder ``identity``;
    a fresh one is written where there is none yet. A task whose operators wanted new
    coins has a key of its own from then on, in the folder ``journal``: other tasks of
    this server go on drawing with theirs. The identity may be read-only, or in memory,
    as in containers. The journal is kept, but neither on the database's disk nor in the
    backup that the database comes back from.

    Raises Misconfiguration: the file isn't a key, or there is none and none can be
    written.
    """
    path = _task_coin_key(journal, task)
    field = "journal"
    try:
        if not path.exists():
            path = identity / COIN_FILE
            field = "identity"
            # Nothing is written where there is one: the folder may be read-only.
            if not path.exists():
                make_coin_key(identity)
        key = Secret(path.read_bytes())
    except OSError as error:
        raise Misconfiguration(
            field,
            path,
            f"no coin key can be read or written there ({error.strerror}): put the"
            " server's own back, or issue its keys anew with this version of precad",
        ) from None
    if len(key) != COIN_BYTES:
        raise Misconfiguration(
            field, path, f"a coin key has {COIN_BYTES} bytes; put the right file back"
        )
    return key


def replace_coin_key(journal: Path, task: Digest, key: Secret) -> None:
    """Write a task's own coin key: both operators want new coins for the task.

    Raises StorageFailure: it can't be written.
    """
    path = _task_coin_key(journal, task)
    remedy = (
        "free or mend the disk of the settings' journal, then start this server again"
    )
    with writing(path, remedy):
        write_file(path, key.reveal())


def _task_coin_key(folder: Path, task: Digest) -> Path:
    """Return the file of a task's own coin key."""
    return folder / f"coin-{task}.key"
