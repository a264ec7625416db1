"""A client's submission with its own proof: a seed for one server, a body for the other.

x = PRG(s, "x") + x' in the field. The seed's holder gets s, some hundred bytes; the body's holder
gets x', the bits e', the proof π' and the seed of half the masking row. The header, signed, fixes
all of it by salted hashes, and the rows' key and the bits' challenges are hashes of these: no
server and no client chooses them (docs/soundness.md, part 4).

Seed and masking row serve this one submission and are never used again.
"""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from blake3 import blake3

from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.keystream import KEY_BYTES, encode_context
from precad.common.prime_field import (
    FieldKeystream,
    FieldVector,
    arithmetic,
    first_not_below,
    of_signed,
)
from precad.common.ring import WORD_BYTES, RingVector
from precad.common.secret import Secret
from precad.common.share.header import Signature, Signer, SubmissionContext
from precad.common.share.mask import SALT_BYTES, SEED_BYTES, commit, opens
from precad.norm_check.norm_proof import (
    ProofShape,
    ProofShare,
    ProofWords,
    Query,
    answer,
    bit_challenges,
    bits_of,
    projections,
    prove,
)
from precad.norm_check.random_rows import Rows

PIECE_WORDS = 1 << 16
"""Words that pass together: they stay in the processor's cache."""
SERVERS = Role.SERVER_A, Role.SERVER_B


def seed_holders(task: Digest, roster: Iterable[ClientId]) -> dict[ClientId, Role]:
    """Which server gets each client's seed: they alternate, so that both links carry half.

    In the order of H(task, client), which no client chooses.
    """

    def place(client: ClientId) -> bytes:
        return Digest.of(encode_context("seed-holder", task.value, client.encoded())).value

    ordered = sorted(roster, key=place)
    return {client: SERVERS[number % 2] for number, client in enumerate(ordered)}


@dataclass(frozen=True, slots=True)
class ProofHeader:
    """What both servers get alike, as it came."""

    context: SubmissionContext
    openings: tuple[Digest, Digest]
    """o_A and o_B: random bytes that each server states when the attempt opens and keeps in memory
    alone. So no header outlives a process, and none is answered twice from a restored database."""
    seed_holder: Role
    """SERVER_A or SERVER_B; not sent: both servers know it (``seed_holders``)."""
    commitment: Digest
    """c, to the seed; bound to its holder."""
    update_digest: Digest
    """h_x, of x'."""
    bits_digest: Digest
    """h_e, of e'."""
    proof_digest: Digest
    """h_π, of s_u and π'."""
    signature: Signature | None = field(default=None, repr=False)
    """Over ``signed``."""

    def __post_init__(self) -> None:
        if self.seed_holder not in SERVERS:
            raise ValueError(f"{self.seed_holder} holds no seed")

    @property
    def ctx(self) -> Digest:
        """What seeds, rows and challenges are bound to: the context and both openings."""
        openings = (each.value for each in self.openings)
        return Digest.of(encode_context("proof-context", self.context.digest.value, *openings))

    @property
    def signed(self) -> bytes:
        """The bytes that the client signs: for another purpose than any other check's."""
        digests = self.commitment, self.update_digest, self.bits_digest, self.proof_digest
        parts = (each.value for each in (*self.openings, *digests))
        return encode_context("submission-signature-with-proof", *self.context.parts, *parts)

    @property
    def whole_digest(self) -> Digest:
        """SHA-256 of header, signature and certificates as received: what the servers compare.

        The query is drawn from it. What is answered once is ``signed``: of one header there may be
        several signatures.
        """
        if self.signature is None:
            raise ValueError("a header without a signature is none yet")
        parts = self.signed, self.signature.value, *self.signature.certificates
        return Digest.of(encode_context("whole-submission", *parts))

    @property
    def rows_key(self) -> Secret:
        """K: fixed once seed and x' are."""
        return _hashed("proof-rows", self.ctx, self.commitment, self.update_digest)

    @property
    def bits_key(self) -> Secret:
        """Of μ₁ and μ₂: fixed once the bits are."""
        return _hashed("proof-bits-key", Digest(self.rows_key.reveal()), self.bits_digest)

    def stream(self, secret: Secret, purpose: str) -> FieldKeystream:
        """The words of a seed for one purpose in this submission."""
        role = self.seed_holder.value.encode()
        names = self.ctx.value, self.commitment.value
        return FieldKeystream(secret, f"proof/{purpose}", role, *names)


