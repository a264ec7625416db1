"""What both servers get is the vector, whatever the vector; no two contexts share an encoding."""

import struct

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.rig.keys import signer
from tests.rig.submissions import reconstructed, words_of

from precad.common.identifiers import ClientId, Digest, Role
from precad.common.proof_shape import P, ProofShape
from precad.common.ring import encode_context, from_bytes, signed
from precad.common.share.proof_submission import SERVERS, ForProof
from precad.common.share.submission import PIECE_BYTES, Submission, SubmissionContext, shard
from precad.norm_check.norm_proof import share_with_proof

words = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 0, -1, 2**32])
vectors = st.lists(words, min_size=1, max_size=40).map(lambda x: np.array(x, dtype=np.int64))
contexts = st.builds(
    SubmissionContext,
    st.binary(min_size=32, max_size=32).map(Digest),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True).map(ClientId),
    st.binary(min_size=32, max_size=32).map(Digest),
    st.binary(min_size=32, max_size=32),
)


def shared(x: NDArray[np.int64], context: SubmissionContext) -> tuple[Submission, Submission]:
    return shard(
        x,
        SubmissionContext(
            context.task, context.version, context.attempt, context.client, context.model
        ),
        signer(context.client),
    )


@given(vectors, contexts)
def test_body_and_masks_add_up(x: NDArray[np.int64], context: SubmissionContext) -> None:
    to_a, to_b = shared(x, context)
    a_a, a_b = to_a.mask().words(x.size), to_b.mask().words(x.size)
    b = from_bytes(words_of(to_b))
    # In the integers: congruent modulo 2^64.
    for parts in zip(a_a.tolist(), a_b.tolist(), b.tolist(), x.tolist(), strict=True):
        assert signed(sum(parts[:3])) == parts[3]
    assert (reconstructed((to_a, to_b), x.size) == x).all()


@given(vectors, contexts, st.sampled_from(SERVERS))
def test_a_seed_and_a_body_add_up_in_the_field(
    x: NDArray[np.int64], context: SubmissionContext, holder: Role
) -> None:
    """Whatever x is: also beyond what has a proof that passes, and beyond p/2."""
    stated = ForProof((context.task, context.model), holder)
    shape = ProofShape(x.size, 1)
    pair = share_with_proof(x, shape, context, stated, signer(context.client))
    assert [part.awaits_body for part in pair] == [part.role is not holder for part in pair]
    found = reconstructed(pair, x.size).tolist()
    assert [each % P for each in found] == [each % P for each in x.tolist()]
    assert all(abs(each) <= P // 2 for each in found)


@settings(max_examples=5)
@given(contexts)
def test_a_long_vector_is_shared_in_pieces_as_a_short_one(context: SubmissionContext) -> None:
    size = 2 * (PIECE_BYTES // 8) + 3
    x = np.arange(size, dtype=np.int64) - 7
    pair = shared(x, context)
    assert [len(piece) for piece in pair[1].body_pieces()] == [PIECE_BYTES, PIECE_BYTES, 24]
    assert (reconstructed(pair, size) == x).all()


parts = st.lists(st.binary(max_size=12) | st.integers(0, 2**64 - 1), max_size=4)
purposes = st.text("abc/", max_size=4)


def as_bytes(context: list[bytes | int]) -> list[bytes]:
    """A number stands for its eight bytes; a purpose fixes which parts are numbers."""
    return [struct.pack("<Q", part) if isinstance(part, int) else part for part in context]


@given(purposes, parts)
def test_an_encoded_context_can_be_read_back_so_that_no_two_are_alike(
    purpose: str, context: list[bytes | int]
) -> None:
    encoded, read = encode_context(purpose, *context), []
    while encoded:
        (length,) = struct.unpack_from("<I", encoded)
        read.append(encoded[4 : 4 + length])
        encoded = encoded[4 + length :]
    assert read == [b"precad/v1/" + purpose.encode(), *as_bytes(context)]
