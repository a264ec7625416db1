"""Addresses are checked before anything dials them; a proxy's login shows nowhere."""

from pathlib import Path

import pytest

from precad.aggregator.settings import ServerASettings
from precad.client.owner_settings import JoinSettings
from precad.common import process_settings
from precad.common.errors import Misconfiguration
from precad.common.process_settings import address_fault, by_proxy, proxy_of, split_address

GOOD = {
    "127.0.0.1:7301": ("127.0.0.1", 7301),
    "a.example:1": ("a.example", 1),
    "server_a:65535": ("server_a", 65535),
    "xn--mller-kva.example.:7301": ("xn--mller-kva.example.", 7301),
    "[::1]:7301": ("::1", 7301),
    "[fe80::1%eth0]:7301": ("fe80::1%eth0", 7301),
}


@pytest.mark.parametrize("address", GOOD)
def test_a_good_address_is_taken_apart(address: str) -> None:
    assert (address_fault(address), split_address(address)) == (None, GOOD[address])


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        *((each, "give host:port") for each in ("", "a", ":7301", "a:", "a:x", "a:123456", "a:٣")),
        *((each, "give host:port") for each in ("https://a.example:7301", "a:7301/", "a:7301\n")),
        *((f"a:{port}", "a port is 1 to 65535") for port in (0, 65536, 99999)),
        *((f"{host}:7301", "[::1]:7301") for host in ("::1", "[]", "[::g]", "[127.0.0.1]")),
        *((f"{host}:7301", "127.0.0.1:7301") for host in ("300.1.1.1", "1.2.3", "127.0.0.01")),
        *((f"{host}:7301", "a.example:7301") for host in ("a b", "a..b", "-a", "müller.example")),
        (f"{'a.' * 130}a:7301", "a.example:7301"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(address: str, remedy: str) -> None:
    fault = address_fault(address)
    assert fault is not None
    assert remedy in fault


def test_only_who_listens_may_take_port_0() -> None:
    assert address_fault("127.0.0.1:0", least_port=0) is None
    assert address_fault("127.0.0.1:65536", least_port=0) == "a port is 0 to 65535"


SETTINGS = """task = "task.toml"
identity = "keys"
data = "records.csv"
state = "state"
client = "ward-3"
server_a = "a.example:7301"
server_b = "b.example:7302"
"""
SERVER = 'task = "t"\nidentity = "k"\nstate = "s"\nlisten = "[::]:0"\n'


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        (JoinSettings, SETTINGS.replace("7301", "99999"), "server_a = 'a.example:99999': a port "),
        (ServerASettings, f'{SERVER}server_b = "::1:1"\ndealer = "d:1"', "server_b = '::1:1': g"),
        (ServerASettings, f'{SERVER}server_b = "b:1"\ndealer = "d:0"\n', "dealer = 'd:0': a port"),
        (ServerASettings, SERVER.replace(":0", ":70000"), "listen = '[::]:70000': a port is 0"),
        (JoinSettings, SETTINGS + 'proxy = "socks5://planted:1"', "proxy = '…': give http://host"),
        (JoinSettings, SETTINGS + 'proxy = "http://u:planted@p"', "proxy = '…': give http://host"),
        (JoinSettings, SETTINGS + 'tokne = "planted"', "tokne = '…': unknown key"),
        (JoinSettings, SETTINGS + 'token = ["planted"]', "token = '…'"),
    ],
)
def test_settings_are_refused_by_the_fields_name_and_no_secret_is_repeated(
    kind: type[JoinSettings], text: str, found: str, tmp_path: Path
) -> None:
    (tmp_path / "settings.toml").write_text(text, encoding="utf-8")
    with pytest.raises(Misconfiguration) as refused:
        kind.load(tmp_path / "settings.toml")
    assert str(refused.value).startswith(found)
    assert "planted" not in str(refused.value)


def test_a_proxy_of_the_settings_goes_with_the_addresses_that_are_dialled(tmp_path: Path) -> None:
    text = SETTINGS + 'proxy = "http://user:pl%40nted@proxy.example:3128"\n'
    # With a mark of their encoding.
    (tmp_path / "settings.toml").write_text(text, encoding="utf-8-sig")
    settings = JoinSettings.load(tmp_path / "settings.toml")
    found = {"a.example:7301": settings.server_a, "b.example:7302": settings.server_b}
    for plain, address in found.items():
        proxy = proxy_of(address)
        assert proxy is not None
        assert proxy.authorization is not None
        # RFC 7617: base64 of user:pl@nted.
        assert proxy.authorization.reveal() == b"Basic dXNlcjpwbEBudGVk"
        assert (proxy.address, f"{address}", str(address)) == ("proxy.example:3128", plain, plain)
        shown = repr((proxy, address, settings))
        assert "nted" not in shown
        assert "dXNlcj" not in shown


def test_without_a_proxy_an_address_is_itself() -> None:
    assert proxy_of(by_proxy("a.example:1", None)) is None
    assert process_settings.HttpProxy.parse("http://p.example:3128").authorization is None
    assert process_settings.HttpProxy.parse("http://p.example:3128/").address == "p.example:3128"
