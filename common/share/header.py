"""The signed header of a submission: it fixes x, and is the same to both servers.

x is defined by two seeds and a body. The header names them by two commitments and a hash, all three
salted, so that no server, and nobody who sees the header, can test a guess of what it lacks.
"""

import secrets
from dataclasses import dataclass, field
from typing import Protocol

from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role
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
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES))

    def __post_init__(self) -> None:
        if len(self.nonce) != NONCE_BYTES:
            raise RejectedSubmission(
                Rejection.MALFORMED, f"nonce has {len(self.nonce)} bytes, must have {NONCE_BYTES}"
            )
        for name, value in (("version", self.version), ("attempt", self.attempt)):
            if value < 0:
                raise RejectedSubmission(Rejection.MALFORMED, f"{name} {value} is negative")

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


MAX_SIGNATURE_BYTES = 72
"""ECDSA on P-256 in DER."""


MAX_CERTIFICATES = 4


MAX_CERTIFICATE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature and the certificate that it is to be checked with.

    Lengths are checked here, before anything is parsed.
    """

    value: bytes = field(repr=False)
    certificates: tuple[bytes, ...] = field(repr=False)
    """DER: the client's own, then any intermediate ones."""

    def __post_init__(self) -> None:
        if not 0 < len(self.value) <= MAX_SIGNATURE_BYTES:
            raise RejectedSubmission(
                Rejection.MALFORMED,
                f"signature has {len(self.value)} bytes, must have 1 to {MAX_SIGNATURE_BYTES}",
            )
        lengths = [len(each) for each in self.certificates]
        if not 0 < len(lengths) <= MAX_CERTIFICATES or max(lengths) > MAX_CERTIFICATE_BYTES:
            raise RejectedSubmission(
                Rejection.MALFORMED,
                f"certificates of {lengths[: MAX_CERTIFICATES + 1]} bytes; at most "
                f"{MAX_CERTIFICATES} of {MAX_CERTIFICATE_BYTES} bytes may come",
            )


class Signer(Protocol):
    """Signs with a party's key: a client's submissions, a server's statements."""

    def sign(self, signed: bytes) -> Signature:
        """The signature over ``signed``."""


class Verifier(Protocol):
    """Checks clients' signatures. Both methods raise RejectedSubmission with BAD_SIGNATURE."""

    def admit(self, signature: Signature, client: ClientId) -> None:
        """Whether the signature's certificate is ``client``'s and counts now."""

    def check(self, signature: Signature, signed: bytes) -> None:
        """Whether the signature is its certificate's over ``signed``."""


def signed_bytes(
    context: SubmissionContext, commitment_a: Digest, commitment_b: Digest, body_digest: Digest
) -> bytes:
    """What a client signs: all of the context, c_A, c_B and h."""
    digests = commitment_a.value, commitment_b.value, body_digest.value
    return encode_context("submission-signature", *context.parts, *digests)


@dataclass(frozen=True, slots=True)
class SignedHeader:
    """What both servers get alike, as it came."""

    context: SubmissionContext
    commitment_a: Digest
    """c_A, to the seed that server A gets."""
    commitment_b: Digest
    """c_B, to server B's."""
    body_digest: Digest
    """h, of the body that server B gets."""
    signature: Signature = field(repr=False)
    """Over ``signed``."""

    @property
    def signed(self) -> bytes:
        """The bytes that the client signed."""
        digests = self.commitment_a, self.commitment_b, self.body_digest
        return signed_bytes(self.context, *digests)

    @property
    def whole_digest(self) -> Digest:
        """SHA-256 of header, signature and certificates as received: what the servers compare.

        Compared by less, one client could send two headers and frame a server for the difference.
        """
        signature = self.signature
        parts = self.signed, signature.value, *signature.certificates
        return Digest.of(encode_context("whole-submission", *parts))

    def commitment(self, role: Role) -> Digest:
        """The one to the seed that ``role`` gets."""
        return self.commitment_a if role is Role.SERVER_A else self.commitment_b
