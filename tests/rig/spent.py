"""Spent randomness in memory, for a test that plays one validation without a journal."""

from precad.common.errors import PeerViolation


class MemorySpentTriples:
    """Remembers for the life of this object."""

    def __init__(self) -> None:
        self._spent: set[tuple[int, int]] = set()

    def spend(self, attempt: int, batch: int) -> None:
        """Mark as used. Raises PeerViolation when it was used before."""
        if (attempt, batch) in self._spent:
            raise PeerViolation(f"attempt {attempt}, batch {batch} was used before")
        self._spent.add((attempt, batch))
