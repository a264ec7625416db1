"""Which clients are connected: who called, who keeps a watch open, and until when each may."""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from precad.common.clock import CLOCK, Clock
from precad.common.errors import NOT_IN_TIME, AccessDenied, NameInUse
from precad.common.identifiers import ClientId

log = logging.getLogger("precad")

LOOK_S = 1.0
"""Between looks at whether the callers' certificates still count; longer where there
are thousands of them."""
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
            if left is None or self._watching[client] > 0:
                return False
            return self._clock.now() - left > self._rejoin_s


@dataclass(eq=False, repr=False, kw_only=True)
class LongStream:
    """One caller's stream, which ends once the caller isn't allowed any more, wherever it waits.

    The caller is looked at every second, or as often as ``_look_s`` says. No task for
    each item, which would cost more than a frame of the servers' link, and a timer for
    the looks: a loop that is stopped leaves nothing behind.
    """

    _still_allowed: Callable[[], object]
    _look_s: Callable[[], float] = lambda: LOOK_S
    _ended: Exception | None = None
    _waits: asyncio.Task[Any] | None = None

    async def follow(self, items: AsyncIterator[Item]) -> AsyncGenerator[Item]:
        """Yield the items; raise what ``still_allowed`` raises, AccessDenied."""
        iterator = aiter(items)
        self._look_later()
        try:
            while self._ended is None:
                self._waits = waits = asyncio.current_task()
                try:
                    item = await anext(iterator)
                except StopAsyncIteration:
                    return
                except asyncio.CancelledError:
                    # Somebody else's cancellation goes on.
                    if self._ended is None or waits is None or waits.uncancel() > 0:
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
        except Exception as error:  # noqa: BLE001 -- whatever it is, nothing more may go out
            self._ended = error
            if self._waits is not None:
                self._waits.cancel()
        else:
            self._look_later()


@dataclass(eq=False, repr=False)
class OpenWatches:
    """All that are open on this server.

    Used on the event loop alone, hence without a lock.
    """

    _dismiss: Callable[[ClientId], None]
    _twice: Callable[[ClientId], None] = lambda _client: None
    _open: dict[LongStream, tuple[ClientId, bytes, str]] = field(default_factory=dict)

    @contextmanager
    def open(
        self,
        where: str,
        client: ClientId,
        instance: bytes,
        still_allowed: Callable[[], object],
    ) -> Iterator[LongStream]:
        """A watch, to its end.

        Raises NameInUse: another ``instance`` that says so is here.
        """
        for name, other, there in self._open.values():
            if name == client and instance and other not in (b"", instance):
                twice = (
                    "client %s is there twice: %s goes on, %s was told to end or to"
                    " wait"
                )
                log.warning(twice, client, there, where)
                self._twice(client)
                raise NameInUse(
                    f"another process takes part as client {client} now: end one of the"
                    " two, or ask the operator for a certificate with a name of"
                    " its own"
                )

        def look() -> None:
            try:
                still_allowed()
            except AccessDenied as denied:
                log.warning("the watch of client %s ends: %s", client, denied)
                # By a wrong clock here all of them end: they come back soon.
                if denied.reason not in NOT_IN_TIME:
                    self._dismiss(client)
                raise

        watch = LongStream(
            _still_allowed=look,
            _look_s=lambda: max(LOOK_S, len(self._open) / _LOOKS_PER_S),
        )
        self._open[watch] = client, instance, where
        try:
            yield watch
        finally:
            del self._open[watch]

    def has(self, client: ClientId) -> bool:
        """Whether a process of this name watches now."""
        return any(name == client for name, _, _ in self._open.values())
