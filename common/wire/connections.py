"""Connections to a port: how many there may be, of one party, and silent for how long.

gRPC bounds how many there are, and knows no caller: one certificate that makes idle
connections anew as they end keeps most others out. So the process looks at its own open
sockets: it knows a connection's caller from the calls on it, and shuts what is too
many, too silent, or of a caller that asks too much. The places that are left are the
servers' and the operator's. Where the system doesn't list sockets under ``/proc``,
gRPC's bounds hold alone.

Why not gRPC's bounds alone: tried with this module's look left out, a port of 1,030
connections and one client's certificate against it, on two busy cores. How many of an
operator's calls over new connections were answered:

- Silent connections, 150 made anew a second: 115 of 261 with
  ``grpc.max_connection_idle_ms`` at 10 s, 181 of 191 at 3 s, 179 of 180 at 1 s. With
  the look 142 of 146.
- Connections that begin a call each second, which is refused, 45 made a second: gRPC
  calls none of them idle, and its 1,030 places stay taken: 2 of 22, at 1 s too. With
  the look 220 of 220, since a client has ``PER_CALLER`` connections.
- The same, some 150 a second: nobody gets in either way (0 of 130; with the look 0 of
  78). Making so many connections has to be stopped before the port (a firewall).
"""

import asyncio
import contextlib
import os
import re
import resource
import socket
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from precad.common import CLOCK, AccessDenied, Clock, Role, log, wait_at_most
from precad.common.identity import Context, Principal, of_connection

PER_CALLER = 4
"""Connections of one certificate's party: what reconnects has old ones beside the new
for a moment."""
PER_OPERATOR = 32
"""Connections of the operator, who may be several people."""
SILENT_S = 10.0
"""Seconds after its beginning when a connection without a call ends."""
SILENT = 64
"""Connections that have made no call yet; of more, the oldest end."""
STRANGERS = 1024
"""Connections of whoever isn't a client, has no place or has said nothing yet."""
RESERVED = 128
"""Places that no clients' calls take; where there are few places, half of them.

They are for ``SILENT`` connections, and for servers and operators.
"""
PER_CLIENT = 2
"""Places for each client: one that reconnects has its old connection beside the new one
for a moment."""
FILES_PER_CLIENT = 2
"""Uploads that a client may have open, each with a file."""
OWN_FILES = 256
"""Files for the database, the journal, the other parties and what the libraries open.
"""
LEAST = 16
"""Connections that a port takes at least, however few files there may be."""
LOOK_S = 0.5
"""Seconds between looks at the open connections."""
SOONEST_S = 0.05
"""Seconds between looks where somebody's connections are to end now."""
_MOST_BY_ROLE = {Role.CLIENT: PER_CALLER, Role.OPERATOR: PER_OPERATOR}
"""Servers, the dealer and their workers are bounded by nothing but the process."""
_DESCRIPTORS = Path("/proc/self/fd")
_LISTED = _DESCRIPTORS.is_dir()
"""Whether the system lists this process's sockets."""
_SOCKET = re.compile(r"socket:\[(\d+)\]")
"""What a socket's descriptor links to; the number is its inode."""
Peer = tuple[str, int]
"""Address and port at the caller's end."""
Caller = Principal | int
"""Whom a certificate names; its serial number where it names nobody."""


