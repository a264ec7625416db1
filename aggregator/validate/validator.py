"""The seam of validation: where it runs, and in how many processes, is its implementation's."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from precad.common.errors import Rejection
from precad.common.identifiers import ClientId
from precad.common.ring import RingVector
from precad.common.share.submission import Submission

MAX_BATCH_CLIENTS = 256
"""Submissions that are decided on together: comparisons take some 100 KiB each."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What validation says of all that it took, the same on both servers but for the share."""

    rejections: Mapping[ClientId, Rejection]
    """Who doesn't count, and why; all others are valid."""
    share_sum: RingVector = field(repr=False)
    """``[d] int64``: this server's share of the sum over valid clients that are counted."""


class Validator(Protocol):
    """Validates one attempt's matched submissions at one server, with the other server's."""

    def take(self, submissions: Sequence[Submission]) -> None:
        """Both servers take the same submissions, at most a batch, in the same order.

        No verdict and no bit of them leaves: that is ``decide``'s, when collection has closed.

        Raises:
            PeerUnavailable: the other server, the dealer or a worker is gone.
            PeerViolation: one of them departs from the protocol.
        """

    def ready(self) -> None:
        """Both servers ask before the attempt counts as opened; returns when ``decide`` can begin.

        Raises:
            PeerUnavailable: nobody was there to validate in time, or the other server is gone.
        """

    def decide(self) -> Verdicts:
        """Both parts of docs/soundness.md for all that was taken; once. Raises as ``take``."""


Take = Callable[[Sequence[Submission]], None]
"""``Validator.take``."""
Validation = AbstractContextManager[Validator]
"""A validator for one attempt; what it holds goes when the block ends, however it ends."""
