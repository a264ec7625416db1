"""Connections: how many there may be, how many one party may hold, and how long one may be silent.

gRPC bounds how many there are, and knows no caller: one certificate that makes idle
connections anew as they end keeps most others out (a third to a half of all tries,
measured). So the process looks at its own open sockets: it knows a connection's caller
from the calls on it, and shuts what is too many, too silent, or of who asks too much.
What is left is the servers' and the operator's. Where the system doesn't list sockets
under ``/proc``, gRPC's bounds hold alone.
"""

import asyncio
import contextlib
import logging
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
from typing import Any, NamedTuple
from urllib.parse import unquote

from precad.common.clock import CLOCK, Clock
from precad.common.errors import AccessDenied
from precad.common.identifiers import Role
from precad.common.identity.mutual_tls import of_connection
from precad.common.identity.party_certificate import Principal

log = logging.getLogger("precad")

PER_CALLER = 4
"""Of one certificate's party: what reconnects has old ones beside the new for a moment.
"""
PER_OPERATOR = 32
"""Of the operator, who may be several people."""
SILENT_S = 10.0
"""A connection that has made no call for so long after it began ends."""
SILENT = 64
"""Connections that have made no call yet; of more, the oldest end."""
STRANGERS = 1024
"""Connections of whoever isn't a client, has no place or has said nothing yet."""
RESERVED = 128
"""Places that no clients' calls take, of few half: ``SILENT``, and for servers and
operators."""
PER_CLIENT = 2
"""A client that reconnects has its old connection beside the new one for a moment."""
FILES_PER_CLIENT = 2
"""Uploads that it may have open, each with a file."""
OWN_FILES = 256
"""For the database, the journal, the other parties and what the libraries open."""
LEAST = 16
LOOK_S = 0.5
SOONEST_S = 0.05
"""Between looks where somebody's connections are to end now."""
_MOST = {Role.CLIENT: PER_CALLER, Role.OPERATOR: PER_OPERATOR}
"""Servers, the dealer and their workers are bounded by nothing but the process."""
_DESCRIPTORS = Path("/proc/self/fd")
_LISTED = _DESCRIPTORS.is_dir()
_SOCKET = re.compile(r"socket:\[(\d+)\]")
Peer = tuple[str, int]
"""Address and port at the caller's end."""
Caller = Principal | int
"""Whom a certificate names; its serial number where it names nobody."""


def connections_for(clients: int) -> int:
    """Let this process open as many files as the system allows; half of them for callers at most.

    Where the system allows little, files come first: whoever isn't let in now comes
    again, and a journal that can't be opened stops a training. How many connections a
    server of a task with so many clients takes comes back; where that is less than it
    would, a warning says so.
    """
    wanted = STRANGERS + PER_CLIENT * clients
    if sys.platform == "win32":
        # No party's port is served there: only owners run on it.
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # The other half is for uploads, the database and the links to the other parties.
    # Whoever isn't connected uploads nothing: of fewer connections than clients each
    # counts with its files.
    left = hard - OWN_FILES
    beside = max(left - FILES_PER_CLIENT * clients, left // (1 + FILES_PER_CLIENT))
    room = (
        wanted if hard == resource.RLIM_INFINITY else max(LEAST, min(hard // 2, beside))
    )
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


class _Open(NamedTuple):
    inode: int
    descriptor: int
    peer: Peer
    since: float


class Connections:
    """The connections to one port of this process, at most ``most``."""

    def __init__(self, most: int = STRANGERS, clock: Clock = CLOCK) -> None:
        self._most = most
        self._clock = clock
        self._port = 0
        self._open: dict[int, _Open | None] = {}
        """By inode; None for sockets that aren't a caller's."""
        self._callers: dict[Peer, tuple[Caller, float]] = {}
        """When each last called."""
        self._ending: set[Peer] = set()
        self._look_now = asyncio.Event()

    def called(self, context: Any) -> Caller | None:
        """Note that a call begins over this context's connection; return whose it is."""
        try:
            certificate, principal = of_connection(context)
            caller = principal or certificate.serial_number
            self._callers[_peer(context.peer())] = caller, self._clock.now()
        except (AccessDenied, ValueError):
            return None
        return caller

    def end(self, context: Any) -> None:
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
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._look_now.wait(), LOOK_S - SOONEST_S)
            self._look_now.clear()

    def look(self) -> None:
        """Shut what is too many, too silent, or to end."""
        ending = self._ending
        self._ending = set()
        self._list()
        here = [each for each in self._open.values() if each is not None]
        by_caller: defaultdict[Caller | None, list[_Open]] = defaultdict(list)
        for each in sorted(here, key=lambda each: each.since):
            caller, _ = self._callers.get(each.peer, (None, 0.0))
            by_caller[caller].append(each)
        self._shut(
            {each for each in here if each.peer in ending},
            "connections of busy callers",
        )
        silent = by_caller.pop(None, [])
        late = {each for each in silent if self._clock.now() - each.since > SILENT_S}
        self._shut(late | set(silent[:-SILENT]), "connections without a call")
        clients: list[_Open] = []
        for caller, theirs in by_caller.items():
            role = caller.role if isinstance(caller, Principal) else Role.CLIENT
            if role not in _MOST:
                continue
            self._shut(set(theirs[: -_MOST[role]]), f"connections of {caller}")
            if role is Role.CLIENT:
                clients += theirs[-PER_CALLER:]
        # Who was here before stays.
        clients.sort(key=lambda each: each.since)
        places = max(self._most - RESERVED, self._most // 2)
        self._shut(set(clients[places:]), "connections in reserved places")

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
        # A call may come before this thread has seen its connection: names stay for a
        # while.
        old = self._clock.now() - SILENT_S
        for peer, (_, at) in list(self._callers.items()):
            if peer not in peers and at < old:
                self._callers.pop(peer, None)

    def _of(
        self, connection: socket.socket | None, descriptor: int, inode: int
    ) -> _Open | None:
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
            log.warning(
                "%d %s were too many or too long silent and are closed",
                len(ending),
                what,
            )


def _sockets() -> Iterator[tuple[int, int]]:
    """This process's sockets: descriptor and inode."""
    for descriptor in _DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            found = _SOCKET.fullmatch(str(descriptor.readlink()))
            if found:
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
