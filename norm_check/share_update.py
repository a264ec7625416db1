"""A client shares its update for the two servers, with a proof where the task wants one.

With a dealer both servers get a seed and B the masked body (``common.submission``).
Where norms are proved, one server gets a seed and the other the body: the update, the
bits of its projections and the proof, masked in the field (docs/soundness.md, part 4).
"""

from dataclasses import replace

import numpy as np
from blake3 import blake3

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Digest, Role, Secret
from precad.common.kernel import Rows
from precad.common.proof_shape import ProofShape
from precad.common.ring import (
    CACHED_WORDS,
    KEY_BYTES,
    SALT_BYTES,
    SEED_BYTES,
    RingVector,
    commit,
)
from precad.common.submission import HeldBody, Signer, SubmissionContext, shard
from precad.common.task import Task
from precad.norm_check.norm_proof import bit_challenges, bits_of, prove
from precad.norm_check.prime_field import FieldVector, arithmetic, of_signed
from precad.norm_check.proof_submission import (
    SERVERS,
    AnySubmission,
    ForProof,
    ProofDraft,
    ProofHeader,
    ProofSubmission,
    body_hasher,
    proof_hasher,
)


def share(
    task: Task,
    x: RingVector,
    context: SubmissionContext,
    signer: Signer,
    proof: ForProof | None = None,
) -> tuple[AnySubmission, AnySubmission]:
    """Share the update ``x``, ``[d] int64``, as the task's check has it: for A, and for B.

    Keep them for retries. ``proof`` is what both servers stated for the attempt, where
    norms are proved. Raises Misconfiguration: that is missing.
    """
    if task.proof is None:
        return shard(x, context, signer)
    if proof is None:
        raise Misconfiguration(
            "proof", None, "give what both servers stated for the attempt"
        )
    # For this vector: whether it is as long as the task's is the servers' to say.
    return share_with_proof(
        x,
        replace(task.proof, dimension=x.size),
        context,
        proof,
        signer,
    )


def share_with_proof(
    x: RingVector,
    shape: ProofShape,
    context: SubmissionContext,
    stated: ForProof,
    signer: Signer,
) -> tuple[ProofSubmission, ProofSubmission]:
    """As ``share``, with a proof of x's norm; never raises for what x holds.

    Seeds and salts are fresh from the CSPRNG. Call it once an attempt and keep the
    result for retries: whoever gets two proofs of one update with one seed can tell it
    from another.
    """
    math = arithmetic()
    seed_holder = stated.seed_holder
    # What it commits to is filled in as it is made: each part is bound to those before.
    nothing = Digest(bytes(32))
    header = ProofDraft(
        context=context,
        openings=stated.openings,
        seed_holder=seed_holder,
        commitment=nothing,
        update_digest=nothing,
        bits_digest=nothing,
        proof_digest=nothing,
    )
    ctx = header.ctx
    seed, salt, salt_h = (
        Secret.random(n) for n in (SEED_BYTES, SALT_BYTES, SALT_BYTES)
    )
    mask_seed = Secret.random(KEY_BYTES)
    header = replace(header, commitment=commit(seed_holder, ctx, salt=salt, seed=seed))

    body = np.empty(shape.body_words, dtype=np.uint64)
    update, bits, values = np.split(
        body, [shape.dimension, shape.dimension + shape.bits]
    )

    def mask_into(out: FieldVector, words: FieldVector, purpose: str) -> None:
        """A cacheful at a time: a large update has room for few vectors."""
        stream = header.stream(seed, purpose)
        for start in range(0, words.size, CACHED_WORDS):
            piece = words[start : start + CACHED_WORDS]
            out[start : start + piece.size] = math.subtract(
                piece, stream.words(piece.size, start)
            )

    words = of_signed(x)
    mask_into(update, words, "x")
    header = replace(
        header, update_digest=_digest(body_hasher("update", ctx, salt_h), update)
    )
    rows = Rows(header.rows_key, dimension=shape.dimension, k=shape.rows)
    rows.absorb(x)
    # Within d·β of 0 for an honest update: below 2^63, so the ring's z is the
    # integers'.
    written = bits_of(shape, rows.z(), math.dot(words, words))
    mask_into(bits, written, "e")
    header = replace(
        header, bits_digest=_digest(body_hasher("bits", ctx, salt_h), bits)
    )
    mask = math.add(
        *(header.stream(each, "u").words(shape.columns) for each in (seed, mask_seed))
    )
    mu = bit_challenges(shape, header.bits_key)
    mask_into(
        values,
        prove(
            shape,
            x=words,
            bits=written,
            mu=mu,
            mask=mask,
        ),
        "h",
    )
    header = replace(
        header, proof_digest=_digest(proof_hasher(ctx, salt_h, mask_seed), values)
    )
    signed = ProofHeader.of(header, signer.sign(header.signed))
    prefix = Secret(salt_h.reveal() + mask_seed.reveal())
    held = HeldBody(prefix, body.astype("<u8", copy=False).data.cast("B"))
    at_seed = ProofSubmission(
        header=signed,
        role=seed_holder,
        seed=seed,
        salt=salt,
    )
    at_body = ProofSubmission(
        header=signed,
        role=SERVERS[1 - SERVERS.index(seed_holder)],
        body=held,
    )
    return (at_seed, at_body) if seed_holder is Role.SERVER_A else (at_body, at_seed)


def _digest(hasher: blake3, words: FieldVector) -> Digest:
    hasher.update(words.astype("<u8", copy=False).data.cast("B"))
    return Digest(hasher.digest())
