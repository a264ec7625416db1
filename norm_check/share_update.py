"""Share a client's update for the two servers, with a proof where the task wants one.

With a dealer both servers get a seed and B the masked body (``common.submission``).
Where norms are proved, one server gets a seed and the other the body: the update, the
bits of its projections and the proof, masked in the field (docs/soundness.md, part 4).
"""

from dataclasses import replace

import numpy as np
from blake3 import blake3

from precad.common import (
    CACHED_WORDS,
    KEY_BYTES,
    SALT_BYTES,
    SEED_BYTES,
    SERVERS,
    Digest,
    HeldBody,
    Misconfiguration,
    ProofShape,
    RingVector,
    Role,
    Secret,
    Signer,
    SubmissionContext,
    Task,
    shard,
)
from precad.common.kernel import Rows
from precad.common.ring import commit
from precad.norm_check import (
    AnySubmission,
    FieldKeystream,
    FieldVector,
    ForProof,
    ProofDraft,
    ProofHeader,
    ProofSubmission,
    arithmetic,
    bit_challenges,
    bits_of,
    body_hasher,
    of_signed,
)
from precad.norm_check.norm_proof import prove


def share(
    task: Task,
    x: RingVector,
    context: SubmissionContext,
    signer: Signer,
    proof: ForProof | None = None,
    bound: int | None = None,
) -> tuple[AnySubmission, AnySubmission]:
    """Return server A's and server B's submission of the update ``x``, ``[d] int64``.

    They are of the kind that the task's check of norms wants; keep them for retries.
    ``proof`` is what both servers stated for the attempt, where norms are proved;
    ``bound`` is β_i, the client's own (``Mechanism.bound_of``), β unless given.
    Raises Misconfiguration: that is missing.
    """
    if task.proof is None:
        return shard(x, context, signer)
    if proof is None:
        raise Misconfiguration(
            "proof", None, "give what both servers stated for the attempt"
        )
    # For this vector: whether it is as long as the task's is the servers' to say.
    shape = replace(task.proof, dimension=x.size)
    return share_with_proof(
        x,
        shape,
        context,
        proof,
        signer,
        bound=bound,
    )


def share_with_proof(
    x: RingVector,
    shape: ProofShape,
    context: SubmissionContext,
    stated: ForProof,
    signer: Signer,
    *,
    bound: int | None = None,
) -> tuple[ProofSubmission, ProofSubmission]:
    """Return server A's and server B's submission of ``x``, with a proof of its norm.

    ``shape`` are the sizes of the proof, ``stated`` is what both servers stated for the
    attempt, and ``signer`` signs the header for the client. ``bound`` is β_i, or else
    β. Never raises for what x,
    ``[d] int64``, holds. The steps are those of docs/soundness.md, "The client's
    message".

    Seeds and salts are fresh from the CSPRNG. Call it once an attempt and keep the
    result for retries: whoever gets two proofs of one update with one seed can tell it
    from another.
    """
    modulo_p = arithmetic()
    seed_holder = stated.seed_holder
    # What the header commits to is filled in as it is made: each part is bound to those
    # before it.
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
    seed = Secret.random(SEED_BYTES)
    salt = Secret.random(SALT_BYTES)
    salt_h = Secret.random(SALT_BYTES)
    mask_seed = Secret.random(KEY_BYTES)
    header = replace(header, commitment=commit(seed_holder, ctx, salt=salt, seed=seed))

    # The body is x', e' and π', one after the other: views of one array.
    body = np.empty(shape.body_words, np.uint64)
    update, bits, values = np.split(
        body, [shape.dimension, shape.dimension + shape.bits]
    )
    words = of_signed(x)
    _mask_into(update, words, header.stream(seed, "x"))
    update_digest = _digest(body_hasher("update", ctx, salt_h), update)
    header = replace(header, update_digest=update_digest)

    # The rows follow from seed and x', so that the client can't choose them.
    rows = Rows(header.rows_key, dimension=shape.dimension, k=shape.rows)
    rows.absorb(x)
    # A projection of an honest update lies within d·β of 0: below 2^63, so that z in
    # the ring is z over the integers.
    written = bits_of(
        shape,
        rows.z(),
        squared=modulo_p.dot(words, words),
        bound=shape.bound if bound is None else bound,
    )
    _mask_into(bits, written, header.stream(seed, "e"))
    bits_digest = _digest(body_hasher("bits", ctx, salt_h), bits)
    header = replace(header, bits_digest=bits_digest)

    # The masking row is of both servers: neither can know it.
    mask = modulo_p.add(
        header.stream(seed, "u").words(shape.columns),
        header.stream(mask_seed, "u").words(shape.columns),
    )
    proof = prove(
        shape,
        x=words,
        bits=written,
        mu=bit_challenges(shape, header.bits_key),
        mask=mask,
    )
    _mask_into(values, proof, header.stream(seed, "h"))
    proof_digest = _digest(body_hasher("proof", ctx, salt_h, mask_seed), values)
    header = replace(header, proof_digest=proof_digest)

    # The header is complete, and everything is fixed by it.
    signed = ProofHeader.of(header, signer.sign(header.signed))
    prefix = Secret(salt_h.reveal() + mask_seed.reveal())
    at_seed_holder = ProofSubmission(
        header=signed,
        role=seed_holder,
        seed=seed,
        salt=salt,
    )
    at_body_holder = ProofSubmission(
        header=signed,
        role=SERVERS[1 - SERVERS.index(seed_holder)],
        body=HeldBody(prefix, body.astype("<u8", copy=False).data.cast("B")),
    )
    if seed_holder is Role.SERVER_A:
        return at_seed_holder, at_body_holder
    return at_body_holder, at_seed_holder


def _mask_into(out: FieldVector, words: FieldVector, stream: FieldKeystream) -> None:
    """Write words − stream into ``out``, all ``[n]``.

    A cacheful at a time: with a large update there is room for few vectors.
    """
    for start in range(0, words.size, CACHED_WORDS):
        piece = words[start : start + CACHED_WORDS]
        mask = stream.words(piece.size, start)
        out[start : start + piece.size] = arithmetic().subtract(piece, mask)


def _digest(hasher: blake3, words: FieldVector) -> Digest:
    """Return the hash of words, each as 8 bytes little-endian."""
    hasher.update(words.astype("<u8", copy=False).data.cast("B"))
    return Digest(hasher.digest())