def _hashed(purpose: str, *digests: Digest) -> Secret:
    return Secret(Digest.of(encode_context(purpose, *(each.value for each in digests))).value)


@dataclass(frozen=True, slots=True)
class SeedPart:
    """What the seed's holder gets."""

    header: ProofHeader
    seed: Secret = field(repr=False)
    salt: Secret = field(repr=False)

    @property
    def opens(self) -> bool:
        """Whether they open the commitment."""
        header = self.header
        return opens(header.commitment, header.seed_holder, header.ctx, self.salt, self.seed)


@dataclass(frozen=True, slots=True)
class BodyPart:
    """What the body's holder gets."""

    header: ProofHeader
    salt: Secret = field(repr=False)
    """salt_h."""
    mask_seed: Secret = field(repr=False)
    """s_u: of its half of the masking row."""
    update: FieldVector = field(repr=False)
    """x', ``[d]``."""
    bits: FieldVector = field(repr=False)
    """e'."""
    values: FieldVector = field(repr=False)
    """π'."""

    def require_signed(self, shape: ProofShape) -> None:
        """Refuse a body that isn't what was signed, or isn't made of so many words of the field.

        Raises:
            RejectedSubmission: the client's doing.
        """
        sizes = {"update": shape.dimension, "bits": shape.bits, "values": shape.values}
        lengths = {name: (getattr(self, name).size, size) for name, size in sizes.items()}
        lengths |= {
            "salt": (len(self.salt), SALT_BYTES),
            "mask_seed": (len(self.mask_seed), KEY_BYTES),
        }
        for name, (found, right) in lengths.items():
            if found != right:
                raise RejectedSubmission(
                    Rejection.MALFORMED, f"{name} has a length of {found}, must have {right}"
                )
        header, ctx = self.header, self.header.ctx
        digests = (
            (header.update_digest, _body_digest("update", ctx, self.salt, self.update)),
            (header.bits_digest, _body_digest("bits", ctx, self.salt, self.bits)),
            (header.proof_digest, _proof_digest(ctx, self.salt, self.mask_seed, self.values)),
        )
        if any(said != is_ for said, is_ in digests):
            raise RejectedSubmission(Rejection.MALFORMED, "the body isn't the one that was signed")
        for name in sizes:
            at = first_not_below(getattr(self, name))
            if at is not None:
                raise RejectedSubmission(
                    Rejection.MALFORMED, f"word {at} of the {name} is p or more"
                )


@dataclass(frozen=True, slots=True)
class Verified:
    """A part that was verified whole: of others no word leaves a server. Made by ``verified``."""

    part: SeedPart | BodyPart


def verified(part: SeedPart | BodyPart, shape: ProofShape, own: Role, opening: Digest) -> Verified:
    """Check all that one server can check of its part by itself, but for the signature.

    Args:
        part: as it came.
        shape: the proof's sizes.
        own: which server this is.
        opening: o_j of this process and attempt.

    Raises:
        RejectedSubmission: the client's doing.
    """
    if part.header.openings[SERVERS.index(own)] != opening:
        raise RejectedSubmission(
            Rejection.WRONG_ATTEMPT, "the header is of another opening of this attempt"
        )
    if isinstance(part, BodyPart):
        part.require_signed(shape)
    elif not part.opens:
        raise RejectedSubmission(
            Rejection.MALFORMED, "seed and salt don't open the commitment to the seed"
        )
    return Verified(part)


