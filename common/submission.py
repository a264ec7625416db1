"""A client's submission, one for each server, under a signed header that is the same to both.

x = b + a_A + a_B mod 2^64. Server A gets the seed of a_A, server B that of a_B and b:
shares of x are a_A at A and b + a_B at B, and none of it says anything of x without the
other server's seed. The header names seeds and body by two commitments and a hash, all
three salted, so that no server, and nobody who sees the header, can test a guess of
what it lacks.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from blake3 import blake3

from precad.common import ring
from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.proof_shape import ProofShape

NONCE_BYTES = 32
"""From the CSPRNG: with a counter the dealer, who sees ctx, could test names in it."""


def _require_length(name: str, value: bytes | Secret, right: int) -> None:
    if len(value) != right:
        why = f"{name} has {len(value)} bytes, must have {right}"
        raise RejectedSubmission(Rejection.MALFORMED, why)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionContext:
    """Task, version t, attempt, client, the digest of θ_t, and a nonce."""

    task: Digest
    version: int
    attempt: int
    client: ClientId
    model: Digest
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
        """All fields, as ``encode_context`` takes them."""
        of_model = self.version, self.attempt, self.client.encoded(), self.model.value
        return self.task.value, *of_model, self.nonce

    @property
    def digest(self) -> Digest:
        """Ctx = SHA-256(task, version, attempt, client, model, nonce): names it to the dealer."""
        return Digest.of(ring.encode_context("submission-context", *self.parts))


MAX_SIGNATURE_BYTES = 72
"""ECDSA on P-256 in DER."""
MAX_CERTIFICATES = 4
MAX_CERTIFICATE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature and its certificate: lengths are checked here, before anything is parsed."""

    value: bytes = field(repr=False)
    certificates: tuple[bytes, ...] = field(repr=False)
    """DER: the client's own, then any intermediate ones."""

    def __post_init__(self) -> None:
        if not 0 < (size := len(self.value)) <= MAX_SIGNATURE_BYTES:
            why = f"signature has {size} bytes, must have 1 to {MAX_SIGNATURE_BYTES}"
            raise RejectedSubmission(Rejection.MALFORMED, why)
        lengths = [len(each) for each in self.certificates]
        if (
            not 0 < len(lengths) <= MAX_CERTIFICATES
            or max(lengths) > MAX_CERTIFICATE_BYTES
        ):
            why = (
                f"certificates of {lengths[: MAX_CERTIFICATES + 1]} bytes; at most "
                f"{MAX_CERTIFICATES} of {MAX_CERTIFICATE_BYTES} bytes may come"
            )
            raise RejectedSubmission(Rejection.MALFORMED, why)


class Signer(Protocol):
    """Signs with a party's key: a client's submissions, a server's statements."""

    def sign(self, signed: bytes) -> Signature:
        """The signature over ``signed``."""


class Verifier(Protocol):
    """Checks clients' signatures.

    Both methods raise RejectedSubmission with BAD_SIGNATURE.
    """

    def admit(self, signature: Signature, client: ClientId) -> None:
        """Whether the signature's certificate is ``client``'s and counts now."""

    def check(self, signature: Signature, signed: bytes) -> None:
        """Whether the signature is its certificate's over ``signed``."""


def signed_bytes(
    context: SubmissionContext,
    *,
    commitment_a: Digest,
    commitment_b: Digest,
    body_digest: Digest,
) -> bytes:
    """What a client signs: all of the context, c_A, c_B and h."""
    digests = commitment_a.value, commitment_b.value, body_digest.value
    return ring.encode_context("submission-signature", *context.parts, *digests)


