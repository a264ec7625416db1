"""Track connected clients, and end a stream whose caller loses its permission.

``ConnectedClients`` knows who called, who keeps a watch open, and who has left.
``LongStream`` and ``OpenWatches`` end a client's watch once its certificate no longer
counts.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from precad.common import (
    CLOCK,
    NOT_IN_TIME,
    AccessDenied,
    ClientId,
    Clock,
    NameInUse,
    log,
)

LOOK_S = 1.0
"""Seconds between two looks at whether a caller's certificate still counts.

With thousands of callers it is longer (``_LOOKS_PER_S``).
"""
_LOOKS_PER_S = 1000
"""The most looks per second over all open watches together."""
Item = TypeVar("Item")
"""What one item of a stream is."""


class ConnectedClients:
    """Know which clients keep a watch open, and which of them will not come back.

    A client that left less than ``rejoin_s`` seconds ago may still come back. While
    nobody at all is there, as after an outage or where all were told to stop, so may
    everybody: each is waited for, which holds nobody up. From when the first is back
    the others have ``rejoin_s`` again. All methods may be called from any thread.
    """

    def __init__(self, rejoin_s: float, clock: Clock = CLOCK) -> None:
        self._rejoin_s = rejoin_s
        self._clock = clock
        self._lock = threading.Lock()
        self._watching: Counter[ClientId] = Counter()
        """How many watches each client has open, of those who have any."""
        self._left: dict[ClientId, float] = {}
        """When a watch of each client ended last, by the clock."""
        self._dismissed: set[ClientId] = set()
        self._heard: dict[ClientId, float] = {}
        """When each client called for the first time, by the clock."""
        self._with_final_model: set[ClientId] = set()

    def heard_from(self, client: ClientId) -> None:
        """Note a client's call; only the first one since this server's start counts."""
        with self._lock:
            self._heard.setdefault(client, self._clock.now())

    def last_heard(self, clients: Iterable[ClientId]) -> float | None:
        """Return when the last of these clients called for the first time.

        Return 0 for no clients, and None while one of them has never called.
        """
        with self._lock:
            try:
                return max((self._heard[client] for client in clients), default=0.0)
            except KeyError:
                return None

    def has_final_model(self, client: ClientId) -> None:
        """Note that a client got what this server has for it at the end."""
        with self._lock:
            self._with_final_model.add(client)

    def all_have_final_model(self, clients: Iterable[ClientId]) -> bool:
        """Return whether each of these clients got it since this server's start."""
        with self._lock:
            return self._with_final_model.issuperset(clients)

    @contextmanager
    def watch(self, client: ClientId) -> Iterator[None]:
        """Count a watch of this client as open while the block runs."""
        watching = self._watching
        with self._lock:
            if not watching:
                self._left = dict.fromkeys(self._left, self._clock.now())
            watching[client] += 1
            self._dismissed.discard(client)
        try:
            yield
        finally:
            with self._lock:
                watching[client] -= 1
                if not watching[client]:
                    del watching[client]
                self._left[client] = self._clock.now()

    def dismiss(self, client: ClientId) -> None:
        """Note that a client's watch was ended for good.

        Nobody waits for this client any more, unless it comes back and is allowed.
        """
        with self._lock:
            self._dismissed.add(client)

    def gone(self, client: ClientId) -> bool:
        """Return whether waiting for this client is pointless."""
        with self._lock:
            if client in self._dismissed:
                return True
            left = self._left.get(client)
            if left is None or client in self._watching or not self._watching:
                return False
            return self._clock.now() - left > self._rejoin_s


@dataclass(eq=False, repr=False, kw_only=True)
class LongStream:
    """End one caller's stream, wherever it waits, once the caller isn't allowed.

    The caller is looked at every second, or as often as ``_look_s`` says. There is no
    task for each item, because a task would cost more than a frame of the servers'
    link. The looks are made by a timer: an event loop that is stopped leaves nothing
    behind.
    """

    _still_allowed: Callable[[], object]
    """Raises an error, such as AccessDenied, once the caller isn't allowed any more."""
    _look_s: Callable[[], float] = lambda: LOOK_S
    """Returns the seconds until the next look."""
    _ended: Exception | None = None
    """What ``_still_allowed`` raised."""
    _waits: asyncio.Task[object] | None = None
    """The task that waits for the stream's next item now."""

    async def follow(self, items: AsyncIterator[Item]) -> AsyncGenerator[Item]:
        """Yield the items; raise what ``_still_allowed`` raises, as AccessDenied."""
        iterator = aiter(items)
        self._look_later()
        try:
            while self._ended is None:
                self._waits = waiting_task = asyncio.current_task()
                try:
                    item = await anext(iterator)
                except StopAsyncIteration:
                    return
                except asyncio.CancelledError:
                    if self._ended is None or waiting_task is None:
                        raise
                    # A cancellation by somebody else goes on.
                    if waiting_task.uncancel() > 0:
                        raise
                    break
                finally:
                    self._waits = None
                yield item
            raise self._ended
        finally:
            self._timer.cancel()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._look_s(), self._look)

    def _look(self) -> None:
        try:
            self._still_allowed()
        # Whatever the error is, nothing more may go out.
        except Exception as error:  # noqa: BLE001
            self._ended = error
            if self._waits is not None:
                self._waits.cancel()
        else:
            self._look_later()


@dataclass(eq=False, repr=False)
class OpenWatches:
    """Hold the watches that are open here, and refuse a name's second process.

    It is used on the event loop alone, so it needs no lock.
    """

    _dismiss: Callable[[ClientId], None]
    """Called with a client whose watch ended for good."""
    _twice: Counter[str]
    """How often a second process came under a name."""
    _open: dict[LongStream, tuple[ClientId, bytes, str]] = field(default_factory=dict)
    """Each open watch, with its client, its process's instance and its address."""

    @contextmanager
    def open(
        self,
        where: str,
        client: ClientId,
        instance: bytes,
        still_allowed: Callable[[], object],
    ) -> Iterator[LongStream]:
        """Hold a client's watch open while the block runs, and yield its stream.

        ``where`` is the caller's address. ``instance`` are random bytes of the caller's
        process, or nothing. ``still_allowed`` raises AccessDenied once the caller may
        not watch any more.

        Raises NameInUse: a process with another ``instance`` watches under this name.
        """
        for watching_client, watching_instance, address in self._open.values():
            if (
                watching_client == client
                and instance
                and watching_instance not in (b"", instance)
            ):
                log.warning(
                    "client %s is there twice: %s goes on, %s was told to end or to"
                    " wait",
                    client,
                    address,
                    where,
                )
                self._twice[client.name] += 1
                raise NameInUse(
                    f"another process takes part as client {client} now: end one of the"
                    " two, or ask the operator for a certificate with a name of"
                    " its own"
                )

        def require_allowed() -> None:
            try:
                still_allowed()
            except AccessDenied as denied:
                log.warning("the watch of client %s ends: %s", client, denied)
                # With a wrong clock on this server all watches end: their clients come
                # back soon.
                if denied.reason not in NOT_IN_TIME:
                    self._dismiss(client)
                raise

        watch = LongStream(
            _still_allowed=require_allowed,
            _look_s=lambda: max(LOOK_S, len(self._open) / _LOOKS_PER_S),
        )
        self._open[watch] = client, instance, where
        try:
            yield watch
        finally:
            del self._open[watch]

    def has(self, client: ClientId) -> bool:
        """Return whether a process of this name watches now."""
        return any(
            watching_client == client for watching_client, _, _ in self._open.values()
        )
