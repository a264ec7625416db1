"""Submissions as tests take them apart and put them together."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from tests.rig.keys import signer

from precad.aggregator.collect.inbox import Inbox
from precad.common import submission as sharing
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.proof_shape import ProofShape
from precad.common.ring import SALT_BYTES, RingVector, from_bytes
from precad.common.submission import Submission, SubmissionContext
from precad.common.task import Task
from precad.norm_check.prime_field import FIELD, RING
from precad.norm_check.proof_submission import AnySubmission, ProofSubmission, Share

Pair = tuple[Submission, Submission]
ONE = ClientId("ward-1")
MODEL = Digest(b"\2" * 32)


def pair_of(
    task: Task,
    client: ClientId = ONE,
    attempt: int = 3,
    *,
    x: RingVector | None = None,
) -> Pair:
    """An honest client's for version 2: 0, 1, 2, … unless another ``x`` is given."""
    x = np.arange(task.dimension, dtype=np.int64) if x is None else x
    of = SubmissionContext(
        task=task.digest, version=2, attempt=attempt, client=client, model=MODEL
    )
    return sharing.shard(x, of, signer(client))


def masked(submission: AnySubmission) -> Submission:
    assert isinstance(submission, Submission)
    return submission


def words_of(submission: AnySubmission) -> bytes:
    return b"" if submission.body is None else b"".join(submission.body.pieces())


def body_of(submission: AnySubmission) -> bytes:
    """Prefix and words as on the wire; empty where the submission has no body."""
    if submission.body is None:
        return b""
    return submission.body.prefix.reveal() + words_of(submission)


def with_body(submission: Submission, body: bytes) -> Submission:
    """The same with another body: salt_h ‖ b, of any length from 32 on."""
    return replace(
        submission, body=sharing.HeldBody(Secret(body[:SALT_BYTES]), body[SALT_BYTES:])
    )


def expanded(submission: AnySubmission, dimension: int) -> RingVector:
    """Its share of x, ``[d] int64``: a_A at A, b + a_B at B; by proofs in the field."""
    if isinstance(submission, ProofSubmission):
        pieces = list(Share(submission, ProofShape(dimension, 1)).update())
        return np.concatenate(pieces).view(np.int64)
    mask = submission.mask().words(dimension)
    return (
        mask
        if submission.role is Role.SERVER_A
        else mask + from_bytes(words_of(submission))
    )


def reconstructed(
    pair: tuple[AnySubmission, AnySubmission], dimension: int
) -> RingVector:
    one, other = (expanded(each, dimension) for each in pair)
    group = FIELD if isinstance(pair[0], ProofSubmission) else RING
    total = one.copy()
    group.add(total, other)
    return group.decode(total)


def flipped(data: bytes, at: int) -> bytes:
    """The same with one bit changed."""
    found = bytearray(data)
    found[at] ^= 1
    return bytes(found)


def signed_anew(
    header: sharing.SignedHeader, signer: sharing.Signer
) -> sharing.SignedHeader:
    return replace(header, signature=signer.sign(header.signed))


def upload(inbox: Inbox, submission: AnySubmission, cuts: Sequence[int] = ()) -> None:
    taking, body = inbox.start(replace(submission, body=None)), body_of(submission)
    for start, end in pairwise([0, *cuts, len(body)] if body else []):
        taking.add(body[start:end])
    taking.finish()
