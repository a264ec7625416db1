"""``validation = "crypten"``: a Beaver square on shares, and CrypTen's comparisons."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from precad.aggregator.validate.absorb import Absorber
from precad.aggregator.validate.check import Server, label
from precad.aggregator.validate.comparisons import deal_request
from precad.aggregator.validate.decide import decide
from precad.common.identifiers import Digest
from precad.common.ring import RingVector
from precad.common.share.submission import Submission
from precad.norm_check.dealing import DealerConversation


class ByShares:
    """As ``Check``: this server has shares of k + 1 words of each, and one bit is opened.

    Args:
        server: this one.
        attempt: of all submissions.
    """

    def __init__(self, server: Server, attempt: int) -> None:
        self._server = server
        self._attempt = attempt
        self._words: dict[Digest, RingVector] = {}

    def note(self, submission: Submission, absorber: Absorber, squares: DealerConversation) -> None:
        """As ``Check.note``: this server's share of r."""
        ctx = submission.context.digest
        self._words[ctx] = absorber.words(squares.share(ctx.value))

    def decide(self, batch: int, submissions: Sequence[Submission]) -> NDArray[np.bool_]:
        """As ``Check.decide``."""
        server = self._server
        request = deal_request(server.task, self._attempt, batch, len(submissions), server.nonces)
        return decide(
            [self._words[each.context.digest] for each in submissions],
            task=server.task,
            role=server.role,
            link=server.link,
            randomness=server.randomness(request),
            spent=server.journal,
            label=label(submissions),
        )
