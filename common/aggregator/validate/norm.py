"""The exact norm by an inner-product triple (docs/soundness.md, "Part 2: the exact norm")."""

from precad.common.identifiers import Role
from precad.common.ring import RingVector, dot, signed


def excess_share(
    role: Role, opened: RingVector, a_share: RingVector, r_share: int, bound: int
) -> int:
    """This server's share of y = X·X − β² − 1.

    With b = X − a opened, X·X = a·a + 2b·a + b·b; the public terms are added by server A alone,
    because there is no division by 2 in this ring. The −1 makes y negative exactly when
    X·X ≤ β².

    Args:
        role: SERVER_A or SERVER_B.
        opened: b, ``[d] int64``.
        a_share: this server's share of a, ``[d] int64``.
        r_share: this server's share of r = a·a.
        bound: β.

    Returns:
        A signed representative in Z_2^64.
    """
    share = r_share + 2 * dot(opened, a_share)
    if role is Role.SERVER_A:
        share += dot(opened, opened) - bound * bound - 1
    return signed(share)
