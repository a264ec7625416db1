"""The client's two words for its norm, which stand in its signed header.

With them the norm needs no shares: X·X = a·a + 2⟨b, a⟩ + ⟨b, b⟩, where b is public to both
servers, a·a is known to the dealer alone, and the client itself gives 2⟨b, a_j⟩, masked, one word
for each server. A server checks its own. The words are signed, and the norm's point is made of
them and of nothing else: from words that the servers sent each other, one that shifted its own
would read where the exact norm lies.

All are signed representatives in Z_2^64.
"""

from precad.common.identifiers import Digest, Role
from precad.common.keystream import derive
from precad.common.ring import WORD_BYTES, signed
from precad.common.secret import Secret


def word_mask(
    seed: Secret, role: Role, ctx: Digest, commitment_a: Digest, commitment_b: Digest
) -> int:
    """ρ_j = PRF(s_j; role j, ctx, c_A, c_B), uniform to whoever lacks the seed.

    Client, server j and dealer compute it alike. It is bound as the mask a_j is, by another name.
    """
    names = ctx.value, commitment_a.value, commitment_b.value
    drawn = derive(seed, "norm-word", role.value.encode(), *names).reveal()
    return signed(int.from_bytes(drawn[:WORD_BYTES], "little"))


def norm_word(crossed: int, mask: int) -> int:
    """u_j = 2⟨b, a_j⟩ + ρ_j: the client signs both, and server j checks its own.

    Args:
        crossed: ⟨b, a_j⟩.
        mask: ρ_j.
    """
    return signed(2 * crossed + mask)


def norm_point(word_a: int, word_b: int, squared: int, bound: int) -> int:
    """c_y = u_A + u_B + ⟨b, b⟩ − β² − 1: public to both servers.

    Args:
        word_a: u_A, as signed.
        word_b: u_B, as signed.
        squared: ⟨b, b⟩.
        bound: β. With the 1 more, y is negative exactly where X·X ≤ β².
    """
    return signed(word_a + word_b + squared - bound * bound - 1)


def norm_offset(square: int, mask_a: int, mask_b: int) -> int:
    """t_y = a·a − ρ_A − ρ_B: the dealer's, so that c_y + t_y = X·X − β² − 1 for right words.

    Args:
        square: a·a for a = a_A + a_B.
        mask_a: ρ_A.
        mask_b: ρ_B.
    """
    return signed(square - mask_a - mask_b)
