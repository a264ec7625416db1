"""Check ``validation = "crypten"``: absorb bodies as they are taken, decide at the end.

Each body passes once, in pieces: k + 1 words come out of it. On the way its share is
added to one accumulator; it is taken out again should the submission turn out to be
invalid. Nothing of the accumulator leaves before. For sums x is shared as a_A at server
A and b + a_B at server B. So A keeps nothing of b, and B reads it again from its own
spool where it must (docs/soundness.md, "Part 2: the exact norm").
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from precad.aggregator import PeerLink
from precad.aggregator.validate.validation import (
    MAX_BATCH_CLIENTS,
    Server,
    Verdicts,
    deal_request,
    label,
    read_again,
)
from precad.common import (
    CHUNK_BYTES,
    SALT_BYTES,
    WORD_BYTES,
    BodyUnreadable,
    Booleans,
    ClientId,
    Digest,
    Keystream,
    PeerViolation,
    Rejection,
    RingVector,
    Role,
    Secret,
    Submission,
    Task,
    body_hasher,
    view_words,
)
from precad.common.kernel import Rows, sharing_in_use
from precad.common.process import warn
from precad.common.ring import signed
from precad.norm_check import (
    AnySubmission,
    DealerConversation,
    DealtRandomness,
    SquareRequest,
)


@dataclass(eq=False, repr=False, kw_only=True)
class WithDealer:
    """Validate one attempt's submissions with a dealer; it is a ``Validator``."""

    _server: Server
    _attempt: int
    _counted: Collection[ClientId]
    """Clients whose updates are summed."""
    _batches: Iterator[int]
    """Numbers of batches, each never used before in this attempt."""
    _conversations: ExitStack
    """Ends the conversations with the dealer."""
    _squares: DealerConversation | None = None
    """The conversation about the submissions' squares, once one was needed."""
    _taken: dict[ClientId, Submission] = field(default_factory=dict)
    _words: dict[ClientId, RingVector] = field(default_factory=dict)
    """This server's shares of the k + 1 words of each client who is in the sum."""
    _rejections: dict[ClientId, Rejection] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._total = np.zeros(self._server.task.dimension, dtype=np.int64)
        """This server's share of the sum, ``[d] int64``."""

    def take(self, submissions: Sequence[AnySubmission]) -> None:
        """Take submissions, and return when all of them are absorbed.

        Raises as ``Validator`` says.
        """
        if not submissions:
            return
        masked = [
            submission
            for submission in submissions
            if isinstance(submission, Submission)
        ]
        if len(masked) < len(submissions):
            raise AssertionError("a submission with a proof came to another check")
        if self._squares is None:
            # Nothing is asked of the dealer before there is something to validate.
            conversation = self._server.dealing.squares(self._attempt)
            self._squares = self._conversations.enter_context(conversation)
        squares = self._squares
        for submission in masked:
            self._taken[submission.context.client] = submission
            squares.ask(_square(submission))
        absorbers = [self._absorb(submission, squares) for submission in masked]
        for submission, absorber in zip(masked, absorbers, strict=True):
            if absorber is not None:
                context = submission.context
                r_share = squares.share(context.digest.value)
                self._words[context.client] = absorber.words(r_share)

    def ready(self) -> None:
        """Return at once: this process is ready."""

    def decide(self) -> Verdicts:
        """Decide on all that was taken, batch by batch; take the invalid ones out.

        Raises as ``Validator`` says.
        """
        clients = tuple(self._taken)
        for start in range(0, len(clients), MAX_BATCH_CLIENTS):
            number = next(self._batches)
            batch = [
                client
                for client in clients[start : start + MAX_BATCH_CLIENTS]
                if client in self._words
            ]
            if not batch:
                continue
            passes = self._passes(number, batch)
            for client, within_bound in zip(batch, passes, strict=True):
                if not within_bound:
                    self._take_out(self._taken[client], self._server.task.dimension)
                    self._rejections[client] = Rejection.NORM_EXCEEDED
        return Verdicts(self._rejections, self._total)

    def _passes(self, number: int, clients: Sequence[ClientId]) -> Booleans:
        """Return which clients' norms are within the bound, ``[n] bool``.

        Both servers decide it together, as the batch ``number`` of this attempt.
        """
        # CrypTen and torch take seconds to load: ``load_check`` did it before any
        # round.
        from precad.aggregator.validate.crypten_comparisons import (  # noqa: PLC0415
            decide,
        )

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
        """Absorb one submission's body, as it goes from B to A, and return what did.

        Return None, and count the client out, where B can't read the body again.
        """
        server = self._server
        client = submission.context.client
        row_key = squares.row_key(submission.context.digest.value)
        absorber = Absorber(
            server.role,
            server.task,
            submission.mask(),
            row_key,
            self._total if client in self._counted else None,
            bound=server.bound_of(client),
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
            warn(submission.context.followed, f"its body won't count: {dropped}")
            self._take_out(submission, absorber.absorbed)
            self._rejections[client] = Rejection.TRUNCATED
            return None
        return absorber

    def _take_out(self, submission: Submission, absorbed: int) -> None:
        """Take the first ``absorbed`` coordinates of a share out of the sum again.

        Raises PeerUnavailable: its body can't be read again.
        """
        if submission.context.client not in self._counted:
            return
        mask = submission.mask()
        subtracted = 0
        pieces = None
        if self._server.role is Role.SERVER_B:
            pieces = submission.body_pieces()
        with read_again():
            while subtracted < absorbed:
                left = absorbed - subtracted
                share = mask.words(min(CHUNK_BYTES // WORD_BYTES, left))
                if pieces is not None:
                    # Not one piece more than was absorbed: the next piece may be the
                    # one that can't be read.
                    share += view_words(next(pieces))
                self._total[subtracted : subtracted + share.size] -= share
                subtracted += share.size


def _square(submission: Submission) -> SquareRequest:
    """Return what the dealer is asked about a submission."""
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


_CACHED_COORDINATES = 1 << 16
"""How many coordinates of a body pass together.

They lie in the processor's cache, or nearly.
"""


class Absorber:
    """Absorb the pieces of b, in order, into shares of k + 1 words.

    ``mask`` is this server's own mask a_j, read from its start beside b. Where the
    client is counted its share is added to ``total``, ``[d] int64``. ``row_key`` is the
    dealer's, for this submission alone. ``bound`` is β_i, this client's.
    """

    def __init__(
        self,
        role: Role,
        task: Task,
        mask: Keystream,
        row_key: Secret,
        total: RingVector | None,
        *,
        bound: int,
    ) -> None:
        """Begin before the first coordinate."""
        self._role = role
        self._bound = bound
        self._mask = mask
        self._rows = Rows(row_key, dimension=task.dimension, k=task.projections)
        self._total = total
        self._add_share = sharing_in_use()
        self._dimension = task.dimension
        self._share = np.empty(min(_CACHED_COORDINATES, task.dimension), dtype=np.int64)
        """Room for the share of the coordinates that pass now."""
        self._crossed = 0
        """⟨b, a_j⟩ so far, with this server's own mask."""
        self._squared = 0
        """⟨b, b⟩ so far, at A."""
        self.absorbed = 0
        """How many coordinates were absorbed."""

    def absorb(self, b: RingVector) -> None:
        """Absorb the next piece of b, ``[≤ d] int64``.

        Every piece but the last is a multiple of 64 long.
        """
        adds_b = self._role is Role.SERVER_B
        for start in range(0, b.size, _CACHED_COORDINATES):
            piece = b[start : start + _CACHED_COORDINATES]
            share = self._share[: piece.size]
            self._mask.words_into(share)
            end = self.absorbed + piece.size
            total = None
            if self._total is not None:
                total = self._total[self.absorbed : end]
            crossed, squared = self._add_share(
                b=piece, a=share, total=total, adds_b=adds_b
            )
            self._crossed += crossed
            self._squared += squared
            self._rows.absorb(share)
            self.absorbed = end
        if self.absorbed == self._dimension:
            # Its memory goes now: all submissions of a batch are kept until they are
            # decided on.
            self._share = self._share[:0].copy()

    def words(self, r_share: int) -> RingVector:
        """Return this server's shares of the k + 1 words, ``[k + 1] int64``.

        They are the k projections, then y = X·X − β_i² − 1. The exact norm is a Beaver
        square whose opening is the client's own: with b = X − a opened, X·X = a·a +
        2b·a + b·b (docs/soundness.md, "Part 2: the exact norm"). Server A alone adds
        the public terms, because there is no division by 2 in this ring. The −1 makes y
        negative exactly when X·X ≤ β_i². ``r_share`` is this server's share of r = a·a.
        """
        y = r_share + 2 * self._crossed
        if self._role is Role.SERVER_A:
            y += self._squared - self._bound**2 - 1
        return np.append(self._rows.z(), np.int64(signed(y)))


# A matched body's way from B to A: piece by piece, and both servers take each piece as
# it passes.

_WHOLE = b"w"
"""The last piece of a body that was whole."""
_DROPPED = b"d"
"""The last piece of a body that couldn't be read again."""


class Dropped(Exception):
    """B can't read a body again that it held.

    The client doesn't count, and nobody else is hit.
    """


def forward(link: PeerLink, step: str, submission: Submission) -> Iterator[RingVector]:
    """Play B's part: send the body, and yield its pieces, ``[≤ 2^17] int64``.

    Raises PeerUnavailable; Dropped: the body can't be read again, and A was told.
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
    """Play A's part: yield each piece of b, ``[≤ 2^17] int64``, as it comes from B.

    At the end the hash of all pieces is compared with the one that the client signed.

    Raises PeerUnavailable; Dropped: B can't read the body again; PeerViolation: B
    vouches for what the client hasn't signed, or departs from the pieces' lengths.
    """
    header = submission.header
    bytes_left = dimension * WORD_BYTES
    piece, last = link.receive_piece(step)
    if not last:
        if len(piece) != SALT_BYTES:
            raise PeerViolation(f"a forwarded body's salt has {len(piece)} bytes")
        hasher = body_hasher(header.context.digest, Secret(bytes(piece)))
        piece, last = link.receive_piece(step)
        while not last:
            bytes_left -= len(piece)
            wrong_length = bytes_left > 0 and len(piece) != CHUNK_BYTES
            if bytes_left < 0 or wrong_length or not piece:
                raise PeerViolation(
                    "a forwarded body's pieces aren't as long as they must be"
                )
            hasher.update(piece)
            yield view_words(piece)
            piece, last = link.receive_piece(step)
        if piece == _WHOLE:
            if bytes_left or Digest(hasher.digest()) != header.body_digest:
                raise PeerViolation(
                    "server B vouched for a body that isn't what its client signed"
                )
            return
    if piece != _DROPPED:
        raise PeerViolation("a forwarded body ended without a verdict")
    raise Dropped("server B can't read it again")
