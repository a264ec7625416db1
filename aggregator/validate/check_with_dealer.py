"""``validation = "crypten"``: bodies are absorbed as they are taken, decided on at the end.

Each body passes once, in pieces: k + 1 words come out, and its share is added into one
accumulator on the way, and taken out again should the submission turn out invalid.
Nothing of the accumulator leaves before. For sums x is shared as a_A at server A and b
+ a_B at server B. So A keeps nothing of b, and B reads it again from its own spool
where it must (docs/soundness.md, "Part 2: the exact norm").
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.validate.validation import (
    MAX_BATCH_CLIENTS,
    Server,
    Verdicts,
    deal_request,
    label,
    read_again,
)
from precad.common.errors import BodyUnreadable, PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.kernel import Rows, sharing_in_use
from precad.common.ring import (
    SALT_BYTES,
    WORD_BYTES,
    Keystream,
    RingVector,
    signed,
    view_words,
)
from precad.common.submission import CHUNK_BYTES, Submission, body_hasher
from precad.common.task import Task
from precad.norm_check.dealing import DealerConversation, DealtRandomness, SquareRequest
from precad.norm_check.proof_submission import AnySubmission

log = logging.getLogger("precad")


@dataclass(eq=False, repr=False, kw_only=True)
class WithDealer:
    """As ``Validator``, with a dealer; conversations with it end with ``_conversations``."""

    _server: Server
    _attempt: int
    _counted: Collection[ClientId]
    _batches: Iterator[int]
    _conversations: ExitStack
    _squares: DealerConversation | None = None
    _taken: dict[ClientId, Submission] = field(default_factory=dict)
    _words: dict[ClientId, RingVector] = field(default_factory=dict)
    """This server's shares of k + 1 words of whoever is in the sum."""
    _rejections: dict[ClientId, Rejection] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._total = np.zeros(self._server.task.dimension, dtype=np.int64)

    def take(self, submissions: Sequence[AnySubmission]) -> None:
        """As ``Validator.take``; returns when all are absorbed."""
        if not submissions:
            return
        masked = [each for each in submissions if isinstance(each, Submission)]
        if len(masked) < len(submissions):
            raise AssertionError("a submission with a proof came to another check")
        if self._squares is None:
            # Nothing is asked of the dealer before there is something to validate.
            opened = self._server.dealing.squares(self._attempt)
            self._squares = self._conversations.enter_context(opened)
        squares = self._squares
        for submission in masked:
            self._taken[submission.context.client] = submission
            squares.ask(_square(submission))
        absorbed = [(each.context, self._absorb(each, squares)) for each in masked]
        for context, absorber in absorbed:
            if absorber is not None:
                self._words[context.client] = absorber.words(
                    squares.share(context.digest.value)
                )

    def ready(self) -> None:
        """As ``Validator.ready``: this process is."""

    def decide(self) -> Verdicts:
        """As ``Validator.decide``."""
        clients = tuple(self._taken)
        for start in range(0, len(clients), MAX_BATCH_CLIENTS):
            number = next(self._batches)
            batch = [
                c
                for c in clients[start : start + MAX_BATCH_CLIENTS]
                if c in self._words
            ]
            passes = self._passes(number, batch) if batch else ()
            for client, within in zip(batch, passes, strict=True):
                if not within:
                    self._take_out(self._taken[client], self._server.task.dimension)
                    self._rejections[client] = Rejection.NORM_EXCEEDED
        return Verdicts(self._rejections, self._total)

    def _passes(self, number: int, clients: Sequence[ClientId]) -> NDArray[np.bool_]:
        # CrypTen and torch take seconds to load: ``load_check`` did it before any
        # round.
        from precad.aggregator.validate.crypten_comparisons import decide  # noqa: PLC0415

        server = self._server
        request = deal_request(
            server.task,
            attempt=self._attempt,
            batch=number,
            clients=len(clients),
            nonces=server.nonces,
        )
        corrections = server.dealing.deal(request)
        return decide(
            [self._words[client] for client in clients],
            task=server.task,
            link=server.link,
            randomness=DealtRandomness(
                server.role, server.dealer_key, request, corrections
            ),
            spent=server.spent,
            label=label(self._taken[client] for client in clients),
        )

    def _absorb(
        self, submission: Submission, squares: DealerConversation
    ) -> "Absorber | None":
        server = self._server
        client = submission.context.client
        row_key = squares.row_key(submission.context.digest.value)
        total = self._total if client in self._counted else None
        absorber = Absorber(
            server.role,
            server.task,
            submission.mask(),
            row_key,
            total,
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
        if submission.context.client not in self._counted:
            return
        mask = submission.mask()
        done = 0
        pieces = (
            submission.body_pieces() if self._server.role is Role.SERVER_B else None
        )
        with read_again():
            while done < absorbed:
                share = mask.words(min(CHUNK_BYTES // WORD_BYTES, absorbed - done))
                if pieces is not None:
                    # No piece more: the next one may be the one that can't be read.
                    share += view_words(next(pieces))
                self._total[done : done + share.size] -= share
                done += share.size


def _square(submission: Submission) -> SquareRequest:
    header = submission.header
    context = submission.context
    return SquareRequest(
        task=context.task,
        attempt=context.attempt,
        context=context.digest.value,
        commitment_a=header.commitment_a.value,
        commitment_b=header.commitment_b.value,
        seed=submission.seed,
        salt=submission.salt,
    )


_TOGETHER = 1 << 16
"""Coordinates that pass together, a piece of a body: in the processor's cache, or
nearly."""


class Absorber:
    """Takes the pieces of b in order, beside this server's own ``mask`` a_j, from its start.

    The share is added into ``total``, ``[d] int64``, where the client is counted.
    ``row_key`` is the dealer's, for this submission alone.
    """

    def __init__(
        self,
        role: Role,
        task: Task,
        mask: Keystream,
        row_key: Secret,
        total: RingVector | None,
    ) -> None:
        self._role = role
        self._bound = task.bound
        self._mask = mask
        self._rows = Rows(row_key, dimension=task.dimension, k=task.projections)
        self._total = total
        self._add_share = sharing_in_use()
        self._dimension = task.dimension
        self._share = np.empty(min(_TOGETHER, task.dimension), dtype=np.int64)
        self._crossed = 0
        """⟨b, a_j⟩ with this server's own mask."""
        self._squared = 0
        """⟨b, b⟩, at A."""
        self.absorbed = 0
        """Coordinates so far."""

    def absorb(self, b: RingVector) -> None:
        """The next piece of b, ``[≤ d] int64``; all but the last a multiple of 64 long."""
        for at in range(0, b.size, _TOGETHER):
            piece = b[at : at + _TOGETHER]
            share = self._share[: piece.size]
            start = self.absorbed
            self._mask.words_into(share)
            total = (
                None if self._total is None else self._total[start : start + piece.size]
            )
            adds_b = self._role is Role.SERVER_B
            crossed, squared = self._add_share(piece, share, total, adds_b=adds_b)
            self._crossed += crossed
            self._squared += squared
            self._rows.absorb(share)
            self.absorbed += piece.size
        if self.absorbed == self._dimension:
            # All submissions of a batch are kept until they are decided on.
            self._share = self._share[:0].copy()

    def words(self, r_share: int) -> RingVector:
        """``[k + 1] int64``: this server's shares of the k projections, then of y = X·X − β² − 1.

        The exact norm is a Beaver square whose opening is the client's own: with b = X
        − a opened, X·X = a·a + 2b·a + b·b (docs/soundness.md, "Part 2: the exact
        norm"). The public terms are added by server A alone, because there is no
        division by 2 in this ring. The −1 makes y negative exactly when X·X ≤ β².
        ``r_share`` is this server's share of r = a·a.
        """
        y = r_share + 2 * self._crossed
        if self._role is Role.SERVER_A:
            y += self._squared - self._bound**2 - 1
        return np.append(self._rows.z(), np.int64(signed(y)))


# A matched body's way from B to A: piece by piece, and both servers take each as it
# goes.

_WHOLE, _DROPPED = b"w", b"d"
"""In a byte: the last piece of a body that was whole, or that couldn't be read again.
"""


class Dropped(Exception):
    """B can't read a body again that it held: the client doesn't count, and nobody else is hit."""


def forward(link: PeerLink, step: str, submission: Submission) -> Iterator[RingVector]:
    """B's part: send the body and yield its pieces, ``[≤ 2^16] int64``.

    Raises Dropped: A knows.
    """
    try:
        if submission.body is None:
            raise AssertionError(
                f"{submission.context.client} was matched without a body"
            )
        link.send_piece(step, submission.body.prefix.reveal(), last=False)
        for piece in submission.body_pieces():
            link.send_piece(step, piece, last=False)
            yield view_words(piece)
    except BodyUnreadable as error:
        link.send_piece(step, _DROPPED, last=True)
        raise Dropped(str(error)) from None
    link.send_piece(step, _WHOLE, last=True)


def receive(
    link: PeerLink,
    step: str,
    submission: Submission,
    dimension: int,
) -> Iterator[RingVector]:
    """A's part: yield each piece of b, ``[≤ 2^16] int64``, as it comes; their hash was signed.

    Raises Dropped: B can't; PeerViolation: B vouches for what the client hasn't signed.
    """
    header = submission.header
    left = dimension * WORD_BYTES
    piece, last = link.receive_piece(step)
    if not last:
        if len(piece) != SALT_BYTES:
            raise PeerViolation(f"a forwarded body's salt has {len(piece)} bytes")
        hasher = body_hasher(header.context.digest, Secret(bytes(piece)))
        piece, last = link.receive_piece(step)
        while not last:
            left -= len(piece)
            if left < 0 or (left and len(piece) != CHUNK_BYTES) or not piece:
                raise PeerViolation(
                    "a forwarded body's pieces aren't as long as they must be"
                )
            hasher.update(piece)
            yield view_words(piece)
            piece, last = link.receive_piece(step)
        if piece == _WHOLE:
            if left or Digest(hasher.digest()) != header.body_digest:
                raise PeerViolation(
                    "server B vouched for a body that isn't what its client signed"
                )
            return
    if piece != _DROPPED:
        raise PeerViolation("a forwarded body ended without a verdict")
    raise Dropped("server B can't read it again")
