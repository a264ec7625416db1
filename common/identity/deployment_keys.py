"""A deployment's keys on disk: the root's folder, and one folder per party.

``DIR/ca`` has ca.pem, key.pem, crl.pem and ``issued/<serial>.pem``: it is the
operator's and on no server. ``DIR/server-a``, ``DIR/ward-3``, … have ca.pem, cert.pem,
key.pem, crl.pem and, of a server, coin.key: each goes to its party's machine.
"""

from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from precad.common import (
    PUBLIC_FOLDER_MODE,
    SERVERS,
    Digest,
    Misconfiguration,
    Role,
    Secret,
    frozen_kw_only_dataclass,
    make_folder,
    waiting_lock,
)
from precad.common.identity import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    PARTY_DAYS,
    REVOCATION_FILE,
    Authority,
    Principal,
    RevocationList,
    certificates_in,
    is_authority,
    is_encrypted,
    key_passphrase,
    make_coin_key,
    new_key,
    own_key,
    principal_of,
    private_key,
    publish,
    read_pem,
    read_request,
    read_revocation_lists,
    revoked_entry,
    to_pem,
    validity_fault,
    write_key,
)

AUTHORITY_FOLDER = "ca"
"""Name of the root's folder."""
ISSUED_FOLDER = "issued"
"""Name of the folder, in the root's, of all certificates that the root issued."""
SERVICES = tuple(Principal.service(role) for role in Role if role is not Role.CLIENT)
"""All parties but clients."""
_READ = "let this user read it"
_ELSEWHERE = "make keys on Linux and copy them"
_RESERVED = {AUTHORITY_FOLDER, *(role.value for role in Role)}
"""Names of folders that no client may have."""


