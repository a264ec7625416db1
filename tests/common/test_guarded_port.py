"""What one caller may take of a port, over real TLS: in calls that nobody serves too.

And which of a port's connections end (real sockets, a clock of the test's own); how
many begin.
"""

import asyncio
import errno
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import grpc
import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from tests.rig.clock import LeapingClock
from tests.rig.keys import identity
from tests.rig.loop import LoopThread
from tests.rig.waiting import until

from precad.aggregator.rpc import peer_transport
from precad.common.errors import PeerViolation
from precad.common.identifiers import Role
from precad.common.identity import mutual_tls
from precad.common.identity.mutual_tls import WIRE_VERSION, open_channel
from precad.common.identity.party_certificate import Principal
from precad.common.wire import connections, guarded_port, serving
from precad.common.wire.connections import PER_CALLER, SILENT, SILENT_S, Connections
from precad.common.wire.guarded_port import (
    MOST_OPEN,
    REFUSED,
    Call,
    CallRate,
    GuardedPort,
)

ONE, TWO = Principal.client("ward-1"), Principal.client("ward-2")
DEALER, OPERATOR = Principal.service(Role.DEALER), Principal.service(Role.OPERATOR)
CHECK, NOBODYS = "/grpc.health.v1.Health/Check", "/precad.v1.Nothing/Here"
WAIT_S = 60.0
Code = grpc.StatusCode
Patch = pytest.MonkeyPatch


class Port:
    """A dealer's port that answers how it is, and channels to it."""

    def __init__(self, loop: LoopThread, stack: ExitStack) -> None:
        self._loop, self._stack = loop, stack
        self.address = ""
        self.silence = threading.Event()
        stack.callback(self.silence.set)

    def start(self, rate: CallRate | None = None) -> None:
        async def started() -> GuardedPort:
            port = GuardedPort("the dealer", identity(DEALER), rate=rate or CallRate())
            serving.add_health(port.server, identity(DEALER), lambda: True)
            self.address = f"127.0.0.1:{await port.listen('127.0.0.1:0')}"
            return port

        running = self._loop.run(started())
        self._stack.callback(lambda: self._loop.run(running.stop(0)))

    def channel(self, who: Principal = ONE) -> grpc.Channel:
        found = open_channel(self.address, identity(who), Role.DEALER)
        # What is refused then isn't the connection.
        grpc.channel_ready_future(found).result(WAIT_S)
        return self._stack.enter_context(found)

    def calls(
        self, method: str, who: Principal = ONE
    ) -> "grpc.StreamUnaryMultiCallable[bytes, bytes]":
        return self.channel(who).stream_unary(method)

    def streamed(
        self, method: str = CHECK, who: Principal = ONE
    ) -> Callable[[Iterator[bytes]], bytes]:
        """A call that begins before its one message is there."""
        return partial(self.calls(method, who), timeout=WAIT_S)

    def nothing(self) -> Iterator[bytes]:
        self.silence.wait(WAIT_S)
        yield from ()

    def serves(self, who: Principal = DEALER) -> bool:
        answer = HealthStub(self.channel(who)).Check(
            HealthCheckRequest(), timeout=WAIT_S
        )
        return bool(answer.status == HealthCheckResponse.SERVING)


@pytest.fixture
def port() -> Iterator[Port]:
    with LoopThread() as loop, ExitStack() as stack:
        yield Port(loop, stack)


def code_of(call: Callable[..., object], *arguments: object) -> Code:
    try:
        call(*arguments)
    except grpc.RpcError as error:
        code: Code = error.code()
        return code
    return Code.OK


@pytest.mark.parametrize("method", [CHECK, NOBODYS])
def test_calls_count_once_begun(port: Port, method: str, monkeypatch: Patch) -> None:
    port.start()
    # One never ends by itself here: who has too many is refused all the same.
    monkeypatch.setattr(guarded_port, "REQUEST_S", WAIT_S if method == CHECK else 0.1)
    # Over several connections: it is the caller that is counted.
    streams = [port.calls(method) for _ in range(3)] * MOST_OPEN[Call.MESSAGE]
    calls = [stream.future(port.nothing(), timeout=WAIT_S) for stream in streams]
    if method == CHECK:
        until(
            lambda: sum(call.done() for call in calls) == 2 * MOST_OPEN[Call.MESSAGE],
            "refusals",
        )
        assert {call.code() for call in calls if call.done()} == {
            Code.RESOURCE_EXHAUSTED
        }
        # Nobody else's, and no server's.
        assert port.serves()
        assert code_of(port.serves, TWO) is Code.PERMISSION_DENIED
        port.silence.set()
    until(lambda: all(call.done() for call in calls), "their end")
    if method == NOBODYS:
        assert {call.code() for call in calls} == {Code.UNIMPLEMENTED}