def share_with_proof(
    x: RingVector,
    shape: ProofShape,
    context: SubmissionContext,
    openings: tuple[Digest, Digest],
    seed_holder: Role,
    signer: Signer,
) -> tuple[SeedPart, BodyPart]:
    """Share ``x`` (``[d] int64``) and prove its norm; never raises for what x holds.

    Seeds and salts are fresh from the CSPRNG. Call it once an attempt and keep the result for
    retries: whoever gets two proofs of one update with one seed can tell it from another.

    Args:
        x: the update.
        shape: the proof's sizes.
        context: what it is bound to.
        openings: o_A and o_B, as each server stated its own.
        seed_holder: SERVER_A or SERVER_B.
        signer: signs with this client's key.
    """
    math, nothing = arithmetic(), Digest(bytes(32))
    header = ProofHeader(context, openings, seed_holder, nothing, nothing, nothing, nothing)
    ctx = header.ctx
    seed, salt, salt_h = (Secret(secrets.token_bytes(n)) for n in (SEED_BYTES, *[SALT_BYTES] * 2))
    mask_seed = Secret(secrets.token_bytes(KEY_BYTES))
    header = replace(header, commitment=commit(seed_holder, ctx, salt, seed))

    def masked(words: FieldVector, purpose: str) -> FieldVector:
        return math.subtract(words, header.stream(seed, purpose).words(words.size))

    words = of_signed(x)
    update = masked(words, "x")
    header = replace(header, update_digest=_body_digest("update", ctx, salt_h, update))
    rows = Rows(header.rows_key, shape.dimension, shape.rows)
    rows.absorb(x)
    # Within d·β of 0 for an honest update: below 2^63, so the ring's z is the integers'.
    written = bits_of(shape, rows.z(), math.dot(words, words))
    bits = masked(written, "e")
    header = replace(header, bits_digest=_body_digest("bits", ctx, salt_h, bits))
    mask = math.add(
        header.stream(seed, "u").words(shape.columns),
        header.stream(mask_seed, "u").words(shape.columns),
    )
    mu = bit_challenges(shape, header.bits_key)
    values = masked(prove(shape, words, written, mu, mask), "h")
    header = replace(header, proof_digest=_proof_digest(ctx, salt_h, mask_seed, values))
    header = replace(header, signature=signer.sign(header.signed))
    return SeedPart(header, seed, salt), BodyPart(header, salt_h, mask_seed, update, bits, values)


def _body_digest(what: str, ctx: Digest, salt: Secret, words: FieldVector) -> Digest:
    hasher = blake3(encode_context(f"proof-{what}", ctx.value, salt.reveal()))
    hasher.update(words.astype("<u8", copy=False).data.cast("B"))
    return Digest(hasher.digest())


def _proof_digest(ctx: Digest, salt: Secret, mask_seed: Secret, values: FieldVector) -> Digest:
    hasher = blake3(encode_context("proof-proof", ctx.value, salt.reveal(), mask_seed.reveal()))
    hasher.update(values.astype("<u8", copy=False).data.cast("B"))
    return Digest(hasher.digest())


def answer_of(part: SeedPart | BodyPart, shape: ProofShape, query: Query) -> ProofWords:
    """This server's words for one submission, whose part has been verified whole.

    Args:
        part: what this server holds.
        shape: the proof's sizes.
        query: drawn after both servers held the same header.
    """
    header = part.header
    rows = Rows(header.rows_key, shape.dimension, shape.rows)
    for piece in update_pieces(part, shape):
        rows.absorb(piece.view(np.int64))
    z = projections(rows)
    if isinstance(part, SeedPart):
        of_seed = {
            name: header.stream(part.seed, name).words(count)
            for name, count in (("e", shape.bits), ("u", shape.columns), ("h", shape.values))
        }
        share = ProofShare(of_seed["e"], of_seed["u"], of_seed["h"], z, holds_constants=True)
    else:
        mask = header.stream(part.mask_seed, "u").words(shape.columns)
        share = ProofShare(part.bits, mask, part.values, z, holds_constants=False)
    mu = bit_challenges(shape, header.bits_key)
    return answer(query, update_pieces(part, shape), share, mu)


def update_pieces(part: SeedPart | BodyPart, shape: ProofShape) -> Iterator[FieldVector]:
    """This server's share of the update, in pieces: expanded, or read."""
    for start in range(0, shape.dimension, PIECE_WORDS):
        size = min(PIECE_WORDS, shape.dimension - start)
        if isinstance(part, SeedPart):
            yield part.header.stream(part.seed, "x").words(size, start)
        else:
            yield part.update[start : start + size]


def body_bytes(shape: ProofShape) -> int:
    """Length of a body: both salts' and seeds' bytes and all words."""
    return SALT_BYTES + KEY_BYTES + WORD_BYTES * (shape.dimension + shape.bits + shape.values)