class Deployment:
    """The root of a deployment, in a directory, and what it issued."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self.directory = directory
        self._authority = authority
        self._folder = directory / AUTHORITY_FOLDER

    @classmethod
    def create(cls, directory: Path, *, replace: bool = False) -> Self:
        """Make a new root, with an empty revocation list, and return it.

        Raises Misconfiguration: there is one, and ``replace`` is false.
        """
        folder = directory / AUTHORITY_FOLDER
        make_folder(directory)
        make_folder(folder)
        with waiting_lock(folder, _ELSEWHERE):
            authority = Authority.create()
            write_key(folder, authority.key, replace=replace)
            publish(folder / CA_FILE, authority.certificate)
            publish(
                folder / REVOCATION_FILE,
                authority.revocation_list([], number=1),
            )
            make_folder(folder / ISSUED_FOLDER)
            for old_certificate in (folder / ISSUED_FOLDER).glob("*.pem"):
                old_certificate.unlink()
        return cls(directory, authority)

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Return the root that is in ``directory``.

        Raises Misconfiguration: there is none, or a damaged one.
        """
        folder = directory / AUTHORITY_FOLDER
        remedy = "there is no root here; precad keys init makes one"
        root = certificates_in(folder / CA_FILE, "keys", remedy)[0]
        pem = Secret(read_pem(folder / KEY_FILE, "keys", remedy))
        return cls(directory, Authority(root, own_key(pem, root, source=folder)))

    def folder_of(self, principal: Principal) -> Path:
        """Return the folder for a party's files.

        Raises Misconfiguration: a client is named like another party's folder.
        """
        if principal.role is Role.CLIENT and principal.name in _RESERVED:
            raise Misconfiguration(
                "client",
                principal.name,
                "that folder is another party's; name one with --out",
            )
        return self.directory / principal.name

    def issue(
        self,
        principal: Principal,
        *,
        out: Path | None = None,
        request: Path | None = None,
        days: int = PARTY_DAYS,
        replace: bool = False,
    ) -> Path:
        """Make and return a party's folder: key, certificate, root, revocation list.

        ``out`` is the folder, where it isn't the party's own in this directory. With
        the path of a signing request, ``request``, the party keeps its key to itself,
        and the folder has none.

        Raises Misconfiguration: a key is there and ``replace`` is false, or isn't the
        request's; or the request isn't the party's.
        """
        folder = out or self.folder_of(principal)
        with waiting_lock(self._folder, _ELSEWHERE):
            if request is not None:
                pem = read_pem(request, "request", "give what precad keys request made")
                _, public_key = read_request(pem, principal, request)
                _refuse_another_key(folder, public_key)
                certificate = self._certify(principal, public_key, days)
                # No key is in it, and somebody else may carry it to the party.
                make_folder(folder, PUBLIC_FOLDER_MODE)
            else:
                key = new_key()
                certificate = self._certify(principal, key.public_key(), days)
                make_folder(folder)
                write_key(folder, key, replace=replace)
                if principal.role in SERVERS:
                    make_coin_key(folder)
            publish(folder / CERTIFICATE_FILE, certificate)
            publish(folder / CA_FILE, self._authority.certificate)
            publish(folder / REVOCATION_FILE, self._revocations())
        return folder

    def renew(
        self,
        principal: Principal,
        *,
        out: Path | None = None,
        days: int = PARTY_DAYS,
        revoke_old: bool = False,
    ) -> Path:
        """Put a new key and certificate into a party's folder, and return the folder.

        The old certificate stays good until its end, so that nothing has to restart at
        once, unless ``revoke_old``.

        Raises Misconfiguration: the folder holds no certificate, or another party's.
        """
        folder = out or self.folder_of(principal)
        path = folder / CERTIFICATE_FILE
        old_certificate = certificates_in(
            path, "folder", "without one to renew, use precad keys issue"
        )[0]
        owner = principal_of(old_certificate)
        if owner != principal:
            raise Misconfiguration("folder", folder, f"belongs to {owner}")
        self.issue(
            principal,
            out=folder,
            days=days,
            replace=True,
        )
        if revoke_old:
            self.revoke([old_certificate.serial_number])
        return folder

    def revoke(self, serials: Iterable[int]) -> list[Path]:
        """Revoke certificates; return the lists that were written, the root's first.

        The list is put into every folder of this deployment here. Servers elsewhere
        need a copy.

        Raises Misconfiguration: no serial number, or one that this root never issued.
        """
        chosen = set(serials)
        unknown = chosen - {certificate.serial_number for certificate in self.issued()}
        if not chosen or unknown:
            raise Misconfiguration(
                "serial",
                sorted(f"{serial:x}" for serial in unknown),
                "this root never issued it; precad keys show lists what it issued",
            )
        with waiting_lock(self._folder, _ELSEWHERE):
            current = self._revocations()
            entries = {entry.serial_number: entry for entry in current}
            for serial in chosen.difference(entries):
                entries[serial] = revoked_entry(serial)
            number = current.extensions.get_extension_for_class(
                x509.CRLNumber
            ).value.crl_number
            revocations = self._authority.revocation_list(
                entries.values(),
                number=number + 1,
                # Servers refuse a list older than theirs, and clocks get set back.
                now=max(datetime.now(UTC), current.last_update_utc),
            )
            written = [self._folder / REVOCATION_FILE, *self._other_lists()]
            for path in written:
                publish(path, revocations)
        return written

    def current_serials(self, principal: Principal) -> list[int]:
        """Return the serial numbers of a party's certificates that still count.

        Raises Misconfiguration: there is none.
        """
        revoked = {entry.serial_number for entry in self._revocations()}
        serials = [
            certificate.serial_number
            for certificate in self.issued()
            if principal_of(certificate) == principal
            and certificate.serial_number not in revoked
            and validity_fault(certificate) != "expired"
        ]
        if not serials:
            raise Misconfiguration(
                "party", str(principal), "has no certificate that still counts"
            )
        return serials

    def issued(self) -> list[x509.Certificate]:
        """Return every certificate that this root issued, oldest first."""
        issued = [
            certificates_in(path, "keys", _READ)[0]
            for path in (self._folder / ISSUED_FOLDER).glob("*.pem")
        ]
        # By serial number where two began in the same second.
        issued.sort(key=lambda issue: (issue.not_valid_before_utc, issue.serial_number))
        return issued

    def _certify(
        self, principal: Principal, key: ec.EllipticCurvePublicKey, days: int
    ) -> x509.Certificate:
        """Return a new certificate, which is on record."""
        certificate = self._authority.issue(principal, key, days=days)
        # On record before anyone holds it: what isn't on record can't be revoked.
        record = self._folder / ISSUED_FOLDER / f"{certificate.serial_number:040x}.pem"
        publish(record, certificate)
        return certificate

    def _revocations(self) -> x509.CertificateRevocationList:
        """Return the root's revocation list as it is on disk."""
        path = self._folder / REVOCATION_FILE
        pem = read_pem(path, "crl", "put it back: it goes with the root's key")
        return read_revocation_lists(pem, [self._authority.certificate], path)[0]

    def _other_lists(self) -> list[Path]:
        """Return the lists' paths in the folders here that believe this root."""
        root = to_pem(self._authority.certificate)
        return [
            path.with_name(REVOCATION_FILE)
            for path in sorted(self.directory.glob(f"*/{CA_FILE}"))
            if path.parent != self._folder and read_pem(path, "keys", _READ) == root
        ]


