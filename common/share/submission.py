"""A client's submission: one for each server."""

import contextlib
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from precad.common.errors import Misconfiguration, RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.ring import WORD_BYTES, RingVector, from_bytes, to_bytes
from precad.common.secret import Secret
from precad.common.share.additive import mask, split
from precad.common.share.commitment import (
    NONCE_BYTES,
    SALT_BYTES,
    Commitment,
    SubmissionContext,
    commit,
)
from precad.common.share.mask import SEED_BYTES
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
    """What one server receives and holds: A the seed, B the masked vector."""

    context: SubmissionContext
    role: Role
    salt: Secret
    share: Secret | Path = field(repr=False)
    """A: the 32-byte seed. B: ``8·d`` bytes, little-endian ring elements; on the server in a
    spool file, where they are uniform without A's seed."""
    commitment: Commitment
    """To this share, as the other server hears it."""
    other_commitment: Commitment
    """To the other server's share, as the client claims it."""
    signature: Signature = field(repr=False)
    """Over ``signed``; the same for both servers."""

    @property
    def commitments(self) -> tuple[Commitment, Commitment]:
        """To A's share and to B's."""
        if self.role is Role.SERVER_A:
            return self.commitment, self.other_commitment
        return self.other_commitment, self.commitment

    @property
    def signed(self) -> bytes:
        """What the client signed, as this server sees it: its own commitment isn't a claim."""
        return signed_bytes(self.context, *self.commitments)

    def share_data(self) -> bytes:
        """The share's bytes."""
        return self.share.read_bytes() if isinstance(self.share, Path) else self.share.reveal()

    def expand(self, dimension: int) -> RingVector:
        """The share as ``[d] int64``. Raises Misconfiguration if its file was meddled with."""
        data = self.share_data()
        if self.role is Role.SERVER_A:
            return mask(Secret(data), self.context, dimension)
        if len(data) != dimension * WORD_BYTES:
            raise Misconfiguration(
                "spool",
                f"{len(data)} bytes",
                "a share's file was changed while its attempt was open",
            )
        return from_bytes(data)

    def discard(self) -> None:
        """Remove the spool file, if there is one."""
        if isinstance(self.share, Path):
            # A file that can't be removed now goes when the server starts again.
            with contextlib.suppress(OSError):
                self.share.unlink()


def share_bytes(role: Role, dimension: int) -> int:
    """Length of the share that ``role`` receives."""
    return SEED_BYTES if role is Role.SERVER_A else dimension * WORD_BYTES


def shard(
    x: RingVector,
    *,
    task: Digest,
    attempt: int,
    client: ClientId,
    model: Digest,
    signer: Signer,
) -> tuple[Submission, Submission]:
    """Split ``x`` (``[d] int64``) into the submissions for A and for B.

    Seed, salts and nonce are fresh from the CSPRNG: call it once per attempt and keep the result
    for retries. A second call with another x would not reuse anything. ``signer`` signs both
    commitments.
    """
    context = SubmissionContext(task, attempt, client, model, secrets.token_bytes(NONCE_BYTES))
    seed = Secret.random(SEED_BYTES)
    salt_a, salt_b = Secret.random(SALT_BYTES), Secret.random(SALT_BYTES)
    share_b = Secret(to_bytes(split(x, seed, context)))
    for_a = commit(context, Role.SERVER_A, salt_a, seed.reveal())
    for_b = commit(context, Role.SERVER_B, salt_b, share_b.reveal())
    signature = signer.sign(signed_bytes(context, for_a, for_b))
    return (
        Submission(context, Role.SERVER_A, salt_a, seed, for_a, for_b, signature),
        Submission(context, Role.SERVER_B, salt_b, share_b, for_b, for_a, signature),
    )
