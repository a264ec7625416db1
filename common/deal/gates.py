"""What the dealer deals for a submission's two masks where norms are checked by gates.

Loaded by the dealer of such a task alone.
"""

from collections.abc import Iterable

import numpy as np

from precad.common.identifiers import Digest, Role
from precad.common.norm_check.gates import deal_gates, gate_context
from precad.common.norm_check.rows import Rows
from precad.common.ring import RingVector, dot
from precad.common.secret import Secret
from precad.common.share.words import norm_offset, word_mask


def gates_of_masks(
    masks: Iterable[RingVector],
    names: tuple[Digest, Digest, Digest],
    seeds: tuple[Secret, Secret],
    row_key: Secret,
    size: tuple[int, int],
) -> tuple[bytes, bytes]:
    """Server A's and server B's keys of k + 1 gates, each for that server alone.

    Their offsets follow from masks and rows; b, h and the client's words have no part in them.
    All randomness is drawn afresh, and bound to all that the offsets depend on
    (docs/function-secret-sharing.md, "Randomness").

    Args:
        masks: pieces of a = a_A + a_B; all but the last a multiple of 64 long.
        names: ctx, c_A and c_B.
        seeds: s_A and s_B.
        row_key: of this submission's rows, fresh.
        size: d and k.
    """
    rows, r = Rows(row_key, *size), 0
    for a in masks:
        rows.absorb(a)
        r += dot(a, a)
    roles = Role.SERVER_A, Role.SERVER_B
    rho_a, rho_b = (word_mask(s, role, *names) for s, role in zip(seeds, roles, strict=True))
    offsets = np.append(rows.z(), np.int64(norm_offset(r, rho_a, rho_b)))
    to_a, to_b = deal_gates(offsets[None], [gate_context(names[0], *seeds, row_key)])
    return to_a.to_bytes(), to_b.to_bytes()
