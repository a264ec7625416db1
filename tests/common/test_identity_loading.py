"""Everything wrong with a party's folder is found at start-up, with file and remedy."""

import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from tests.rig.keys import BOTH_PURPOSES, company_authority, forged

from precad.common import clock
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.identity.authority import Authority, key_to_pem, new_key, to_pem
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import Deployment, create_local_keys
from precad.common.identity.party_certificate import Principal, has_chain


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    create_local_keys(directory, ["ward-3"])
    return directory


@pytest.fixture
def folder(keys: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(keys / "server-a", tmp_path / "server-a"))


def put_key(folder: Path, pem: bytes) -> None:
    (folder / "key.pem").write_bytes(pem)


def test_repr_shows_who_and_where_but_no_key(folder: Path) -> None:
    identity = Identity.load(folder)
    text = repr(identity) + str(identity)
    body = identity.key.reveal().decode().splitlines()[1]
    assert "server-a" in text
    assert body not in text
    assert "BEGIN" not in text


def lines_of(pem: bytes, before: bytes, end: bytes) -> bytes:
    return b"".join(before + line + end for line in pem.splitlines())


AS_PEOPLE_LEAVE_THEM: dict[str, Callable[[bytes], bytes]] = {
    "a mark of UTF-8": lambda pem: b"\xef\xbb\xbf" + pem,
    "UTF-16": lambda pem: pem.decode().encode("utf-16"),
    "CRLF": lambda pem: lines_of(pem, b"", b"\r\n"),
    "CR": lambda pem: lines_of(pem, b"", b"\r"),
    "text before and after": lambda pem: "Prüfstelle Süd:\n".encode("latin-1") + pem + b"-- \nX",
    "indentation": lambda pem: lines_of(pem, b"    ", b"  \n"),
    "tabs and blank lines": lambda pem: lines_of(pem, b"\t", b"\n\n"),
    "a mail's quotation": lambda pem: lines_of(pem, b"> ", b"\n"),
    "spaces that don't break": lambda pem: lines_of(pem, b"\xc2\xa0", b"\n"),
    "no line's end": lambda pem: pem.rstrip(),
}


@pytest.mark.parametrize("left", AS_PEOPLE_LEAVE_THEM)
def test_files_as_people_leave_them_are_read_and_written_anew_for_grpc(
    folder: Path, left: str
) -> None:
    plain = Identity.load(folder)
    own = x509.load_pem_x509_certificate(plain.cert)
    for path in folder.glob("*.pem"):
        path.write_bytes(AS_PEOPLE_LEAVE_THEM[left](path.read_bytes()))
    found = Identity.load(folder)
    assert found == plain
    assert not found.revocations.revokes(own)


def test_a_key_as_openssl_writes_it_is_written_anew_for_grpc(folder: Path) -> None:
    plain = Identity.load(folder)
    key = serialization.load_pem_private_key(plain.key.reveal(), password=None)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    nothing = serialization.NoEncryption()
    written = key.private_bytes(serialization.Encoding.PEM, form, nothing)
    parameters = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    put_key(folder, parameters + written)
    assert Identity.load(folder) == plain


NONSENSE = b"-----BEGIN NONSENSE-----\n"


def other_key(folder: Path, keys: Path) -> None:
    put_key(folder, (keys / "server-b" / "key.pem").read_bytes())


def other_root(folder: Path, _keys: Path) -> None:
    (folder / "ca.pem").write_bytes(to_pem(Authority.create().certificate))
    (folder / "crl.pem").unlink()


def other_roots_list(folder: Path, _keys: Path) -> None:
    (folder / "crl.pem").write_bytes(to_pem(Authority.create().revocation_list([], number=1)))


def ed25519_key(folder: Path, _keys: Path) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    form = serialization.PrivateFormat.PKCS8
    nothing = serialization.NoEncryption()
    put_key(folder, key.private_bytes(serialization.Encoding.PEM, form, nothing))


