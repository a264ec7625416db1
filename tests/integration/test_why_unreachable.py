"""Why a server can't be reached, in a sentence for each reason that a person can mend."""

import re
import select
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import grpc
import pytest
from tests.integration.conftest import Serve
from tests.rig import connections, tasks
from tests.rig.clock import LeapingClock
from tests.rig.keys import earlier_identity, forged, identity
from tests.rig.waiting import DEADLINE_S, until

import precad
from precad.aggregator.rpc import peer_transport
from precad.client.connection import Servers
from precad.client.participation import Observer
from precad.common.errors import Misidentified, PeerUnavailable
from precad.common.identifiers import ClientId, Role
from precad.common.identity import authority, mutual_tls
from precad.common.identity.mutual_tls import open_channel, why_unreachable
from precad.common.identity.party_certificate import Principal
from precad.common.process_settings import by_proxy
from precad.common.wire.calls import LOOK_S, WAITS, call_with_retries

OWNER = identity(Principal.client("ward-1"))
A, B, DEALER = Role.SERVER_A, Role.SERVER_B, Role.DEALER
A_NAME = Principal.service(A).dns_name


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def closed() -> Iterator[str]:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{unheard.getsockname()[1]}"


def reason(address: str, words: str, *, mistake: bool = False, expect: Role = A) -> str:
    """What is said, with these words; whether waiting can't help."""
    found = why_unreachable(address, OWNER, expect)
    assert isinstance(found, Misidentified) is mistake
    assert re.search(f"(?=.*{re.escape(address)}).*{words}", str(found))
    return str(found)


def test_no_server_there_yet(
    closed: str, listening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason(closed, r"server A at .* refuses connections: nothing listens on that port")
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    reason(f"127.0.0.1:{port}", "not in TLS 1.3")
    server.stop(0).wait()
    monkeypatch.setattr(mutual_tls, "TIMEOUT_S", 0.2)
    reason(listening, "doesn't answer")


@pytest.mark.parametrize(
    ("there", "expected"), [(B, A), (A, B), (DEALER, B), (A, DEALER)]
)
def test_another_party_is_named_at_once(
    serve: Serve, there: Role, expected: Role
) -> None:
    address = serve(identity(Principal.service(there)))
    assert why_unreachable(address, OWNER, there) is None
    words = rf"another party's certificate \({there.value}.precad\); mend the address"
    reason(address, words, mistake=True, expect=expected)
    # So is another authority's.
    address = serve(
        forged(identity(Principal.service(A)), authority.Authority.create(), A_NAME)
    )
    reason(address, r"of another authority than those in .*ca\.pem", mistake=True)


NOWHERE = "nobody.invalid:7301"


def answers(address: str) -> bool:
    with open_channel(address, OWNER, A) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/precad/Nothing"
        )
        with pytest.raises(grpc.RpcError) as ended:
            call(b"", timeout=DEADLINE_S)
        # Whoever is there says that there is no such call.
        return ended.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_every_channel_of_every_part_is_opened_in_one_place() -> None:
    package = Path(precad.__file__).parent
    found = [
        path.relative_to(package)
        for path in package.rglob("*/**/*.py")
        if re.search(r"grpc(\.aio)?\.(in)?secure_channel\(", path.read_text("utf-8"))
    ]
    assert found == [Path("common/identity/mutual_tls.py")]


