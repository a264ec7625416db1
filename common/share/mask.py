"""The two masks' seeds: committed to, opened, expanded.

x = b + a_A + a_B. A client commits to each seed, sends each to its server, and the dealer, which
squares a_A + a_B, computes both again. So this is all that the dealer loads of a submission.
"""

from precad.common.identifiers import Digest, Role
from precad.common.keystream import KEY_BYTES, Keystream, encode_context
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
