"""Two shares are the vector, whatever the vector."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from precad.common.share.additive import mask, reconstruct, split
from precad.common.share.commitment import SubmissionContext
from tests.rig.keys import signer

from precad.common.identifiers import ClientId, Digest
from precad.common.ring import from_bytes, signed, to_bytes
from precad.common.secret import Secret
from precad.common.share.submission import shard

words = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 0, -1, 2**32])
vectors = st.lists(words, min_size=1, max_size=40).map(lambda x: np.array(x, dtype=np.int64))
contexts = st.builds(
    SubmissionContext,
    st.binary(min_size=32, max_size=32).map(Digest),
    st.integers(0, 2**63 - 1),
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True).map(ClientId),
    st.binary(min_size=32, max_size=32).map(Digest),
    st.binary(min_size=16, max_size=16),
)
seeds = st.binary(min_size=32, max_size=32).map(Secret)


@given(vectors, seeds, contexts)
def test_the_two_shares_add_up(
    x: NDArray[np.int64], seed: Secret, context: SubmissionContext
) -> None:
    share_b = split(x, seed, context)
    share_a = mask(seed, context, x.size)
    assert (reconstruct(share_a, share_b) == x).all()
    assert (from_bytes(to_bytes(share_b)) == share_b).all()
    # In the integers: congruent modulo 2^64.
    for a, b, value in zip(share_a.tolist(), share_b.tolist(), x.tolist(), strict=True):
        assert signed(a + b) == value


@given(vectors, vectors, contexts)
def test_sharing_is_linear(
    x: NDArray[np.int64], y: NDArray[np.int64], context: SubmissionContext
) -> None:
    x, y = (v[: min(x.size, y.size)] for v in (x, y))
    one, other = Secret(bytes(32)), Secret(b"\1" * 32)
    sum_a = mask(one, context, x.size) + mask(other, context, x.size)
    sum_b = split(x, one, context) + split(y, other, context)
    assert (reconstruct(sum_a, sum_b) == x + y).all()


@given(vectors, contexts)
def test_what_a_client_sends_is_a_sharing(x: NDArray[np.int64], context: SubmissionContext) -> None:
    to_a, to_b = shard(
        x,
        task=context.task,
        attempt=context.attempt,
        client=context.client,
        model=context.model,
        signer=signer(context.client),
    )
    share_a = mask(Secret(to_a.share_data()), to_a.context, x.size)
    assert (reconstruct(share_a, from_bytes(to_b.share_data())) == x).all()