def connections_for(clients: int) -> int:
    """Return how many connections a port takes that ``clients`` clients may call.

    It first lets this process open as many files as the system allows; at most half of
    them are for callers. Where the system allows little, files come first: whoever
    isn't let in now comes again, and a journal that can't be opened stops a training.
    Where that leaves fewer connections than wanted, a warning says so.
    """
    wanted = STRANGERS + PER_CLIENT * clients
    if sys.platform == "win32":
        # No party's port is served there: only owners run on it.
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return wanted
    # The other half is for uploads, the database and the links to the other parties.
    # Whoever isn't connected uploads nothing: of fewer connections than clients each
    # counts with its files.
    left = hard - OWN_FILES
    beside_files = max(
        left - FILES_PER_CLIENT * clients, left // (1 + FILES_PER_CLIENT)
    )
    room = max(LEAST, min(hard // 2, beside_files))
    if room < wanted:
        log.warning(
            "of %d files that this process may open %d are for connections, and it may"
            " need %d; raise the system's limit (ulimit -Hn, or LimitNOFILE of its"
            " service)",
            hard,
            room,
            wanted,
        )
    return min(wanted, room)


class _Connection(NamedTuple):
    """One caller's connection, as this process's socket of it."""

    since: float
    """When it was first seen, by the clock: the oldest comes first."""
    inode: int
    descriptor: int
    peer: Peer


class Connections:
    """The connections to one port of this process, at most ``most``."""

    def __init__(self, most: int, clock: Clock = CLOCK) -> None:
        self._most = most
        self._clock = clock
        self._port = 0
        self._open: dict[int, _Connection | None] = {}
        """By inode; None for sockets that aren't a caller's."""
        self._callers: dict[Peer, tuple[Caller, float]] = {}
        """Who called from each peer, and when it last did."""
        self._ending: set[Peer] = set()
        """Whose connections end at the next look."""
        self._look_now = asyncio.Event()

    def called(self, context: Context) -> Caller | None:
        """Note that a call begins over this context's connection; return whose it is.

        None where the connection has no readable certificate.
        """
        try:
            certificate, principal = of_connection(context)
            caller = principal or certificate.serial_number
            self._callers[_peer(context.peer())] = caller, self._clock.now()
        except (AccessDenied, ValueError):
            return None
        return caller

    def end(self, context: Context) -> None:
        """Have this context's connection end soon; called on the event loop."""
        with contextlib.suppress(ValueError):
            self._ending.add(_peer(context.peer()))
            self._look_now.set()

    async def keep_watch(self, port: int) -> None:
        """Look at the connections to ``port`` until cancelled."""
        self._port = port
        while _LISTED:
            try:
                # Thousands of descriptors take a while to look at: not on the event
                # loop.
                await asyncio.gather(
                    asyncio.to_thread(self.look), asyncio.sleep(SOONEST_S)
                )
            except OSError as error:
                # No file is left to list them with, as in a flood: this goes on once
                # there is.
                log.warning("the connections can't be looked at: %s", error.strerror)
            await wait_at_most(self._look_now, LOOK_S - SOONEST_S)
            self._look_now.clear()

    def look(self) -> None:
        """Shut the connections that are too many, too silent, or to end.

        They are shut in this order: those that ``end`` named; those without a call that
        are too old, or too many; of each caller the oldest beyond what its role may
        have; of all clients the newest beyond the places that aren't reserved.
        """
        ending = self._ending
        self._ending = set()
        self._list()
        connections = sorted(
            entry for entry in self._open.values() if entry is not None
        )
        by_caller = defaultdict(list)
        for connection in connections:
            caller, _ = self._callers.get(connection.peer, (None, 0.0))
            by_caller[caller].append(connection)
        self._shut(
            {connection for connection in connections if connection.peer in ending},
            "connections of busy callers",
        )
        silent = by_caller.pop(None, [])
        now = self._clock.now()
        late = {
            connection for connection in silent if now - connection.since > SILENT_S
        }
        self._shut(late | set(silent[:-SILENT]), "connections without a call")
        of_clients = []
        for caller, of_caller in by_caller.items():
            role = caller.role if isinstance(caller, Principal) else Role.CLIENT
            if role not in _MOST_BY_ROLE:
                continue
            too_many = of_caller[: -_MOST_BY_ROLE[role]]
            self._shut(set(too_many), f"connections of {caller}")
            if role is Role.CLIENT:
                of_clients += of_caller[-PER_CALLER:]
        # Who was here before stays.
        of_clients.sort()
        places = max(self._most - RESERVED, self._most // 2)
        self._shut(set(of_clients[places:]), "connections in reserved places")

    def _list(self) -> None:
        """List the sockets that are open now, and forget callers that have none.

        A socket that was listed before is not looked at again.
        """
        listed = {}
        for descriptor, inode in _sockets():
            if inode in self._open:
                listed[inode] = self._open[inode]
            else:
                with _duplicate(descriptor, inode) as own_socket:
                    listed[inode] = self._of_caller(own_socket, descriptor, inode)
        self._open = listed
        peers = {entry.peer for entry in listed.values() if entry is not None}
        # A call may come before this thread has seen its connection: names stay for a
        # while.
        old = self._clock.now() - SILENT_S
        for peer, (_, called_at) in list(self._callers.items()):
            if peer not in peers and called_at < old:
                self._callers.pop(peer, None)

    def _of_caller(
        self, own_socket: socket.socket | None, descriptor: int, inode: int
    ) -> _Connection | None:
        """Return a caller's connection to the port; None for any other socket."""
        try:
            if own_socket is None or own_socket.getsockname()[1] != self._port:
                return None
            host, port = own_socket.getpeername()[:2]
        except (OSError, IndexError, TypeError, ValueError):
            # The listener's, the database's, or one of another address family.
            return None
        return _Connection(
            inode=inode,
            descriptor=descriptor,
            peer=(_host(host), port),
            since=self._clock.now(),
        )

    def _shut(self, ending: set[_Connection], which: str) -> None:
        """Shut these connections, and log how many they were and ``which``."""
        for connection in ending:
            with _duplicate(connection.descriptor, connection.inode) as own_socket:
                if own_socket is not None:
                    with contextlib.suppress(OSError):
                        own_socket.shutdown(socket.SHUT_RDWR)
        if ending:
            log.warning(
                "%d %s were too many or too long silent and are closed",
                len(ending),
                which,
            )


def _sockets() -> Iterator[tuple[int, int]]:
    """Yield descriptor and inode of each of this process's sockets."""
    for descriptor in _DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            link = _SOCKET.fullmatch(str(descriptor.readlink()))
            if link:
                yield int(descriptor.name), int(link[1])


@contextlib.contextmanager
def _duplicate(descriptor: int, inode: int) -> Iterator[socket.socket | None]:
    """Open the socket of that inode once more, until the block ends.

    None where the descriptor is closed, or is another file's by now. A descriptor of
    its own can't become another file's inside the block.
    """
    try:
        own = os.dup(descriptor)
    except OSError:
        yield None
        return
    if os.fstat(own).st_ino != inode:
        os.close(own)
        yield None
        return
    with socket.socket(fileno=own) as duplicate:
        yield duplicate


# Every call of a connection says the same.
@lru_cache(maxsize=4096)
def _peer(text: str) -> Peer:
    """Return the address and port that gRPC names in ``text``.

    It looks like ``ipv4:127.0.0.1:7301`` or ``ipv6:%5B::1%5D:7301``.

    Raises ValueError: it names none.
    """
    _, _, authority = unquote(text).partition(":")
    host, _, port = authority.rpartition(":")
    return _host(host.strip("[]")), int(port)


def _host(text: str) -> str:
    """Return an address in the one way that it is compared: IPv4 inside IPv6 as IPv4.

    Raises ValueError: it is no address.
    """
    address, _, _ = text.partition("%")
    parsed = ip_address(address)
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)
