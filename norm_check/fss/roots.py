"""The randomness of a batch of keys: fresh, and bound to what the keys are for."""

import hashlib
from collections.abc import Sequence

import numpy as np

from precad.common.keystream import encode_context
from precad.common.secret import Secret
from precad.norm_check.fss.prg import BLOCK_BYTES, WORD, Blocks

FRESH_BYTES = 32


def draw_roots(contexts: Sequence[Secret], gates: int) -> Blocks:
    """Roots of ``gates`` gates for each context, for both servers: ``[2, n·gates, 2] uint64``.

    Fresh at every call, from the operating system's CSPRNG. Should a machine that was set back
    ever draw the same bytes again, other contexts still have other roots: two keys from one root
    show at which bit their offsets first differ.

    Args:
        contexts: n; each names all that its gates' offsets depend on.
        gates: for each context.
    """
    return derive_roots(Secret.random(FRESH_BYTES), contexts, gates)


def derive_roots(fresh: Secret, contexts: Sequence[Secret], gates: int) -> Blocks:
    """SHAKE-256 of ``fresh``, the context's number and the context: server 0's roots, then 1's."""
    roots = np.empty((2, len(contexts), gates, 2), dtype=WORD)
    for number, context in enumerate(contexts):
        named = encode_context("gate-roots", fresh.reveal(), number, context.reveal())
        drawn = hashlib.shake_256(named).digest(2 * gates * BLOCK_BYTES)
        roots[:, number] = np.frombuffer(drawn, dtype=WORD).reshape(2, gates, 2)
    return roots.reshape(2, -1, 2)
