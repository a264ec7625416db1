"""Everything wrong with a party's folder is found at start-up, with file and remedy.

A revoked certificate: tests/integration/test_keys_command.py.
"""

import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from tests.rig.documents import Document
from tests.rig.keys import BOTH_PURPOSES, company_authority, forged
from tests.rig.refusals import refused

from precad.common import clock, identifiers
from precad.common.errors import Misconfiguration
from precad.common.identity.authority import Authority, key_to_pem, new_key, to_pem
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import create_local_keys
from precad.common.identity.party_certificate import (
    PASSPHRASE_CREDENTIAL,
    PASSPHRASE_VARIABLE,
    Principal,
    has_chain,
    own_key,
)

SERVER_A = Principal.service(identifiers.Role.SERVER_A)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    create_local_keys(directory, ["ward-3"])
    return directory


@pytest.fixture
def folder(keys: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(keys / "server-a", tmp_path / "server-a"))


def put(folder: Path, **files: bytes) -> None:
    for name, pem in files.items():
        (folder / f"{name}.pem").write_bytes(pem)


def lines_of(pem: bytes, before: bytes, end: bytes) -> bytes:
    return b"".join(before + line + end for line in pem.splitlines())


AS_PEOPLE_LEAVE_THEM: dict[str, Callable[[bytes], bytes]] = {
    "a mark of UTF-8": lambda pem: b"\xef\xbb\xbf" + pem,
    "UTF-16": lambda pem: pem.decode().encode("utf-16"),
    "CRLF": lambda pem: lines_of(pem, b"", b"\r\n"),
    "CR": lambda pem: lines_of(pem, b"", b"\r"),
    "text before and after": lambda pem: (
        "Prüfstelle Süd:\n".encode("latin-1") + pem + b"-- \nX"
    ),
    "indentation": lambda pem: lines_of(pem, b"    ", b"  \n"),
    "tabs and blank lines": lambda pem: lines_of(pem, b"\t", b"\n\n"),
    "a mail's quotation": lambda pem: lines_of(pem, b"> ", b"\n"),
    "spaces that don't break": lambda pem: lines_of(pem, b"\xc2\xa0", b"\n"),
    "no line's end": lambda pem: pem.rstrip(),
}


@pytest.mark.parametrize("left", AS_PEOPLE_LEAVE_THEM)
def test_files_as_people_leave_them_are_written_anew_for_grpc(
    folder: Path, left: str
) -> None:
    plain = Identity.load(folder)
    own = x509.load_pem_x509_certificate(plain.cert)
    for path in folder.glob("*.pem"):
        path.write_bytes(AS_PEOPLE_LEAVE_THEM[left](path.read_bytes()))
    found = Identity.load(folder)
    assert found == plain
    assert not found.revocations.revokes(own)


def written(key: PrivateKeyTypes, form: serialization.PrivateFormat) -> bytes:
    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM, form, serialization.NoEncryption()
    )
    return pem


def test_a_key_as_openssl_writes_it_is_written_anew_for_grpc(folder: Path) -> None:
    plain = Identity.load(folder)
    key = serialization.load_pem_private_key(plain.key.reveal(), password=None)
    parameters = (
        b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC"
        b" PARAMETERS-----\n"
    )
    put(
        folder,
        key=parameters + written(key, serialization.PrivateFormat.TraditionalOpenSSL),
    )
    assert Identity.load(folder) == plain
    # Who it is shows, and no key.
    shown = repr(plain) + str(plain)
    hidden = "BEGIN", plain.key.reveal().decode().splitlines()[1]
    assert ("server-a" in shown, [each for each in hidden if each in shown]) == (
        True,
        [],
    )


def gone(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / f"{name}.pem").unlink()


def damaged(name: str) -> Callable[[Path], object]:
    return lambda folder: put(folder, **{name: NONSENSE})


def other_root(folder: Path) -> None:
    put(folder, ca=to_pem(Authority.create().certificate))
    (folder / "crl.pem").unlink()


def put_forged(
    folder: Path, *names: str, purposes: Sequence[x509.ObjectIdentifier] = BOTH_PURPOSES
) -> None:
    """What an authority of one's own gets wrong."""
    authority = Authority.create()
    made = forged(Identity.load(folder), authority, *names, purposes=purposes)
    put(folder, ca=to_pem(authority.certificate), cert=made.cert, key=made.key.reveal())
    (folder / "crl.pem").unlink()


