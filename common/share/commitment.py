"""What a submission is bound to, and salted commitments to its two shares.

A plain digest of B's share would let a curious A, who holds the seed, test any guess of x. So
each share goes with its own 32-byte salt, sent only to that share's holder; the other server,
signatures, set digests, logs and storage see the commitment alone.
"""

import hashlib
from dataclasses import dataclass

from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import DIGEST_BYTES, ClientId, Digest, Role
from precad.common.keystream import encode_context
from precad.common.secret import Secret

NONCE_BYTES = 16
SALT_BYTES = 32


@dataclass(frozen=True, slots=True)
class SubmissionContext:
    """Task, attempt, client, model and nonce that a submission is bound to."""

    task: Digest
    attempt: int
    client: ClientId
    model: Digest
    nonce: bytes

    def __post_init__(self) -> None:
        if len(self.nonce) != NONCE_BYTES:
            raise RejectedSubmission(
                Rejection.MALFORMED, f"nonce has {len(self.nonce)} bytes, must have {NONCE_BYTES}"
            )
        if self.attempt < 0:
            raise RejectedSubmission(Rejection.MALFORMED, f"attempt {self.attempt} is negative")

    def encoded(self, role: Role) -> bytes:
        """Injective bytes for hashing; ``role`` separates the two shares."""
        return encode_context(
            "commitment",
            self.task.value,
            self.attempt,
            self.client.encoded(),
            self.model.value,
            self.nonce,
            role.value.encode(),
        )


@dataclass(frozen=True, slots=True)
class Commitment:
    """SHA-256(context ‖ salt ‖ share): hiding by the salt, binding by the hash."""

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != DIGEST_BYTES:
            raise RejectedSubmission(
                Rejection.MALFORMED,
                f"commitment has {len(self.value)} bytes, must have {DIGEST_BYTES}",
            )


def committer(context: SubmissionContext, role: Role, salt: Secret) -> "hashlib._Hash":
    """A hash that has taken context and salt and waits for the share's bytes."""
    return hashlib.sha256(context.encoded(role) + salt.reveal())


def commit(context: SubmissionContext, role: Role, salt: Secret, share: bytes) -> Commitment:
    """The commitment to ``share``, which goes to ``role``."""
    state = committer(context, role, salt)
    state.update(share)
    return Commitment(state.digest())
