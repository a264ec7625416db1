"""A matched body's way from B to A: piece by piece, and both servers take each as it goes."""

from collections.abc import Iterator

from precad.common.errors import BodyUnreadable, PeerViolation
from precad.common.identifiers import Digest
from precad.common.link import PeerLink
from precad.common.ring import WORD_BYTES, RingVector, view_words
from precad.common.secret import Secret
from precad.common.share.body import PIECE_BYTES, body_hasher
from precad.common.share.mask import SALT_BYTES
from precad.common.share.submission import Submission

_WHOLE, _DROPPED = b"w", b"d"
"""In a byte: the last piece of a body that was whole, or that couldn't be read again."""


class Dropped(Exception):
    """B can't read a body again that it held: the client doesn't count, and nobody else is hit."""


def forward(link: PeerLink, step: str, submission: Submission) -> Iterator[RingVector]:
    """B's part: send the body, and yield each piece of b, ``[≤ 2^16] int64``, as it goes.

    Raises:
        Dropped: the spool can't be read; A has been told.
    """
    try:
        if submission.body is None:
            raise AssertionError(f"{submission.context.client} was matched without a body")
        link.send_piece(step, submission.body.salt.reveal(), last=False)
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
        link: to B.
        step: the message's name; both servers give the same.
        submission: A's half, matched.
        dimension: d.

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
