"""A client's submission with its own proof: a seed for one server, a body for another.

x = PRG(s, "x") + x' in the field. The seed's holder gets s, some hundred bytes; the
body's holder gets x', the bits e', the proof π' and the seed of half the masking row.
The header, signed, fixes all of it by salted hashes, and the rows' key and the bits'
challenges are hashes of these: no server and no client chooses them (docs/soundness.md,
part 4).

Seed and masking row are for this one submission and are never used again.
"""

from collections.abc import Iterator
from dataclasses import field, fields
from typing import Self

import numpy as np
from blake3 import blake3

from precad.common import (
    CACHED_WORDS,
    KEY_BYTES,
    SALT_BYTES,
    SEED_BYTES,
    SERVERS,
    WORD_BYTES,
    Body,
    BodyUnreadable,
    Digest,
    ProofShape,
    RejectedSubmission,
    Rejection,
    Role,
    Secret,
    Signature,
    Submission,
    SubmissionContext,
    Task,
    digest_of,
    encode_context,
    frozen_dataclass,
    frozen_kw_only_dataclass,
    whole_digest,
)
from precad.common.ring import opens
from precad.norm_check import FieldKeystream, FieldVector, first_not_below

PREFIX_BYTES = SALT_BYTES + KEY_BYTES
"""Bytes of a body before its words: salt_h and s_u."""
Openings = tuple[Digest, Digest]
"""o_A and o_B: random bytes that each server states when the attempt starts, and keeps
in memory alone. So no header outlives a process, and none is answered twice from a
restored database."""


@frozen_dataclass
class ForProof:
    """What both servers state to a client for an attempt, before it proves anything."""

    openings: Openings
    seed_holder: Role
    """Which server gets the seed; the other gets the body."""


@frozen_kw_only_dataclass
class ProofDraft:
    """What a client signs: a header without its signature."""

    context: SubmissionContext
    openings: Openings
    seed_holder: Role
    """It isn't sent: both servers know it (``Roster.seed_holders``)."""
    commitment: Digest
    """c: to the seed and its salt, bound to the seed's holder."""
    update_digest: Digest
    """h_x, of x'."""
    bits_digest: Digest
    """h_e, of e'."""
    proof_digest: Digest
    """h_π, of s_u and π'."""

    def __post_init__(self) -> None:
        if self.seed_holder not in SERVERS:
            raise ValueError(f"{self.seed_holder} holds no seed")

    @property
    def ctx(self) -> Digest:
        """Hash what seeds, rows and challenges are bound to: context and openings."""
        openings = (opening.value for opening in self.openings)
        return digest_of("proof-context", self.context.digest.value, *openings)

    @property
    def signed(self) -> bytes:
        """Return the bytes that the client signs.

        The signature's purpose is another than that of any other check.
        """
        digests = (
            self.commitment,
            self.update_digest,
            self.bits_digest,
            self.proof_digest,
        )
        parts = (digest.value for digest in (*self.openings, *digests))
        return encode_context(
            "submission-signature-with-proof", *self.context.parts, *parts
        )

    @property
    def rows_key(self) -> Secret:
        """Return K, the rows' key: it is fixed once the seed and x' are."""
        return _hashed("proof-rows", self.ctx, self.commitment, self.update_digest)

    @property
    def bits_key(self) -> Secret:
        """Return the key of μ₁ and μ₂: it is fixed once the bits are."""
        return _hashed(
            "proof-bits-key", Digest(self.rows_key.reveal()), self.bits_digest
        )

    def stream(self, secret: Secret, purpose: str) -> FieldKeystream:
        """Return the keystream of a seed for one purpose in this submission."""
        return FieldKeystream(
            secret,
            f"proof/{purpose}",
            self.seed_holder.value.encode(),
            self.ctx.value,
            self.commitment.value,
        )


@frozen_dataclass
class ProofHeader(ProofDraft):
    """A signed header: both servers get the same."""

    signature: Signature

    @classmethod
    def of(cls, draft: ProofDraft, signature: Signature) -> Self:
        """Return the draft with its signature."""
        parts = {part.name: getattr(draft, part.name) for part in fields(draft)}
        return cls(**parts, signature=signature)

    @property
    def whole_digest(self) -> Digest:
        """Return the digest that the servers compare, and draw the query from.

        Whether a header was answered before is decided by ``signed`` instead: one
        header may have several signatures.
        """
        return whole_digest(self.signed, self.signature)


def _hashed(purpose: str, *digests: Digest) -> Secret:
    """Return a key for one purpose: the hash of what it is bound to."""
    return Secret(digest_of(purpose, *(digest.value for digest in digests)).value)


@frozen_kw_only_dataclass
class ProofSubmission:
    """One server's part of a submission with a proof.

    The seed's holder has seed and salt; the other has the body, once it has come. It
    has the same methods as ``Submission``.
    """

    header: ProofHeader
    role: Role
    """The server that gets it."""
    seed: Secret | None = None
    """s; None for the body's holder, as is the salt."""
    salt: Secret | None = None
    body: Body | None = field(default=None, repr=False)
    """None for the seed's holder, and until it has come."""

    @property
    def context(self) -> SubmissionContext:
        """Return what the submission is for, and whose: of ``Submission``'s kind."""
        return self.header.context

    @property
    def awaits_body(self) -> bool:
        """Whether this server is the body's holder."""
        return self.role is not self.header.seed_holder

    @property
    def opens(self) -> bool:
        """Whether seed and salt open the commitment.

        At the body's holder: whether there is neither; its body has hashes of its own.
        """
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
        """Return what checks a body as it comes: ``Submission.body_hash``'s kind.

        ``prefix`` are the body's first bytes, ``shape`` is the task's.
        """
        assert shape is not None
        return ProofBodyHash(self.header, prefix, shape)

    def discard(self) -> None:
        """Drop the body, if any: it doesn't count, or isn't needed any more."""
        if self.body is not None:
            self.body.discard()


