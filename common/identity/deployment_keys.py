"""A deployment's keys on disk: the root's folder, and one folder per party for its machine.

``DIR/ca`` has ca.pem, key.pem, crl.pem and ``issued/<serial>.pem``: the operator's, on
no server. ``DIR/server-a``, ``DIR/ward-3``, … have ca.pem, cert.pem, key.pem, crl.pem
and, a server, coin.key.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from precad.common.errors import Misconfiguration
from precad.common.files import PUBLIC_FOLDER_MODE, make_folder, waiting_lock
from precad.common.identifiers import Digest, Role, Secret
from precad.common.identity import credentials
from precad.common.identity import party_certificate as certificates
from precad.common.identity.authority import (
    PARTY_DAYS,
    Authority,
    new_key,
    read_request,
    revoked_entry,
    to_pem,
)
from precad.common.identity.party_certificate import Principal
from precad.common.identity.revocation_list import RevocationList, read_revocation_lists

AUTHORITY_FOLDER = "ca"
ISSUED_FOLDER = "issued"
SERVICES = tuple(Principal.service(role) for role in Role if role is not Role.CLIENT)
_READ = "let this user read it"
_ELSEWHERE = "make keys on Linux and copy them"
_RESERVED = {AUTHORITY_FOLDER, *(role.value for role in Role)}


class Deployment:
    """The root of a deployment and what it issued."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self.directory = directory
        self._authority = authority
        self._folder = directory / AUTHORITY_FOLDER

    @classmethod
    def create(cls, directory: Path, *, replace: bool = False) -> Self:
        """A new root, with an empty revocation list.

        Raises Misconfiguration: there is one.
        """
        folder = directory / AUTHORITY_FOLDER
        make_folder(directory)
        make_folder(folder)
        with waiting_lock(folder, _ELSEWHERE):
            authority = Authority.create()
            credentials.write_key(folder, authority.key, replace=replace)
            credentials.publish(folder / credentials.CA_FILE, authority.certificate)
            credentials.publish(
                folder / credentials.REVOCATION_FILE,
                authority.revocation_list([], number=1),
            )
            make_folder(folder / ISSUED_FOLDER)
            for old in (folder / ISSUED_FOLDER).glob("*.pem"):
                old.unlink()
        return cls(directory, authority)

    @classmethod
    def open(cls, directory: Path) -> Self:
        """The root that is in ``directory``.

        Raises Misconfiguration: none, or a damaged one.
        """
        folder = directory / AUTHORITY_FOLDER
        remedy = "there is no root here; precad keys init makes one"
        certificate = certificates.read_pem(
            folder / credentials.CA_FILE, "keys", remedy
        )
        key = Secret(
            certificates.read_pem(folder / credentials.KEY_FILE, "keys", remedy)
        )
        return cls(directory, Authority.from_pem(certificate, key, source=str(folder)))

    def folder_of(self, principal: Principal) -> Path:
        """Where a party's files go; Misconfiguration: a client named like another's folder."""
        if principal.role is Role.CLIENT and principal.name in _RESERVED:
            remedy = "that folder is another party's; name one with --out"
            raise Misconfiguration("client", principal.name, remedy)
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
        """Make a party's folder, and return it: key, certificate, root and revocation list.

        With a ``request`` the party keeps its key to itself, and the folder has none.

        Raises Misconfiguration: a key is there and ``replace`` is false, or isn't the
        request's; or the request isn't the party's.
        """
        folder = out or self.folder_of(principal)
        with waiting_lock(self._folder, _ELSEWHERE):
            if request is not None:
                remedy = "give what precad keys request made"
                pem = certificates.read_pem(request, "request", remedy)
                _, public = read_request(pem, principal, source=str(request))
                _refuse_another_key(folder, public)
                certificate = self._certify(principal, public, days)
                # No key is in it, and whoever carries it may be somebody else.
                make_folder(folder, PUBLIC_FOLDER_MODE)
            else:
                key = new_key()
                certificate = self._certify(principal, key.public_key(), days)
                make_folder(folder)
                credentials.write_key(folder, key, replace=replace)
                if principal.role in credentials.DRAWING_ROLES:
                    credentials.make_coin_key(folder)
            credentials.publish(folder / credentials.CERTIFICATE_FILE, certificate)
            credentials.publish(
                folder / credentials.CA_FILE, self._authority.certificate
            )
            credentials.publish(
                folder / credentials.REVOCATION_FILE, self._revocations()
            )
        return folder

    def renew(
        self,
        principal: Principal,
        *,
        out: Path | None = None,
        days: int = PARTY_DAYS,
        revoke_old: bool = False,
    ) -> Path:
        """Put a new key and certificate in place of those in the party's folder, and return it.

        The old certificate stays good until its end, so that nothing has to restart at
        once, unless it is revoked here.

        Raises Misconfiguration: the folder holds no certificate, or another party's.
        """
        folder = out or self.folder_of(principal)
        path = folder / credentials.CERTIFICATE_FILE
        remedy = "without one to renew, use precad keys issue"
        old = certificates.certificates_in(path, "folder", remedy)[0]
        whose = certificates.principal_of(old)
        if whose != principal:
            raise Misconfiguration("folder", str(folder), f"belongs to {whose}")
        self.issue(
            principal,
            out=folder,
            days=days,
            replace=True,
        )
        if revoke_old:
            self.revoke([old.serial_number])
        return folder

    def revoke(self, serials: Iterable[int]) -> list[Path]:
        """Add certificates to the revocation list, and put it in every folder of this deployment.

        The lists that were written come back, the root's own first. Servers elsewhere
        need a copy.

        Raises Misconfiguration: no serial number, or one that this root never issued.
        """
        wanted = set(serials)
        known = {certificate.serial_number for certificate in self.issued()}
        if not wanted or not wanted <= known:
            unknown = sorted(f"{serial:x}" for serial in wanted - known)
            remedy = "this root never issued it; precad keys show lists what it issued"
            raise Misconfiguration("serial", unknown, remedy)
        with waiting_lock(self._folder, _ELSEWHERE):
            current = self._revocations()
            entries = {entry.serial_number: entry for entry in current}
            entries |= {
                serial: revoked_entry(serial) for serial in wanted - set(entries)
            }
            number = current.extensions.get_extension_for_class(
                x509.CRLNumber
            ).value.crl_number
            # Servers refuse a list older than theirs, and clocks get set back.
            now = max(datetime.now(UTC), current.last_update_utc)
            signed = self._authority.revocation_list(
                entries.values(), number=number + 1, now=now
            )
            written = [self._folder / credentials.REVOCATION_FILE, *self._other_lists()]
            for path in written:
                credentials.publish(path, signed)
        return written

    def current_serials(self, principal: Principal) -> list[int]:
        """The party's certificates that still count.

        Raises Misconfiguration: there is none.
        """
        revoked = {entry.serial_number for entry in self._revocations()}
        serials = [
            each.serial_number
            for each in self.issued()
            if certificates.principal_of(each) == principal
            and each.serial_number not in revoked
            and certificates.validity_fault(each) != "expired"
        ]
        if not serials:
            raise Misconfiguration(
                "party", str(principal), "has no certificate that still counts"
            )
        return serials

    def issued(self) -> list[x509.Certificate]:
        """Every certificate that this root issued, oldest first."""
        paths = (self._folder / ISSUED_FOLDER).glob("*.pem")
        found = [certificates.certificates_in(path, "keys", _READ)[0] for path in paths]
        return sorted(
            found, key=lambda each: (each.not_valid_before_utc, each.serial_number)
        )

    def _certify(
        self, principal: Principal, key: ec.EllipticCurvePublicKey, days: int
    ) -> x509.Certificate:
        certificate = self._authority.issue(principal, key, days=days)
        # On record before anyone holds it: what isn't on record can't be revoked.
        record = self._folder / ISSUED_FOLDER / f"{certificate.serial_number:040x}.pem"
        credentials.publish(record, certificate)
        return certificate

    def _revocations(self) -> x509.CertificateRevocationList:
        path = self._folder / credentials.REVOCATION_FILE
        pem = certificates.read_pem(
            path, "crl", "put it back: it goes with the root's key"
        )
        return read_revocation_lists(
            pem, [self._authority.certificate], source=str(path)
        )[0]

    def _other_lists(self) -> list[Path]:
        ours = to_pem(self._authority.certificate)
        return [
            path.with_name(credentials.REVOCATION_FILE)
            for path in sorted(self.directory.glob(f"*/{credentials.CA_FILE}"))
            if path.parent != self._folder
            and certificates.read_pem(path, "keys", _READ) == ours
        ]


