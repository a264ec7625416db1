"""One-time use: an opened x − a and an opened x' − a would give away x − x'."""

from typing import Protocol


class SpentTriples(Protocol):
    """Remembers which of a task's randomness was used; a server's journal does so durably."""

    def spend(self, attempt: int, batch: int) -> None:
        """Mark as used, durably, before anything masked with it is opened.

        Raises:
            PeerViolation: this attempt's batch was used before, whatever its shape.
        """