def put_chain(
    folder: Path,
    root: Document | None = None,
    issuing: Document | None = None,
) -> None:
    """A server's folder whose certificate came over a company's own intermediate
    authority."""
    root = dict(root or {})
    root_key, issuing_key, key = (
        root.pop("key", None) or new_key(),
        new_key(),
        new_key(),
    )
    anchor = company_authority(
        "company root", root_key, "company root", root_key, **root
    )
    below = partial(company_authority, "issuing", issuing_key, "company root", root_key)
    # From a whole one: what is wrong with the other doesn't keep it from signing.
    leaf = Authority(below(), issuing_key).issue(SERVER_A, key.public_key(), days=1)
    chain = to_pem(leaf) + to_pem(below(**(issuing or {})))
    put(folder, ca=to_pem(anchor), cert=chain, key=key_to_pem(key).reveal())
    (folder / "crl.pem").unlink()


NAMES, NO_QUOTE = ("ca", "cert", "key", "crl"), "MC4CAQAwBQYDK2VwBCIEIHNlY3JldA"
ED25519 = ed25519.Ed25519PrivateKey.generate()
NONSENSE = f"-----BEGIN PRIVATE KEY-----\n{NO_QUOTE}\n".encode()
OURS, OTHERS, BOTH = "server-a.precad", "server-b.precad", "clientAuth and serverAuth"
OVER: dict[str, float] = {"starts_days": -9.0, "ends_days": -1.0}
NO_AUTHORITY = {"constraints": x509.BasicConstraints(ca=False, path_length=None)}
ALONE, SILENT = x509.BasicConstraints(ca=True, path_length=0), {"constraints": None}
WEAK = rsa.generate_private_key(65537, 1024)
BROKEN, NO_ROOT = "not issued by a valid authority", r"ca\.pem.*no authority"
SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    **{f"no {name}": (gone(name), rf"{name}\.pem.*precad keys") for name in NAMES[:3]},
    **{f"damaged {name}": (damaged(name), rf"{name}\.pem") for name in NAMES},
    "a group's": (lambda f: (f / "key.pem").chmod(0o640), "chmod 600"),
    "everybody's": (lambda f: (f / "key.pem").chmod(0o604), "chmod 600"),
    "another key": (
        lambda f: put(f, key=key_to_pem(new_key()).reveal()),
        "belongs to another certificate",
    ),
    "another root": (other_root, "not issued by a valid authority"),
    "another root's list": (
        lambda f: put(f, crl=to_pem(Authority.create().revocation_list([], number=1))),
        "not signed by an authority",
    ),
    "an Ed25519 key": (
        lambda f: put(f, key=written(ED25519, serialization.PrivateFormat.PKCS8)),
        r"P-256.*refuses Ed25519",
    ),
    "no name": (put_forged, "precad"),
    "two names": (lambda f: put_forged(f, OURS, OTHERS), "precad"),
    "any name": (lambda f: put_forged(f, "*.precad"), "precad"),
    "a capital": (lambda f: put_forged(f, "Server-A.precad"), "precad"),
    "no purpose": (lambda f: put_forged(f, OURS, purposes=()), BOTH),
    "one purpose": (lambda f: put_forged(f, OURS, purposes=BOTH_PURPOSES[:1]), BOTH),
    "root over": (lambda f: put_chain(f, OVER), BROKEN),
    "root allows no intermediate": (
        lambda f: put_chain(f, {"constraints": ALONE}),
        BROKEN,
    ),
    "root with a weak key": (lambda f: put_chain(f, {"key": WEAK}), BROKEN),
    "root no authority": (lambda f: put_chain(f, NO_AUTHORITY), NO_ROOT),
    "root says nothing": (lambda f: put_chain(f, SILENT), NO_ROOT),
    "intermediate over": (lambda f: put_chain(f, {}, OVER), BROKEN),
    "intermediate to come": (lambda f: put_chain(f, {}, {"starts_days": 1.0}), BROKEN),
    "intermediate no authority": (lambda f: put_chain(f, {}, NO_AUTHORITY), BROKEN),
    "intermediate says nothing": (lambda f: put_chain(f, {}, SILENT), BROKEN),
    "intermediate for other names": (
        lambda f: put_chain(f, {}, {"names": "example"}),
        BROKEN,
    ),
}


@pytest.mark.parametrize("what", SPOILT)
def test_what_is_wrong_with_a_file_or_a_chain_is_named(folder: Path, what: str) -> None:
    spoil, complaint = SPOILT[what]
    spoil(folder)
    assert NO_QUOTE not in str(refused(complaint, Identity.load, folder))