def whole_digest(signed: bytes, signature: Signature) -> Digest:
    """SHA-256 of header, signature and certificates as received: what the servers compare.

    Compared by less, one client could send two headers and frame a server for the
    difference.
    """
    parts = signed, signature.value, *signature.certificates
    return Digest.of(ring.encode_context("whole-submission", *parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHeader:
    """What both servers get alike, as it came: c_A and c_B to each server's seed, h of B's body."""

    context: SubmissionContext
    commitment_a: Digest
    commitment_b: Digest
    body_digest: Digest
    signature: Signature = field(repr=False)

    @property
    def signed(self) -> bytes:
        """The bytes that the client signed."""
        return signed_bytes(
            self.context,
            commitment_a=self.commitment_a,
            commitment_b=self.commitment_b,
            body_digest=self.body_digest,
        )

    @property
    def whole_digest(self) -> Digest:
        """What the servers compare: see ``whole_digest``."""
        return whole_digest(self.signed, self.signature)

    def commitment(self, role: Role) -> Digest:
        """The one to the seed that ``role`` gets."""
        return self.commitment_a if role is Role.SERVER_A else self.commitment_b


MESSAGE_BYTES = 1 << 18
"""256 KiB: what one message carries of a body, or of a server's longer word to the
other; with its header it stays below what a server takes as one message."""
CHUNK_BYTES = 1 << 20
"""1 MiB: b is kept, read and sent on in pieces of so many bytes; the last may be
shorter. Each costs messages, threads that wake and calls; ``common/process.py`` keeps
such buffers."""


def body_hasher(ctx: Digest, salt_h: Secret) -> blake3:
    """A BLAKE3 that waits for b's bytes and then gives h = BLAKE3(ctx, salt_h, b).

    Not SHA-256, as everything else: it takes a quarter of the time, and bodies are
    hashed three times. b comes last, without its length: ctx names the task, and the
    task fixes it.
    """
    return blake3(ring.encode_context("submission-body", ctx.value, salt_h.reveal()))


class Body(Protocol):
    """salt_h and b, or what a proof's body is made of, wherever they are."""

    @property
    def prefix(self) -> Secret:
        """What comes before the words: salt_h."""

    def pieces(self) -> Iterator[bytes | memoryview]:
        """B in pieces of ``CHUNK_BYTES``, the last one the rest: little-endian ring elements.

        Each piece is good until the next one is asked for. Raises BodyUnreadable.
        """

    def discard(self) -> None:
        """It isn't needed any more."""


@dataclass(frozen=True, slots=True)
class HeldBody:
    """A body in memory, 8 bytes a word."""

    prefix: Secret = field(repr=False)
    words: bytes | bytearray | memoryview = field(repr=False)

    def pieces(self) -> Iterator[memoryview]:
        """The words, in views of the one buffer."""
        view = memoryview(self.words)
        for start in range(0, len(view), CHUNK_BYTES):
            yield view[start : start + CHUNK_BYTES]

    def discard(self) -> None:
        """Nothing: it goes with its last holder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What one server gets, and holds: s_j, salt_j of the commitment to it, and at B the body."""

    header: SignedHeader
    role: Role
    seed: Secret = field(repr=False)
    salt: Secret = field(repr=False)
    body: Body | None = field(default=None, repr=False)
    """None until it has come."""

    def __post_init__(self) -> None:
        _require_length("seed", self.seed, ring.SEED_BYTES)
        _require_length("salt", self.salt, ring.SALT_BYTES)

    @property
    def context(self) -> SubmissionContext:
        """What it is bound to."""
        return self.header.context

    @property
    def opens(self) -> bool:
        """Whether seed and salt open this server's commitment."""
        ctx = self.context.digest
        return ring.opens(
            commitment=self.header.commitment(self.role),
            role=self.role,
            ctx=ctx,
            salt=self.salt,
            seed=self.seed,
        )

    @property
    def awaits_body(self) -> bool:
        """Whether a body belongs to it, which server A doesn't get."""
        return self.role is Role.SERVER_B

    def body_hash(self, prefix: Secret, _shape: ProofShape | None = None) -> "BodyHash":
        """What takes a body's words, behind salt_h, and says whether they are right."""
        return BodyHash(self.header, prefix)

    def mask(self) -> ring.Keystream:
        """a_j, this server's mask, to be read in pieces of any size."""
        return ring.mask_stream(
            self.seed,
            self.role,
            ctx=self.header.context.digest,
            commitment_a=self.header.commitment_a,
            commitment_b=self.header.commitment_b,
        )

    def body_pieces(self) -> Iterator[bytes | memoryview]:
        """b, in pieces of whole words; see ``Body``. Raises BodyUnreadable."""
        if self.body is None:
            raise ValueError(f"{self.role.value} holds no body")
        return self.body.pieces()

    def discard(self) -> None:
        """It doesn't count, or isn't needed any more: the body goes, if there is one."""
        if self.body is not None:
            self.body.discard()


class BodyHash:
    """Hashes b as it comes."""

    def __init__(self, header: SignedHeader, salt_h: Secret) -> None:
        self._said = header.body_digest
        self._hasher = body_hasher(header.context.digest, salt_h)

    def update(self, piece: bytes | memoryview) -> None:
        """The next bytes of b."""
        self._hasher.update(piece)

    @property
    def right(self) -> bool:
        """Whether all that came is what was signed."""
        return Digest(self._hasher.digest()) == self._said


def shard(
    x: ring.RingVector, context: SubmissionContext, signer: Signer
) -> tuple[Submission, Submission]:
    """Share ``x`` (``[d] int64``): the submissions for A and for B.

    Seeds and salts are fresh from the CSPRNG, and so is a new context's nonce: a second
    call with the same x has nothing in common with the first. Call it once per attempt,
    and keep the result for retries.
    """
    ctx = context.digest
    seed_a = Secret.random(ring.SEED_BYTES)
    seed_b = Secret.random(ring.SEED_BYTES)
    salt_a = Secret.random(ring.SALT_BYTES)
    salt_b = Secret.random(ring.SALT_BYTES)
    commitment_a = ring.commit(Role.SERVER_A, ctx, salt=salt_a, seed=seed_a)
    commitment_b = ring.commit(Role.SERVER_B, ctx, salt=salt_b, seed=seed_b)
    mask_a = ring.mask_stream(
        seed_a,
        Role.SERVER_A,
        ctx=ctx,
        commitment_a=commitment_a,
        commitment_b=commitment_b,
    )
    mask_b = ring.mask_stream(
        seed_b,
        Role.SERVER_B,
        ctx=ctx,
        commitment_a=commitment_a,
        commitment_b=commitment_b,
    )
    body, body_digest = _masked(
        x,
        of_a=mask_a,
        of_b=mask_b,
        ctx=ctx,
    )
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
    at_a = Submission(
        header=header,
        role=Role.SERVER_A,
        seed=seed_a,
        salt=salt_a,
    )
    at_b = Submission(
        header=header,
        role=Role.SERVER_B,
        seed=seed_b,
        salt=salt_b,
        body=body,
    )
    return at_a, at_b


def _masked(
    x: ring.RingVector,
    *,
    of_a: ring.Keystream,
    of_b: ring.Keystream,
    ctx: Digest,
) -> tuple[HeldBody, Digest]:
    """The body, salt_h and x − a_A − a_B, and h; in one pass over one buffer."""
    salt_h = Secret.random(ring.SALT_BYTES)
    hasher = body_hasher(ctx, salt_h)
    data = bytearray(x.size * ring.WORD_BYTES)
    b = np.frombuffer(data, dtype="<i8")
    for start in range(0, x.size, ring.CACHED_WORDS):
        stop = min(start + ring.CACHED_WORDS, x.size)
        piece = b[start:stop]
        np.subtract(x[start:stop], of_a.words(piece.size), out=piece)
        piece -= of_b.words(piece.size)
        hasher.update(
            memoryview(data)[start * ring.WORD_BYTES : stop * ring.WORD_BYTES]
        )
    return HeldBody(salt_h, data), Digest(hasher.digest())
