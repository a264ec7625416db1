"""`precad keys`: a deployment's keys made, renewed, revoked and shown."""

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.rig import commands, refusals

from precad.common.identifiers import Role
from precad.common.identity import deployment_keys, party_certificate
from precad.common.identity.credentials import Identity

WARD = ("client", "ward-3")
keys = partial(commands.said, "keys")
refused = partial(commands.refused, "keys")
shown = partial(commands.document, "keys")


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def states(path: Path) -> dict[str, list[str]]:
    """Of each party's certificates that are shown, in order."""
    found: dict[str, list[str]] = {}
    for each in shown("show", path):
        found.setdefault(each["party"], []).append(each["state"])
    return {party: sorted(each) for party, each in found.items()}


def modes(*paths: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in paths}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    keys("init", tmp_path / "keys", "--clients", 2, "--client", "ward-3")
    return tmp_path / "keys"


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_one_command_makes_every_party_of_a_local_deployment(made: Path) -> None:
    folders = {
        "server-a",
        "server-b",
        "dealer",
        "operator",
        "client-1",
        "client-2",
        "ward-3",
    }
    assert {path.name for path in made.iterdir()} == {*folders, "ca"}
    keys("renew", made, "dealer")
    for name in folders:
        coin = {"coin.key"} if name.startswith("server") else set()
        assert {*contents(made / name)} == {
            "ca.pem",
            "cert.pem",
            "key.pem",
            "crl.pem",
            *coin,
        }
        assert Identity.load(made / name).principal.name == name
    # They are for their owner whatever the umask.
    found = [*made.glob("*/key.pem")]
    assert (len(found), modes(*found)) == (8, {0o600})
    assert modes(*(path.parent for path in found)) == {0o700}
    assert len({path.read_bytes() for path in found}) == len(found)


def test_no_key_is_replaced_without_force_or_printed(
    made: Path, tmp_path: Path
) -> None:
    before = contents(made)
    for command in (
        ("init", made),
        ("issue", made, *WARD),
        ("request", made / "ward-3", *WARD),
    ):
        assert "--force" in refused(*command)
    assert contents(made).items() >= before.items()
    keys("init", made, "--client", "ward-3", "--force")
    assert contents(made)["ward-3/key.pem"] != before["ward-3/key.pem"]
    assert Identity.load(
        made / "ward-3"
    ).principal == party_certificate.Principal.client("ward-3")
    # No command prints one.
    words = ("issue", "renew", "revoke")
    lines: list[tuple[object, ...]] = [
        (word, made, "client", "ward-4") for word in words
    ]
    lines.append(("request", tmp_path / "ward-5", "client", "ward-5"))
    lines += [
        ("show", each) for each in (made, made / "ward-3", made / "ward-3" / "key.pem")
    ]
    said = "".join(commands.precad("keys", *line).output for line in lines)
    bodies = [path.read_text().splitlines()[1] for path in tmp_path.rglob("key.pem")]
    assert bodies
    assert not [body for body in bodies if body in said]


@pytest.mark.usefixtures("open_umask")
def test_what_goes_back_to_a_party_may_be_edited_on_the_way(
    made: Path, tmp_path: Path
) -> None:
    """Nothing in it is secret; editors and mail leave marks and other ends of lines."""

    def edited(folder: Path) -> None:
        for path in folder.glob("*.pem"):
            text = path.read_text("utf-8").replace("\n", "\r\n")
            path.write_text(f"From: ward\n{text}", encoding="utf-8-sig", newline="")

    own, back = tmp_path / "own", tmp_path / "post" / "ward-9"
    keys("request", own, "client", "ward-9")
    edited(own)
    edited(made / "ca")
    asked = own / "request.pem"
    assert "asks for a certificate" in keys("show", asked)
    keys("issue", made, "client", "ward-9", "--request", asked, "--out", back)
    assert (modes(back), modes(*back.iterdir())) == ({0o755}, {0o644})
    edited(back)
    (own / "ca.pem").write_bytes((made / "ca" / "ca.pem").read_bytes())
    keys("accept", own, back)
    assert modes(own / "key.pem") == {0o600}
    assert Identity.load(own).principal == party_certificate.Principal.client("ward-9")
    # Folders whose root was edited get the longer list too.
    edited(made / "ward-3")
    assert str(made / "ward-3" / "crl.pem") in keys("revoke", made, "client", "ward-9")
    shutil.copy(made / "ward-3" / "crl.pem", own)
    refusals.refused("revoked", Identity.load, own)


