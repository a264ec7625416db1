"""``validation = "proof"``: every submission proves its norm, and the servers ask once.

For each batch that both servers hold alike they draw a joint coin, compute their words
at its point and exchange them: two servers, no dealer (docs/soundness.md, part 4). No
word of a submission leaves before its own part was verified whole, which the inbox
does, and a header is answered once.
"""

import hmac
import logging
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from precad.aggregator.validate.validation import Server, Verdicts, read_again
from precad.common.errors import BodyUnreadable, PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.kernel import Rows
from precad.common.proof_shape import ProofShape
from precad.common.ring import KEY_BYTES, WORD_BYTES, encode_context
from precad.common.task import Task
from precad.norm_check import norm_proof
from precad.norm_check.norm_proof import ProofWords
from precad.norm_check.prime_field import FieldVector, first_not_below, group_of
from precad.norm_check.proof_submission import AnySubmission, ProofSubmission, Share

log = logging.getLogger("precad")

_WHOLE, _DROPPED = b"w", b"d"
"""Before each submission's words: whether this server could read its part."""


class ByProof:
    """As ``Validator``: validates one attempt's matched submissions, a batch at a time."""

    def __init__(
        self, server: Server, attempt: int, counted: Collection[ClientId]
    ) -> None:
        self._server = server
        self._shape = shape_of(server.task)
        self._group = group_of(server.task)
        self._attempt = attempt
        self._counted = counted
        self._turn = 0
        self._answered: set[bytes] = set()
        self._rejections: dict[ClientId, Rejection] = {}
        self._total = np.zeros(server.task.dimension, dtype=np.int64)

    def ready(self) -> None:
        """As ``Validator.ready``: this process is."""

    def decide(self) -> Verdicts:
        """As ``Validator.decide``: all was decided as it was taken."""
        return Verdicts(self._rejections, self._total)

    def take(self, submissions: Sequence[AnySubmission]) -> None:
        """As ``Validator.take``: decide on them, and add the valid ones to the sum.

        The match is over for all of them, and with workers the batch is durable, before
        this is called: a client that could wait for the coin would choose it.
        PeerViolation: the other server opens another coin, or sends no words of the
        field.
        """
        if not submissions:
            return
        batch = [each for each in submissions if isinstance(each, ProofSubmission)]
        headers = {each.header.signed for each in batch}
        if len(batch) < len(submissions):
            raise AssertionError("a submission without a proof came to this check")
        if self._answered & headers or len(headers) < len(batch):
            # Two answers tell an update: nothing that a peer does may lead here.
            raise AssertionError("a submission was to be answered twice")
        self._answered |= headers
        digests = [each.header.whole_digest for each in batch]
        coin = self._coin(digests)
        queries = (
            norm_proof.Query.drawn(self._shape, coin, digest) for digest in digests
        )
        own = [
            self._answer(each, query)
            for each, query in zip(batch, queries, strict=True)
        ]
        message = b"".join(_encoded(words, self._shape) for words in own)
        theirs = self._server.link.exchange(f"proof/{self._turn}", message)
        if len(theirs) != len(message):
            raise PeerViolation(f"the other server's words have {len(theirs)} bytes")
        size = words_bytes(self._shape)
        for number, (submission, words) in enumerate(zip(batch, own, strict=True)):
            self._settle(submission, words, theirs[number * size : (number + 1) * size])
        self._turn += 1

    def _coin(self, digests: Sequence[Digest]) -> Secret:
        """The batch's: A commits, B says its bytes, A opens.

        The digests fix the batch before.
        """
        link = self._server.link
        role = self._server.role
        task = self._server.task.digest
        own = Secret.random(KEY_BYTES).reveal()
        step = f"proof-coin/{self._turn}"
        batch = Digest.of(
            encode_context("proof-batch", *(each.value for each in digests))
        )

        def committed(opening: bytes) -> bytes:
            parts = task.value, batch.value, self._attempt, self._turn, opening
            return Digest.of(encode_context("proof-coin", *parts)).value

        if role is Role.SERVER_A:
            link.send(step, committed(own))
            of_a = own
            of_b = link.receive(step)
            link.send(step, own)
        else:
            commitment = link.receive(step)
            link.send(step, own)
            of_a = link.receive(step)
            of_b = own
            if not hmac.compare_digest(committed(of_a), commitment):
                raise PeerViolation(
                    "server A opened another coin, or holds other submissions"
                )
        if not len(of_a) == len(of_b) == KEY_BYTES:
            raise PeerViolation(f"a coin of the other server hasn't {KEY_BYTES} bytes")
        return Secret(
            Digest.of(encode_context("proof-joint-coin", of_a, of_b, batch.value)).value
        )

    def _answer(
        self, submission: ProofSubmission, query: norm_proof.Query
    ) -> ProofWords | None:
        """This server's words, from one pass over its share, which goes into the sum on the way.

        None where its body can't be read any more: then nothing of it is in the sum.
        """
        shape = self._shape
        header = submission.header
        share = Share(submission, shape)
        rows = Rows(header.rows_key, dimension=shape.dimension, k=shape.rows)
        counted = submission.context.client in self._counted
        summed = 0

        def pieces() -> Iterator[FieldVector]:
            nonlocal summed
            for piece in share.update():
                words = piece.view(np.int64)
                rows.absorb(words)
                if counted:
                    self._group.add(self._total[summed : summed + piece.size], words)
                    summed += piece.size
                yield piece

        def rest() -> norm_proof.ProofShare:
            bits, mask, values = share.beside()
            return norm_proof.ProofShare(
                bits=bits,
                mask=mask,
                values=values,
                z=norm_proof.projections(rows),
                # The seed's holder gets no body.
                holds_constants=not submission.awaits_body,
            )

        challenges = norm_proof.bit_challenges(shape, header.bits_key)
        try:
            return norm_proof.answer(query, pieces(), rest, challenges)
        except BodyUnreadable as error:
            log.warning(
                "a body of client %s won't count: %s", submission.context.client, error
            )
            self._take_out(submission, summed)
            return None

    def _settle(
        self, submission: ProofSubmission, own: ProofWords | None, theirs: bytes
    ) -> None:
        """The verdict on one, the same at both; what isn't valid is taken out of the sum."""
        status = theirs[:1]
        other = _decoded(theirs[1:], self._shape)
        if status not in (_WHOLE, _DROPPED):
            raise PeerViolation("the other server's words begin with no verdict")
        client = submission.context.client
        if own is None or status == _DROPPED:
            self._rejections[client] = Rejection.TRUNCATED
        elif not norm_proof.accepts(own, other):
            self._rejections[client] = Rejection.NORM_EXCEEDED
        if client in self._rejections and own is not None:
            self._take_out(submission, self._shape.dimension)

    def _take_out(self, submission: ProofSubmission, summed: int) -> None:
        if not summed or submission.context.client not in self._counted:
            return
        done = 0
        with read_again():
            for piece in Share(submission, self._shape).update():
                words = piece[: summed - done].view(np.int64)
                self._group.subtract(self._total[done : done + words.size], words)
                done += words.size
                if done == summed:
                    return


def shape_of(task: Task) -> ProofShape:
    """The sizes of a task that has proofs."""
    if task.proof is None:
        raise AssertionError(f"{task.name} has no proofs")
    return task.proof


def words_bytes(shape: ProofShape) -> int:
    """Bytes of one server's answer about one submission."""
    return 1 + (shape.columns + 2) * WORD_BYTES


def _encoded(words: ProofWords | None, shape: ProofShape) -> bytes:
    if words is None:
        return _DROPPED + bytes(words_bytes(shape) - 1)
    both = np.array([words.value, words.zero], dtype=np.uint64)
    return (
        _WHOLE + np.concatenate([words.wires, both]).astype("<u8", copy=False).tobytes()
    )


def _decoded(data: bytes, shape: ProofShape) -> ProofWords:
    words = np.frombuffer(data, dtype="<u8").astype(np.uint64)
    if first_not_below(words) is not None:
        raise PeerViolation("the other server's words aren't of the field")
    return ProofWords(words[: shape.columns], int(words[-2]), int(words[-1]))
