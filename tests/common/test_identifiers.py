"""Names and digests are checked where they are made; secrets don't show themselves, and
what they expand to is independent for every use; errors are the same beyond their
process.

Addresses are checked before anything dials them; a proxy's login shows nowhere.
"""

import copy
import hmac
import json
import logging
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.rig.refusals import refused

from precad.aggregator.settings import ServerASettings
from precad.client.owner_settings import JoinSettings
from precad.common import process_settings, ring
from precad.common.errors import (
    Misconfiguration,
    MissingPackage,
    PrecadError,
    Rejection,
)
from precad.common.errors import RejectedSubmission as Rejected
from precad.common.identifiers import ClientId, Digest, Secret


@pytest.mark.parametrize(
    "name",
    [
        "",
        "A",
        "-a",
        "a-",
        "a_b",
        "a b",
        "a" * 64,
        "a\n",
        "ä",
        "../a",
        "a\0",
        None,
        3,
        b"a",
    ],
)
def test_bad_client_names_are_refused(name: object) -> None:
    error = refused(".", ClientId, name)
    assert (error.field, error.value) == ("client", name)
    assert ClientId("a--b-" + "3" * 58).encoded() == b"a--b-" + b"3" * 58


@pytest.mark.parametrize(
    "error",
    [
        *(PrecadError("x" * 5000), Rejected(Rejection.ABSENT, "nothing came")),
        Misconfiguration("--data", "nowhere", "name a folder"),
        MissingPackage("precad serve", "torch", "server"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_beyond_its_process(error: PrecadError) -> None:
    # By the protocol that takes it to another process.
    there = copy.copy(error)
    assert (type(there), str(there), vars(there)) == (
        type(error),
        str(error),
        vars(error),
    )


DATA = bytes(range(200, 232))
SECRET = Secret(DATA)


@dataclass(frozen=True, slots=True)
class Holder:
    secret: Secret


def test_no_format_and_no_log_shows_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("t").info("key %s of %r", SECRET, Holder(SECRET))
    parts = DATA.hex()[:8], repr(DATA)[2:10], str(DATA[0])
    for shown in (
        *(repr(SECRET), str(SECRET), f"{SECRET}", f"{SECRET!r:>40}", f"{SECRET!s}"),
        "%s %r" % (SECRET, SECRET),  # noqa: UP031 - the old way must hide it too
        *(
            repr([SECRET]),
            repr(Holder(SECRET)),
            repr({"k": SECRET}),
            caplog.messages[0],
        ),
    ):
        assert "<Secret of 32 bytes>" in shown
        assert not [each for each in parts if each in shown]


@pytest.mark.parametrize(
    ("use", "said"),
    [
        *((partial(pickle.dumps, protocol=n), "never pickled") for n in range(6)),
        (copy.deepcopy, "never"),
        (json.dumps, "not JSON serializable"),
        (hash, "unhashable"),
    ],
)
def test_it_is_never_pickled_copied_written_or_hashed(
    use: Callable[[Secret], object], said: str
) -> None:
    assert pickle.HIGHEST_PROTOCOL < 6
    with pytest.raises(TypeError, match=said):
        use(SECRET)


def test_equality_is_by_constant_time_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compare = Mock(wraps=hmac.compare_digest)
    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert (Secret(DATA) == SECRET, Secret(DATA[::-1]) == SECRET) == (True, False)
    assert compare.call_count == 2
    assert SECRET != DATA
    # What it expands to is the same in pieces and at once.
    sizes = [1, 15, 1 << 16, 0, (1 << 17) - 11]
    whole, pieces = (
        ring.Keystream(SECRET, "p").read_into(memoryview(bytearray(sum(sizes)))),
        ring.Keystream(SECRET, "p"),
    )
    read = [pieces.read_into(memoryview(bytearray(size))) for size in sizes]
    assert b"".join(read) == whole


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_digest_has_32_bytes_and_a_number_64_bits(length: int) -> None:
    with pytest.raises(Misconfiguration):
        Digest(bytes(length))
    for number in (-1, 2**64):
        with pytest.raises(struct.error):
            ring.encode_context("p", number)


def test_an_address_is_taken_apart_or_it_is_said_what_is_wrong() -> None:
    addresses: list[tuple[str, tuple[str, int] | str]] = [
        *(("127.0.0.1:7301", ("127.0.0.1", 7301)), ("a.example:1", ("a.example", 1))),
        ("xn--mller-kva.example.:7301", ("xn--mller-kva.example.", 7301)),
        *(("server_a:65535", ("server_a", 65535)), ("[::1]:7301", ("::1", 7301))),
        ("[fe80::1%eth0]:7301", ("fe80::1%eth0", 7301)),
        *(
            (each, "give host:port")
            for each in ("", "a", ":7301", "a:", "a:x", "a:123456", "a:٣")
        ),
        *(
            (each, "give host:port")
            for each in ("https://a.example:7301", "a:7301/", "a:7301\n")
        ),
        *((f"a:{port}", "a port is 1 to 65535") for port in (0, 65536, 99999)),
        *(
            (f"{host}:7301", "[::1]:7301")
            for host in ("::1", "[]", "[::g]", "[127.0.0.1]")
        ),
        *(
            (f"{host}:7301", "127.0.0.1:7301")
            for host in ("300.1.1.1", "1.2.3", "127.0.0.01")
        ),
        *(
            (f"{host}:7301", "a.example:7301")
            for host in ("a b", "a..b", "-a", "müller.example")
        ),
        (f"{'a.' * 130}a:7301", "a.example:7301"),
    ]
    for address, found in addresses:
        fault = process_settings.address_fault(address)
        if isinstance(found, tuple):
            assert (fault, process_settings.split_address(address)) == (None, found)
        else:
            assert found in str(fault)


SETTINGS = """task = "task.toml"\nidentity = "keys"\nstate = "state"
data = "records.csv"\nclient = "ward-3"
server_a = "a.example:7301"\nserver_b = "b.example:7302"
"""
SERVER = 'task = "t"\nidentity = "k"\nstate = "s"\nlisten = "[::]:0"\n'


def test_no_secret_shows(tmp_path: Path) -> None:
    settings: list[tuple[type[process_settings.ProcessSettings], str, str]] = [
        (
            JoinSettings,
            SETTINGS.replace("7301", "99999"),
            "server_a = 'a.example:99999': a port ",
        ),
        (
            ServerASettings,
            f'{SERVER}server_b = "::1:1"\ndealer = "d:1"',
            "server_b = '::1:1': g",
        ),
        (
            ServerASettings,
            f'{SERVER}server_b = "b:1"\ndealer = "d:0"\n',
            "dealer = 'd:0': a port",
        ),
        (
            ServerASettings,
            SERVER.replace(":0", ":70000"),
            "listen = '[::]:70000': a port is 0",
        ),
        (
            JoinSettings,
            SETTINGS + 'proxy = "socks5://planted:1"',
            "proxy = '…': give http://host",
        ),
        (
            JoinSettings,
            SETTINGS + 'proxy = "http://u:planted@p"',
            "proxy = '…': give http://host",
        ),
        (JoinSettings, SETTINGS + 'tokne = "planted"', "tokne = '…': unknown key"),
        (JoinSettings, SETTINGS + 'token = ["planted"]', "token = '…'"),
    ]
    for kind, text, found in settings:
        (tmp_path / "settings.toml").write_text(text, encoding="utf-8")
        said = str(refused(".", kind.load, tmp_path / "settings.toml"))
        assert (said.startswith(found), "planted" in said) == (True, False), said


def test_a_proxy_of_the_settings_goes_with_the_addresses_that_are_dialled(
    tmp_path: Path,
) -> None:
    text = SETTINGS + 'proxy = "http://user:pl%40nted@proxy.example:3128"\n'
    # With a mark of their encoding.
    (tmp_path / "settings.toml").write_text(text, encoding="utf-8-sig")
    settings = JoinSettings.load(tmp_path / "settings.toml")
    found = {"a.example:7301": settings.server_a, "b.example:7302": settings.server_b}
    for plain, address in found.items():
        proxy = process_settings.proxy_of(address)
        assert proxy is not None
        assert proxy.authorization is not None
        # RFC 7617: base64 of user:pl@nted.
        assert proxy.authorization.reveal() == b"Basic dXNlcjpwbEBudGVk"
        assert (proxy.address, f"{address}", str(address)) == (
            "proxy.example:3128",
            plain,
            plain,
        )
        shown = repr((proxy, address, settings))
        assert "nted" not in shown
        assert "dXNlcj" not in shown