def create_local_keys(
    directory: Path,
    clients: Iterable[str],
    *,
    dealer: bool = True,
    days: int = PARTY_DAYS,
    replace: bool = False,
) -> list[Path]:
    """Root, both servers, dealer if any, operator and clients, each in a folder, returned.

    Raises Misconfiguration: keys are there and ``replace`` is false, or a client's name
    is no name.
    """
    services = (each for each in SERVICES if dealer or each.role is not Role.DEALER)
    parties = [*services, *(Principal.client(name) for name in clients)]
    folders = [directory / party.name for party in parties]
    if len(set(folders)) != len(folders) or directory / AUTHORITY_FOLDER in folders:
        names = sorted(party.name for party in parties)
        raise Misconfiguration("client", names, "every name must be another")
    existing = [
        folder for folder in folders if (folder / credentials.KEY_FILE).exists()
    ]
    if existing and not replace:
        raise Misconfiguration(
            "folder", str(existing[0]), "holds a key; --force replaces it"
        )
    deployment = Deployment.create(directory, replace=replace)
    return [deployment.issue(party, days=days, replace=replace) for party in parties]


def _refuse_another_key(folder: Path, public: ec.EllipticCurvePublicKey) -> None:
    """A certificate beside a key that isn't its own would look valid and serve nobody."""
    path = folder / credentials.KEY_FILE
    if not path.exists():
        return
    held = certificates.private_key(
        Secret(certificates.read_pem(path, "out", _READ)), str(path)
    )
    if held.public_key() != public:
        remedy = (
            "holds a key, and the request is for another one; name another folder with"
            " --out, and send its files to whoever made the request"
        )
        raise Misconfiguration("out", str(folder), remedy)


