"""The seam of validation: where it runs, and in how many processes, is its implementation's."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from precad.aggregator.peer_link import PeerLink
from precad.common.errors import BodyUnreadable, PeerUnavailable, Rejection
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.ring import RingVector, encode_context
from precad.common.task import Task
from precad.norm_check.dealing import Dealing, DealRequest, SpentTriples
from precad.norm_check.proof_submission import AnySubmission

MAX_BATCH_CLIENTS = 256
"""Submissions that are decided on together: comparisons take some 100 KiB each."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What validation says of all that it took, the same on both servers but for the share."""

    rejections: Mapping[ClientId, Rejection]
    """Who doesn't count, and why; all others are valid."""
    share_sum: RingVector = field(repr=False)
    """``[d] int64``, of the task's group: this server's share of the sum over valid
    clients that are counted."""


class Validator(Protocol):
    """Validates one attempt's matched submissions at one server, with the other server's.

    Raises PeerUnavailable: the other server, the dealer or a worker is gone, or nobody
    was there to validate in time; PeerViolation: one of them departs from the protocol.
    """

    def take(self, submissions: Sequence[AnySubmission]) -> None:
        """Both servers take the same ones, at most a batch, in one order.

        No verdict leaves yet.
        """

    def ready(self) -> None:
        """Both ask before the attempt counts as opened; returns when ``decide`` can begin."""

    def decide(self) -> Verdicts:
        """What docs/soundness.md says of all that was taken; once."""


Take = Callable[[Sequence[AnySubmission]], None]
"""``Validator.take``."""
Validation = AbstractContextManager[Validator]
"""A validator for one attempt; what it holds goes when the block ends, however it ends.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What validation needs of one server, or of one of its workers."""

    task: Task
    role: Role
    link: PeerLink
    dealing: Dealing
    dealer_key: Secret = field(repr=False)
    nonces: bytes
    """Of the servers' link: dealt randomness is bound to them."""
    spent: SpentTriples


@contextmanager
def read_again() -> Iterator[None]:
    """A block that takes a share out of the sum.

    Raises PeerUnavailable: it can't be read.
    """
    try:
        yield
    except BodyUnreadable as error:
        raise PeerUnavailable(
            f"a body that is to be taken out of the sum can't be read again: {error};"
            " the attempt starts over"
        ) from None


def label(submissions: Iterable[AnySubmission]) -> str:
    """In a step's name: servers that have other submissions, or another order, stop at once."""
    digests = [submission.header.whole_digest.value for submission in submissions]
    return str(Digest.of(encode_context("submissions", *digests)))[:16]


def comparisons_per_client(task: Task) -> int:
    """2k + 1: both sides of k ranges, and the norm."""
    return 2 * task.projections + 1


def deal_request(
    task: Task,
    *,
    attempt: int,
    batch: int,
    clients: int,
    nonces: bytes,
) -> DealRequest:
    """What to ask the dealer for before ``clients`` submissions are decided in one batch."""
    return DealRequest(
        task=task.digest,
        attempt=attempt,
        batch=batch,
        clients=clients,
        comparisons=clients * comparisons_per_client(task),
        nonces=nonces,
    )
