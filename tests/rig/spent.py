"""One-time use within one process; a server's memory of it is durable."""

import threading

from precad.common.deal.request import DealRequest
from precad.common.errors import PeerViolation


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
