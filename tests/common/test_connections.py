"""Which of a port's connections end (real sockets, a clock of the test's own); how many begin."""

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from tests.rig.clock import LeapingClock
from tests.rig.keys import identity

from precad.common.identifiers import Role
from precad.common.identity.party_certificate import Principal
from precad.common.wire import connections
from precad.common.wire.connections import PER_CALLER, SILENT, SILENT_S, Connections

ONE, TWO = Principal.client("ward-1"), Principal.client("ward-2")
OPERATOR = Principal.service(Role.OPERATOR)
MOST = 16
DEADLINE_S = 60.0


class Port:
    """A listening port with connections to it, both ends in this process."""

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
            ours = self._stack.enter_context(socket.create_connection(self._listener.getsockname()))
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
        """As gRPC shows a call over it."""
        host, port = connection.getsockname()
        context: Any = SimpleNamespace(
            peer=lambda: f"ipv4:{host}:{port}",
            auth_context=lambda: {"x509_pem_cert": [identity(caller).cert]},
        )
        self.connections.called(context)

    def look_after(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        self.connections.look()


@pytest.fixture
def port() -> Iterator[Port]:
    with ExitStack() as stack:
        yield Port(stack)


def ended(*some: socket.socket) -> list[bool]:
    """Of each whether the port has closed it."""

    def closed(connection: socket.socket) -> bool:
        try:
            return connection.recv(1) == b""
        except BlockingIOError:
            return False

    return [closed(each) for each in some]


def test_a_callers_oldest_connections_end_and_nobody_elses(port: Port) -> None:
    others = port.connect(TWO, OPERATOR, TWO, *[OPERATOR] * 5)
    mine = port.connect(*[ONE] * (PER_CALLER + 3))
    port.connections.look()
    assert ended(*mine) == [True] * 3 + [False] * PER_CALLER
    assert not any(ended(*others))


def test_a_connection_without_a_call_ends_after_a_while(port: Port) -> None:
    silent, caller, late = port.connect(None, ONE, None)
    port.look_after(SILENT_S - 1)
    assert ended(silent) == [False]
    # The call comes on the event loop, the look in a thread of its own: it counts before it.
    port.call(late, ONE)
    port.look_after(2)
    assert ended(silent, caller, late) == [True, False, False]


def test_of_too_many_silent_connections_the_oldest_end(port: Port) -> None:
    before = port.connect(ONE)
    silent = port.connect(*[None] * (SILENT + 5))
    port.connections.look()
    assert ended(*before, *silent) == [False] + [True] * 5 + [False] * SILENT


@pytest.mark.parametrize(("reserved", "places"), [(4, 12), (connections.RESERVED, MOST // 2)])
def test_many_clients_leave_the_servers_places_and_the_first_stay(
    port: Port, monkeypatch: pytest.MonkeyPatch, reserved: int, places: int
) -> None:
    """Where there are few, half are the clients': their own server keeps none of them out."""
    monkeypatch.setattr(connections, "RESERVED", reserved)
    servers = port.connect(*[Principal.service(Role.SERVER_A)] * (PER_CALLER + 3))
    clients = port.connect(*[Principal.client(f"ward-{n}") for n in range(places + 2)])
    port.connections.look()
    assert ended(*clients) == [False] * places + [True] * 2
    assert not any(ended(*servers))


def test_a_call_before_its_connection_is_seen_counts_and_own_sockets_stay(port: Port) -> None:
    """Links to other ports: the other server's, the dealer's, the database's."""
    (called,) = port.connect(ONE)
    with (
        socket.create_server(("127.0.0.1", 0)) as elsewhere,
        socket.create_connection(elsewhere.getsockname()) as own,
    ):
        own.settimeout(0)
        for seconds in (0.0, 10 * SILENT_S):
            port.look_after(seconds)
        assert ended(called, own) == [False, False]


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:127.0.0.1:7301", ("127.0.0.1", 7301)),
        ("ipv6:%5B::1%5D:7301", ("::1", 7301)),
        ("ipv6:[2001:db8::7]:1", ("2001:db8::7", 1)),
        # A port for both kinds of address shows the older kind like this.
        ("ipv6:%5B::ffff:10.0.0.1%5D:80", ("10.0.0.1", 80)),
        ("ipv6:%5Bfe80::1%25eth0%5D:80", ("fe80::1", 80)),
    ],
)
def test_grpcs_words_for_a_peer_are_the_sockets(text: str, peer: tuple[str, int]) -> None:
    assert connections._peer(text) == peer


def test_the_watch_outlasts_a_moment_without_a_file_to_list_them_with(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    (silent,) = port.connect(None)
    silent.settimeout(DEADLINE_S)
    port.clock.sleep(2 * SILENT_S)
    listed, failing = connections._sockets, [OSError(errno.EMFILE, "Too many open files")]

    def sockets() -> Iterator[tuple[int, int]]:
        if failing:
            raise failing.pop()
        return listed()

    async def watch() -> None:
        watching = asyncio.create_task(port.connections.keep_watch(port.connections._port))
        assert await asyncio.to_thread(silent.recv, 1) == b""
        watching.cancel()

    monkeypatch.setattr(connections, "_sockets", sockets)
    monkeypatch.setattr(connections, "LOOK_S", connections.SOONEST_S)
    asyncio.run(watch())
    assert failing == []


@pytest.mark.parametrize(
    ("hard", "taken"),
    [
        *[(1 << 20, 1024 + 2 * 100), (resource.RLIM_INFINITY, 1224), (1000, 500)],
        # 256 files of its own and two for each client's uploads come first, or for each
        # connection's where there are fewer.
        *[(800, 344), (400, 48), (60, 16)],
    ],
)
def test_a_server_takes_what_leaves_half_of_its_files_and_says_where_that_is_too_few(
    hard: int, taken: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changed: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (512, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _which, limit: changed.append(limit))
    with caplog.at_level(logging.WARNING):
        assert (connections.connections_for(100), changed) == (taken, [(hard, hard)])
    said = f"may open {taken} are for connections, and it may need 1224"
    assert (said in caplog.text) == (taken < 1224)
