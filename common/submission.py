"""A client's submission, one for each server, under one signed header for both.

x = b + a_A + a_B mod 2^64. Server A gets the seed of the mask a_A, server B that of a_B
and the body b: shares of x are a_A at A and b + a_B at B, and neither tells anything of
x without the other server's seed. The header names the seeds by two commitments and the
body by a hash. All three are salted, so that no server, and nobody who sees the header,
can test a guess of what it doesn't have.
"""

import secrets
from collections.abc import Iterator
from dataclasses import field
from typing import Protocol

import numpy as np
from blake3 import blake3

from precad.common import (
    CACHED_WORDS,
    SALT_BYTES,
    SEED_BYTES,
    WORD_BYTES,
    ClientId,
    Digest,
    Keystream,
    ProofShape,
    RejectedSubmission,
    Rejection,
    RingVector,
    Role,
    Secret,
    digest_of,
    encode_context,
    frozen_dataclass,
    frozen_kw_only_dataclass,
    mask_stream,
    submission_id,
)
from precad.common.ring import commit, opens

NONCE_BYTES = 32
"""Bytes of a context's nonce, from the CSPRNG: with a counter instead, the dealer, who
sees ctx, could test names in it."""


def _require_length(name: str, value: bytes | Secret, expected: int) -> None:
    """Raise RejectedSubmission (MALFORMED) where ``value`` has another length."""
    if len(value) != expected:
        raise RejectedSubmission(
            Rejection.MALFORMED, f"{name} has {len(value)} bytes, must have {expected}"
        )


@frozen_kw_only_dataclass
class SubmissionContext:
    """What a submission is bound to: task, version t, attempt, client, θ_t and a nonce.

    Raises RejectedSubmission (MALFORMED): a number is negative, or the nonce has a
    wrong length.
    """

    task: Digest
    version: int
    attempt: int
    client: ClientId
    model: Digest
    """Digest of θ_t, which the update was computed on."""
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES))

    def __post_init__(self) -> None:
        _require_length("nonce", self.nonce, NONCE_BYTES)
        for name, value in (("version", self.version), ("attempt", self.attempt)):
            if value < 0:
                raise RejectedSubmission(
                    Rejection.MALFORMED, f"{name} {value} is negative"
                )

    @property
    def parts(self) -> tuple[bytes | int, ...]:
        """Return all fields, as ``encode_context`` takes them."""
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
        """Return ctx, the SHA-256 of all fields, which names it to the dealer."""
        return digest_of("submission-context", *self.parts)

    @property
    def followed(self) -> dict[str, int | str]:
        """Return by which words every party's log follows the submission."""
        return {
            "version": self.version,
            "attempt": self.attempt,
            "owner": self.client.name,
            "submission": submission_id(self.digest.value),
        }


MAX_SIGNATURE_BYTES = 72
"""Longest signature: ECDSA on P-256 in DER."""
MAX_CERTIFICATES = 4
"""Most certificates that come with a signature."""
MAX_CERTIFICATE_BYTES = 4096
"""Longest certificate in DER."""


@frozen_dataclass
class Signature:
    """A signature and its certificate; lengths are checked before anything is parsed.

    Raises RejectedSubmission (MALFORMED): the signature or a certificate is too long,
    there are too many certificates, or one is missing.
    """

    value: bytes = field(repr=False)
    certificates: tuple[bytes, ...] = field(repr=False)
    """DER: the signer's own certificate, then any intermediate ones."""

    def __post_init__(self) -> None:
        size = len(self.value)
        if not 0 < size <= MAX_SIGNATURE_BYTES:
            raise RejectedSubmission(
                Rejection.MALFORMED,
                f"signature has {size} bytes, must have 1 to {MAX_SIGNATURE_BYTES}",
            )
        lengths = [len(certificate) for certificate in self.certificates]
        if (
            not 0 < len(lengths) <= MAX_CERTIFICATES
            or max(lengths) > MAX_CERTIFICATE_BYTES
        ):
            raise RejectedSubmission(
                Rejection.MALFORMED,
                f"certificates of {lengths[: MAX_CERTIFICATES + 1]} bytes; at most "
                f"{MAX_CERTIFICATES} of {MAX_CERTIFICATE_BYTES} bytes may come",
            )


class Signer(Protocol):
    """Signs with a party's key: a client's submissions, a server's statements."""

    def sign(self, signed: bytes) -> Signature:
        """Return the signature over ``signed``, with its certificates."""


class Verifier(Protocol):
    """Checks clients' signatures.

    Both methods raise RejectedSubmission with BAD_SIGNATURE.
    """

    def admit(self, signature: Signature, client: ClientId) -> None:
        """Refuse a certificate that isn't ``client``'s or doesn't count now."""

    def check(self, signature: Signature, signed: bytes) -> None:
        """Refuse a signature that isn't its certificate's over ``signed``."""