def test_the_settings_proxy_is_asked_and_no_other(
    serve: Serve, listening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The environment names one that says nothing.
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://user:planted@{listening}")
    address = serve(identity(Principal.service(A)))
    assert answers(address)
    assert why_unreachable(address, OWNER, A) is None
    said = reason(NOWHERE, "no such host.*the proxy that grpc_proxy names isn't used")
    assert "planted" not in said
    # The settings' proxy leads gRPC, and whoever looks.
    with connections.ConnectProxy(int(address.rpartition(":")[2])) as proxy:
        # Nobody but the proxy knows that host.
        address = by_proxy(NOWHERE, f"http://user:planted@{proxy.address}")
        assert why_unreachable(address, OWNER, A) is None
        assert answers(address)
        assert len(proxy.asked) == 2
        for head in proxy.asked:
            assert head.startswith(f"CONNECT {NOWHERE} HTTP/1.1\r\n")
            assert "\r\nProxy-Authorization: Basic dXNlcjpwbGFudGVk\r\n" in head
        # Who is at the other end is looked at all the same.
        assert isinstance(why_unreachable(address, OWNER, B), Misidentified)


ANSWERS = {
    "HTTP/1.1 407 Proxy \x1b[2JAuthentication Required": (
        "[2JAuthentication Required): ask"
    ),
    "HTTP/1.1 403 Forbidden": (
        "doesn't connect to nobody.invalid:7301 (HTTP/1.1 403 Forb"
    ),
    "SSH-2.0-OpenSSH": "(SSH-2.0-OpenSSH): ask who runs it to allow that",
    None: "doesn't answer (no answer in time); check proxy in the settings",
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_proxy_is_quoted(answer: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutual_tls, "TIMEOUT_S", 0.2 if answer is None else DEADLINE_S)
    with connections.ConnectProxy(1, answer) as proxy:
        address = by_proxy(NOWHERE, f"http://{proxy.address}")
        said = str(why_unreachable(address, OWNER, A))
    assert said.startswith(f"the proxy at {proxy.address} ")
    assert ANSWERS[answer] in said
    refused = str(why_unreachable(address, OWNER, A))
    assert refused.startswith(f"the proxy at {proxy.address} refuses connections")


class Unreachable(grpc.RpcError):
    code, details = (
        Mock(return_value=grpc.StatusCode.UNAVAILABLE),
        Mock(return_value="its words"),
    )


fail = Mock(side_effect=Unreachable)


def test_who_waits_says_why_and_how_long_still(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(Unreachable):
        call_with_retries(
            fail, 30.0, LeapingClock(), why=lambda: PeerUnavailable("it isn't there")
        )
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"it isn't there; trying again for {left} s" for left in (30, 20, 10)
    ]
    assert LOOK_S == 10
    # A server that has just come back is no riddle; one that stays away without a
    # reason is.
    caplog.clear()
    with pytest.raises(Unreachable):
        call_with_retries(fail, 30.0, LeapingClock())
    (told,) = [record.getMessage() for record in caplog.records]
    said_so = (
        r"no call comes through \(.*may refuse this one's certificate.*trying again for"
        r" 20 s$"
    )
    assert re.search(said_so, told)
    # A mistake ends the wait at once.
    clock, mistake = LeapingClock(), Misidentified("another's address")
    with pytest.raises(Misidentified, match="another's address"):
        call_with_retries(fail, 120.0, clock, why=lambda: mistake)
    assert clock.time - clock.start <= WAITS.first_s


def test_whom_an_owner_waits_for_is_told_with_the_time_that_is_left(
    closed: str,
) -> None:
    """What a progress display shows while a server isn't there."""
    observer = Mock(spec=Observer)
    clock = LeapingClock()
    with (
        Servers(
            tasks.task_with({}),
            ClientId("ward-1"),
            server_a=closed,
            server_b=closed,
            identity=OWNER,
            patience_s=1.0,
            clock=clock,
            observer=observer,
        ) as servers,
        pytest.raises(PeerUnavailable),
    ):
        servers.check_task()
    told = {
        (what, round(until, 6))
        for what, until in (each.args for each in observer.doing.mock_calls)
    }
    assert told == {("waiting for server A", clock.start + 1.0)}


def test_a_connection_that_was_reset_before_tls_began_is_left_to_nobody() -> None:
    """The standard library makes its socket of one that is gone, raises, and doesn't close it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        accepted.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        accepted.close()
        until(lambda: select.select([connection], [], [], 0)[0], "the reset")
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        found = mutual_tls._handshake(
            connection, OWNER, A, who="server A", address="here"
        )
    assert isinstance(found, PeerUnavailable)
    descriptor = connection.fileno()
    connection.close()
    assert descriptor != -1, "its owner closes it"


def test_a_link_that_b_lets_go_of_is_said(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B's clock is wrong, or A's certificate has expired: seen from A nothing is wrong."""
    monkeypatch.setattr(peer_transport, "LOOK_S", 0.1)
    monkeypatch.setattr(peer_transport, "REFUSED_S", 0.5)
    address, expired = (
        serve(identity(Principal.service(B))),
        earlier_identity(Principal.service(A)),
    )
    with (
        pytest.raises(
            PeerUnavailable, match="may refuse this server's certificate, for its clock"
        ),
        peer_transport.dial(address, expired, DEADLINE_S),
    ):
        pytest.fail("B took it")
