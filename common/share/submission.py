"""A client's submission: one message for each server."""

import secrets
from dataclasses import dataclass

from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.ring import WORD_BYTES, RingVector, to_bytes
from precad.common.secret import Secret
from precad.common.share.additive import SEED_BYTES, split
from precad.common.share.commitment import (
    NONCE_BYTES,
    SALT_BYTES,
    Commitment,
    SubmissionContext,
    commit,
)
from precad.common.share.signature import Signature, Signer, signed_bytes


@dataclass(frozen=True, slots=True)
class SubmissionHeader:
    """The first piece of an upload: everything but the share."""

    context: SubmissionContext
    salt: Secret
    other_commitment: Commitment
    share_bytes: int
    signature: Signature

    def __post_init__(self) -> None:
        if len(self.salt) != SALT_BYTES:
            raise RejectedSubmission(
                Rejection.MALFORMED, f"salt has {len(self.salt)} bytes, must have {SALT_BYTES}"
            )


@dataclass(frozen=True, slots=True)
class Submission:
    """What one server receives: its share, its salt, and the commitment to the other share."""

    context: SubmissionContext
    role: Role
    salt: Secret
    share: Secret
    """A: the 32-byte seed. B: ``8·d`` bytes, little-endian ring elements."""
    other_commitment: Commitment
    signature: Signature
    """The same for both servers."""

    def commitment(self) -> Commitment:
        """The commitment to this share, as the other server holds it."""
        return commit(self.context, self.role, self.salt, self.share.reveal())


def share_bytes(role: Role, dimension: int) -> int:
    """Length of the share that ``role`` receives."""
    return SEED_BYTES if role is Role.SERVER_A else dimension * WORD_BYTES


def shard(
    x: RingVector,
    *,
    task: Digest,
    round_number: int,
    client: ClientId,
    model: Digest,
    signer: Signer,
) -> tuple[Submission, Submission]:
    """Split ``x`` (``[d] int64``) into the submissions for A and for B.

    Seed, salts and nonce are fresh from the CSPRNG: call it once per round and keep the result
    for retries. A second call with another x would not reuse anything. ``signer`` signs both
    commitments.
    """
    context = SubmissionContext(task, round_number, client, model, secrets.token_bytes(NONCE_BYTES))
    seed = Secret.random(SEED_BYTES)
    salt_a, salt_b = Secret.random(SALT_BYTES), Secret.random(SALT_BYTES)
    share_b = Secret(to_bytes(split(x, seed, context)))
    commitment_a = commit(context, Role.SERVER_A, salt_a, seed.reveal())
    commitment_b = commit(context, Role.SERVER_B, salt_b, share_b.reveal())
    signature = signer.sign(signed_bytes(context, commitment_a, commitment_b))
    return (
        Submission(context, Role.SERVER_A, salt_a, seed, commitment_b, signature),
        Submission(context, Role.SERVER_B, salt_b, share_b, commitment_a, signature),
    )
