"""The two masks' seeds: committed to, opened, expanded; and the client's two words for its norm.

x = b + a_A + a_B. A client commits to each seed, sends each to its server, and the dealer, which
squares a_A + a_B, computes both again. So this is all that the dealer loads of a submission.

With its two words, signed in the header, the norm needs no shares: X·X = a·a + 2⟨b, a⟩ + ⟨b, b⟩,
where b is public to both servers, a·a is known to the dealer alone, and the client itself gives
2⟨b, a_j⟩, masked, one word for each server. A server checks its own. The norm's point is made of
the signed words and of nothing else: from words that the servers sent each other, one that shifted
its own would read where the exact norm lies. All are signed representatives in Z_2^64.
"""

from precad.common.identifiers import Digest, Role
from precad.common.keystream import KEY_BYTES, Keystream, derive, encode_context
from precad.common.ring import WORD_BYTES, signed
from precad.common.secret import Secret

SEED_BYTES = KEY_BYTES
SALT_BYTES = 32


def commit(role: Role, ctx: Digest, salt: Secret, seed: Secret) -> Digest:
    """c_j = SHA-256(role j, ctx, salt_j, s_j): hiding by the salt, binding by the hash.

    Bound to role and context, or one client's commitment could be another's, or the other role's.
    """
    parts = role.value.encode(), ctx.value, salt.reveal(), seed.reveal()
    return Digest.of(encode_context("seed-commitment", *parts))


def opens(commitment: Digest, role: Role, ctx: Digest, salt: Secret, seed: Secret) -> bool:
    """Whether ``commitment`` is to this seed of ``role`` in ``ctx``; False for wrong lengths."""
    if len(salt) != SALT_BYTES or len(seed) != SEED_BYTES:
        return False
    return commit(role, ctx, salt, seed) == commitment


def mask_stream(
    seed: Secret, role: Role, ctx: Digest, commitment_a: Digest, commitment_b: Digest
) -> Keystream:
    """a_j = PRG(s_j; role j, ctx, c_A, c_B): ``words(n)`` gives its next n ring elements.

    Whoever reads it in pieces reads the same words. Bound to the submission, so that one seed
    never masks two vectors alike.
    """
    names = ctx.value, commitment_a.value, commitment_b.value
    return Keystream(seed, "mask", role.value.encode(), *names)


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
    """u_j = 2⟨b, a_j⟩ + ρ_j: the client signs both, and server j checks its own."""
    return signed(2 * crossed + mask)


def norm_point(word_a: int, word_b: int, squared: int, bound: int) -> int:
    """c_y = u_A + u_B + ⟨b, b⟩ − β² − 1: public to both servers.

    Args:
        bound: β. With the 1 more, y is negative exactly where X·X ≤ β².
    """
    return signed(word_a + word_b + squared - bound * bound - 1)


def norm_offset(square: int, mask_a: int, mask_b: int) -> int:
    """t_y = a·a − ρ_A − ρ_B: the dealer's, so that c_y + t_y = X·X − β² − 1 for right words.

    Args:
        square: a·a for a = a_A + a_B.
    """
    return signed(square - mask_a - mask_b)
