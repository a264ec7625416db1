"""Say what validation is given and answers, wherever it runs.

In which process it runs, and in how many, its implementation decides: ``in_process``
(``aggregator.validate``), or the pairs of workers (``aggregator.workers``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field
from typing import Protocol

from precad.aggregator import PeerLink
from precad.common import (
    BodyUnreadable,
    ClientId,
    PeerUnavailable,
    Rejection,
    RingVector,
    Role,
    Secret,
    Task,
    digest_of,
    frozen_dataclass,
    frozen_kw_only_dataclass,
)
from precad.norm_check import AnySubmission, Dealing, DealRequest, SpentTriples

MAX_BATCH_CLIENTS = 256
"""How many submissions are decided on together; comparisons take some 100 KiB each."""


@frozen_dataclass
class Verdicts:
    """Hold what validation says of all that it took.

    It is the same on both servers, except for the share.
    """

    rejections: Mapping[ClientId, Rejection]
    """Clients that don't count, and why; all others are valid."""
    share_sum: RingVector = field(repr=False)
    """This server's share of the sum over the valid clients that are counted.

    ``[d] int64``, in the task's group.
    """


class Validator(Protocol):
    """Validate one attempt's matched submissions at one server, with the other server.

    Raises PeerUnavailable: the other server, the dealer or a worker is gone, or nobody
    was there to validate in time; PeerViolation: one of them departs from the protocol.
    """

    def take(self, submissions: Sequence[AnySubmission]) -> None:
        """Take submissions, at most a batch: both servers the same ones, in one order.

        No verdict leaves yet.
        """

    def ready(self) -> None:
        """Return when ``decide`` can begin.

        Both servers ask before the attempt counts as opened.
        """

    def decide(self) -> Verdicts:
        """Decide, once, on all that was taken, as docs/soundness.md says."""


Take = Callable[[Sequence[AnySubmission]], None]
"""A method like ``Validator.take``."""
Validation = AbstractContextManager[Validator]
"""Gives a validator for one attempt.

What the validator holds goes when the block ends, however it ends.
"""


@frozen_kw_only_dataclass
class Server:
    """Hold what validation needs of one server, or of one of its workers."""

    task: Task
    role: Role
    link: PeerLink
    dealing: Dealing
    dealer_key: Secret
    nonces: bytes
    """Both servers' nonces for their link; dealt randomness is bound to them."""
    spent: SpentTriples
    """Remembers, durably, which dealt randomness was used."""
    bound_of: Callable[[ClientId], int]
    """β_i, which a client's frozen claim decides (``Mechanism.bound_of``)."""


@contextmanager
def read_again() -> Iterator[None]:
    """Guard a block that takes a share out of the sum, and reads its body again.

    Raises PeerUnavailable: the body can't be read; then the attempt starts over.
    """
    try:
        yield
    except BodyUnreadable as error:
        raise PeerUnavailable(
            f"a body that is to be taken out of the sum can't be read again: {error};"
            " the attempt starts over"
        ) from None


def label(submissions: Iterable[AnySubmission]) -> str:
    """Return what names these submissions in a step's name, 16 characters of a digest.

    So servers that have other submissions, or another order, stop at once.
    """
    digests = [submission.header.whole_digest.value for submission in submissions]
    return str(digest_of("submissions", *digests))[:16]


def comparisons_per_client(task: Task) -> int:
    """Return 2k + 1 comparisons: both sides of each of k ranges, and the norm."""
    return 2 * task.projections + 1


def deal_request(
    task: Task,
    *,
    attempt: int,
    batch: int,
    clients: int,
    nonces: bytes,
) -> DealRequest:
    """Return what to ask the dealer for before one batch is decided on.

    The batch has the number ``batch`` in its attempt, and ``clients`` submissions.
    """
    return DealRequest(
        task=task.digest,
        attempt=attempt,
        batch=batch,
        clients=clients,
        comparisons=clients * comparisons_per_client(task),
        nonces=nonces,
    )