def test_a_certificate_is_never_put_beside_another_key(
    made: Path, tmp_path: Path
) -> None:
    """ward-3 has a folder with a key there, and now asks with a key of its own
    making."""
    own, out = tmp_path / "at-the-client", tmp_path / "out"
    keys("request", own, *WARD)
    before = contents(made / "ward-3")
    issue = ("issue", made, *WARD, "--request", own / "request.pem")
    assert "--out" in refused(*issue)
    assert contents(made / "ward-3") == before
    keys(*issue, "--out", out)
    # A client without a folder there gets one with no key in it.
    keys("request", tmp_path / "ward-9", "client", "ward-9")
    keys(
        "issue",
        made,
        "client",
        "ward-9",
        "--request",
        tmp_path / "ward-9" / "request.pem",
    )
    assert "key.pem" not in contents(made / "ward-9")
    # Nor is one made of a request for another party.
    options = (
        "--request",
        tmp_path / "ward-9" / "request.pem",
        "--out",
        tmp_path / "none",
    )
    for party in (("client", "ward-8"), ("server-a",)):
        assert "ward-9.client.precad" in refused("issue", made, *party, *options)
        assert not (tmp_path / "none").exists()
    # Nor is it called valid beside another key.
    assert states(made / "ward-3")["ward-3.client.precad"] == ["valid"]
    shutil.copy(made / "client-1" / "key.pem", made / "ward-3")
    assert states(made / "ward-3")["ward-3.client.precad"] == ["not its key's"]


def test_a_revoked_party_is_on_every_list_and_may_be_issued_anew(made: Path) -> None:
    keys("revoke", made, *WARD)
    assert len({path.read_bytes() for path in made.glob("*/crl.pem")}) == 1
    for place in (made, made / "ward-3"):
        assert states(place)["ward-3.client.precad"] == ["revoked"]
    refusals.refused("revoked", Identity.load, made / "ward-3")
    refused("revoke", made, *WARD)
    keys("issue", made, *WARD, "--force")
    assert Identity.load(
        made / "ward-3"
    ).principal == party_certificate.Principal.client("ward-3")
    # One certificate is revoked by its serial number.
    (serial,) = (
        e["serial"] for e in shown("show", made) if e["party"] == "dealer.precad"
    )
    keys("revoke", made, "--serial", serial)
    assert states(made)["dealer.precad"] == ["revoked"]
    # A renewal replaces key and certificate of the same party.
    before = Identity.load(made / "server-b")
    keys("renew", made, "server-b", "--days", 30, "--revoke-old")
    after = Identity.load(made / "server-b")
    assert (after.principal, after.key == before.key) == (before.principal, False)
    assert states(made)["server-b.precad"] == ["revoked", "valid"]


def test_wrong_arguments_are_a_usage_error_and_make_nothing(made: Path) -> None:
    before = contents(made)
    for command in (
        "init {made}/other --client WARD-3",
        "init {made}/other --client dealer",
        "init {made}/other --client ward-3 --client ward-3",
        "init {made}/other --root-only --clients 2",
        "issue {made} client",
        "issue {made} client ../ward-3",
        "issue {made} dealer dealer-2",
        "issue {made} client ward-8 --days 4000",
        "issue {made} client ward-8 --request {made}/ca/ca.pem",
        "issue {made}/nowhere client ward-8",
        "renew {made} client ward-8",
        "renew {made} client ward-3 --out {made}/client-1",
        "revoke {made} client ward-8",
        "revoke {made} --serial 1234",
        "revoke {made}",
        "show {made}/nowhere",
        "show {made}/ca/crl.pem",
    ):
        refused(*(word.format(made=made) for word in command.split()))
        assert contents(made) == before, command


@pytest.fixture
def renewing(tmp_path: Path) -> Path:
    deployment_keys.create_local_keys(tmp_path, ["ward-1"])
    return tmp_path


def renewal(root: Path) -> tuple[Path, Path]:
    new, came = root / "new", root / "came"
    keys("request", new, "server-a", "--renew", root / "server-a")
    keys("issue", root, "server-a", "--request", new / "request.pem", "--out", came)
    return new, came


