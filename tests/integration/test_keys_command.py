"""`precad keys`: a deployment's keys made, renewed, revoked and shown."""

import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.rig.commands import precad

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import create_local_keys
from precad.common.identity.party_certificate import Principal

USAGE_ERROR = 2


keys = partial(precad, "keys")


def contents(folder: Path) -> dict[Path, bytes]:
    """Of all files in it, by their path there."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


def shown(path: Path) -> list[dict[str, Any]]:
    result = keys("show", path, "--json")
    assert result.exit_code == 0, result.output
    return list(json.loads(result.stdout))


def states(path: Path, party: str) -> list[str]:
    return [each["state"] for each in shown(path) if each["party"] == party]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    directory = tmp_path / "keys"
    result = keys("init", directory, "--clients", 2, "--client", "ward-3")
    assert result.exit_code == 0, result.output
    return directory


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_one_command_makes_every_party_of_a_local_deployment(made: Path) -> None:
    folders = {"server-a", "server-b", "dealer", "operator", "client-1", "client-2", "ward-3"}
    assert {path.name for path in made.iterdir()} == {*folders, "ca"}
    for name in folders:
        files = {path.name for path in (made / name).iterdir()}
        coin = {"coin.key"} if name.startswith("server") else set()
        assert files == {"ca.pem", "cert.pem", "key.pem", "crl.pem", *coin}
        assert Identity.load(made / name).principal.name == name


@pytest.mark.usefixtures("open_umask")
def test_keys_are_for_their_owner_whatever_the_umask(tmp_path: Path) -> None:
    directory = tmp_path / "keys"
    assert keys("init", directory, "--clients", 1).exit_code == 0
    assert keys("renew", directory, "dealer").exit_code == 0
    found = sorted(directory.glob("*/key.pem"))
    assert len(found) == 6
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_no_key_is_replaced_without_force(made: Path) -> None:
    before = contents(made)
    for command in (
        ("init", made),
        ("init", made, "--client", "ward-3"),
        ("issue", made, "client", "ward-3"),
        ("request", made / "ward-3", "client", "ward-3"),
    ):
        result = keys(*command)
        assert result.exit_code == USAGE_ERROR
        assert "--force" in result.output
    assert contents(made).items() >= before.items()
    assert keys("init", made, "--client", "ward-3", "--force").exit_code == 0
    key = Path("ward-3", "key.pem")
    assert contents(made)[key] != before[key]
    assert Identity.load(made / "ward-3").principal == Principal.client("ward-3")


def test_no_command_prints_a_key(made: Path, tmp_path: Path) -> None:
    commands: list[tuple[object, ...]] = [
        *((word, made, "client", "ward-4") for word in ("issue", "renew", "revoke")),
        ("request", tmp_path / "ward-5", "client", "ward-5"),
        *(("show", each) for each in (made, made / "ward-3", made / "ward-3" / "key.pem")),
    ]
    said = "".join(keys(*command).output for command in commands)
    bodies = [path.read_text().splitlines()[1] for path in tmp_path.rglob("key.pem")]
    assert bodies
    assert not [body for body in bodies if body in said]


def test_a_client_keeps_its_key_and_sends_a_request(made: Path, tmp_path: Path) -> None:
    own = tmp_path / "at-the-client"
    assert keys("request", own, "client", "ward-9").exit_code == 0
    result = keys("issue", made, "client", "ward-9", "--request", own / "request.pem")
    assert result.exit_code == 0, result.output
    assert not (made / "ward-9" / "key.pem").exists()
    for path in (made / "ward-9").iterdir():
        (own / path.name).write_bytes(path.read_bytes())
    assert Identity.load(own).principal == Principal.client("ward-9")


def test_a_consortium_is_set_up_and_no_private_key_is_ever_in_two_folders(tmp_path: Path) -> None:
    root, parties = tmp_path / "authority", ("server-a", "server-b", "dealer", "operator")
    assert keys("init", root, "--root-only").exit_code == 0
    assert [path.name for path in root.iterdir()] == ["ca"]
    for party in parties:
        own, sent, back = (tmp_path / f"{party}-{what}" for what in ("own", "sent", "back"))
        assert keys("request", own, party).exit_code == 0
        sent.mkdir()
        (sent / "request.pem").write_bytes((own / "request.pem").read_bytes())
        done = keys("issue", root, party, "--request", sent / "request.pem", "--out", back)
        assert done.exit_code == 0, done.output
        for path in back.iterdir():
            (own / path.name).write_bytes(path.read_bytes())
        assert Identity.load(own).principal.name == party
        # Another party's certificate beside this key is refused.
        if party != parties[0]:
            other = tmp_path / f"{parties[0]}-own" / "cert.pem"
            mine = (own / "cert.pem").read_bytes()
            (own / "cert.pem").write_bytes(other.read_bytes())
            with pytest.raises(Misconfiguration, match="key"):
                Identity.load(own)
            (own / "cert.pem").write_bytes(mine)
    private = [
        path for path in tmp_path.rglob("*") if path.is_file() and b"PRIVATE" in path.read_bytes()
    ]
    assert len({path.read_bytes() for path in private}) == len(private) == 1 + len(parties)
    assert {path.parent.name for path in private} == {"ca", *(f"{p}-own" for p in parties)}


@pytest.mark.usefixtures("open_umask")
def test_what_goes_back_to_a_party_may_be_carried_by_anybody_and_edited_on_the_way(
    made: Path, tmp_path: Path
) -> None:
    """Nothing in it is secret; editors and mail leave marks and other ends of lines."""

    def edited(folder: Path) -> None:
        for path in folder.glob("*.pem"):
            text = path.read_text("utf-8").replace("\n", "\r\n")
            path.write_text(f"From: ward\n{text}", encoding="utf-8-sig", newline="")

    own, back = tmp_path / "own", tmp_path / "post" / "ward-9"
    assert keys("request", own, "client", "ward-9").exit_code == 0
    edited(own)
    edited(made / "ca")
    asked = own / "request.pem"
    assert "asks for a certificate" in keys("show", asked).output
    done = keys("issue", made, "client", "ward-9", "--request", asked, "--out", back)
    assert done.exit_code == 0, done.output
    assert stat.S_IMODE(back.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in back.iterdir()} == {0o644}
    edited(back)
    (own / "ca.pem").write_bytes((made / "ca" / "ca.pem").read_bytes())
    taken = keys("accept", own, back)
    assert taken.exit_code == 0, taken.output
    assert stat.S_IMODE((own / "key.pem").stat().st_mode) == 0o600
    assert Identity.load(own).principal == Principal.client("ward-9")
    # Folders whose root was edited get the longer list too.
    edited(made / "ward-3")
    revoked = keys("revoke", made, "client", "ward-9")
    assert str(made / "ward-3" / "crl.pem") in revoked.output
    (own / "crl.pem").write_bytes((made / "ward-3" / "crl.pem").read_bytes())
    with pytest.raises(Misconfiguration, match="revoked"):
        Identity.load(own)


def test_a_certificate_is_never_put_beside_a_key_that_is_not_its_own(
    made: Path, tmp_path: Path
) -> None:
    """ward-3 has a folder with a key there, and now asks with a key of its own making."""
    own = tmp_path / "at-the-client"
    keys("request", own, "client", "ward-3")
    before = contents(made / "ward-3")
    result = keys("issue", made, "client", "ward-3", "--request", own / "request.pem")
    assert result.exit_code == 2
    assert "--out" in result.output
    assert contents(made / "ward-3") == before
    out = tmp_path / "out"
    told = keys("issue", made, "client", "ward-3", "--request", own / "request.pem", "--out", out)
    assert told.exit_code == 0, told.output


def test_a_certificate_beside_another_key_is_not_called_valid(made: Path) -> None:
    before = [each for each in shown(made / "ward-3") if each["party"] != "root"]
    assert [each["state"] for each in before] == ["valid"]
    (made / "ward-3" / "key.pem").write_bytes((made / "client-1" / "key.pem").read_bytes())
    after = [each for each in shown(made / "ward-3") if each["party"] != "root"]
    assert [each["state"] for each in after] == ["not its key's"]
    assert "ward-3" in after[0]["party"]


def test_a_request_for_another_party_is_refused(made: Path, tmp_path: Path) -> None:
    keys("request", tmp_path / "own", "client", "ward-9")
    request = tmp_path / "own" / "request.pem"
    for command in (("client", "ward-8"), ("server-a",)):
        result = keys("issue", made, *command, "--request", request, "--out", tmp_path / "out")
        assert result.exit_code == USAGE_ERROR
        assert "ward-9.client.precad" in result.output
        assert not (tmp_path / "out").exists()


def test_renewal_replaces_key_and_certificate_of_the_same_party(made: Path) -> None:
    before = Identity.load(made / "server-b")
    assert keys("renew", made, "server-b", "--days", 30, "--revoke-old").exit_code == 0
    after = Identity.load(made / "server-b")
    assert (after.principal, after.key == before.key) == (before.principal, False)
    assert sorted(states(made, "server-b.precad")) == ["revoked", "valid"]


def test_a_revoked_party_is_on_every_list_and_may_be_issued_anew(made: Path) -> None:
    assert keys("revoke", made, "client", "ward-3").exit_code == 0
    lists = {path.read_bytes() for path in made.glob("*/crl.pem")}
    assert (len(lists), states(made, "ward-3.client.precad")) == (1, ["revoked"])
    assert states(made / "ward-3", "ward-3.client.precad") == ["revoked"]
    with pytest.raises(Misconfiguration, match="revoked"):
        Identity.load(made / "ward-3")
    assert keys("revoke", made, "client", "ward-3").exit_code == USAGE_ERROR
    assert keys("issue", made, "client", "ward-3", "--force").exit_code == 0
    assert Identity.load(made / "ward-3").principal == Principal.client("ward-3")


def test_one_certificate_is_revoked_by_its_serial_number(made: Path) -> None:
    (serial,) = (each["serial"] for each in shown(made) if each["party"] == "dealer.precad")
    assert keys("revoke", made, "--serial", serial).exit_code == 0
    assert states(made, "dealer.precad") == ["revoked"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("init", "{made}/other", "--client", "Ward 3"),
        ("init", "{made}/other", "--client", "ca"),
        ("init", "{made}/other", "--client", "dealer"),
        ("init", "{made}/other", "--client", "ward-3", "--client", "ward-3"),
        ("init", "{made}/other", "--root-only", "--clients", "2"),
        ("issue", "{made}", "client"),
        ("issue", "{made}", "client", "../ward-3"),
        ("issue", "{made}", "client", "server-a"),
        ("issue", "{made}", "dealer", "dealer-2"),
        ("issue", "{made}", "client", "ward-8", "--days", "0"),
        ("issue", "{made}", "client", "ward-8", "--days", "4000"),
        ("issue", "{made}", "client", "ward-8", "--request", "{made}/ca/ca.pem"),
        ("issue", "{made}/nowhere", "client", "ward-8"),
        ("renew", "{made}", "client", "ward-8"),
        ("renew", "{made}", "client", "ward-3", "--out", "{made}/client-1"),
        ("revoke", "{made}", "client", "ward-8"),
        ("revoke", "{made}", "--serial", "1234"),
        ("revoke", "{made}", "--serial", "no-number"),
        ("revoke", "{made}"),
        ("show", "{made}/nowhere"),
        ("show", "{made}/ca/crl.pem"),
    ],
)
def test_wrong_arguments_are_a_usage_error_and_make_nothing(
    made: Path, arguments: tuple[str, ...]
) -> None:
    before = contents(made)
    result = keys(*(each.format(made=made) for each in arguments))
    assert result.exit_code == USAGE_ERROR
    assert "Traceback" not in result.output
    assert contents(made) == before


@pytest.fixture
def renewing(tmp_path: Path) -> Path:
    create_local_keys(tmp_path, ["ward-1"])
    return tmp_path


def test_a_renewal_takes_root_and_coin_key_along_and_leaves_the_old_folder(renewing: Path) -> None:
    old, new = renewing / "server-a", renewing / "new"
    before = contents(old)
    done = keys("request", new, "server-a", "--renew", old)
    assert done.exit_code == 0, done.output
    assert contents(old) == before
    found = contents(new)
    same = found.items() & before.items()
    assert {str(name) for name, _ in same} == {"ca.pem", "coin.key"}
    assert {str(name) for name in found} == {"ca.pem", "coin.key", "key.pem", "request.pem"}
    assert all((new / name).stat().st_mode & 0o777 == 0o600 for name in ("coin.key", "key.pem"))
    # Whole once its certificate has come.
    issued = ("issue", renewing, "server-a", "--request", new / "request.pem")
    assert keys(*issued, "--out", renewing / "came").exit_code == 0
    assert keys("accept", new, renewing / "came").exit_code == 0
    assert Identity.load(new).principal == Principal.service(Role.SERVER_A)


@pytest.mark.parametrize("older", [True, False])
def test_of_two_revocation_lists_the_newer_one_stays(
    renewing: Path,
    older: bool,  # noqa: FBT001 -- pytest gives it by name
) -> None:
    """A certificate that comes with the list of before its party's colleague was revoked."""
    new, came, newest = (renewing / name for name in ("new", "came", "ca/crl.pem"))
    assert keys("request", new, "server-a", "--renew", renewing / "server-a").exit_code == 0
    issued = ("issue", renewing, "server-a", "--request", new / "request.pem", "--out", came)
    assert keys(*issued).exit_code == 0
    before = (came / "crl.pem").read_bytes()
    assert keys("revoke", renewing, "dealer").exit_code == 0
    after = newest.read_bytes()
    (new / "crl.pem").write_bytes(after if older else before)
    (came / "crl.pem").write_bytes(before if older else after)
    assert (keys("accept", new, came).exit_code, (new / "crl.pem").read_bytes()) == (0, after)
    # Nor is a certificate taken that the folder's newer list revokes.
    assert keys("revoke", renewing, "server-a").exit_code == 0
    (new / "crl.pem").write_bytes(newest.read_bytes())
    refused = keys("accept", new, came)
    assert refused.exit_code == USAGE_ERROR
    assert "revoked" in refused.output


