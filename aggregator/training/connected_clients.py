"""Which clients are connected: who called, who keeps a watch open, and until when each may."""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

from precad.common.clock import CLOCK, Clock
from precad.common.errors import NOT_IN_TIME, AccessDenied, NameInUse
from precad.common.identifiers import ClientId

log = logging.getLogger("precad")

LOOK_S = 1.0
"""Between looks at whether the callers' certificates still count; longer where there are
thousands of them."""
_LOOKS_PER_S = 1000
Item = TypeVar("Item")


class ConnectedClients:
    """Which clients keep a watch open; one that left less than ``rejoin_s`` ago may come back."""

    def __init__(self, rejoin_s: float, clock: Clock = CLOCK) -> None:
        self._rejoin_s = rejoin_s
        self._clock = clock
        self._lock = threading.Lock()
        self._watching: Counter[ClientId] = Counter()
        self._left: dict[ClientId, float] = {}
        self._dismissed: set[ClientId] = set()
        self._heard: dict[ClientId, float] = {}
        self._with_final_model: set[ClientId] = set()

    def heard_from(self, client: ClientId) -> None:
        """A client called; the first time since this server's start counts."""
        with self._lock:
            self._heard.setdefault(client, self._clock.now())

    def last_heard(self, clients: Iterable[ClientId]) -> float | None:
        """When the last of them called for the first time; None while one never did."""
        with self._lock:
            try:
                return max((self._heard[client] for client in clients), default=0.0)
            except KeyError:
                return None

    def has_final_model(self, client: ClientId) -> None:
        """A client got what this server has for it at the end."""
        with self._lock:
            self._with_final_model.add(client)

    def all_have_final_model(self, clients: Iterable[ClientId]) -> bool:
        """Whether each of them did, since this server's start."""
        with self._lock:
            return self._with_final_model.issuperset(clients)

    @contextmanager
    def watch(self, client: ClientId) -> Iterator[None]:
        """A watch, from its beginning to its end."""
        with self._lock:
            self._watching[client] += 1
            self._dismissed.discard(client)
        try:
            yield
        finally:
            with self._lock:
                self._watching[client] -= 1
                self._left[client] = self._clock.now()

    def dismiss(self, client: ClientId) -> None:
        """Its watch was ended for good: nobody waits for it, unless it comes back allowed."""
        with self._lock:
            self._dismissed.add(client)

    def gone(self, client: ClientId) -> bool:
        """Whether waiting for this client is pointless."""
        with self._lock:
            if client in self._dismissed:
                return True
            left = self._left.get(client)
            return (
                self._watching[client] <= 0
                and left is not None
                and self._clock.now() - left > self._rejoin_s
            )


class LongStream:
    """One caller's stream, which may be ended while it waits for its next item.

    No task for each item, which would cost more than a frame of the servers' link.
    """

    def __init__(self) -> None:
        self.ended: Exception | None = None
        self._waits: asyncio.Task[Any] | None = None

    def end(self, error: Exception) -> None:
        """Have whoever follows get ``error``, and nothing more."""
        self.ended = error
        if self._waits is not None:
            self._waits.cancel()

    async def follow(self, items: AsyncIterator[Item]) -> AsyncGenerator[Item]:
        """Yield the items; raise what the stream was ended with."""
        iterator = aiter(items)
        while self.ended is None:
            self._waits = waits = asyncio.current_task()
            try:
                item = await anext(iterator)
            except StopAsyncIteration:
                return
            except asyncio.CancelledError:
                # Somebody else's cancellation goes on.
                if self.ended is None or waits is None or waits.uncancel() > 0:
                    raise
                break
            finally:
                self._waits = None
            yield item
        raise self.ended


class Watch(LongStream):
    """One open watch, of a process of the client's; ``instance`` is empty where it doesn't say."""

    def __init__(
        self, where: str, client: ClientId, instance: bytes, still_allowed: Callable[[], object]
    ) -> None:
        super().__init__()
        self.where, self.client, self.instance = where, client, instance
        self.still_allowed = still_allowed


class OpenWatches:
    """All that are open on this server. Used on the event loop alone, hence without a lock."""

    def __init__(
        self,
        dismiss: Callable[[ClientId], None],
        twice: Callable[[ClientId], None] = lambda _client: None,
    ) -> None:
        self._dismiss = dismiss
        self._twice = twice
        self._open: set[Watch] = set()
        self._looking = False

    @contextmanager
    def open(
        self,
        where: str,
        client: ClientId,
        instance: bytes,
        still_allowed: Callable[[], object],
    ) -> Iterator[Watch]:
        """A watch, from its beginning to its end.

        Raises:
            NameInUse: another process of this client's name watches already.
        """
        for other in self._open:
            if other.client == client and instance and other.instance not in (b"", instance):
                log.warning(
                    "client %s is there twice: %s goes on, %s was told to end or to wait",
                    client,
                    other.where,
                    where,
                )
                self._twice(client)
                raise NameInUse(
                    f"another process takes part as client {client} now: end one of the two, or "
                    "ask the operator for a certificate with a name of its own"
                )
        watch = Watch(where, client, instance, still_allowed)
        self._open.add(watch)
        self._look_later()
        try:
            yield watch
        finally:
            self._open.discard(watch)

    def has(self, client: ClientId) -> bool:
        """Whether a process of this name watches now."""
        return any(watch.client == client for watch in self._open)

    def look(self) -> None:
        """End the watches of those whose certificates don't count any more."""
        for watch in list(self._open):
            try:
                watch.still_allowed()
            except AccessDenied as denied:
                if watch.ended is None:
                    log.warning("the watch of client %s ends: %s", watch.client, denied)
                    watch.end(denied)
                    # By a wrong clock here all of them end: they come back soon.
                    if denied.reason not in NOT_IN_TIME:
                        self._dismiss(watch.client)

    def _look_later(self) -> None:
        if not self._looking and self._open:
            self._looking = True
            # A timer and no task: a loop that is stopped leaves nothing behind.
            wait_s = max(LOOK_S, len(self._open) / _LOOKS_PER_S)
            asyncio.get_running_loop().call_later(wait_s, self._look_again)

    def _look_again(self) -> None:
        self._looking = False
        self.look()
        self._look_later()


async def while_allowed(
    items: AsyncIterator[Item], still_allowed: Callable[[], object]
) -> AsyncIterator[Item]:
    """Yield the items of one of a few long streams, whose caller is looked at every second.

    Raises:
        AccessDenied: the caller's certificate doesn't count any more.
    """
    loop, stream = asyncio.get_running_loop(), LongStream()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        try:
            still_allowed()
        except Exception as error:  # noqa: BLE001 -- whatever it is, nothing more may go out
            stream.end(error)
        else:
            timer = loop.call_later(LOOK_S, look)

    timer = loop.call_later(LOOK_S, look)
    try:
        async with aclosing(stream.follow(items)) as followed:
            async for item in followed:
                yield item
    finally:
        timer.cancel()
