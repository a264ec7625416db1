"""What a submission is bound to."""

from dataclasses import dataclass

from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest
from precad.common.keystream import encode_context

NONCE_BYTES = 32
"""From the CSPRNG: with a counter the dealer, who sees ctx, could test names in it."""


@dataclass(frozen=True, slots=True)
class SubmissionContext:
    """Task, version, attempt, client, model and nonce."""

    task: Digest
    version: int
    """t of the model θ_t."""
    attempt: int
    client: ClientId
    model: Digest
    """Of θ_t."""
    nonce: bytes

    def __post_init__(self) -> None:
        if len(self.nonce) != NONCE_BYTES:
            raise RejectedSubmission(
                Rejection.MALFORMED, f"nonce has {len(self.nonce)} bytes, must have {NONCE_BYTES}"
            )
        for field, value in (("version", self.version), ("attempt", self.attempt)):
            if value < 0:
                raise RejectedSubmission(Rejection.MALFORMED, f"{field} {value} is negative")

    @property
    def parts(self) -> tuple[bytes | int, ...]:
        """All fields, as ``encode_context`` takes them."""
        return (
            self.task.value,
            self.version,
            self.attempt,
            self.client.encoded(),
            self.model.value,
            self.nonce,
        )

    @property
    def digest(self) -> Digest:
        """Ctx = SHA-256(task, version, attempt, client, model, nonce): names it to the dealer."""
        return Digest.of(encode_context("submission-context", *self.parts))
