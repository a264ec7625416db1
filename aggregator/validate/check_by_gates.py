"""``validation = "fss"``: each server evaluates its own gates, and the bits are exchanged.

Nothing that the other server says has a part in this server's bits: b has the signed hash, the
words are the header's, and the keys come from the dealer. So a server that departs from the
protocol hears, of an honest update, the complement of what it could compute
(docs/cheating-server.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precad.aggregator.validate.absorb_bodies import Absorber
from precad.aggregator.validate.validation import Server, label
from precad.common.errors import Misconfiguration, PeerViolation
from precad.common.identifiers import Digest, Role
from precad.common.ring import RingVector
from precad.common.share.header import NormWords, SignedHeader
from precad.common.share.mask import norm_word
from precad.common.share.submission import Submission
from precad.common.task import Task
from precad.norm_check.comparison_keys import DcfKeys, keys_from_bytes
from precad.norm_check.dealing import DealerConversation, DealtGates
from precad.norm_check.norm_gates import evaluate_gates, pack, verdicts


class ByGates:
    """As ``Check``: one exchange of k + 2 bits a submission."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._noted: dict[Digest, _Noted] = {}
        """By the submission's context."""
        self._squares: DealerConversation | None = None

    def note(self, submission: Submission, absorber: Absorber, squares: DealerConversation) -> None:
        """As ``Check.note``, but that keys are waited for when all are decided on.

        The whole body is absorbed: it had the signed hash, at B as it came, at A as it was
        forwarded (``absorb_bodies.receive``).
        """
        ctx = submission.context.digest
        word_a, word_b = signed_words(submission.header)
        own = word_a if submission.role is Role.SERVER_A else word_b
        right = own == norm_word(absorber.crossed, submission.word_mask)
        self._noted[ctx] = _Noted(absorber.points(word_a, word_b), right)
        self._squares = squares

    def decide(self, batch: int, submissions: Sequence[Submission]) -> NDArray[np.bool_]:
        """As ``Check.decide``."""
        own = self._evaluate(submissions)
        other = self._server.link.exchange(f"decide/{batch}/{label(submissions)}", own)
        return verdicts(own, other, self._server.task.projections + 1)

    def _evaluate(self, submissions: Sequence[Submission]) -> bytes:
        """What this server will send of them, and nobody has seen; their keys are dropped."""
        server, squares = self._server, self._squares
        task = server.task
        assert squares is not None
        noted = [self._noted.pop(each.context.digest) for each in submissions]
        points = np.stack([each.points for each in noted])
        bits = np.empty(points.shape, dtype=np.uint8)
        # What was dealt together is evaluated together: a fraction of the time of one by one.
        together: dict[int, tuple[DealtGates, list[tuple[int, int]]]] = {}
        for number, each in enumerate(submissions):
            dealt = squares.gate_keys(each.context.digest.value)
            together.setdefault(id(dealt.keys), (dealt, []))[1].append((dealt.number, number))
        while together:
            _, (dealt, places) = together.popitem()
            numbers = [number for _, number in sorted(places)]
            keys = dealt_keys(dealt, [place for place, _ in sorted(places)], server.role, task)
            bits[numbers] = evaluate_gates(keys, points[numbers], task.bound)
        return pack(bits, np.array([each.word_right for each in noted]))


@dataclass(frozen=True, slots=True)
class _Noted:
    """What is known of an absorbed submission."""

    points: RingVector
    """``[k + 1] int64``, public."""
    word_right: bool
    """Whether the client's word to this server is what its mask and the body make."""


def dealt_keys(dealt: DealtGates, places: Sequence[int], role: Role, task: Task) -> DcfKeys:
    """Keys for ``role``, of the submissions at ``places`` of those that were dealt together.

    Raises PeerViolation: they aren't as they must be; nothing of them is evaluated.
    """
    party, gates = (Role.SERVER_A, Role.SERVER_B).index(role), task.projections + 1
    try:
        keys = keys_from_bytes(dealt.keys.reveal(), party=party, gates=gates * dealt.of)
    except Misconfiguration as error:
        raise PeerViolation(f"the dealer's keys can't be used: {error}") from None
    if len(places) == dealt.of:
        return keys
    return keys.part((np.array(places)[:, None] * gates + np.arange(gates)).reshape(-1))


def signed_words(header: SignedHeader) -> NormWords:
    """u_A and u_B; from nowhere but the header, which no inbox takes without them."""
    if header.words is None:
        raise AssertionError(f"{header.context.client} was matched without words of its norm")
    return header.words
