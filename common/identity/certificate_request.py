"""A party asks for its certificate and takes what came back: its key never leaves its folder."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from precad.common.errors import Misconfiguration
from precad.common.files import PUBLIC_MODE, make_folder, write_file
from precad.common.identity import authority, credentials
from precad.common.identity import party_certificate as certificates
from precad.common.identity.coin_key import DRAWING_ROLES, make_coin_key, take_over_coin_key
from precad.common.identity.credentials import Identity
from precad.common.identity.party_certificate import Principal
from precad.common.identity.revocation_list import RevocationList, newest_lists
from precad.common.secret import Secret

REQUEST_FILE = "request.pem"
_FILES = (credentials.CA_FILE, credentials.REVOCATION_FILE, credentials.CERTIFICATE_FILE)
"""The certificate last: a folder with one is whole."""


def accept(folder: Path, offered: Path) -> Identity:
    """Put the certificate in ``offered`` beside the key in ``folder``, or change nothing.

    Args:
        folder: of the party; holds its key and, from its kit, the root that was read out.
        offered: ca.pem, cert.pem and crl.pem, as ``precad keys issue`` makes them.

    Raises Misconfiguration: the certificate is of another key, another party than was asked for, or
    another root than the folder has; or it doesn't count.
    """
    key = Secret(
        certificates.read_pem(
            folder / credentials.KEY_FILE, "folder", "make the key with precad keys request"
        )
    )
    remedy = "give the folder that precad keys issue made"
    root, lists, certificate = (offered / name for name in _FILES)
    files = {name: certificates.read_pem(offered / name, "offered", remedy) for name in _FILES}
    chain = certificates.read_certificates(files[certificate.name], source=str(certificate))
    certificates.own_key(key, chain[0], source=str(certificate))
    known, present = folder / root.name, folder / lists.name
    if known.exists() and certificates.read_pem(known, "folder", remedy) != files[root.name]:
        raise Misconfiguration(
            "offered",
            str(root),
            f"is another root than {known}, which was read out to you: ask who sent it",
        )
    roots = certificates.read_certificates(files[root.name], source=str(root))
    # An older list than the folder's, an operator's mix-up or a thief's, brings nobody back.
    for path in (present, lists):
        revocations = RevocationList(path, roots)
        principal = credentials.check_certificate(
            chain, roots, revocations, source=str(certificate)
        )
    if present.exists():
        held = certificates.read_pem(present, "folder", remedy)
        files[lists.name] = newest_lists(held, files[lists.name])
    request = folder / REQUEST_FILE
    if request.exists():
        # The party that was asked for: the root may have been talked into another.
        asked = certificates.read_pem(request, "folder", "let this user read it")
        authority.read_request(asked, principal, source=str(request))
    for name in _FILES:
        write_file(folder / name, files[name], mode=PUBLIC_MODE)
    return Identity.load(folder)


def create_request(
    folder: Path, principal: Principal, *, replace: bool = False, renew: Path | None = None
) -> Path:
    """Make a new key in the folder, and a signing request for it, whose path is returned.

    ``renew`` is the party's present folder, which stays as it is: the root and, of a server, the
    coin keys are taken over from it.

    Raises Misconfiguration: a key is there and ``replace`` is false; or ``renew`` is another
    party's folder, this one, or lacks a server's coin key.
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
        raise Misconfiguration(
            "--renew", str(old), "the new key needs a folder of its own, until its certificate came"
        )
    remedy = "it has no certificate to renew; leave --renew out"
    held = certificates.certificates_in(old / credentials.CERTIFICATE_FILE, "--renew", remedy)
    if (whose := certificates.principal_of(held[0])) != principal:
        raise Misconfiguration("--renew", str(old), f"is {whose}'s, not {principal}'s")
    root = certificates.read_pem(
        old / credentials.CA_FILE, "--renew", "put the root's certificate back there"
    )
    make_folder(folder)
    try:
        if principal.role in DRAWING_ROLES:
            take_over_coin_key(old, folder)
        write_file(folder / credentials.CA_FILE, root, mode=PUBLIC_MODE)
    except OSError as error:
        raise Misconfiguration("--renew", str(error.filename), f"{error.strerror}") from None


def publish(path: Path, public: authority.Public) -> None:
    """Write or replace what anybody may read."""
    write_file(path, authority.to_pem(public), mode=PUBLIC_MODE)


def write_key(folder: Path, key: ec.EllipticCurvePrivateKey, *, replace: bool) -> None:
    """Write a key for its owner's eyes only; never over an existing one unless told."""
    path = folder / credentials.KEY_FILE
    try:
        write_file(path, authority.key_to_pem(key).reveal(), replace=replace)
    except FileExistsError:
        raise Misconfiguration("file", str(path), "it exists; --force replaces it") from None
