"""A server's way to the dealer, wherever the dealer is."""

from contextlib import AbstractContextManager
from typing import Protocol

from precad.common.ring import RingVector
from precad.norm_check.deal.request import DealRequest
from precad.norm_check.deal.squares import Squares


class Dealing(Protocol):
    """Deals this server's part, and no other's."""

    @property
    def epoch(self) -> bytes:
        """Which start of the dealer this server joined; its keys last as long."""

    def deal(self, request: DealRequest) -> RingVector:
        """This server's correction words. Raises PeerUnavailable, PeerViolation."""

    def squares(self, attempt: int) -> AbstractContextManager[Squares]:
        """A conversation for one attempt."""