def missing(name: str) -> Callable[[Path, Path], object]:
    return lambda folder, _keys: (folder / name).unlink()


def damaged(name: str) -> Callable[[Path, Path], object]:
    return lambda folder, _keys: (folder / name).write_bytes(NONSENSE)


def readable_by_others(mode: int) -> Callable[[Path, Path], object]:
    return lambda folder, _keys: (folder / "key.pem").chmod(mode)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        *((missing(f"{name}.pem"), rf"{name}\.pem.*precad keys") for name in ("ca", "cert", "key")),
        *((damaged(f"{name}.pem"), rf"{name}\.pem") for name in ("ca", "cert", "key", "crl")),
        *((readable_by_others(mode), "chmod 600") for mode in (0o640, 0o604)),
        (other_key, "belongs to another certificate"),
        (other_root, "not issued by a valid authority"),
        (other_roots_list, "not signed by an authority"),
        (ed25519_key, r"P-256.*refuses Ed25519"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(
    folder: Path, keys: Path, spoil: Callable[[Path, Path], object], complaint: str
) -> None:
    spoil(folder, keys)
    with pytest.raises(Misconfiguration, match=complaint):
        Identity.load(folder)


def test_a_damaged_key_is_not_quoted(folder: Path) -> None:
    body = "MC4CAQAwBQYDK2VwBCIEIHNlY3JldA"
    put_key(folder, f"-----BEGIN PRIVATE KEY-----\n{body}\n".encode())
    with pytest.raises(Misconfiguration) as caught:
        Identity.load(folder)
    assert body not in str(caught.value)


def test_on_windows_a_files_mode_says_nothing_and_the_key_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file there has the mode 0o666 or 0o444."""
    (folder / "key.pem").chmod(0o666)
    monkeypatch.setattr(sys, "platform", "win32")
    assert Identity.load(folder).principal == Principal.service(Role.SERVER_A)


@pytest.mark.parametrize(
    ("later", "complaint"),
    [
        (timedelta(days=366), r"expired.*precad keys renew"),
        (timedelta(minutes=-6), r"not yet valid.*clock"),
    ],
)
def test_a_certificate_outside_its_days_is_refused(
    folder: Path, later: timedelta, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "wall", lambda: datetime.now(UTC) + later)
    with pytest.raises(Misconfiguration, match=complaint):
        Identity.load(folder)


def test_a_revoked_certificate_is_refused(tmp_path: Path) -> None:
    create_local_keys(tmp_path, [])
    deployment = Deployment.open(tmp_path)
    dealer = Principal.service(Role.DEALER)
    deployment.revoke(deployment.current_serials(dealer))
    with pytest.raises(Misconfiguration, match="revoked"):
        Identity.load(tmp_path / "dealer")


@pytest.mark.parametrize(
    ("names", "purposes", "complaint"),
    [
        ([], BOTH_PURPOSES, "precad"),
        (["server-a.precad", "server-b.precad"], BOTH_PURPOSES, "precad"),
        (["*.precad"], BOTH_PURPOSES, "precad"),
        (["Server-A.precad"], BOTH_PURPOSES, "precad"),
        (["server-a.precad"], (), "clientAuth and serverAuth"),
        (["server-a.precad"], BOTH_PURPOSES[:1], "clientAuth and serverAuth"),
    ],
)
def test_what_an_authority_of_ones_own_gets_wrong_is_named(
    folder: Path, names: list[str], purposes: Any, complaint: str
) -> None:
    authority = Authority.create()
    made = forged(Identity.load(folder), authority, *names, purposes=purposes)
    (folder / "ca.pem").write_bytes(to_pem(authority.certificate))
    (folder / "cert.pem").write_bytes(made.cert)
    (folder / "crl.pem").unlink()
    put_key(folder, made.key.reveal())
    with pytest.raises(Misconfiguration, match=complaint):
        Identity.load(folder)


def put_chain(folder: Path, root: dict[str, Any], issuing: dict[str, Any]) -> None:
    """A server's folder whose certificate came over a company's own intermediate authority."""
    root = dict(root)
    root_key, issuing_key = root.pop("key", None) or new_key(), new_key()
    anchor = company_authority("company root", root_key, "company root", root_key, **root)
    middle = company_authority("issuing", issuing_key, "company root", root_key, **issuing)
    key = new_key()
    server = Principal.service(Role.SERVER_A)
    # From a whole one: what is wrong with the other doesn't keep it from signing.
    whole = company_authority("issuing", issuing_key, "company root", root_key)
    leaf = Authority(whole, issuing_key).issue(server, key.public_key(), days=1)
    put_key(folder, key_to_pem(key).reveal())
    (folder / "ca.pem").write_bytes(to_pem(anchor))
    (folder / "crl.pem").unlink()
    (folder / "cert.pem").write_bytes(to_pem(leaf) + to_pem(middle))


def test_an_intermediate_authority_in_the_chain_is_accepted(folder: Path) -> None:
    put_chain(folder, {}, {})
    assert Identity.load(folder).principal.role is Role.SERVER_A
    alone = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
    (folder / "cert.pem").write_bytes(to_pem(alone))
    with pytest.raises(Misconfiguration, match="not issued"):
        Identity.load(folder)


OVER = {"starts_days": -9.0, "ends_days": -1.0}
NO_AUTHORITY = x509.BasicConstraints(ca=False, path_length=None)
ALONE = x509.BasicConstraints(ca=True, path_length=0)


WEAK = rsa.generate_private_key(65537, 1024)
NOT_ISSUED = "not issued by a valid authority"


@pytest.mark.parametrize(
    ("root", "issuing", "complaint"),
    [
        pytest.param(OVER, {}, NOT_ISSUED, id="root over"),
        pytest.param({}, OVER, NOT_ISSUED, id="intermediate over"),
        pytest.param({}, {"starts_days": 1.0}, NOT_ISSUED, id="intermediate to come"),
        pytest.param({}, {"constraints": NO_AUTHORITY}, NOT_ISSUED, id="intermediate no authority"),
        pytest.param({}, {"constraints": None}, NOT_ISSUED, id="intermediate says nothing"),
        pytest.param({"constraints": ALONE}, {}, NOT_ISSUED, id="root allows no intermediate"),
        pytest.param({"key": WEAK}, {}, NOT_ISSUED, id="root with a weak key"),
        pytest.param({}, {"names": "example"}, NOT_ISSUED, id="intermediate for other names"),
        *(({"constraints": each}, {}, r"ca\.pem.*no authority") for each in (NO_AUTHORITY, None)),
    ],
)
def test_a_chain_that_does_not_hold_or_a_root_that_is_no_authority_is_refused(
    folder: Path, root: dict[str, Any], issuing: dict[str, Any], complaint: str
) -> None:
    put_chain(folder, root, issuing)
    with pytest.raises(Misconfiguration, match=complaint):
        Identity.load(folder)


def test_a_chain_that_was_believed_ends_with_its_first_certificate() -> None:
    top, below, leaf = (new_key() for _ in range(3))
    authority = company_authority("top", top, "top", top, ends_days=9)
    middle = company_authority("middle", below, "top", top, ends_days=2)
    own = company_authority("own", leaf, "middle", below, ends_days=5, constraints=None)
    chain = own, [middle], [authority]
    now = datetime.now(UTC)
    for days, believed in ((0, True), (1, True), (3, False), (0, True), (-1, False), (1, True)):
        assert has_chain(*chain, now + timedelta(days=days)) is believed


def test_a_believed_chain_is_no_other_authoritys() -> None:
    top, other, leaf = (new_key() for _ in range(3))
    authority = company_authority("top", top, "top", top)
    namesake = company_authority("top", other, "top", other)
    own = company_authority("own", leaf, "top", top, constraints=None)
    assert has_chain(own, [], [authority])
    assert not has_chain(own, [], [namesake])
    assert has_chain(own, [], [namesake, authority])
