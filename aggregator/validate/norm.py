"""The exact norm by a Beaver square whose opening is the client's own.

docs/soundness.md, "Part 2: the exact norm".
"""

from precad.common.identifiers import Role
from precad.common.ring import signed


def excess_share(role: Role, crossed: int, squared: int, r_share: int, bound: int) -> int:
    """This server's share of y = X·X − β² − 1.

    With b = X − a opened, X·X = a·a + 2b·a + b·b; the public terms are added by server A alone,
    because there is no division by 2 in this ring. The −1 makes y negative exactly when
    X·X ≤ β².

    Args:
        role: SERVER_A or SERVER_B.
        crossed: ⟨b, a_j⟩ with this server's own mask.
        squared: ⟨b, b⟩, at A.
        r_share: this server's share of r = a·a.
        bound: β.

    Returns:
        A signed representative in Z_2^64.
    """
    share = r_share + 2 * crossed
    if role is Role.SERVER_A:
        share += squared - bound * bound - 1
    return signed(share)
