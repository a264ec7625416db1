"""The body of a submission, which server B gets: salt_h ‖ b.

b = x − a_A − a_B is uniform to whoever lacks one of the seeds. The salt keeps whoever sees h, and
knows or guesses all else, from testing a guess of b.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from blake3 import blake3

from precad.common.identifiers import Digest
from precad.common.keystream import encode_context
from precad.common.ring import WORD_BYTES
from precad.common.secret import Secret
from precad.common.share.mask import SALT_BYTES

PIECE_BYTES = 1 << 20
"""1 MiB: b is kept, read and sent on in pieces of so many bytes; the last may be shorter. Each
costs messages, threads that wake and calls. ``common/allocator.py`` keeps buffers of this size."""


def body_bytes(dimension: int) -> int:
    """Length of salt_h ‖ b."""
    return SALT_BYTES + dimension * WORD_BYTES


def body_hasher(ctx: Digest, salt_h: Secret) -> blake3:
    """A BLAKE3 that waits for b's bytes and then gives h = BLAKE3(ctx, salt_h, b).

    Not SHA-256, as everything else: it takes a quarter of the time, and bodies are hashed three
    times, by the client, B and A.
    b comes last, without its length: ctx names the task, and the task fixes it.
    """
    return blake3(encode_context("submission-body", ctx.value, salt_h.reveal()))


class Body(Protocol):
    """salt_h and b, wherever they are."""

    @property
    def salt(self) -> Secret:
        """salt_h."""

    def pieces(self) -> Iterator[bytes | memoryview]:
        """B in pieces of ``PIECE_BYTES``, the last one the rest: little-endian ring elements.

        Each piece is good until the next one is asked for.

        Raises:
            BodyUnreadable: it was kept in a file that is gone or was changed.
        """

    def discard(self) -> None:
        """It isn't needed any more."""


@dataclass(frozen=True, slots=True)
class HeldBody:
    """A body in memory."""

    salt: Secret = field(repr=False)
    """salt_h."""
    words: bytes | bytearray | memoryview = field(repr=False)
    """b, ``8·d`` bytes."""

    def pieces(self) -> Iterator[memoryview]:
        """b, in views of the one buffer."""
        view = memoryview(self.words)
        for start in range(0, len(view), PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]

    def discard(self) -> None:
        """Nothing: it goes with its last holder."""