def signed_bytes(
    context: SubmissionContext,
    *,
    commitment_a: Digest,
    commitment_b: Digest,
    body_digest: Digest,
) -> bytes:
    """Return the bytes that a client signs: all of the context, c_A, c_B and h."""
    return encode_context(
        "submission-signature",
        *context.parts,
        commitment_a.value,
        commitment_b.value,
        body_digest.value,
    )


def whole_digest(signed: bytes, signature: Signature) -> Digest:
    """Return the SHA-256 of header, signature and certificates, as they were received.

    The servers compare it. If they compared less, one client could send two headers and
    frame a server for the difference.
    """
    return digest_of(
        "whole-submission",
        signed,
        signature.value,
        *signature.certificates,
    )


@frozen_kw_only_dataclass
class SignedHeader:
    """The header of a submission as it came, the same for both servers."""

    context: SubmissionContext
    commitment_a: Digest
    """c_A, to the seed that server A gets."""
    commitment_b: Digest
    """c_B, to the seed that server B gets."""
    body_digest: Digest
    """h, the hash of the body that server B gets."""
    signature: Signature

    @property
    def signed(self) -> bytes:
        """Return the bytes that the client signed."""
        return signed_bytes(
            self.context,
            commitment_a=self.commitment_a,
            commitment_b=self.commitment_b,
            body_digest=self.body_digest,
        )

    @property
    def whole_digest(self) -> Digest:
        """Return what the servers compare: see the function ``whole_digest``."""
        return whole_digest(self.signed, self.signature)

    def commitment(self, role: Role) -> Digest:
        """Return the commitment to the seed that the server of ``role`` gets."""
        return self.commitment_a if role is Role.SERVER_A else self.commitment_b


MESSAGE_BYTES = 1 << 18
"""256 KiB: most that one message carries of a body, or of a long message between the
servers. With its header it stays below the longest message that a server takes."""
CHUNK_BYTES = 1 << 20
"""1 MiB: b is kept, read and sent on in pieces of this length; the last may be shorter.
Each piece costs messages, calls and threads that wake; ``common/process.py`` has the
process keep buffers of this length."""


def body_hasher(ctx: Digest, salt_h: Secret) -> blake3:
    """Return a BLAKE3 that takes b's bytes and then gives h = BLAKE3(ctx, salt_h, b).

    SHA-256, which hashes all else, takes four times as long, and bodies are hashed
    three times. b comes last, without its length: ctx names the task, and the task
    fixes the length.
    """
    return blake3(encode_context("submission-body", ctx.value, salt_h.reveal()))


class Body(Protocol):
    """A submission's body in memory or on disk: salt_h and b, or a proof's body."""

    @property
    def prefix(self) -> Secret:
        """Return salt_h, which comes before the words."""

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Yield b, little-endian ring elements, in pieces of ``CHUNK_BYTES``.

        The last piece has the rest. Each piece is good until the next one is asked for.

        Raises BodyUnreadable: the file is gone or was changed.
        """

    def discard(self) -> None:
        """Free what holds the body: it isn't needed any more."""


def in_pieces(data: bytes | bytearray | memoryview, most: int) -> Iterator[memoryview]:
    """Yield ``data`` as views of at most so many bytes; nothing where it is empty."""
    view = memoryview(data)
    for start in range(0, len(view), most):
        yield view[start : start + most]


@frozen_dataclass
class HeldBody:
    """A body in memory, 8 bytes a word."""

    prefix: Secret
    words: bytes | bytearray | memoryview = field(repr=False)

    def pieces(self) -> Iterator[memoryview]:
        """Yield the words as views of the one buffer."""
        yield from in_pieces(self.words, CHUNK_BYTES)

    def discard(self) -> None:
        """Do nothing: the memory is freed with the last reference."""


