"""``validation = "proof"``: every submission proves its norm, and the servers ask once.

For each batch that both servers hold alike they draw a joint coin, compute their words at its point
and exchange them: two servers, no dealer (docs/soundness.md, part 4). No word of a submission
leaves before its own part was verified whole, which the door does, and a header is answered once.
"""

import hmac
import logging
from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from precad.aggregator.peer_link import PeerLink
from precad.common.errors import BodyUnreadable, PeerUnavailable, PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.keystream import KEY_BYTES, encode_context
from precad.common.prime_field import FieldVector, arithmetic, first_not_below
from precad.common.ring import WORD_BYTES
from precad.common.secret import Secret
from precad.norm_check.norm_proof import ProofShape, ProofWords, Query, accepts
from precad.norm_check.proof_submission import (
    BodyPart,
    SeedPart,
    Verified,
    answer_of,
    update_pieces,
)

log = logging.getLogger("precad")

_WHOLE, _DROPPED = b"w", b"d"
"""Before each submission's words: whether this server could read its part."""


class ProofServer(Protocol):
    """What the check needs of one server."""

    @property
    def role(self) -> Role:
        """SERVER_A or SERVER_B."""

    @property
    def link(self) -> PeerLink:
        """To the other server."""


class ByProof:
    """Validates one attempt's matched submissions, a batch at a time.

    Args:
        server: this one.
        shape: the proofs' sizes.
        attempt: of all submissions.
        counted: whose shares are summed; the others are validated all the same.
    """

    def __init__(
        self, server: ProofServer, shape: ProofShape, attempt: int, counted: Collection[ClientId]
    ) -> None:
        self._server = server
        self._shape = shape
        self._attempt = attempt
        self._counted = counted
        self._turn = 0
        self._answered: set[bytes] = set()
        self.rejections: dict[ClientId, Rejection] = {}
        """Who doesn't count, and why."""
        self.share_sum: FieldVector = np.zeros(shape.dimension, dtype=np.uint64)
        """This server's share of the sum over valid clients that are counted."""

    def take(self, batch: Sequence[Verified]) -> None:
        """Decide on submissions that both servers hold alike, in the same order.

        The match is over for all of them, and with workers the batch is durable, before this is
        called: a client that could wait for the coin would choose it.

        Raises:
            PeerViolation: the other server opens another coin, or sends no words of the field.
            PeerUnavailable: it is gone, or a part can't be read a second time.
        """
        if not batch:
            return
        parts = [each.part for each in batch]
        headers = {part.header.signed for part in parts}
        if self._answered & headers or len(headers) < len(parts):
            # Two answers tell an update: nothing that a peer does may lead here.
            raise AssertionError("a submission was to be answered twice")
        self._answered |= headers
        digests = [part.header.whole_digest for part in parts]
        coin = self._coin(parts[0].header.context.task, digests)
        link, size = self._server.link, (self._shape.columns + 2) * WORD_BYTES
        own: list[ProofWords | None] = []
        message = bytearray()
        for part, digest in zip(parts, digests, strict=True):
            words = self._answer(part, Query.drawn(self._shape, coin, digest))
            own.append(words)
            message += _DROPPED + bytes(size) if words is None else _WHOLE + _encoded(words)
        theirs = link.exchange(f"proof/{self._turn}", bytes(message))
        if len(theirs) != len(message):
            raise PeerViolation(f"the other server's words have {len(theirs)} bytes")
        for number, part in enumerate(parts):
            start = number * (1 + size)
            self._settle(part, own[number], theirs[start : start + 1 + size])
        self._turn += 1

    def _coin(self, task: Digest, digests: Sequence[Digest]) -> Secret:
        """The batch's: A commits, B says its bytes, A opens. The batch is fixed before.

        The digests bind it to what both hold: servers with other batches draw other coins.
        """
        link, role = self._server.link, self._server.role
        own, step = Secret.random(KEY_BYTES), f"proof-coin/{self._turn}"
        batch = Digest.of(encode_context("proof-batch", *(each.value for each in digests)))

        def committed(opening: bytes) -> bytes:
            parts = task.value, batch.value, self._attempt, self._turn, opening
            return Digest.of(encode_context("proof-coin", *parts)).value

        if role is Role.SERVER_A:
            link.send(step, committed(own.reveal()))
            of_b = link.receive(step)
            link.send(step, own.reveal())
            of_a = own.reveal()
        else:
            commitment = link.receive(step)
            link.send(step, own.reveal())
            of_a, of_b = link.receive(step), own.reveal()
            if not hmac.compare_digest(committed(of_a), commitment):
                raise PeerViolation("server A opened another coin, or holds other submissions")
        if not len(of_a) == len(of_b) == KEY_BYTES:
            raise PeerViolation(f"a coin of the other server hasn't {KEY_BYTES} bytes")
        joint = encode_context("proof-joint-coin", of_a, of_b, batch.value)
        return Secret(Digest.of(joint).value)

    def _answer(self, part: SeedPart | BodyPart, query: Query) -> ProofWords | None:
        try:
            return answer_of(part, self._shape, query)
        except BodyUnreadable as error:
            log.warning("a body of client %s won't count: %s", _client(part), error)
            return None

    def _settle(self, part: SeedPart | BodyPart, own: ProofWords | None, theirs: bytes) -> None:
        """The verdict on one, the same at both; a valid one's share is added."""
        status, other = theirs[:1], _decoded(theirs[1:], self._shape)
        if status not in (_WHOLE, _DROPPED):
            raise PeerViolation("the other server's words begin with no verdict")
        client = _client(part)
        if own is None or status == _DROPPED:
            self.rejections[client] = Rejection.TRUNCATED
        elif not accepts(own, other):
            self.rejections[client] = Rejection.NORM_EXCEEDED
        elif client in self._counted:
            self._add(part)

    def _add(self, part: SeedPart | BodyPart) -> None:
        done, math = 0, arithmetic()
        try:
            for piece in update_pieces(part, self._shape):
                total = self.share_sum[done : done + piece.size]
                total[:] = math.add(total, piece)
                done += piece.size
        except BodyUnreadable as error:
            raise PeerUnavailable(
                f"a valid body can't be read for the sum: {error}; the attempt starts over"
            ) from None


def _client(part: SeedPart | BodyPart) -> ClientId:
    return part.header.context.client


def _encoded(words: ProofWords) -> bytes:
    both = np.array([words.value, words.zero], dtype=np.uint64)
    return np.concatenate([words.wires, both]).astype("<u8", copy=False).tobytes()


def _decoded(data: bytes, shape: ProofShape) -> ProofWords:
    words = np.frombuffer(data, dtype="<u8").astype(np.uint64)
    if first_not_below(words) is not None:
        raise PeerViolation("the other server's words aren't of the field")
    return ProofWords(words[: shape.columns], int(words[-2]), int(words[-1]))
