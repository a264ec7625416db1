"""Who is there: which clients called, and which keep a watch open."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from precad.common.clock import CLOCK, Clock
from precad.common.identifiers import ClientId


class Presence:
    """Which clients keep a watch open; one that left lately may be coming back.

    Args:
        rejoin_s: a client is gone when its last watch ended longer ago than this.
        clock: passes the time.
    """

    def __init__(self, rejoin_s: float, clock: Clock = CLOCK) -> None:
        self._rejoin_s = rejoin_s
        self._clock = clock
        self._lock = threading.Lock()
        self._watching: Counter[ClientId] = Counter()
        self._left: dict[ClientId, float] = {}
        self._dismissed: set[ClientId] = set()
        self._heard: dict[ClientId, float] = {}

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