def test_a_renewal_takes_root_and_coin_key_along_and_leaves_the_old_folder(
    renewing: Path,
) -> None:
    before = contents(renewing / "server-a")
    new, came = renewal(renewing)
    assert contents(renewing / "server-a") == before
    found = contents(new)
    assert {name for name, _ in found.items() & before.items()} == {
        "ca.pem",
        "coin.key",
    }
    assert {*found} == {"ca.pem", "coin.key", "key.pem", "request.pem"}
    assert modes(new / "coin.key", new / "key.pem") == {0o600}
    # Nor is a key made in a folder in use.
    whole = contents(renewing)
    for name in ("server-a", "server-b"):
        old = renewing / "server-a"
        refused("request", renewing / name, "server-a", "--renew", old, "--force")
    assert contents(renewing) == whole
    # Whole once its certificate has come.
    assert keys("accept", new, came) == "server-a.precad: complete"
    assert Identity.load(new).principal == party_certificate.Principal.service(
        Role.SERVER_A
    )


@pytest.mark.parametrize("older", [True, False])
def test_of_two_revocation_lists_the_newer_one_stays(
    renewing: Path, *, older: bool
) -> None:
    """A certificate that comes with the list of before its party's colleague was
    revoked."""
    (new, came), newest = renewal(renewing), renewing / "ca" / "crl.pem"
    before = (came / "crl.pem").read_bytes()
    keys("revoke", renewing, "dealer")
    after = newest.read_bytes()
    (new / "crl.pem").write_bytes(after if older else before)
    (came / "crl.pem").write_bytes(before if older else after)
    keys("accept", new, came)
    assert (new / "crl.pem").read_bytes() == after
    # Nor is a certificate taken that the folder's newer list revokes.
    keys("revoke", renewing, "server-a")
    (new / "crl.pem").write_bytes(newest.read_bytes())
    assert "revoked" in refused("accept", new, came)


def far_too_much(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**26 + 1)


@pytest.mark.parametrize(
    "make", [lambda p: p.symlink_to("/dev/zero"), os.mkfifo, far_too_much]
)
def test_a_file_that_never_ends_is_refused(
    renewing: Path, make: Callable[[Path], None]
) -> None:
    came = renewing / "came"
    came.mkdir()
    for name in ("ca.pem", "cert.pem"):
        shutil.copy(renewing / "server-a" / name, came)
    make(came / "crl.pem")
    said = refused("accept", renewing / "server-a", came)
    assert re.search("crl.pem.*(no regular file|larger than 64 MiB)", said)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda old: (old / "coin.key").unlink(),
            "has no coin.key: put the server's own back",
        ),
        (lambda old: (old / "cert.pem").unlink(), "no certificate to renew"),
        (lambda old: (old / "ca.pem").unlink(), "put the root's certificate back"),
        (
            lambda old: shutil.copy(old.with_name("server-b") / "cert.pem", old),
            "server-b",
        ),
    ],
)
def test_a_renewal_that_lacks_a_file_makes_no_key(
    renewing: Path, spoil: Callable[[Path], object], said: str
) -> None:
    old, new = renewing / "server-a", renewing / "new"
    spoil(old)
    assert said in refused("request", new, "server-a", "--renew", old)
    assert not {"key.pem", "coin.key"} & {*contents(new)}


def test_where_a_passphrase_is_named_every_key_is_written_encrypted_and_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root's too; and what is issued, asked for and renewed."""
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("a long walk, at night\n", encoding="utf-8")
    root = tmp_path / "root"
    ward = tmp_path / "ward"
    with monkeypatch.context() as environment:
        environment.setenv(party_certificate.PASSPHRASE_VARIABLE, str(passphrase))
        keys("init", root, "--root-only")
        keys("issue", root, "server-a")
        keys("renew", root, "server-a")
        keys("request", ward, *WARD)
        keys("issue", root, *WARD, "--request", ward / "request.pem")
        keys("accept", ward, root / "ward-3")
        written = [*root.rglob("key.pem"), *ward.rglob("key.pem")]
        assert len(written) == 3
        for path in written:
            assert b"BEGIN ENCRYPTED PRIVATE KEY" in path.read_bytes()
    for again in (("issue", root, "dealer"), ("accept", ward, root / "ward-3")):
        assert "is encrypted: name a file" in refused(*again)
    assert not (root / "dealer").exists()
    # Settings name the same file; nothing but the key needs it.
    Identity.load(ward, passphrase)
    assert states(ward) == {"root": ["valid"], "ward-3.client.precad": ["valid"]}
