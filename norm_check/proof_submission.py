"""A client's submission with its own proof: a seed for one server, a body for the other.

x = PRG(s, "x") + x' in the field. The seed's holder gets s, some hundred bytes; the
body's holder gets x', the bits e', the proof π' and the seed of half the masking row.
The header, signed, fixes all of it by salted hashes, and the rows' key and the bits'
challenges are hashes of these: no server and no client chooses them (docs/soundness.md,
part 4).

Seed and masking row serve this one submission and are never used again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Self

import numpy as np
from blake3 import blake3

from precad.common.errors import BodyUnreadable, RejectedSubmission, Rejection
from precad.common.identifiers import Digest, Role, Secret
from precad.common.proof_shape import ProofShape
from precad.common.ring import (
    CACHED_WORDS,
    KEY_BYTES,
    SALT_BYTES,
    SEED_BYTES,
    WORD_BYTES,
    encode_context,
    opens,
)
from precad.common.submission import (
    Body,
    Signature,
    Submission,
    SubmissionContext,
    whole_digest,
)
from precad.common.task import Task
from precad.norm_check.prime_field import FieldKeystream, FieldVector, first_not_below

PREFIX_BYTES = SALT_BYTES + KEY_BYTES
"""Of a body: salt_h and s_u, before its words."""
SERVERS = Role.SERVER_A, Role.SERVER_B
Openings = tuple[Digest, Digest]
"""o_A and o_B: random bytes that each server states when the attempt opens and keeps in
memory alone. So no header outlives a process, and none is answered twice from a
restored database."""


@dataclass(frozen=True, slots=True)
class ForProof:
    """What both servers state to a client, before it proves anything for an attempt."""

    openings: Openings
    seed_holder: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofDraft:
    """What a client signs: c, bound to the seed's holder, h_x of x', h_e of e', h_π of s_u and π'.

    The holder isn't sent: both servers know it (``Roster.seed_holders``).
    """

    context: SubmissionContext
    openings: Openings
    seed_holder: Role
    commitment: Digest
    update_digest: Digest
    bits_digest: Digest
    proof_digest: Digest

    def __post_init__(self) -> None:
        if self.seed_holder not in SERVERS:
            raise ValueError(f"{self.seed_holder} holds no seed")

    @property
    def ctx(self) -> Digest:
        """What seeds, rows and challenges are bound to: the context and both openings."""
        openings = (each.value for each in self.openings)
        return Digest.of(
            encode_context("proof-context", self.context.digest.value, *openings)
        )

    @property
    def signed(self) -> bytes:
        """The bytes that the client signs: for another purpose than any other check's."""
        digests = (
            self.commitment,
            self.update_digest,
            self.bits_digest,
            self.proof_digest,
        )
        parts = (each.value for each in (*self.openings, *digests))
        return encode_context(
            "submission-signature-with-proof", *self.context.parts, *parts
        )

    @property
    def rows_key(self) -> Secret:
        """K: fixed once seed and x' are."""
        return _hashed("proof-rows", self.ctx, self.commitment, self.update_digest)

    @property
    def bits_key(self) -> Secret:
        """Of μ₁ and μ₂: fixed once the bits are."""
        return _hashed(
            "proof-bits-key", Digest(self.rows_key.reveal()), self.bits_digest
        )

    def stream(self, secret: Secret, purpose: str) -> FieldKeystream:
        """The words of a seed for one purpose in this submission."""
        role = self.seed_holder.value.encode()
        names = self.ctx.value, self.commitment.value
        return FieldKeystream(secret, f"proof/{purpose}", role, *names)


@dataclass(frozen=True, slots=True)
class ProofHeader(ProofDraft):
    """What both servers get alike, as it came."""

    signature: Signature = field(repr=False)

    @classmethod
    def of(cls, draft: ProofDraft, signature: Signature) -> Self:
        """The draft, signed."""
        named = {each.name: getattr(draft, each.name) for each in fields(draft)}
        return cls(**named, signature=signature)

    @property
    def whole_digest(self) -> Digest:
        """What the servers compare, and draw the query from.

        What is answered once is ``signed``: of one header there may be several
        signatures.
        """
        return whole_digest(self.signed, self.signature)


