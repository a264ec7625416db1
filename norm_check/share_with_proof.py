"""The client's part: share an update as its task's check has it, and prove its norm."""

from dataclasses import replace

import numpy as np
from blake3 import blake3

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Digest
from precad.common.keystream import KEY_BYTES
from precad.common.prime_field import FieldVector, arithmetic, of_signed
from precad.common.proof_shape import ProofShape
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.share.header import Signer, SubmissionContext
from precad.common.share.mask import SALT_BYTES, SEED_BYTES, commit
from precad.common.share.proof_submission import (
    PIECE_WORDS,
    SERVERS,
    AnySubmission,
    ForProof,
    ProofDraft,
    ProofHeader,
    ProofSubmission,
    body_hasher,
    proof_hasher,
)
from precad.common.share.submission import HeldBody, shard
from precad.common.task import Task
from precad.norm_check.norm_proof import bit_challenges, bits_of, prove
from precad.norm_check.random_rows import Rows


def share(
    task: Task,
    x: RingVector,
    context: SubmissionContext,
    signer: Signer,
    proof: ForProof | None = None,
) -> tuple[AnySubmission, AnySubmission]:
    """Share ``x`` (``[d] int64``): the submissions for A and for B. Keep them for retries.

    Args:
        task: names the check.
        x: the update.
        context: what it is bound to.
        signer: signs with this client's key.
        proof: what both servers stated for the attempt, where norms are proved.

    Raises Misconfiguration: that is missing.
    """
    if task.proof is None:
        return shard(x, context, signer)
    if proof is None:
        raise Misconfiguration("proof", None, "give what both servers stated for the attempt")
    # For this vector: whether it is as long as the task's is the servers' to say.
    return share_with_proof(x, replace(task.proof, dimension=x.size), context, proof, signer)


def share_with_proof(
    x: RingVector, shape: ProofShape, context: SubmissionContext, stated: ForProof, signer: Signer
) -> tuple[ProofSubmission, ProofSubmission]:
    """Share ``x`` (``[d] int64``) and prove its norm; never raises for what x holds.

    As ``share``. Seeds and salts are fresh from the CSPRNG. Call it once an attempt and keep the
    result for retries: whoever gets two proofs of one update with one seed can tell it from
    another.
    """
    math, nothing = arithmetic(), Digest(bytes(32))
    seed_holder = stated.seed_holder
    header = ProofDraft(context, stated.openings, seed_holder, nothing, nothing, nothing, nothing)
    ctx = header.ctx
    seed, salt, salt_h = (Secret.random(n) for n in (SEED_BYTES, SALT_BYTES, SALT_BYTES))
    mask_seed = Secret.random(KEY_BYTES)
    header = replace(header, commitment=commit(seed_holder, ctx, salt, seed))

    body = np.empty(shape.body_words, dtype=np.uint64)
    update, bits, values = np.split(body, [shape.dimension, shape.dimension + shape.bits])

    def mask_into(out: FieldVector, words: FieldVector, purpose: str) -> None:
        """A cacheful at a time: a large update has room for few vectors."""
        stream = header.stream(seed, purpose)
        for start in range(0, words.size, PIECE_WORDS):
            piece = words[start : start + PIECE_WORDS]
            out[start : start + piece.size] = math.subtract(piece, stream.words(piece.size, start))

    words = of_signed(x)
    mask_into(update, words, "x")
    header = replace(header, update_digest=_digest(body_hasher("update", ctx, salt_h), update))
    rows = Rows(header.rows_key, shape.dimension, shape.rows)
    rows.absorb(x)
    # Within d·β of 0 for an honest update: below 2^63, so the ring's z is the integers'.
    written = bits_of(shape, rows.z(), math.dot(words, words))
    mask_into(bits, written, "e")
    header = replace(header, bits_digest=_digest(body_hasher("bits", ctx, salt_h), bits))
    mask = math.add(
        header.stream(seed, "u").words(shape.columns),
        header.stream(mask_seed, "u").words(shape.columns),
    )
    mu = bit_challenges(shape, header.bits_key)
    mask_into(values, prove(shape, words, written, mu, mask), "h")
    header = replace(header, proof_digest=_digest(proof_hasher(ctx, salt_h, mask_seed), values))
    signed = ProofHeader.of(header, signer.sign(header.signed))
    prefix = Secret(salt_h.reveal() + mask_seed.reveal())
    held = HeldBody(prefix, body.astype("<u8", copy=False).data.cast("B"))
    pair = [
        ProofSubmission(signed, role, seed, salt)
        if role is seed_holder
        else ProofSubmission(signed, role, body=held)
        for role in SERVERS
    ]
    return pair[0], pair[1]


def _digest(hasher: blake3, words: FieldVector) -> Digest:
    hasher.update(words.astype("<u8", copy=False).data.cast("B"))
    return Digest(hasher.digest())
