"""What breaking the cryptography can add to δ where one server is malicious, as a number.

The theorem's δ' has, beside honest rejection, "advantages against the PRG, the commitments, the
signatures and M(k + 1) gate keys" (docs/cheating-server.md, "What is claimed"). Nobody can prove
such a number: it is computed from an assumption about an adversary that works for so long.
"""

import math

import numpy as np

from precad.common import checks

LOG_WORK = 64
"""The adversary computes AES 2^64 times in all: 600 years of one core at 10^9 a second."""
LOG_ADVANTAGE = -80
"""Assumed of it: with that work it breaks one use of one primitive with a chance of 2^−80 at most.
That allows for streams of 2^24 blocks, which differ from random ones by 2^−81 anyway."""
USES = 8
"""Of primitives that one dealing's privacy rests on: the honest half's mask and its word's mask
(AES-256, and the derivation of both), its commitment, whose hiding counts once and whose binding,
with that of h, once (SHA-256, BLAKE3), the client's signature (ECDSA on P-256), the gates' roots
(SHAKE-256), and the honest server's noise (AES-256)."""
_TREE_LEVELS = 58
"""57 levels of a gate's tree and its leaf: hidden seeds on the way to α."""
_SEED_BITS = 126

ASSUMED = (
    f"assumed: 2^{LOG_WORK} AES operations break one use of AES, SHA or ECDSA with a chance of "
    f"2^−{-LOG_ADVANTAGE}"
)
"""The assumption in words, for people."""


def advantages(epsilon: float, dealings: int, projections: int) -> float:
    """(1 + e^ε)·M·(8·2^−80 + (k + 1)·58·2^64/2^126), at most 1.

    The second term is proved in the ideal-cipher model: who evaluates the generator's permutation q
    times finds one of N hidden seeds of 126 bits with a chance of at most q·N/2^126
    (docs/function-secret-sharing.md, "Why one key says nothing"). Only one client's keys count.

    Args:
        epsilon: ε ≥ 0 of the statement; infinite where there is none.
        dealings: M, how often this client's masks are dealt for, at most.
        projections: k, rows of the range test.

    Raises:
        Misconfiguration: a number isn't a count.
    """
    gates = checks.count("projections", projections) + 1
    if not checks.count("dealings", dealings):
        return 0.0
    seeds = gates * _TREE_LEVELS
    each = USES * 2.0**LOG_ADVANTAGE + seeds * 2.0 ** (LOG_WORK - _SEED_BITS)
    log_added = math.log(dealings * each) + float(np.logaddexp(0.0, epsilon))
    return math.exp(min(0.0, log_added))
