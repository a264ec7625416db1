"""A submission is bound to everything that it is about, and shows nothing of what it
hides.

Before it: fixed point and the two clips, exact at their borders, with named errors.
"""

import dataclasses
import math
import struct
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.rig import keys, refusals, submissions
from tests.rig.documents import Document

from precad.common import errors, fixed_point, proof_shape, ring
from precad.common.identifiers import SERVERS, ClientId, Digest, Role, Secret
from precad.common.submission import Submission, SubmissionContext, shard
from precad.norm_check.proof_submission import ForProof
from precad.norm_check.share_update import share_with_proof

CONTEXT = SubmissionContext(
    task=Digest(b"\1" * 32),
    version=5,
    attempt=7,
    client=ClientId("ward-3"),
    model=Digest(b"\2" * 32),
    nonce=b"\3" * 32,
)
X = np.arange(-4, 4, dtype=np.int64)
A, B = Role.SERVER_A, Role.SERVER_B


def made(
    x: NDArray[np.int64] = X, c: SubmissionContext = CONTEXT
) -> tuple[Submission, Submission]:
    fresh = SubmissionContext(
        task=c.task,
        version=c.version,
        attempt=c.attempt,
        client=c.client,
        model=c.model,
    )
    return shard(x, fresh, keys.signer(c.client))


def test_nothing_random_is_used_twice_or_shown() -> None:
    seen: set[bytes] = set()
    for _ in range(20):
        to_a, to_b = made()
        header, body = to_a.header, to_b.body
        assert body is not None
        digests = header.commitment_a, header.commitment_b, header.body_digest
        hidden = to_a.seed, to_a.salt, to_b.seed, to_b.salt, body.prefix
        secrets = {*(each.reveal() for each in hidden), submissions.words_of(to_b)}
        parts = secrets | {to_a.context.nonce, *(each.value for each in digests)}
        assert (len(parts), parts & seen) == (10, set())
        seen |= parts
        shown = f"{to_a!r}{to_a}{to_b!r}{to_b}{to_b.body!r}"
        spelled = {form for each in secrets for form in (each.hex(), repr(each)[2:-1])}
        assert not [each for each in spelled if each in shown]


def test_a_value_of_another_length_is_malformed() -> None:
    values: list[tuple[SubmissionContext | Submission, str, object]] = [
        *((CONTEXT, "nonce", bytes(length)) for length in (0, 16, 31, 33)),
        *((CONTEXT, field, -1) for field in ("version", "attempt")),
        *(
            (made()[0], name, Secret(bytes(n)))
            for name in ("seed", "salt")
            for n in (0, 31, 33)
        ),
    ]
    for whole, field, value in values:
        with pytest.raises(errors.RejectedSubmission, match=field) as rejected:
            dataclasses.replace(whole, **cast("Document", {field: value}))
        assert rejected.value.reason is errors.Rejection.MALFORMED
    # Nor does a commitment to one open.
    right = Secret(b"\3" * 32)
    for odd in (Secret(bytes(length)) for length in (0, 31, 33, 64)):
        for salt, seed in ((right, odd), (odd, right)):
            assert not ring.opens(
                commitment=ring.commit(A, CONTEXT.digest, salt=salt, seed=seed),
                role=A,
                ctx=CONTEXT.digest,
                salt=salt,
                seed=seed,
            )


words = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [-(2**63), 2**63 - 1, 0, -1, 2**32]
)
vectors = st.lists(words, min_size=1, max_size=40).map(
    lambda x: np.array(x, dtype=np.int64)
)
contexts = st.builds(
    SubmissionContext,
    task=st.binary(min_size=32, max_size=32).map(Digest),
    version=st.integers(0, 2**63 - 1),
    attempt=st.integers(0, 2**63 - 1),
    client=st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True).map(
        ClientId
    ),
    model=st.binary(min_size=32, max_size=32).map(Digest),
    nonce=st.binary(min_size=32, max_size=32),
)


@given(vectors, contexts)
def test_body_and_masks_add_up(
    x: NDArray[np.int64], context: SubmissionContext
) -> None:
    to_a, to_b = made(x, context)
    a_a, a_b = to_a.mask().words(x.size), to_b.mask().words(x.size)
    b = ring.from_bytes(submissions.words_of(to_b))
    # In the integers: congruent modulo 2^64.
    for parts in zip(a_a.tolist(), a_b.tolist(), b.tolist(), x.tolist(), strict=True):
        assert ring.signed(sum(parts[:3])) == parts[3]
    assert (submissions.reconstructed((to_a, to_b), x.size) == x).all()


@given(vectors, contexts, st.sampled_from(SERVERS))
def test_a_seed_and_a_body_add_up_in_the_field(
    x: NDArray[np.int64], context: SubmissionContext, holder: Role
) -> None:
    """Whatever x is: also beyond what has a proof that passes, and beyond p/2."""
    stated = ForProof((context.task, context.model), holder)
    shape = proof_shape.ProofShape(x.size, 1)
    pair = share_with_proof(x, shape, context, stated, keys.signer(context.client))
    assert [part.awaits_body for part in pair] == [
        part.role is not holder for part in pair
    ]
    found = submissions.reconstructed(pair, x.size).tolist()
    assert [each % proof_shape.P for each in found] == [
        each % proof_shape.P for each in x.tolist()
    ]
    assert all(abs(each) <= proof_shape.P // 2 for each in found)


parts = st.lists(st.binary(max_size=12) | st.integers(0, 2**64 - 1), max_size=4)


@given(st.text("abc/", max_size=4), parts)
def test_no_two_encoded_contexts_are_alike(
    purpose: str, context: list[bytes | int]
) -> None:
    """A number stands for its eight bytes; a purpose fixes which parts are numbers."""
    written = [
        struct.pack("<Q", part) if isinstance(part, int) else part for part in context
    ]
    encoded, read = ring.encode_context(purpose, *context), []
    while encoded:
        (length,) = struct.unpack_from("<I", encoded)
        read.append(encoded[4 : 4 + length])
        encoded = encoded[4 + length :]
    assert read == [b"precad/v1/" + purpose.encode(), *written]


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, 2.0**42, -(2.0**42), 1e308]
)
def test_what_cannot_be_encoded_is_refused_by_its_index(bad: float) -> None:
    x = np.zeros((3, 5))
    x[2, 1] = bad
    error = refusals.refused(r"2\^42", fixed_point.encode, x, 20)
    assert (error.field, error.value == bad or math.isnan(bad)) == (
        "update[2, 1]",
        True,
    )
    if not math.isfinite(bad):
        refusals.refused("sampled record 2", fixed_point.clip_record_norm, x, 1.0)
    # Nor is there a bound below one unit.
    for bound in (0, -1):
        refusals.refused(
            "bound", fixed_point.clip_update, np.ones(2, dtype=np.int64), bound, 20
        )


@pytest.mark.parametrize("slips", [False, True])
def test_zero_is_sent_before_a_sum_over_its_bound(
    monkeypatch: pytest.MonkeyPatch, *, slips: bool
) -> None:
    """float64 can't slip so far: a margin above 1 plays it."""
    margin = 2.0**-21 if slips else -(2.0**-21)
    monkeypatch.setattr(fixed_point, "CLIENT_MARGIN", 1 + margin)
    bound = 2**25
    clipped = fixed_point.clip_update(np.array([2**40, 0, -(2**40)]), bound, 20)
    length = math.sqrt(fixed_point.squared_norm(clipped))
    assert clipped.dtype == np.int64
    assert length == (0 if slips else pytest.approx(bound * (1 + margin), abs=2))
    assert length <= bound