def test_on_windows_a_mode_says_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file there has the mode 0o666 or 0o444."""
    (folder / "key.pem").chmod(0o666)
    monkeypatch.setattr(sys, "platform", "win32")
    assert Identity.load(folder).principal == SERVER_A
    # A certificate outside its days is refused everywhere.
    for minutes, says in (
        (366 * 1440, r"expired.*precad keys renew"),
        (-6, "not yet valid.*clock"),
    ):
        later = datetime.now(UTC) + timedelta(minutes=minutes)
        monkeypatch.setattr(clock, "wall", lambda later=later: later)
        refused(says, Identity.load, folder)


def test_an_intermediate_authority_in_the_chain_is_accepted(folder: Path) -> None:
    put_chain(folder)
    assert Identity.load(folder).principal == SERVER_A
    alone = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
    put(folder, cert=to_pem(alone))
    refused("not issued", Identity.load, folder)


def test_a_chain_that_was_believed_ends_with_its_first_certificate() -> None:
    top, other, below, leaf = (new_key() for _ in range(4))
    authority = company_authority("top", top, "top", top, ends_days=9)
    middle = company_authority("middle", below, "top", top, ends_days=2)
    own = company_authority("own", leaf, "middle", below, ends_days=5, constraints=None)
    now = datetime.now(UTC)
    for days, holds in (
        (0, True),
        (1, True),
        (3, False),
        (0, True),
        (-1, False),
        (1, True),
    ):
        later = now + timedelta(days=days)
        assert (
            has_chain(own, intermediates=[middle], authorities=[authority], now=later)
            is holds
        )
    # And is no other authority's.
    namesake = company_authority("top", other, "top", other)
    own = company_authority("own", leaf, "top", top, constraints=None)
    believed = [
        has_chain(own, intermediates=[], authorities=to)
        for to in ([authority], [namesake], [namesake, authority])
    ]
    assert believed == [True, False, True]


PASSPHRASE = b"a long walk, at night"


@pytest.fixture
def encrypted(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder's key, encrypted; beside it the passphrase in a file, with its line's
    end."""
    for name in (PASSPHRASE_VARIABLE, "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    key = own_key(
        identifiers.Secret((folder / "key.pem").read_bytes()),
        x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes()),
        source="key.pem",
    )
    passphrase = identifiers.Secret(PASSPHRASE)
    put(folder, key=key_to_pem(key, passphrase).reveal())
    (tmp_path / "passphrase").write_bytes(PASSPHRASE + b"\r\n")
    return folder


def test_an_encrypted_key_opens_by_a_file_a_variable_or_a_credential(
    encrypted: Path, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passphrase = tmp_path / "passphrase"
    plain = Identity.load(keys / "server-a").key
    assert b"ENCRYPTED" in (encrypted / "key.pem").read_bytes()
    assert Identity.load(encrypted, passphrase).key == plain
    with monkeypatch.context() as environment:
        environment.setenv(PASSPHRASE_VARIABLE, str(passphrase))
        assert Identity.load(encrypted).key == plain
        # One without needs none, whatever the environment has.
        assert Identity.load(keys / "server-a").key == plain
    with monkeypatch.context() as environment:
        environment.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
        with pytest.raises(Misconfiguration, match="is encrypted"):
            Identity.load(encrypted)
        shutil.copy(passphrase, tmp_path / PASSPHRASE_CREDENTIAL)
        assert Identity.load(encrypted).key == plain


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"key_passphrase_file = .*passphrase': can't be read \(No such file"),
        (b"\n", "key_passphrase_file = .*passphrase': is empty"),
        (b"another", r"key = .*key\.pem': .*another passphrase than the one given"),
        (PASSPHRASE + b" ", "another passphrase than the one given"),
    ],
)
def test_a_passphrase_that_opens_nothing_is_named_by_its_file_and_never_shown(
    encrypted: Path, tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "passphrase"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Misconfiguration, match=words) as refusal:
        Identity.load(encrypted, path)
    assert PASSPHRASE.decode() not in str(refusal.value)


def test_without_a_passphrase_an_encrypted_key_says_where_to_name_one(
    encrypted: Path,
) -> None:
    said = "key_passphrase_file in the settings.*PRECAD_KEY_PASSPHRASE_FILE.*credential"
    with pytest.raises(Misconfiguration, match=said):
        Identity.load(encrypted)
