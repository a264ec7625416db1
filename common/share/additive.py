"""Two additive shares over Z_2^64: a 32-byte seed for A, x − PRG(seed) for B."""

from precad.common.keystream import Keystream
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.share.commitment import SubmissionContext


def mask(seed: Secret, context: SubmissionContext, dimension: int) -> RingVector:
    """A's share: ``[d] int64`` uniform on the ring, expanded from the seed.

    Bound to the submission's context, so that one seed never masks two vectors alike.
    """
    stream = Keystream(
        seed,
        "share",
        context.task.value,
        context.attempt,
        context.client.encoded(),
        context.model.value,
        context.nonce,
    )
    return stream.words(dimension)


def split(x: RingVector, seed: Secret, context: SubmissionContext) -> RingVector:
    """B's share ``x − PRG(seed)``, ``[d] int64``; uniform to whoever lacks the seed."""
    return x - mask(seed, context, x.size)


def reconstruct(share_a: RingVector, share_b: RingVector) -> RingVector:
    """``x = share_a + share_b`` in the ring."""
    return share_a + share_b
