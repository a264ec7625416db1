"""Check ``validation = "proof"``: every submission proves its norm, and is asked once.

For each batch that both servers hold alike they draw a joint coin, compute their words
at its point and exchange them: two servers, no dealer (docs/soundness.md, part 4). No
word of a submission leaves before this server's part of it was verified whole, which
the inbox does, and a header is answered once.
"""

import hmac
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from precad.aggregator.validate.validation import Server, Verdicts, read_again
from precad.common import (
    KEY_BYTES,
    WORD_BYTES,
    BodyUnreadable,
    ClientId,
    Digest,
    PeerViolation,
    ProofShape,
    Rejection,
    Role,
    Secret,
    digest_of,
)
from precad.common.kernel import Rows
from precad.common.process import warn
from precad.norm_check import (
    AnySubmission,
    FieldVector,
    ProofSubmission,
    ProofWords,
    Share,
    first_not_below,
    group_of,
    norm_proof,
)

_WHOLE = b"w"
"""Before a submission's words: this server could read its part."""
_DROPPED = b"d"
"""Before a submission's words: this server couldn't read its part any more."""


class ByProof:
    """Validate one attempt's matched submissions by their proofs, a batch at a time.

    It is a ``Validator``. Updates of ``counted`` clients are summed.
    """

    def __init__(
        self, server: Server, attempt: int, counted: Collection[ClientId]
    ) -> None:
        self._server = server
        assert server.task.proof is not None
        self._shape = server.task.proof
        self._group = group_of(server.task)
        self._attempt = attempt
        self._counted = counted
        self._turn = 0
        """How many batches were decided on."""
        self._answered: set[bytes] = set()
        """The signed bytes of each header that was answered."""
        self._rejections: dict[ClientId, Rejection] = {}
        self._total = np.zeros(server.task.dimension, dtype=np.int64)
        """This server's share of the sum, ``[d] int64``."""

    def ready(self) -> None:
        """Return at once: this process is ready."""

    def decide(self) -> Verdicts:
        """Return the verdicts: all was decided as it was taken."""
        return Verdicts(self._rejections, self._total)

    def take(self, submissions: Sequence[AnySubmission]) -> None:
        """Decide on these submissions, and add the valid ones to the sum.

        The match is over for all of them, and with workers the batch is durable, before
        this is called: a client that could wait for the coin would choose it.

        Raises PeerUnavailable; PeerViolation: the other server opens another coin, or
        sends no words of the field.
        """
        if not submissions:
            return
        batch = [
            submission
            for submission in submissions
            if isinstance(submission, ProofSubmission)
        ]
        headers = {submission.header.signed for submission in batch}
        if len(batch) < len(submissions):
            raise AssertionError("a submission without a proof came to this check")
        if self._answered & headers or len(headers) < len(batch):
            # Two answers tell an update: nothing that a peer does may lead here.
            raise AssertionError("a submission was to be answered twice")
        self._answered |= headers
        digests = [submission.header.whole_digest for submission in batch]
        coin = self._coin(digests)
        own_words = []
        for submission, digest in zip(batch, digests, strict=True):
            query = norm_proof.Query.drawn(self._shape, coin, digest)
            own_words.append(self._answer(submission, query))
        message = b"".join(_encoded(words, self._shape) for words in own_words)
        their_message = self._server.link.exchange(f"proof/{self._turn}", message)
        if len(their_message) != len(message):
            raise PeerViolation(
                f"the other server's words have {len(their_message)} bytes"
            )
        size = words_bytes(self._shape)
        start = 0
        for submission, words in zip(batch, own_words, strict=True):
            self._settle(submission, words, their_message[start : start + size])
            start += size
        self._turn += 1

    def _coin(self, digests: Sequence[Digest]) -> Secret:
        """Draw the batch's coin with the other server: A commits, B opens, A opens.

        The submissions' ``digests`` fix the batch before any coin is known. Raises
        PeerUnavailable; PeerViolation: the other server's bytes aren't what it
        committed to, or have another length.
        """
        link = self._server.link
        role = self._server.role
        task = self._server.task.digest
        own = Secret.random(KEY_BYTES).reveal()
        step = f"proof-coin/{self._turn}"
        batch = digest_of("proof-batch", *(digest.value for digest in digests))

        def commitment_to(opening: bytes) -> bytes:
            return digest_of(
                "proof-coin",
                task.value,
                batch.value,
                self._attempt,
                self._turn,
                opening,
            ).value

        if role is Role.SERVER_A:
            link.send(step, commitment_to(own))
            of_a = own
            of_b = link.receive(step)
            link.send(step, own)
        else:
            commitment = link.receive(step)
            link.send(step, own)
            of_a = link.receive(step)
            of_b = own
            if not hmac.compare_digest(commitment_to(of_a), commitment):
                raise PeerViolation(
                    "server A opened another coin, or holds other submissions"
                )
        if not len(of_a) == len(of_b) == KEY_BYTES:
            raise PeerViolation(f"a coin of the other server hasn't {KEY_BYTES} bytes")
        return Secret(digest_of("proof-joint-coin", of_a, of_b, batch.value).value)

    def _answer(
        self, submission: ProofSubmission, query: norm_proof.Query
    ) -> ProofWords | None:
        """Return this server's words on one submission, from one pass over its share.

        On the way the share is added to the sum, if the client is counted. Return None
        where the body can't be read any more: then nothing of it is in the sum.
        """
        shape = self._shape
        header = submission.header
        share = Share(submission, shape)
        rows = Rows(header.rows_key, dimension=shape.dimension, k=shape.rows)
        counted = submission.context.client in self._counted
        summed = 0

        def update_pieces() -> Iterator[FieldVector]:
            nonlocal summed
            for piece in share.update():
                words = piece.view(np.int64)
                rows.absorb(words)
                if counted:
                    self._group.add(self._total[summed : summed + piece.size], words)
                    summed += piece.size
                yield piece

        def proof_share() -> norm_proof.ProofShare:
            bits, mask, values = share.beside()
            return norm_proof.ProofShare(
                bits=bits,
                mask=mask,
                values=values,
                z=norm_proof.projections(rows),
                bound=self._server.bound_of(submission.context.client),
                # The seed's holder gets no body.
                holds_constants=not submission.awaits_body,
            )

        challenges = norm_proof.bit_challenges(shape, header.bits_key)
        try:
            return norm_proof.answer(query, update_pieces(), proof_share, challenges)
        except BodyUnreadable as error:
            warn(submission.context.followed, f"its body won't count: {error}")
            self._take_out(submission, summed)
            return None

    def _settle(
        self,
        submission: ProofSubmission,
        own_words: ProofWords | None,
        their_answer: bytes,
    ) -> None:
        """Decide on one submission, alike at both servers; take an invalid one out.

        Raises PeerViolation: the other server's answer isn't one.
        """
        status = their_answer[:1]
        their_words = _decoded(their_answer[1:], self._shape)
        if status not in (_WHOLE, _DROPPED):
            raise PeerViolation("the other server's words begin with no verdict")
        client = submission.context.client
        if own_words is None or status == _DROPPED:
            self._rejections[client] = Rejection.TRUNCATED
        elif not norm_proof.accepts(own_words, their_words):
            self._rejections[client] = Rejection.NORM_EXCEEDED
        if client in self._rejections and own_words is not None:
            self._take_out(submission, self._shape.dimension)

    def _take_out(self, submission: ProofSubmission, summed: int) -> None:
        """Take the first ``summed`` coordinates of a share out of the sum again.

        Raises PeerUnavailable: its body can't be read again.
        """
        if not summed or submission.context.client not in self._counted:
            return
        subtracted = 0
        with read_again():
            for piece in Share(submission, self._shape).update():
                words = piece[: summed - subtracted].view(np.int64)
                end = subtracted + words.size
                self._group.subtract(self._total[subtracted:end], words)
                subtracted = end
                if subtracted == summed:
                    return


def words_bytes(shape: ProofShape) -> int:
    """Return the bytes of one server's answer about one submission."""
    return 1 + (shape.columns + 2) * WORD_BYTES


def _encoded(words: ProofWords | None, shape: ProofShape) -> bytes:
    """Return an answer's bytes; without words it says that the body can't be read."""
    if words is None:
        return _DROPPED + bytes(words_bytes(shape) - 1)
    last_words = np.array([words.value, words.zero], dtype=np.uint64)
    all_words = np.concatenate([words.wires, last_words])
    return _WHOLE + all_words.astype("<u8", copy=False).tobytes()


def _decoded(data: bytes, shape: ProofShape) -> ProofWords:
    """Return the words of an answer, which follow its first byte.

    Raises PeerViolation: a word isn't one of the field.
    """
    words = np.frombuffer(data, dtype="<u8").astype(np.uint64)
    if first_not_below(words) is not None:
        raise PeerViolation("the other server's words aren't of the field")
    return ProofWords(
        wires=words[: shape.columns],
        value=int(words[-2]),
        zero=int(words[-1]),
    )
