"""A submission's k + 1 gates: k ranges of projections, and the norm.

The dealer knows the offsets t: k projections ⟨s, a⟩ of both masks, then the norm's
(``share.words.norm_offset``). Both servers know the points c: k projections ⟨s, b⟩ of the body,
then ``share.words.norm_point``. The gates say of each z = c + t that −τβ ≤ z ≤ τβ, and of
y = X·X − β² − 1 that it is negative.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from precad.common.headroom import TAU
from precad.common.identifiers import Digest
from precad.common.keystream import encode_context
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.norm_check.fss.evaluate import Bits
from precad.norm_check.fss.interval import deal_intervals, evaluate_intervals
from precad.norm_check.fss.keys import DcfKeys

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
        bound: β.

    Returns:
        ``[n, k + 1] uint8``, 0 or 1. The servers' bits differ where a gate holds; what one of
        them has is the complement of what the other has, for every honest submission.

    Raises:
        ValueError: the points don't fit the keys: a caller's mistake.
    """
    low, high = np.empty_like(points), np.empty_like(points)
    low[:, :-1], high[:, :-1] = -TAU * bound, TAU * bound
    low[:, -1], high[:, -1] = _LEAST, _GREATEST
    flat = (each.reshape(-1).view(np.uint64) for each in (points, low, high))
    return evaluate_intervals(keys, *flat).reshape(points.shape)
