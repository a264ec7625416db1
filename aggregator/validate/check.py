"""The seam between validation's one pass and the two ways to decide on what it has absorbed."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from precad.aggregator.validate.absorb import Absorber
from precad.common.identifiers import Digest, Role
from precad.common.keystream import encode_context
from precad.common.link import PeerLink
from precad.common.share.submission import Submission
from precad.common.task import Task
from precad.norm_check.dealing import DealerConversation, Dealing
from precad.norm_check.dealt_triples import DealRequest, DealtRandomness, SpentTriples


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
    def journal(self) -> SpentTriples:
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
