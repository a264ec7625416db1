"""One server's pass over a submission's body, piece by piece: k + 1 words and a share come out.

For sums x is shared as a_A at server A and b + a_B at server B. So A keeps nothing of b, and B
reads it again from its own spool where it must (docs/soundness.md, "Part 2: the exact norm").
"""

from collections.abc import Iterator

import numpy as np

from precad.aggregator.peer_link import PeerLink
from precad.common.errors import BodyUnreadable, PeerViolation
from precad.common.identifiers import Digest, Role, Secret
from precad.common.kernel import Rows, sharing_in_use
from precad.common.ring import SALT_BYTES, WORD_BYTES, Keystream, RingVector, signed, view_words
from precad.common.share.submission import PIECE_BYTES, Submission, body_hasher
from precad.common.task import Task

_TOGETHER = 1 << 16
"""Coordinates that pass together, a piece of a body: in the processor's cache, or nearly."""


class Absorber:
    """Takes the pieces of b in order.

    Args:
        task: gives d, k and β.
        mask: a_j, this server's own mask, from its start.
        row_key: the dealer's, for this submission alone.
        total: ``[d] int64`` that the share is added into; None where the client isn't counted.
    """

    def __init__(
        self, role: Role, task: Task, mask: Keystream, row_key: Secret, total: RingVector | None
    ) -> None:
        self._role = role
        self._bound = task.bound
        self._mask = mask
        self._rows = Rows(row_key, task.dimension, task.projections)
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
            share, start = self._share[: piece.size], self.absorbed
            self._mask.words_into(share)
            total = None if self._total is None else self._total[start : start + piece.size]
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

        The exact norm is a Beaver square whose opening is the client's own: with b = X − a opened,
        X·X = a·a + 2b·a + b·b (docs/soundness.md, "Part 2: the exact norm"). The public terms are
        added by server A alone, because there is no division by 2 in this ring. The −1 makes y
        negative exactly when X·X ≤ β².

        Args:
            r_share: this server's share of r = a·a.
        """
        y = r_share + 2 * self._crossed
        if self._role is Role.SERVER_A:
            y += self._squared - self._bound**2 - 1
        return np.append(self._rows.z(), np.int64(signed(y)))


# A matched body's way from B to A: piece by piece, and both servers take each as it goes.


_WHOLE, _DROPPED = b"w", b"d"
"""In a byte: the last piece of a body that was whole, or that couldn't be read again."""


class Dropped(Exception):
    """B can't read a body again that it held: the client doesn't count, and nobody else is hit."""


def forward(link: PeerLink, step: str, submission: Submission) -> Iterator[RingVector]:
    """B's part: send the body, and yield each piece of b, ``[≤ 2^16] int64``, as it goes.

    Raises Dropped: the spool can't be read; A has been told.
    """
    try:
        if submission.body is None:
            raise AssertionError(f"{submission.context.client} was matched without a body")
        link.send_piece(step, submission.body.prefix.reveal(), last=False)
        for piece in submission.body_pieces():
            link.send_piece(step, piece, last=False)
            yield view_words(piece)
    except BodyUnreadable as error:
        link.send_piece(step, _DROPPED, last=True)
        raise Dropped(str(error)) from None
    link.send_piece(step, _WHOLE, last=True)


def receive(
    link: PeerLink, step: str, submission: Submission, dimension: int
) -> Iterator[RingVector]:
    """A's part: yield each piece of b, ``[≤ 2^16] int64``, as it comes; their hash was signed.

    Args:
        step: the message's name; both servers give the same.

    Raises:
        Dropped: B can't send it.
        PeerViolation: B has vouched for a body that isn't what the client signed.
    """
    header, left = submission.header, dimension * WORD_BYTES
    piece, last = link.receive_piece(step)
    if not last:
        if len(piece) != SALT_BYTES:
            raise PeerViolation(f"a forwarded body's salt has {len(piece)} bytes")
        hasher = body_hasher(header.context.digest, Secret(bytes(piece)))
        piece, last = link.receive_piece(step)
        while not last:
            left -= len(piece)
            if left < 0 or (left and len(piece) != PIECE_BYTES) or not piece:
                raise PeerViolation("a forwarded body's pieces aren't as long as they must be")
            hasher.update(piece)
            yield view_words(piece)
            piece, last = link.receive_piece(step)
        if piece == _WHOLE:
            if left or Digest(hasher.digest()) != header.body_digest:
                raise PeerViolation("server B vouched for a body that isn't what its client signed")
            return
    if piece != _DROPPED:
        raise PeerViolation("a forwarded body ended without a verdict")
    raise Dropped("server B can't read it again")