def test_what_is_no_message_fills_no_log(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    """A trace of each would be gigabytes a day, of any certificate's holder."""
    port.start()
    call = port.streamed()
    for body in (bytes(500_000), b"\xff" * 10):
        with pytest.raises(grpc.RpcError, match="can't be read") as refused:
            call(iter([body]))
        assert refused.value.code() is Code.INVALID_ARGUMENT
    # Longer than messages may be: the call is over before anybody looks at it.
    for _ in range(3):
        too_long = iter([bytes(serving.MAX_REQUEST_BYTES + 1)])
        assert code_of(call, too_long) is Code.RESOURCE_EXHAUSTED
    # The caller says that there is none.
    assert code_of(call, iter(())) is Code.INVALID_ARGUMENT
    assert port.serves()
    assert not [each for each in ("Traceback", "a call failed") if each in caplog.text]


def test_a_silent_call_ends(port: Port, monkeypatch: Patch) -> None:
    monkeypatch.setattr(guarded_port, "REQUEST_S", 0.1)
    port.start()
    assert code_of(port.streamed(), port.nothing()) is Code.DEADLINE_EXCEEDED


@pytest.mark.parametrize("caller", [ONE, OPERATOR])
@pytest.mark.parametrize("method", [CHECK, NOBODYS])
def test_refused_calls_count_as_served_ones_do_and_end_the_connection(
    port: Port, caller: Principal, method: str, monkeypatch: Patch
) -> None:
    port.start(CallRate(burst=5, per_s=1e-6))
    monkeypatch.setattr(guarded_port, "REFUSED_S", 0.01)
    call = partial(
        code_of, partial(port.channel(caller).unary_unary(method), timeout=WAIT_S), b""
    )
    *early, sixth = [call() for _ in range(6)]
    assert (Code.RESOURCE_EXHAUSTED in early, sixth) == (False, Code.RESOURCE_EXHAUSTED)
    monkeypatch.setattr(guarded_port, "REFUSED_S", WAIT_S)
    with ThreadPoolExecutor(REFUSED) as threads:
        late = list(threads.map(lambda _: call(), range(REFUSED)))
    # The connection ends under those that wait; nobody else's does, and servers have no
    # rate.
    assert Code.UNAVAILABLE in late
    assert [port.serves() for _ in range(20)] == [True] * 20


def test_a_caller_that_asks_without_end_is_slowed_down_and_nobody_else_is() -> None:
    clock = LeapingClock()
    rate = CallRate(clock, burst=10, per_s=2.0)

    def taken(caller: Principal, most: int = 100) -> int:
        return sum(not rate.begin(caller) for _ in range(most))

    assert (taken(TWO, 3), taken(ONE)) == (3, 10)
    assert rate.begin(ONE) > REFUSED
    # What was refused is forgiven first, so much and no more.
    clock.sleep(REFUSED / 2 + 2.5)
    assert taken(ONE) == 5
    clock.sleep(1000)
    assert taken(ONE) == 10


NEWER = WIRE_VERSION + 1


@pytest.mark.parametrize(
    ("agent", "said", "behind"),
    [("precad", 1, "client ward-1"), (f"precad-wire/{NEWER}", NEWER, "the dealer")],
    ids=["before version 2", "newer"],
)
def test_a_caller_of_another_version_is_refused(
    port: Port, agent: str, said: int, behind: str, monkeypatch: Patch
) -> None:
    """And nothing waits for its message."""
    monkeypatch.setattr(mutual_tls, "USER_AGENT", (mutual_tls.USER_AGENT[0], agent))
    port.start()
    link: grpc.StreamStreamMultiCallable[bytes, bytes] = port.channel().stream_stream(
        peer_transport.METHOD
    )
    for call in (
        port.streamed(NOBODYS),
        lambda message: next(link(message, timeout=WAIT_S)),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call(port.nothing())
        versions = (
            f"client ward-1 speaks wire version {said}, the dealer {WIRE_VERSION}"
        )
        found = refused.value.code(), refused.value.details()
        assert found == (
            Code.FAILED_PRECONDITION,
            f"{versions}: upgrade precad at {behind}",
        )
    # Whoever watches over processes asks in gRPC's own protocol, from other software.
    assert port.serves()
    # A link is a call too.
    with (
        open_channel(port.address, identity(ONE), Role.DEALER) as channel,
        pytest.raises(PeerViolation, match=versions),
    ):
        peer_transport.DialledTransport([channel], "here", WAIT_S, lambda: None)


def test_a_link_to_an_older_server_says_why() -> None:
    """As before version 2: no greeting, and its position at once."""
    link: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
        lambda *_: iter([b"{}"])
    )
    service, method = peer_transport.METHOD[1:].split("/")
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: link}),)
    )
    number = server.add_insecure_port("127.0.0.1:0")
    server.start()
    b = "server B at here"
    said = f"{b} speaks wire version 1, this side {WIRE_VERSION}: upgrade precad at {b}"
    with (
        grpc.insecure_channel(f"127.0.0.1:{number}") as channel,
        pytest.raises(PeerViolation, match=said),
    ):
        peer_transport.DialledTransport([channel], "here", WAIT_S, lambda: None)
    server.stop(None).wait()
    # What a stream greets with is a number or nothing, and who has a newer one isn't
    # behind.
    greetings = (None, (), [("precad-wire", "7")], [("precad-wire", "x")])
    assert [mutual_tls.greeted_version(each) for each in greetings] == [0, 0, 7, 0]
    with pytest.raises(PeerViolation, match=f"{NEWER}, this side .* on this side$"):
        mutual_tls.check_version("the dealer", NEWER)