def _hashed(purpose: str, *digests: Digest) -> Secret:
    return Secret(
        Digest.of(encode_context(purpose, *(each.value for each in digests))).value
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofSubmission:
    """What one server gets, and holds: seed and salt, or, once it has come, the body.

    Used as ``Submission``.
    """

    header: ProofHeader
    role: Role
    seed: Secret | None = field(default=None, repr=False)
    salt: Secret | None = field(default=None, repr=False)
    body: Body | None = field(default=None, repr=False)

    @property
    def context(self) -> SubmissionContext:
        """As ``Submission``'s; so are the next four."""
        return self.header.context

    @property
    def awaits_body(self) -> bool:
        """Whether this server is the body's holder."""
        return self.role is not self.header.seed_holder

    @property
    def opens(self) -> bool:
        """Whether seed and salt open the commitment; a body is held against its own hashes."""
        header = self.header
        if self.awaits_body:
            return self.seed is None and self.salt is None
        if self.seed is None or self.salt is None or len(self.seed) != SEED_BYTES:
            return False
        return opens(
            commitment=header.commitment,
            role=self.role,
            ctx=header.ctx,
            salt=self.salt,
            seed=self.seed,
        )

    def body_hash(self, prefix: Secret, shape: ProofShape | None) -> "ProofBodyHash":
        """As ``Submission.body_hash``."""
        assert shape is not None
        return ProofBodyHash(self.header, prefix, shape)

    def discard(self) -> None:
        """It doesn't count, or isn't needed any more: the body goes, if there is one."""
        if self.body is not None:
            self.body.discard()


AnySubmission = Submission | ProofSubmission
"""Of whichever check the task has."""


def body_layout(task: Task) -> tuple[int, int]:
    """Bytes of a body's prefix, and how many words follow."""
    if task.proof is None:
        return SALT_BYTES, task.dimension
    return PREFIX_BYTES, task.proof.body_words


class ProofBodyHash:
    """Hashes x', e' and π' as they come, in pieces of any lengths, and looks at every word."""

    def __init__(self, header: ProofHeader, prefix: Secret, shape: ProofShape) -> None:
        salt, mask_seed = halves(prefix)
        ctx = header.ctx
        self._left = [
            ("update", shape.dimension * WORD_BYTES, body_hasher("update", ctx, salt)),
            ("bits", shape.bits * WORD_BYTES, body_hasher("bits", ctx, salt)),
            ("proof", shape.values * WORD_BYTES, proof_hasher(ctx, salt, mask_seed)),
        ]
        self._said = [header.update_digest, header.bits_digest, header.proof_digest]
        self._found: list[Digest] = []
        self._rest = b""
        """Bytes of a word that isn't whole yet."""

    def update(self, piece: bytes | memoryview) -> None:
        """The next bytes; no more than a body has.

        Raises RejectedSubmission: a word isn't one of the field.
        """
        view = memoryview(piece)
        while len(view) > 0:
            name, length, hasher = self._left[0]
            part = view[:length]
            view = view[length:]
            hasher.update(part)
            self._require_words(name, part)
            self._left[0] = name, length - len(part), hasher
            if length == len(part):
                self._found.append(Digest(hasher.digest()))
                self._left.pop(0)

    @property
    def right(self) -> bool:
        """Whether all has come, and is what was signed."""
        return self._found == self._said

    def _require_words(self, name: str, part: memoryview) -> None:
        if self._rest or len(part) % WORD_BYTES:
            part = memoryview(self._rest + part)
        whole = len(part) // WORD_BYTES * WORD_BYTES
        self._rest = bytes(part[whole:])
        words = np.frombuffer(part[:whole], dtype="<u8").astype(np.uint64, copy=False)
        if first_not_below(words) is not None:
            why = f"a word of the {name} is p = 2^64 − 2^32 + 1 or more"
            raise RejectedSubmission(Rejection.MALFORMED, why)


def halves(prefix: Secret) -> tuple[Secret, Secret]:
    """salt_h and s_u."""
    whole = prefix.reveal()
    return Secret(whole[:SALT_BYTES]), Secret(whole[SALT_BYTES:])


def body_hasher(what: str, ctx: Digest, salt: Secret) -> blake3:
    """A BLAKE3 that waits for x' (`update`) or e' (`bits`) and then gives h_x or h_e."""
    return blake3(encode_context(f"proof-{what}", ctx.value, salt.reveal()))


def proof_hasher(ctx: Digest, salt: Secret, mask_seed: Secret) -> blake3:
    """The same for π' and h_π."""
    return blake3(
        encode_context("proof-proof", ctx.value, salt.reveal(), mask_seed.reveal())
    )


class Share:
    """One server's share of the update, in pieces, and then of what the proof has beside it."""

    def __init__(self, submission: ProofSubmission, shape: ProofShape) -> None:
        self._submission = submission
        self._shape = shape
        self._tail: list[FieldVector] = []

    def update(self) -> Iterator[FieldVector]:
        """X's share in order, a cacheful at a time: expanded, or read.

        Raises BodyUnreadable.
        """
        submission = self._submission
        dimension = self._shape.dimension
        if submission.seed is not None:
            stream = submission.header.stream(submission.seed, "x")
            for start in range(0, dimension, CACHED_WORDS):
                yield stream.words(min(CACHED_WORDS, dimension - start), start)
            return
        if submission.body is None:
            raise AssertionError(
                f"{submission.context.client} was matched without a body"
            )
        left = dimension
        self._tail = []
        for piece in submission.body.pieces():
            words = np.frombuffer(piece, dtype="<u8").astype(np.uint64, copy=False)
            of_update = words[:left]
            rest = words[left:]
            left -= of_update.size
            for start in range(0, of_update.size, CACHED_WORDS):
                yield of_update[start : start + CACHED_WORDS]
            if rest.size:
                # The piece is good until the next one is asked for.
                self._tail.append(rest.copy())

    def beside(self) -> tuple[FieldVector, FieldVector, FieldVector]:
        """Shares of the bits, of the masking row and of the proof's values.

        A body's are there once ``update`` has ended.
        """
        submission = self._submission
        shape = self._shape
        stream = self._submission.header.stream
        seed = submission.seed
        if seed is not None:
            bits = stream(seed, "e").words(shape.bits)
            mask = stream(seed, "u").words(shape.columns)
            return bits, mask, stream(seed, "h").words(shape.values)
        assert submission.body is not None
        _, mask_seed = halves(submission.body.prefix)
        tail = (
            np.concatenate(self._tail) if self._tail else np.empty(0, dtype=np.uint64)
        )
        if tail.size != shape.bits + shape.values:
            raise BodyUnreadable(f"a body has {tail.size} words behind the update")
        mask = stream(mask_seed, "u").words(shape.columns)
        return tail[: shape.bits], mask, tail[shape.bits :]
