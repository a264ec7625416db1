"""Validate and aggregate: from matched submissions to the sum of the valid ones."""

import logging
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from precad.common.aggregator.release.agree import agree
from precad.common.aggregator.round.aggregator import Aggregator
from precad.common.aggregator.round.states import Counted, Matched, Summed
from precad.common.aggregator.validate.absorb import Absorber
from precad.common.aggregator.validate.decide import deal_request, decide
from precad.common.aggregator.validate.forward import Dropped, forward, receive
from precad.common.deal.squares import SquareRequest, Squares
from precad.common.errors import BodyUnreadable, PeerUnavailable, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.keystream import derive, encode_context
from precad.common.ring import RingVector, view_words
from precad.common.share.body import PIECE_BYTES
from precad.common.share.submission import Submission

log = logging.getLogger("precad")

MAX_BATCH_CLIENTS = 256
"""Submissions that are decided on together: comparisons take some 100 KiB each."""


def aggregate(aggregator: Aggregator, matched: Matched) -> Summed:
    """Both parts of docs/soundness.md for every matched submission, then the sum of the valid ones.

    Each body passes once, in pieces: its share is added into one accumulator on the way, and taken
    out again should the submission turn out invalid. Nothing of the accumulator leaves before.

    Raises:
        PeerViolation: the servers disagree about the valid set, or one departs from the protocol.
        PeerUnavailable: the other server or the dealer is gone; or a body that has to be taken out
            of the sum can't be read again.
    """
    passing = _Passing(aggregator, matched)
    if matched.submissions:
        with aggregator.dealing.squares(matched.opened.attempt) as squares:
            for batch, clients in enumerate(_batches(tuple(matched.submissions))):
                passing.batch(batch, clients, squares)
    # Who isn't counted is validated all the same: nothing shows which of them the coin drew.
    counted = tuple(client for client in passing.valid if client in matched.opened.counted)
    digest = _set_digest(aggregator, matched, counted)
    agree(aggregator.link, "valid-set", digest, len(counted))
    for submission in matched.submissions.values():
        submission.discard()
    rejections = dict(matched.rejections) | passing.rejections
    return Summed(Counted(matched.opened, counted, digest, rejections), passing.total)


class _Passing:
    """The matched submissions of one attempt, as they pass."""

    def __init__(self, aggregator: Aggregator, matched: Matched) -> None:
        self._aggregator = aggregator
        self._matched = matched
        self.total = np.zeros(aggregator.task.dimension, dtype=np.int64)
        self.valid: list[ClientId] = []
        self.rejections: dict[ClientId, Rejection] = {}

    def batch(self, number: int, clients: Sequence[ClientId], squares: Squares) -> None:
        """Absorb these clients' bodies, decide on all, take the invalid ones out again."""
        attempt = self._matched.opened.attempt
        submissions = {client: self._matched.submissions[client] for client in clients}
        for submission in submissions.values():
            squares.ask(_square(submission))
        absorbed = {
            client: absorber
            for client, submission in submissions.items()
            if (absorber := self._absorb(client, submission, squares)) is not None
        }
        if not absorbed:
            return
        words = [
            absorber.words(squares.share(submissions[client].context.digest.value))
            for client, absorber in absorbed.items()
        ]
        aggregator = self._aggregator
        request = deal_request(aggregator.task, attempt, number, len(words), aggregator.nonces)
        passes = decide(
            words,
            task=aggregator.task,
            role=aggregator.role,
            link=aggregator.link,
            randomness=aggregator.randomness(request),
            spent=aggregator.journal,
            label=_label(submissions[client] for client in absorbed),
        )
        for (client, absorber), good in zip(absorbed.items(), passes, strict=True):
            if good:
                self.valid.append(client)
            else:
                self._take_out(client, absorber.absorbed)
                self.rejections[client] = Rejection.NORM_EXCEEDED

    def _absorb(
        self, client: ClientId, submission: Submission, squares: Squares
    ) -> Absorber | None:
        aggregator = self._aggregator
        absorber = Absorber(
            aggregator.role,
            aggregator.task,
            submission.mask(),
            squares.row_key(submission.context.digest.value),
            self.total if client in self._matched.opened.counted else None,
        )
        step = f"body/{_label([submission])}"
        if aggregator.role is Role.SERVER_A:
            pieces = receive(aggregator.link, step, submission, aggregator.task.dimension)
        else:
            pieces = forward(aggregator.link, step, submission)
        try:
            for piece in pieces:
                absorber.absorb(piece)
        except Dropped as dropped:
            log.warning("the body of client %s won't count: %s", client, dropped)
            self._take_out(client, absorber.absorbed)
            self.rejections[client] = Rejection.TRUNCATED
            return None
        return absorber

    def _take_out(self, client: ClientId, absorbed: int) -> None:
        """Subtract the first ``absorbed`` coordinates of this server's share again."""
        if client not in self._matched.opened.counted:
            return
        submission = self._matched.submissions[client]
        mask, done = submission.mask(), 0
        for size, piece in self._pieces(submission, absorbed):
            share = mask.words(size)
            if piece is not None:
                share = share + piece
            self.total[done : done + size] -= share
            done += size

    def _pieces(
        self, submission: Submission, absorbed: int
    ) -> Iterator[tuple[int, RingVector | None]]:
        """The sizes of the pieces that were absorbed; at B with the pieces, read again."""
        left = absorbed
        if self._aggregator.role is Role.SERVER_A:
            while left > 0:
                size = min(left, PIECE_BYTES // 8)
                yield size, None
                left -= size
            return
        try:
            pieces = submission.body_pieces()
            # No piece more: the next one may be the one that can't be read.
            while left > 0:
                piece = view_words(next(pieces))
                yield piece.size, piece
                left -= piece.size
        except BodyUnreadable as error:
            raise PeerUnavailable(
                f"a body that is to be taken out of the sum can't be read again: {error}; the "
                "attempt starts over"
            ) from None


def _square(submission: Submission) -> SquareRequest:
    header, context = submission.header, submission.context
    return SquareRequest(
        task=context.task,
        attempt=context.attempt,
        context=context.digest.value,
        commitment_a=header.commitment_a.value,
        commitment_b=header.commitment_b.value,
        seed=submission.seed,
        salt=submission.salt,
    )


def _batches(clients: tuple[ClientId, ...]) -> Iterator[tuple[ClientId, ...]]:
    for start in range(0, len(clients), MAX_BATCH_CLIENTS):
        yield clients[start : start + MAX_BATCH_CLIENTS]


def _label(submissions: Iterable[Submission]) -> str:
    """In a step's name: servers that have other submissions, or another order, stop at once."""
    digests = [submission.header.whole_digest.value for submission in submissions]
    return str(Digest.of(encode_context("submissions", *digests)))[:16]


def _set_digest(aggregator: Aggregator, matched: Matched, valid: Sequence[ClientId]) -> Digest:
    """Salted with what only the two servers know: else the digest were the list itself."""
    task, attempt = aggregator.task.digest.value, matched.opened.attempt
    salt = derive(aggregator.set_secret, "set-salt", task, attempt).reveal()
    parts: list[bytes | int] = [salt, task, attempt]
    for client in valid:
        parts += [client.encoded(), matched.submissions[client].header.whole_digest.value]
    return Digest.of(encode_context("valid-set", *parts))