@pytest.mark.parametrize("kind", ["a device", "a pipe", "far too much"])
def test_a_file_that_never_ends_is_refused(renewing: Path, kind: str) -> None:
    came = renewing / "came"
    came.mkdir()
    for name in ("ca.pem", "cert.pem"):
        (came / name).write_bytes((renewing / "server-a" / name).read_bytes())
    odd = came / "crl.pem"
    if kind == "a device":
        odd.symlink_to("/dev/zero")
    elif kind == "a pipe":
        os.mkfifo(odd)
    else:
        with odd.open("wb") as file:
            file.truncate(2**26 + 1)
    refused = keys("accept", renewing / "server-a", came)
    assert refused.exit_code == USAGE_ERROR
    assert re.search("crl.pem.*(no regular file|larger than 64 MiB)", refused.output)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda old: (old / "coin.key").unlink(), "has no coin.key: put the server's own back"),
        (lambda old: (old / "cert.pem").unlink(), "no certificate to renew"),
        (lambda old: (old / "ca.pem").unlink(), "put the root's certificate back"),
        (lambda old: shutil.copy(old.with_name("server-b") / "cert.pem", old), "server-b"),
    ],
)
def test_a_renewal_from_a_folder_that_lacks_something_makes_no_key(
    renewing: Path, spoil: Callable[[Path], object], said: str
) -> None:
    old, new = renewing / "server-a", renewing / "new"
    spoil(old)
    done = keys("request", new, "server-a", "--renew", old)
    assert done.exit_code == 2
    assert said in done.output
    assert not (new / "key.pem").exists()
    assert not (new / "coin.key").exists()


def test_a_renewal_keeps_off_folders_in_use(renewing: Path) -> None:
    old, other = renewing / "server-a", renewing / "server-b"
    for folder in (old, other):
        before = contents(folder)
        done = keys("request", folder, "server-a", "--renew", old, "--force")
        assert (done.exit_code, contents(folder)) == (2, before)
