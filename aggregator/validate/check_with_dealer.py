"""``validation = "crypten"``: bodies are absorbed as they are taken, decided on at the end.

Each body passes once, in pieces: its share is added into one accumulator on the way, and taken out
again should the submission turn out invalid. Nothing of the accumulator leaves before.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from typing import Self

import numpy as np
from numpy.typing import NDArray

from precad.aggregator.validate.absorb_bodies import Absorber, Dropped, forward, receive
from precad.aggregator.validate.validation import (
    MAX_BATCH_CLIENTS,
    Server,
    Verdicts,
    deal_request,
    label,
    read_again,
)
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.ring import WORD_BYTES, RingVector, view_words
from precad.common.share.proof_submission import AnySubmission
from precad.common.share.submission import PIECE_BYTES, Submission
from precad.norm_check.dealing import DealerConversation, SquareRequest

log = logging.getLogger("precad")


class WithDealer:
    """As ``Validator``, with a dealer; to be used in a ``with`` block, as ``in_process`` says."""

    def __init__(
        self, server: Server, attempt: int, counted: Collection[ClientId], batches: Iterator[int]
    ) -> None:
        self._server = server
        self._attempt = attempt
        self._counted = counted
        self._batches = batches
        self._taken: dict[ClientId, Submission] = {}
        self._words: dict[ClientId, RingVector] = {}
        """This server's shares of k + 1 words of whoever is in the sum."""
        self._rejections: dict[ClientId, Rejection] = {}
        self._total = np.zeros(server.task.dimension, dtype=np.int64)
        self._open = ExitStack()
        self._squares: DealerConversation | None = None

    def __enter__(self) -> Self:
        """Nothing is asked of the dealer before there is something to validate."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the conversation with the dealer."""
        self._open.close()

    def take(self, submissions: Sequence[AnySubmission]) -> None:
        """As ``Validator.take``; returns when all are absorbed."""
        if not submissions:
            return
        masked = [each for each in submissions if isinstance(each, Submission)]
        if len(masked) < len(submissions):
            raise AssertionError("a submission with a proof came to another check")
        if self._squares is None:
            self._squares = self._open.enter_context(self._server.dealing.squares(self._attempt))
        squares = self._squares
        for submission in masked:
            self._taken[submission.context.client] = submission
            squares.ask(_square(submission))
        absorbers = [
            (submission, absorber)
            for submission in masked
            if (absorber := self._absorb(submission, squares)) is not None
        ]
        for submission, absorber in absorbers:
            share = squares.share(submission.context.digest.value)
            self._words[submission.context.client] = absorber.words(share)

    def ready(self) -> None:
        """As ``Validator.ready``: this process is."""

    def decide(self) -> Verdicts:
        """As ``Validator.decide``."""
        clients = tuple(self._taken)
        for start in range(0, len(clients), MAX_BATCH_CLIENTS):
            batch = clients[start : start + MAX_BATCH_CLIENTS]
            self._decide(next(self._batches), [c for c in batch if c in self._words])
        return Verdicts(self._rejections, self._total)

    def _decide(self, number: int, clients: Sequence[ClientId]) -> None:
        """One batch; the invalid ones are taken out again."""
        if not clients:
            return
        for client, passes in zip(clients, self._passes(number, clients), strict=True):
            if not passes:
                self._take_out(self._taken[client], self._server.task.dimension)
                self._rejections[client] = Rejection.NORM_EXCEEDED

    def _passes(self, number: int, clients: Sequence[ClientId]) -> NDArray[np.bool_]:
        """Which of them are within the bound."""
        # CrypTen and torch take seconds to load: ``load_check`` did it before any round.
        from precad.aggregator.validate.check_by_shares import decide  # noqa: PLC0415

        server = self._server
        request = deal_request(server.task, self._attempt, number, len(clients), server.nonces)
        return decide(
            [self._words[client] for client in clients],
            task=server.task,
            link=server.link,
            randomness=server.randomness(request),
            spent=server.spent,
            label=label(self._taken[client] for client in clients),
        )

    def _absorb(self, submission: Submission, squares: DealerConversation) -> Absorber | None:
        server, client = self._server, submission.context.client
        absorber = Absorber(
            server.role,
            server.task,
            submission.mask(),
            squares.row_key(submission.context.digest.value),
            self._total if client in self._counted else None,
        )
        step = f"body/{label([submission])}"
        if server.role is Role.SERVER_A:
            pieces = receive(server.link, step, submission, server.task.dimension)
        else:
            pieces = forward(server.link, step, submission)
        try:
            for piece in pieces:
                absorber.absorb(piece)
        except Dropped as dropped:
            log.warning("the body of client %s won't count: %s", client, dropped)
            self._take_out(submission, absorber.absorbed)
            self._rejections[client] = Rejection.TRUNCATED
            return None
        return absorber

    def _take_out(self, submission: Submission, absorbed: int) -> None:
        """Subtract the first ``absorbed`` coordinates of this server's share again."""
        if submission.context.client not in self._counted:
            return
        mask, done = submission.mask(), 0
        pieces = submission.body_pieces() if self._server.role is Role.SERVER_B else None
        with read_again():
            while done < absorbed:
                share = mask.words(min(PIECE_BYTES // WORD_BYTES, absorbed - done))
                if pieces is not None:
                    # No piece more: the next one may be the one that can't be read.
                    share += view_words(next(pieces))
                self._total[done : done + share.size] -= share
                done += share.size


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
