"""The seam of validation: where it runs, and in how many processes, is its implementation's."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.validate.absorb_bodies import Absorber
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.keystream import encode_context
from precad.common.ring import RingVector
from precad.common.share.submission import Submission
from precad.common.task import Task
from precad.norm_check.dealing import DealerConversation, Dealing
from precad.norm_check.dealt_triples import DealRequest, DealtRandomness, SpentTriples

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

        Raises PeerUnavailable: nobody was there to validate in time, or the other server is gone.
        """

    def decide(self) -> Verdicts:
        """Both parts of docs/soundness.md for all that was taken; once. Raises as ``take``."""


Take = Callable[[Sequence[Submission]], None]
"""``Validator.take``."""
Validation = AbstractContextManager[Validator]
"""A validator for one attempt; what it holds goes when the block ends, however it ends."""


# The seam between validation's one pass and the two ways to decide on what it has absorbed.


class Server(Protocol):
    """What validation needs of one server."""

    @property
    def task(self) -> Task:
        """Gives d, k and β, and which check it is."""

    @property
    def role(self) -> Role:
        """SERVER_A or SERVER_B."""

    @property
    def link(self) -> PeerLink:
        """To the other server."""

    @property
    def dealing(self) -> Dealing:
        """To the dealer."""

    @property
    def nonces(self) -> bytes:
        """Of the servers' link: dealt randomness is bound to them."""

    @property
    def spent(self) -> SpentTriples:
        """Remembers, durably, which randomness was used."""

    def randomness(self, request: DealRequest) -> DealtRandomness:
        """Binary triples for one batch of decisions. Raises PeerUnavailable, PeerViolation."""


class Check(Protocol):
    """Says of one attempt's absorbed submissions whether their norms are within the bound."""

    def note(self, submission: Submission, absorber: Absorber, squares: DealerConversation) -> None:
        """Take a submission whose body is absorbed; may wait for what is dealt for it.

        Nothing of it leaves before ``decide``. Raises PeerUnavailable, PeerViolation.
        """

    def decide(self, batch: int, submissions: Sequence[Submission]) -> NDArray[np.bool_]:
        """One batch: the servers learn of each submission whether it is within the bound.

        Args:
            batch: its number, never used before in this attempt.
            submissions: noted ones, at least one, in the same order on both servers.

        Returns:
            ``[n] bool``, the same at both servers when both follow the protocol.

        Raises:
            PeerUnavailable, PeerViolation: as the other server or the dealer does.
        """


def label(submissions: Iterable[Submission]) -> str:
    """In a step's name: servers that have other submissions, or another order, stop at once."""
    digests = [submission.header.whole_digest.value for submission in submissions]
    return str(Digest.of(encode_context("submissions", *digests)))[:16]


# How many comparisons decide on submissions, and what the dealer is asked for before.


def comparisons_per_client(task: Task) -> int:
    """2k + 1: both sides of k ranges, and the norm."""
    return 2 * task.projections + 1


def deal_request(task: Task, attempt: int, batch: int, clients: int, nonces: bytes) -> DealRequest:
    """What to ask the dealer for before ``clients`` submissions are decided in one batch."""
    return DealRequest(
        task=task.digest,
        attempt=attempt,
        batch=batch,
        clients=clients,
        comparisons=clients * comparisons_per_client(task),
        nonces=nonces,
    )
