"""One-time use: an opened x − a and an opened x' − a would give away x − x'."""

import threading
from typing import Protocol

from precad.common.deal.request import TripleId
from precad.common.errors import PeerViolation


class SpentTriples(Protocol):
    """Remembers which randomness was used; a server's is durable."""

    def spend(self, request_id: TripleId) -> None:
        """Mark as used, durably, before anything masked with it is opened.

        Raises:
            PeerViolation: it was used before.
        """


class MemorySpentTriples:
    """Remembers for the life of this object: for one process that plays a whole training."""

    def __init__(self) -> None:
        self._spent: set[TripleId] = set()
        self._lock = threading.Lock()

    def spend(self, request_id: TripleId) -> None:
        """Mark as used. Raises PeerViolation when it was used before."""
        with self._lock:
            if request_id in self._spent:
                raise PeerViolation(
                    f"the triples of round {request_id.round}, batch {request_id.batch} "
                    "were used before"
                )
            self._spent.add(request_id)