def create_local_keys(
    directory: Path,
    clients: Iterable[str],
    *,
    dealer: bool = True,
    days: int = PARTY_DAYS,
    replace: bool = False,
) -> list[Path]:
    """Make a root and a folder for each party; return these folders.

    Parties are both servers, the dealer if ``dealer``, the operator and the clients.

    Raises Misconfiguration: keys are there and ``replace`` is false, or a client's name
    is no name, or another folder's.
    """
    parties = [party for party in SERVICES if dealer or party.role is not Role.DEALER]
    parties += [Principal.client(name) for name in clients]
    folders = [directory / party.name for party in parties]
    if len(set(folders)) != len(folders) or directory / AUTHORITY_FOLDER in folders:
        names = sorted(party.name for party in parties)
        raise Misconfiguration("client", names, "every name must be another")
    if not replace:
        for folder in folders:
            if (folder / KEY_FILE).exists():
                raise Misconfiguration(
                    "folder", folder, "holds a key; --force replaces it"
                )
    deployment = Deployment.create(directory, replace=replace)
    return [deployment.issue(party, days=days, replace=replace) for party in parties]


def _refuse_another_key(folder: Path, public_key: ec.EllipticCurvePublicKey) -> None:
    """Check that a folder's key, if it has one, is the one that a request is for.

    A certificate beside a key that isn't its own would look valid and serve nobody.

    Raises Misconfiguration: it is another key.
    """
    path = folder / KEY_FILE
    if not path.exists():
        return
    held = private_key(Secret(read_pem(path, "out", _READ)), path)
    if held.public_key() != public_key:
        raise Misconfiguration(
            "out",
            folder,
            "holds a key, and the request is for another one; name another folder with"
            " --out, and send its files to whoever made the request",
        )


NOT_ITS_KEYS = "not its key's"
"""State of a certificate that has another key than the one beside it."""
_REQUEST = b"-----BEGIN CERTIFICATE REQUEST-----"


@frozen_kw_only_dataclass
class CertificateSummary:
    """What a person may see of a certificate."""

    party: str
    """The DNS name, ``root`` for an authority's, or ``no precad party``."""
    state: str
    """``valid``, ``expired``, ``not yet valid``, ``revoked``, or ``NOT_ITS_KEYS``."""
    serial: str
    """Hexadecimal; ``precad keys revoke --serial`` takes it."""
    starts: datetime
    ends: datetime
    fingerprint: str
    """SHA-256 of the certificate, hexadecimal: what two people compare over the
    telephone."""

    def to_json(self) -> dict[str, str]:
        """Return the same as plain strings; times as ISO 8601."""
        times = {"starts": self.starts.isoformat(), "ends": self.ends.isoformat()}
        return asdict(self) | times


def summarise(path: Path) -> list[CertificateSummary]:
    """Return summaries of the certificates at a path.

    It is a deployment's directory, one party's folder, or one PEM file.

    Raises Misconfiguration: a file can't be read or is malformed.
    """
    root_folder = path / AUTHORITY_FOLDER
    if (root_folder / CA_FILE).exists():
        roots = _read(root_folder / CA_FILE)
        lists = RevocationList(root_folder / REVOCATION_FILE, roots)
        issued = Deployment.open(path).issued()
        return [_summary(certificate, lists) for certificate in (*roots, *issued)]
    if not (path / CERTIFICATE_FILE).exists():
        return [_summary(certificate, None) for certificate in _read(path)]
    roots = _read(path / CA_FILE)
    chain = _read(path / CERTIFICATE_FILE)
    lists = RevocationList(path / REVOCATION_FILE, roots)
    summaries = [_summary(certificate, lists) for certificate in (*chain, *roots)]
    key_path = path / KEY_FILE
    if key_path.exists():
        try:
            pem = Secret(read_pem(key_path, "path", _READ))
            # An encrypted key is compared where its passphrase is at hand.
            if not is_encrypted(pem) or key_passphrase():
                own_key(pem, chain[0], source=path)
        except Misconfiguration:
            summaries[0] = replace(summaries[0], state=NOT_ITS_KEYS)
    return summaries


def request_summary(path: Path) -> tuple[str, str] | None:
    """Return the party of a signing request, and the SHA-256 of its public key.

    The second, in hexadecimal, is to be read out. None where the path is no request's.

    Raises Misconfiguration: it is a request, but damaged.
    """
    if not path.is_file():
        return None
    pem = read_pem(path, "path", _READ)
    if _REQUEST not in pem:
        return None
    party, key = read_request(pem, None, path)
    public_key = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return str(party), str(Digest.of(public_key))


def _read(path: Path) -> list[x509.Certificate]:
    return certificates_in(
        path, "path", "give a directory of precad keys or a PEM file"
    )


def _summary(
    certificate: x509.Certificate, lists: RevocationList | None
) -> CertificateSummary:
    """Return a certificate's summary; without ``lists``, none counts as revoked."""
    try:
        party = "root" if is_authority(certificate) else str(principal_of(certificate))
    except Misconfiguration:
        party = "no precad party"
    if lists is not None and lists.revokes(certificate):
        state = "revoked"
    else:
        state = validity_fault(certificate) or "valid"
    return CertificateSummary(
        party=party,
        state=state,
        serial=f"{certificate.serial_number:x}",
        starts=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
    )
