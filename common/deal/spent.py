"""One-time use: an opened x − a and an opened x' − a would give away x − x'."""

from typing import Protocol

from precad.common.deal.request import DealRequest


class SpentTriples(Protocol):
    """Remembers which randomness was used; a server's is durable."""

    def spend(self, request: DealRequest) -> None:
        """Mark as used, durably, before anything masked with it is opened.

        Raises:
            PeerViolation: its (task, round, batch) was used before, whatever the shape.
        """