def test_a_port_that_stopped_looks_at_its_connections_no_more() -> None:
    async def life() -> list[str]:
        port = GuardedPort("the dealer", identity(DEALER))
        await port.listen("127.0.0.1:0")
        await port.stop(0)
        return [str(each) for each in asyncio.all_tasks() if "keep_watch" in str(each)]

    with LoopThread() as loop:
        assert loop.run(life()) == []


MOST = 16


class Listener:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.clock = LeapingClock()
        self.connections = Connections(MOST, self.clock)
        self.connections._port = self._listener.getsockname()[1]

    def connect(self, *callers: Principal | None) -> list[socket.socket]:
        """One connection for each caller, of whom None says nothing."""
        made = []
        for caller in callers:
            ours = self._stack.enter_context(
                socket.create_connection(self._listener.getsockname())
            )
            self._stack.enter_context(self._listener.accept()[0])
            ours.settimeout(0)
            made.append(ours)
            if caller is not None:
                self.call(ours, caller)
            # Each is seen in its turn.
            self.look_after(0.0)
            self.clock.sleep(0.001)
        return made

    def call(self, connection: socket.socket, caller: Principal) -> None:
        host, port = connection.getsockname()
        context = SimpleNamespace(
            peer=lambda: f"ipv4:{host}:{port}",
            auth_context=lambda: {"x509_pem_cert": [identity(caller).cert]},
        )
        self.connections.called(cast("serving.Context", context))

    def look_after(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        self.connections.look()


@pytest.fixture
def listener() -> Iterator[Listener]:
    with ExitStack() as stack:
        yield Listener(stack)


def ended(*some: socket.socket) -> list[bool]:
    def closed(connection: socket.socket) -> bool:
        try:
            return connection.recv(1) == b""
        except BlockingIOError:
            return False

    return [closed(each) for each in some]


def test_a_callers_oldest_connections_end_and_nobody_elses(listener: Listener) -> None:
    others = listener.connect(TWO, OPERATOR, TWO, *[OPERATOR] * 5)
    mine = listener.connect(*[ONE] * (PER_CALLER + 3))
    listener.connections.look()
    assert ended(*mine) == [True] * 3 + [False] * PER_CALLER
    assert not any(ended(*others))


def test_of_too_many_silent_connections_the_oldest_end(listener: Listener) -> None:
    before = listener.connect(ONE)
    silent = listener.connect(*[None] * (SILENT + 5))
    listener.connections.look()
    assert ended(*before, *silent) == [False] + [True] * 5 + [False] * SILENT


def test_a_connection_without_a_call_ends_after_a_while(listener: Listener) -> None:
    silent, caller, late = listener.connect(None, ONE, None)
    listener.look_after(SILENT_S - 1)
    assert ended(silent) == [False]
    # The call comes on the event loop, the look in a thread of its own: it counts
    # before it.
    listener.call(late, ONE)
    listener.look_after(2)
    assert ended(silent, caller, late) == [True, False, False]


@pytest.mark.parametrize(
    ("reserved", "places"), [(4, 12), (connections.RESERVED, MOST // 2)]
)
def test_many_clients_leave_the_servers_places_and_the_first_stay(
    listener: Listener, monkeypatch: Patch, reserved: int, places: int
) -> None:
    """Where there are few, half are the clients': their own server keeps none of them
    out."""
    monkeypatch.setattr(connections, "RESERVED", reserved)
    servers = listener.connect(*[Principal.service(Role.SERVER_A)] * (PER_CALLER + 3))
    clients = listener.connect(
        *[Principal.client(f"ward-{n}") for n in range(places + 2)]
    )
    listener.connections.look()
    assert ended(*clients) == [False] * places + [True] * 2
    assert not any(ended(*servers))


def test_a_call_before_its_connection_is_seen_counts_and_own_stay(
    listener: Listener,
) -> None:
    """Links to other ports: the other server's, the dealer's, the database's."""
    (called,) = listener.connect(ONE)
    with (
        socket.create_server(("127.0.0.1", 0)) as elsewhere,
        socket.create_connection(elsewhere.getsockname()) as own,
    ):
        own.settimeout(0)
        for seconds in (0.0, 10 * SILENT_S):
            listener.look_after(seconds)
        assert ended(called, own) == [False, False]


def test_grpcs_words_for_a_peer_are_the_sockets() -> None:
    for text, peer in (
        ("ipv4:127.0.0.1:7301", ("127.0.0.1", 7301)),
        ("ipv6:%5B::1%5D:7301", ("::1", 7301)),
        ("ipv6:[2001:db8::7]:1", ("2001:db8::7", 1)),
        # A port for both kinds of address shows the older kind like this.
        ("ipv6:%5B::ffff:10.0.0.1%5D:80", ("10.0.0.1", 80)),
        ("ipv6:%5Bfe80::1%25eth0%5D:80", ("fe80::1", 80)),
    ):
        assert connections._peer(text) == peer


def test_the_watch_outlasts_a_moment_without_files(
    listener: Listener, monkeypatch: Patch
) -> None:
    (silent,) = listener.connect(None)
    silent.settimeout(WAIT_S)
    listener.clock.sleep(2 * SILENT_S)
    listed, failing = (
        connections._sockets,
        [OSError(errno.EMFILE, "Too many open files")],
    )

    def sockets() -> Iterator[tuple[int, int]]:
        if failing:
            raise failing.pop()
        return listed()

    async def watch() -> None:
        watching = asyncio.create_task(
            listener.connections.keep_watch(listener.connections._port)
        )
        assert await asyncio.to_thread(silent.recv, 1) == b""
        watching.cancel()

    monkeypatch.setattr(connections, "_sockets", sockets)
    monkeypatch.setattr(connections, "LOOK_S", connections.SOONEST_S)
    asyncio.run(watch())
    assert failing == []


def test_a_server_takes_what_leaves_half_of_its_files_and_says_where_that_is_too_few(
    monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    for hard, taken in (
        *[(1 << 20, 1024 + 2 * 100), (resource.RLIM_INFINITY, 1224), (1000, 500)],
        # 256 files of its own and two for each client's uploads come first, or for each
        # connection's where there are fewer.
        *[(800, 344), (400, 48), (60, 16)],
    ):
        monkeypatch.setattr(resource, "getrlimit", Mock(return_value=(512, hard)))
        monkeypatch.setattr(resource, "setrlimit", changed := Mock())
        caplog.clear()
        assert connections.connections_for(100) == taken
        changed.assert_called_once_with(resource.RLIMIT_NOFILE, (hard, hard))
        said = f"may open {taken} are for connections, and it may need 1224"
        assert (said in caplog.text) == (taken < 1224)
