"""A submission's k + 1 gates: k ranges of projections, and the norm.

The dealer knows the offsets t: k projections ⟨s, a⟩ of both masks, then the norm's
(``share.mask.norm_offset``). Both servers know the points c: k projections ⟨s, b⟩ of the body,
then ``share.mask.norm_point``. The gates say of each z = c + t that −τβ ≤ z ≤ τβ, and of
y = X·X − β² − 1 that it is negative.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import PeerViolation
from precad.common.identifiers import Digest
from precad.common.keystream import encode_context
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.task import TAU
from precad.norm_check.comparison_keys import DcfKeys
from precad.norm_check.distributed_comparison import Bits, deal_intervals, evaluate_intervals

_LEAST, _GREATEST = -(2**63), -1
"""The negative words."""


def gate_context(ctx: Digest, seed_a: Secret, seed_b: Secret, row_key: Secret) -> Secret:
    """What a submission's gates are dealt for: a digest of all that their offsets depend on.

    Whoever keeps it until keys are dealt keeps no seed.
    """
    named = ctx.value, seed_a.reveal(), seed_b.reveal(), row_key.reveal()
    return Secret(hashlib.sha256(encode_context("gate-context", *named)).digest())


def deal_gates(offsets: RingVector, contexts: Sequence[Secret]) -> tuple[DcfKeys, DcfKeys]:
    """The dealer's part: keys for server A and for server B, each for that server alone.

    Args:
        offsets: ``[n, k + 1] int64``, of n submissions.
        contexts: theirs (``gate_context``). The keys' randomness is drawn here and bound to them.
    """
    return deal_intervals(offsets.view(np.uint64), contexts)


def evaluate_gates(keys: DcfKeys, points: RingVector, bound: int) -> Bits:
    """A server's part, which it computes alone: its shares of n submissions' gates.

    Args:
        keys: this server's, as dealt for the n submissions.
        points: ``[n, k + 1] int64``: public, and the same at both servers.

    Returns:
        ``[n, k + 1] uint8``, 0 or 1. The servers' bits differ where a gate holds; what one of
        them has is the complement of what the other has, for every honest submission.

    Raises ValueError: the points don't fit the keys: a caller's mistake.
    """
    low, high = np.empty_like(points), np.empty_like(points)
    low[:, :-1], high[:, :-1] = -TAU * bound, TAU * bound
    low[:, -1], high[:, -1] = _LEAST, _GREATEST
    flat = (each.reshape(-1).view(np.uint64) for each in (points, low, high))
    return evaluate_intervals(keys, *flat).reshape(points.shape)


# From two servers' bits to verdicts: 6 bytes a submission each way at k = 40, and nothing else.
#
# A submission's bytes hold its k + 1 gates' bits in order, then whether the client's word to this
# server is right; the first in the highest bit, and zeros behind the last.


_BITS = 8


def submission_bytes(gates: int) -> int:
    """Bytes of one submission with so many gates."""
    return -(-(gates + 1) // _BITS)


def pack(bits: Bits, words_right: NDArray[np.bool_]) -> bytes:
    """What a server sends the other.

    Args:
        bits: ``[n, k + 1] uint8``, its shares (``evaluate_gates``).
        words_right: ``[n] bool``: whether its own word of the header is what its mask and the
            body make (``share.mask.norm_word``).
    """
    return np.packbits(np.column_stack([bits, words_right]), axis=1).tobytes()


def verdicts(own: bytes, other: bytes, gates: int) -> NDArray[np.bool_]:
    """Which submissions are valid: all gates hold, and both of the client's words are right.

    Args:
        gates: of a submission, k + 1.

    Returns:
        ``[n] bool``, the same at both servers.

    Raises PeerViolation: the other server's message has another length, or bits behind its last.
    """
    width = submission_bytes(gates)
    if len(other) != len(own):
        raise PeerViolation(f"bits of {len(other)} bytes came, {len(own)} were expected")
    ours, theirs = (np.frombuffer(each, dtype=np.uint8).reshape(-1, width) for each in (own, other))
    ours, theirs = (np.unpackbits(each, axis=1) for each in (ours, theirs))
    if theirs[:, gates + 1 :].any():
        raise PeerViolation("the other server's bits have more behind their last")
    held = (ours ^ theirs)[:, :gates].all(axis=1)
    right: NDArray[np.bool_] = (ours & theirs)[:, gates] == 1
    return held & right