AnySubmission = Submission | ProofSubmission
"""A submission of whichever check of norms the task has."""


def body_layout(task: Task) -> tuple[int, int]:
    """Return how many bytes a body's prefix has, and how many words follow it."""
    if task.proof is None:
        return SALT_BYTES, task.dimension
    return PREFIX_BYTES, task.proof.body_words


class ProofBodyHash:
    """Hashes x', e' and π' as they come, and checks each word of them.

    They come in pieces of any lengths. ``prefix`` are the body's first bytes: salt_h
    and s_u.
    """

    def __init__(self, header: ProofHeader, prefix: Secret, shape: ProofShape) -> None:
        salt, mask_seed = halves(prefix)
        ctx = header.ctx
        self._left = [
            ("update", shape.dimension * WORD_BYTES, body_hasher("update", ctx, salt)),
            ("bits", shape.bits * WORD_BYTES, body_hasher("bits", ctx, salt)),
            (
                "proof",
                shape.values * WORD_BYTES,
                body_hasher("proof", ctx, salt, mask_seed),
            ),
        ]
        """What is still to come: name of a part, its bytes, and what hashes them."""
        self._signed = [header.update_digest, header.bits_digest, header.proof_digest]
        self._digests: list[Digest] = []
        self._partial_word = b""
        """Bytes of a word that isn't whole yet."""

    def update(self, piece: bytes | memoryview) -> None:
        """Take the next bytes, no more than a body has.

        Raises RejectedSubmission: a word isn't one of the field.
        """
        view = memoryview(piece)
        # A piece may end one part and begin the next.
        while len(view) > 0:
            name, length, hasher = self._left[0]
            part = view[:length]
            view = view[length:]
            hasher.update(part)
            self._require_words(name, part)
            self._left[0] = name, length - len(part), hasher
            if length == len(part):
                self._digests.append(Digest(hasher.digest()))
                self._left.pop(0)

    @property
    def right(self) -> bool:
        """Whether all has come, and is what was signed."""
        return self._digests == self._signed

    def _require_words(self, name: str, part: memoryview) -> None:
        """Check the words that are whole with the next bytes of the part ``name``."""
        if self._partial_word or len(part) % WORD_BYTES:
            part = memoryview(self._partial_word + part)
        whole = len(part) // WORD_BYTES * WORD_BYTES
        self._partial_word = bytes(part[whole:])
        words = np.frombuffer(part[:whole], "<u8").astype(np.uint64, copy=False)
        if first_not_below(words) is not None:
            raise RejectedSubmission(
                Rejection.MALFORMED,
                f"a word of the {name} is p = 2^64 − 2^32 + 1 or more",
            )


def halves(prefix: Secret) -> tuple[Secret, Secret]:
    """Return the two secrets of a body's prefix: salt_h and s_u."""
    secrets = prefix.reveal()
    return Secret(secrets[:SALT_BYTES]), Secret(secrets[SALT_BYTES:])


def body_hasher(part: str, ctx: Digest, *secrets: Secret) -> blake3:
    """Return a BLAKE3 that gives h_x, h_e or h_π, once it was updated with that part.

    ``part`` is ``update`` for x', ``bits`` for e' and ``proof`` for π'; ``secrets`` are
    salt_h, and for the proof s_u after it.
    """
    revealed = (secret.reveal() for secret in secrets)
    return blake3(encode_context(f"proof-{part}", ctx.value, *revealed))


class Share:
    """One server's share of a submission: of the update in pieces, then of the rest."""

    def __init__(self, submission: ProofSubmission, shape: ProofShape) -> None:
        self._submission = submission
        self._shape = shape
        self._tail: list[FieldVector] = []
        """A body's words behind the update, in pieces."""

    def update(self) -> Iterator[FieldVector]:
        """Yield X's share in order, a cacheful at a time: expanded, or read.

        Raises BodyUnreadable: the body is gone or was changed.
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
            words = np.frombuffer(piece, "<u8").astype(np.uint64, copy=False)
            update = words[:left]
            behind = words[left:]
            left -= update.size
            for start in range(0, update.size, CACHED_WORDS):
                yield update[start : start + CACHED_WORDS]
            if behind.size:
                # The piece is good until the next one is asked for.
                self._tail.append(behind.copy())

    def beside(self) -> tuple[FieldVector, FieldVector, FieldVector]:
        """Return shares of the bits, of the masking row and of the proof's values.

        ``[bits]``, ``[c_w]`` and ``[values]``. Those of a body are there once
        ``update`` has ended. Each server expands half of the masking row: from the
        seed, or from s_u. Raises BodyUnreadable: the body has another number of words.
        """
        submission = self._submission
        shape = self._shape
        stream = submission.header.stream
        seed = submission.seed
        if seed is not None:
            bits = stream(seed, "e").words(shape.bits)
            mask = stream(seed, "u").words(shape.columns)
            return bits, mask, stream(seed, "h").words(shape.values)
        assert submission.body is not None
        _, mask_seed = halves(submission.body.prefix)
        tail = np.concatenate([np.empty(0, np.uint64), *self._tail])
        if tail.size != shape.bits + shape.values:
            raise BodyUnreadable(f"a body has {tail.size} words behind the update")
        mask = stream(mask_seed, "u").words(shape.columns)
        return tail[: shape.bits], mask, tail[shape.bits :]
