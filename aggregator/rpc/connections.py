"""Connections: how many there may be, how many one party may hold, and how long one may be silent.

gRPC bounds how many there are, and knows no caller: one certificate that makes idle connections
anew as they end keeps most others out (a third to a half of all tries, measured). So the process
looks at its own open sockets: it knows a connection's caller from the calls on it, and shuts what
is too many or too silent. Where the system doesn't list them under ``/proc``, gRPC's bounds hold
alone.
"""

import asyncio
import contextlib
import logging
import os
import re
import resource
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import grpc
import grpc.aio

from precad.common.clock import CLOCK, Clock
from precad.common.errors import AccessDenied
from precad.common.identifiers import Role
from precad.common.identity.mutual_tls import of_connection
from precad.common.identity.party_certificate import Principal

log = logging.getLogger("precad")

PER_CALLER = 4
"""Of one certificate's party: what reconnects has old ones beside the new for a moment."""
PER_OPERATOR = 32
"""Of the operator, who may be several people, and of a server."""
SILENT_S = 10.0
"""A connection that has made no call for so long after it began ends."""
SILENT = 64
"""Connections that have made no call yet; of more, the oldest end."""
STRANGERS = 1024
"""Connections of whoever isn't a client, has no place or has said nothing yet."""
PER_CLIENT = 2
"""A client that reconnects has its old connection beside the new one for a moment."""
FILES_PER_CLIENT = 2
"""Uploads that it may have open, each with a file."""
OWN_FILES = 256
"""For the database, the journal, the other parties and what the libraries open."""
LEAST = 16
LOOK_S = 0.5
_DESCRIPTORS = Path("/proc/self/fd")
_LISTED = _DESCRIPTORS.is_dir()
_SOCKET = re.compile(r"socket:\[(\d+)\]")
Peer = tuple[str, int]
"""Address and port at the caller's end."""


def connections_for(clients: int) -> int:
    """Let this process open as many files as the system allows; half of them for callers at most.

    Where the system allows little, files come first: whoever isn't let in now comes again, and a
    journal that can't be opened stops a training.

    Returns:
        How many connections a server of a task with so many clients takes; where that is less than
        it would, a warning says so.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = STRANGERS + PER_CLIENT * clients
    # The other half is for uploads, the database and the links to the other parties.
    files = OWN_FILES + FILES_PER_CLIENT * clients
    room = wanted if hard == resource.RLIM_INFINITY else max(LEAST, min(hard // 2, hard - files))
    if room < wanted:
        log.warning(
            "of %d files that this process may open %d are for connections, and it may need %d; "
            "raise the system's limit (ulimit -Hn, or LimitNOFILE of its service)",
            hard,
            room,
            wanted,
        )
    return min(wanted, room)


class _Open(NamedTuple):
    inode: int
    descriptor: int
    peer: Peer
    since: float


class Connections:
    """The connections to one port of this process."""

    def __init__(self, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._port = 0
        self._open: dict[int, _Open | None] = {}
        """By inode; None for sockets that aren't a caller's."""
        self._callers: dict[Peer, tuple[Principal | int, float]] = {}
        """Who a certificate names, or its serial number; and when it last called."""

    def called(self, context: Any) -> None:
        """A call was made over this context's connection."""
        with contextlib.suppress(AccessDenied, ValueError):
            certificate, principal = of_connection(context)
            caller = principal or certificate.serial_number
            self._callers[_peer(context.peer())] = caller, self._clock.now()

    async def keep_watch(self, port: int) -> None:
        """Look at the connections to ``port`` until cancelled."""
        self._port = port
        while _LISTED:
            # Thousands of descriptors take a while to look at: not on the event loop.
            await asyncio.gather(asyncio.to_thread(self.look), asyncio.sleep(LOOK_S))

    def look(self) -> None:
        """Shut what is too many or too silent."""
        self._list()
        here = [each for each in self._open.values() if each is not None]
        by_caller: defaultdict[Principal | int | None, list[_Open]] = defaultdict(list)
        for each in sorted(here, key=lambda each: each.since):
            caller, _ = self._callers.get(each.peer, (None, 0.0))
            by_caller[caller].append(each)
        silent = by_caller.pop(None, [])
        late = {each for each in silent if self._clock.now() - each.since > SILENT_S}
        self._shut(late | set(silent[:-SILENT]), "connections without a call")
        for name, theirs in by_caller.items():
            several = isinstance(name, Principal) and name.role is not Role.CLIENT
            most = PER_OPERATOR if several else PER_CALLER
            self._shut(set(theirs[:-most]), f"connections of {name}")

    def _list(self) -> None:
        found: dict[int, _Open | None] = {}
        for descriptor, inode in _sockets():
            if inode in self._open:
                found[inode] = self._open[inode]
            else:
                with _duplicate(descriptor, inode) as connection:
                    found[inode] = self._of(connection, descriptor, inode)
        self._open = found
        peers = {each.peer for each in found.values() if each is not None}
        # A call may come before this thread has seen its connection: names stay for a while.
        old = self._clock.now() - SILENT_S
        for peer, (_, at) in list(self._callers.items()):
            if peer not in peers and at < old:
                self._callers.pop(peer, None)

    def _of(self, connection: socket.socket | None, descriptor: int, inode: int) -> _Open | None:
        try:
            if connection is None or connection.getsockname()[1] != self._port:
                return None
            host, port = connection.getpeername()[:2]
        except (OSError, IndexError, TypeError, ValueError):
            # The listener, the database's, another family's.
            return None
        return _Open(inode, descriptor, (_host(host), port), self._clock.now())

    def _shut(self, ending: set[_Open], what: str) -> None:
        for each in ending:
            with _duplicate(each.descriptor, each.inode) as connection:
                if connection is not None:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
        if ending:
            log.warning("%d %s were too many or too long silent and are closed", len(ending), what)


class NotingCalls(grpc.aio.ServerInterceptor):
    """Tells ``Connections`` of every call, whatever the service."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """The call's handler, with a note before it."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        kind = ("unary" if not handler.request_streaming else "stream") + (
            "_unary" if not handler.response_streaming else "_stream"
        )
        behaviour = getattr(handler, kind)

        async def answer(request: Any, context: Any) -> Any:
            self._connections.called(context)
            return await behaviour(request, context)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            self._connections.called(context)
            async with contextlib.aclosing(behaviour(request, context)) as messages:
                async for message in messages:
                    yield message

        return handler._replace(**{kind: stream if handler.response_streaming else answer})


def _sockets() -> Iterator[tuple[int, int]]:
    """This process's sockets: descriptor and inode."""
    for descriptor in _DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            if found := _SOCKET.fullmatch(str(descriptor.readlink())):
                yield int(descriptor.name), int(found[1])


@contextlib.contextmanager
def _duplicate(descriptor: int, inode: int) -> Iterator[socket.socket | None]:
    """The socket of that inode; None where it is closed, and its number maybe another's."""
    try:
        own = os.dup(descriptor)
    except OSError:
        yield None
        return
    if os.fstat(own).st_ino != inode:
        os.close(own)
        yield None
        return
    with socket.socket(fileno=own) as connection:
        yield connection


# Every call of a connection says the same.
@lru_cache(maxsize=4096)
def _peer(text: str) -> Peer:
    """GRPC's ``ipv4:127.0.0.1:7301`` or ``ipv6:%5B::1%5D:7301``. Raises ValueError."""
    host, _, port = unquote(text).partition(":")[2].rpartition(":")
    return _host(host.strip("[]")), int(port)


def _host(text: str) -> str:
    address = ip_address(text.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)
