"""One-time use: an opened x − a and an opened x' − a would give away x − x'."""

import threading
from typing import Protocol

from precad.common.deal.request import DealRequest
from precad.common.errors import PeerViolation


class SpentTriples(Protocol):
    """Remembers which randomness was used; a server's is durable."""

    def spend(self, request: DealRequest) -> None:
        """Mark as used, durably, before anything masked with it is opened.

        Raises:
            PeerViolation: its (task, round, batch) was used before, whatever the shape.
        """


class MemorySpentTriples:
    """Remembers for the life of this object: for one process that plays a whole training."""

    def __init__(self) -> None:
        self._spent: set[tuple[bytes, int, int]] = set()
        self._lock = threading.Lock()

    def spend(self, request: DealRequest) -> None:
        """Mark as used. Raises PeerViolation when it was used before."""
        with self._lock:
            if request.identifier in self._spent:
                raise PeerViolation(
                    f"correlated randomness of attempt {request.attempt}, batch {request.batch} "
                    "was used before"
                )
            self._spent.add(request.identifier)
