"""``validation = "fss"``: each server evaluates its own gates, and the bits are exchanged.

Nothing that the other server says has a part in this server's bits: b has the signed hash, the
words are the header's, and the keys come from the dealer. So a server that departs from the
protocol hears, of an honest update, the complement of what it could compute
(docs/cheating-server.md).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from precad.common.aggregator.validate.absorb import Absorber
from precad.common.aggregator.validate.check import Server, label
from precad.common.deal.square import GateKeys
from precad.common.deal.squares import Squares
from precad.common.errors import Misconfiguration, PeerViolation
from precad.common.fss.keys import DcfKeys, keys_from_bytes
from precad.common.identifiers import Digest, Role
from precad.common.norm_check.gates import evaluate_gates
from precad.common.norm_check.verdicts import pack, verdicts
from precad.common.share.header import NormWords, SignedHeader
from precad.common.share.submission import Submission
from precad.common.share.words import norm_word
from precad.common.task import Task


class ByGates:
    """As ``Check``: one exchange of k + 2 bits a submission.

    Args:
        server: this one.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._bits: dict[Digest, bytes] = {}
        """Of each submission, by its context: what this server will send, and nobody has seen."""

    def note(self, submission: Submission, absorber: Absorber, squares: Squares) -> None:
        """As ``Check.note``: this server's keys, used at once and dropped.

        The whole body is absorbed: it had the signed hash, at B as it came, at A as it was
        forwarded (``forward.receive``).
        """
        ctx, bound = submission.context.digest, self._server.task.bound
        word_a, word_b = signed_words(submission.header)
        points = absorber.points(word_a, word_b)
        keys = dealt_keys(squares.gate_keys(ctx.value), self._server.role, self._server.task)
        bits = evaluate_gates(keys, points[None], bound)
        own = word_a if submission.role is Role.SERVER_A else word_b
        right = own == norm_word(absorber.crossed, submission.word_mask)
        self._bits[ctx] = pack(bits, np.array([right]))

    def decide(self, batch: int, submissions: Sequence[Submission]) -> NDArray[np.bool_]:
        """As ``Check.decide``."""
        own = b"".join(self._bits[each.context.digest] for each in submissions)
        other = self._server.link.exchange(f"decide/{batch}/{label(submissions)}", own)
        return verdicts(own, other, self._server.task.projections + 1)


def dealt_keys(dealt: GateKeys, role: Role, task: Task) -> DcfKeys:
    """One submission's keys for ``role``.

    Raises:
        PeerViolation: they aren't as they must be; nothing of them is evaluated.
    """
    party = (Role.SERVER_A, Role.SERVER_B).index(role)
    try:
        return keys_from_bytes(dealt.reveal(), party=party, gates=task.projections + 1)
    except Misconfiguration as error:
        raise PeerViolation(f"the dealer's keys can't be used: {error}") from None


def signed_words(header: SignedHeader) -> NormWords:
    """u_A and u_B; from nowhere but the header, which no inbox takes without them."""
    if header.words is None:
        raise AssertionError(f"{header.context.client} was matched without words of its norm")
    return header.words