NOT_ITS_KEYS = "not its key's"
_REQUEST = b"-----BEGIN CERTIFICATE REQUEST-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSummary:
    """What a person may see of a certificate."""

    party: str
    """The DNS name, ``root`` for an authority's, or ``no precad party``."""
    state: str
    """``valid``, ``expired``, ``not yet valid``, ``revoked``, or ``NOT_ITS_KEYS``: of
    another key than the one beside it."""
    serial: str
    """Hexadecimal; ``precad keys revoke --serial`` takes it."""
    starts: datetime
    ends: datetime
    fingerprint: str
    """SHA-256 of the certificate, hexadecimal: what two people compare over the
    telephone."""

    def to_json(self) -> dict[str, str]:
        """The same as plain strings; times as ISO 8601."""
        times = {"starts": self.starts.isoformat(), "ends": self.ends.isoformat()}
        return asdict(self) | times


def summarise(path: Path) -> list[CertificateSummary]:
    """The certificates of a deployment's directory, of one party's folder, or of one PEM file."""
    root = path / AUTHORITY_FOLDER
    if (root / credentials.CA_FILE).exists():
        roots = _read(root / credentials.CA_FILE)
        lists = RevocationList(root / credentials.REVOCATION_FILE, roots)
        return [
            _summary(each, lists) for each in (*roots, *Deployment.open(path).issued())
        ]
    if not (path / credentials.CERTIFICATE_FILE).exists():
        return [_summary(each, None) for each in _read(path)]
    roots = _read(path / credentials.CA_FILE)
    chain = _read(path / credentials.CERTIFICATE_FILE)
    lists = RevocationList(path / credentials.REVOCATION_FILE, roots)
    found = [_summary(each, lists) for each in (*chain, *roots)]
    if (path / credentials.KEY_FILE).exists():
        try:
            key = Secret(
                certificates.read_pem(path / credentials.KEY_FILE, "path", _READ)
            )
            certificates.own_key(key, chain[0], source=str(path))
        except Misconfiguration:
            found[0] = replace(found[0], state=NOT_ITS_KEYS)
    return found


def request_summary(path: Path) -> tuple[str, str] | None:
    """Who asks in a request, and the SHA-256 of its public key, hexadecimal, to be read out.

    None where the path is no request's. Raises Misconfiguration: it is one, but
    damaged.
    """
    if not path.is_file() or _REQUEST not in (
        pem := certificates.read_pem(path, "path", _READ)
    ):
        return None
    party, key = read_request(pem, None, source=str(path))
    public = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return str(party), str(Digest.of(public))


def _read(path: Path) -> list[x509.Certificate]:
    remedy = "give a directory of precad keys or a PEM file"
    return certificates.certificates_in(path, "path", remedy)


def _summary(
    certificate: x509.Certificate, lists: RevocationList | None
) -> CertificateSummary:
    try:
        root = certificates.is_authority(certificate)
        party = "root" if root else str(certificates.principal_of(certificate))
    except Misconfiguration:
        party = "no precad party"
    revoked = lists is not None and lists.revokes(certificate)
    return CertificateSummary(
        party=party,
        state=(
            "revoked"
            if revoked
            else certificates.validity_fault(certificate) or "valid"
        ),
        serial=f"{certificate.serial_number:x}",
        starts=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
    )