@frozen_kw_only_dataclass
class Submission:
    """What one server holds of a client: header, seed s_j, salt_j and, at B, the body.

    Raises RejectedSubmission (MALFORMED): seed or salt has a wrong length.
    """

    header: SignedHeader
    role: Role
    """The server that holds it."""
    seed: Secret
    """s_j, which this server's mask is expanded from."""
    salt: Secret
    """salt_j, of the commitment to the seed."""
    body: Body | None = field(default=None, repr=False)
    """None until it has come."""

    def __post_init__(self) -> None:
        _require_length("seed", self.seed, SEED_BYTES)
        _require_length("salt", self.salt, SALT_BYTES)

    @property
    def context(self) -> SubmissionContext:
        """Return the context that the submission is bound to."""
        return self.header.context

    @property
    def opens(self) -> bool:
        """Return whether seed and salt open this server's commitment."""
        return opens(
            commitment=self.header.commitment(self.role),
            role=self.role,
            ctx=self.context.digest,
            salt=self.salt,
            seed=self.seed,
        )

    @property
    def awaits_body(self) -> bool:
        """Return whether a body belongs to it; server A gets none."""
        return self.role is Role.SERVER_B

    def body_hash(self, prefix: Secret, _shape: ProofShape | None = None) -> "BodyHash":
        """Return a check that takes the body's words, behind salt_h, the ``prefix``."""
        return BodyHash(self.header, prefix)

    def mask(self) -> Keystream:
        """Return the stream of a_j, this server's mask, to be read in any pieces."""
        return mask_stream(
            self.seed,
            self.role,
            ctx=self.header.context.digest,
            commitment_a=self.header.commitment_a,
            commitment_b=self.header.commitment_b,
        )

    def body_pieces(self) -> Iterator[bytes | memoryview]:
        """Return an iterator over b, in pieces of whole words, as ``Body.pieces``.

        Raises BodyUnreadable: the body's file is gone or was changed; ValueError: there
        is no body.
        """
        if self.body is None:
            raise ValueError(f"{self.role.value} holds no body")
        return self.body.pieces()

    def discard(self) -> None:
        """Free the body: the submission doesn't count, or isn't needed any more."""
        if self.body is not None:
            self.body.discard()


class BodyHash:
    """A check, as a body comes in piece by piece, that it is what was signed."""

    def __init__(self, header: SignedHeader, salt_h: Secret) -> None:
        self._signed_digest = header.body_digest
        self._hasher = body_hasher(header.context.digest, salt_h)

    def update(self, piece: bytes | memoryview) -> None:
        """Take the next bytes of b."""
        self._hasher.update(piece)

    @property
    def right(self) -> bool:
        """Return whether the bytes so far are the whole body that was signed."""
        return Digest(self._hasher.digest()) == self._signed_digest


def shard(
    x: RingVector, context: SubmissionContext, signer: Signer
) -> tuple[Submission, Submission]:
    """Share the update ``x``, ``[d] int64``; return the submissions for A and for B.

    Seeds and salts are fresh from the CSPRNG, and so is a new context's nonce: a second
    call with the same x has nothing in common with the first. Call it once per attempt,
    and keep the result for retries.
    """
    ctx = context.digest
    seed_a = Secret.random(SEED_BYTES)
    seed_b = Secret.random(SEED_BYTES)
    salt_a = Secret.random(SALT_BYTES)
    salt_b = Secret.random(SALT_BYTES)
    commitment_a = commit(Role.SERVER_A, ctx, salt=salt_a, seed=seed_a)
    commitment_b = commit(Role.SERVER_B, ctx, salt=salt_b, seed=seed_b)
    mask_a = mask_stream(
        seed_a,
        Role.SERVER_A,
        ctx=ctx,
        commitment_a=commitment_a,
        commitment_b=commitment_b,
    )
    mask_b = mask_stream(
        seed_b,
        Role.SERVER_B,
        ctx=ctx,
        commitment_a=commitment_a,
        commitment_b=commitment_b,
    )
    body, body_digest = _masked(x, mask_a=mask_a, mask_b=mask_b, ctx=ctx)
    signed = signed_bytes(
        context,
        commitment_a=commitment_a,
        commitment_b=commitment_b,
        body_digest=body_digest,
    )
    header = SignedHeader(
        context=context,
        commitment_a=commitment_a,
        commitment_b=commitment_b,
        body_digest=body_digest,
        signature=signer.sign(signed),
    )
    for_a = Submission(
        header=header,
        role=Role.SERVER_A,
        seed=seed_a,
        salt=salt_a,
    )
    for_b = Submission(
        header=header,
        role=Role.SERVER_B,
        seed=seed_b,
        salt=salt_b,
        body=body,
    )
    return for_a, for_b


def _masked(
    x: RingVector,
    *,
    mask_a: Keystream,
    mask_b: Keystream,
    ctx: Digest,
) -> tuple[HeldBody, Digest]:
    """Return the body, salt_h and b = x − a_A − a_B, and its hash h.

    Masks and hashes in one pass over one buffer, piece by piece.
    """
    salt_h = Secret.random(SALT_BYTES)
    hasher = body_hasher(ctx, salt_h)
    data = bytearray(x.size * WORD_BYTES)
    b = np.frombuffer(data, dtype="<i8")
    for start in range(0, x.size, CACHED_WORDS):
        stop = min(start + CACHED_WORDS, x.size)
        piece = b[start:stop]
        np.subtract(x[start:stop], mask_a.words(piece.size), out=piece)
        piece -= mask_b.words(piece.size)
        hasher.update(memoryview(data)[start * WORD_BYTES : stop * WORD_BYTES])
    return HeldBody(salt_h, data), Digest(hasher.digest())
