"""Shares and commitments are bound to everything that a submission is about."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from precad.common.share.additive import mask, reconstruct, split
from precad.common.share.commitment import Commitment, SubmissionContext, commit
from tests.rig.keys import signer

from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.ring import to_bytes
from precad.common.secret import Secret
from precad.common.share.submission import shard, share_bytes

CONTEXT = SubmissionContext(
    Digest(b"\1" * 32), 7, ClientId("ward-3"), Digest(b"\2" * 32), b"\3" * 16
)
OTHERS = [
    dataclasses.replace(CONTEXT, task=Digest(b"\0" * 32)),
    dataclasses.replace(CONTEXT, attempt=8),
    dataclasses.replace(CONTEXT, client=ClientId("ward-4")),
    dataclasses.replace(CONTEXT, model=Digest(b"\0" * 32)),
    dataclasses.replace(CONTEXT, nonce=b"\0" * 16),
]
SEED = Secret(bytes(range(32)))
X = np.arange(-4, 4, dtype=np.int64)


def made(number: int = 0) -> tuple[Any, Any]:
    return shard(
        X,
        task=CONTEXT.task,
        attempt=number,
        client=CONTEXT.client,
        model=CONTEXT.model,
        signer=signer(CONTEXT.client),
    )


def test_one_seed_masks_no_two_submissions_alike() -> None:
    masks = [mask(SEED, context, 50) for context in [CONTEXT, *OTHERS]]
    masks.append(mask(Secret(bytes(32)), CONTEXT, 50))
    for one, other in itertools.combinations(masks, 2):
        assert not set(one.tolist()) & set(other.tolist())


def test_a_mask_of_another_context_does_not_reconstruct() -> None:
    share_b = split(X, SEED, CONTEXT)
    assert (reconstruct(mask(SEED, CONTEXT, X.size), share_b) == X).all()
    for other in OTHERS:
        assert (reconstruct(mask(SEED, other, X.size), share_b) != X).all()


def test_a_commitment_is_bound_to_every_field_the_role_the_salt_and_the_share() -> None:
    salt, share = Secret(b"\4" * 32), bytes(range(64))
    commitments = [
        commit(CONTEXT, Role.SERVER_A, salt, share),
        commit(CONTEXT, Role.SERVER_B, salt, share),
        commit(CONTEXT, Role.SERVER_A, Secret(b"\5" * 32), share),
        *(commit(other, Role.SERVER_A, salt, share) for other in OTHERS),
        *(
            commit(CONTEXT, Role.SERVER_A, salt, share[:i] + bytes([share[i] ^ 1]) + share[i + 1 :])
            for i in range(64)
        ),
        commit(CONTEXT, Role.SERVER_A, salt, share[:-1]),
        commit(CONTEXT, Role.SERVER_A, salt, share + b"\0"),
    ]
    assert len({c.value for c in commitments}) == len(commitments)


def test_each_server_gets_its_share_and_the_commitment_to_the_other() -> None:
    to_a, to_b = made()
    assert to_a.role is Role.SERVER_A
    assert to_b.role is Role.SERVER_B
    assert to_a.context == to_b.context
    assert len(to_a.share_data()) == share_bytes(Role.SERVER_A, X.size) == 32
    assert len(to_b.share_data()) == share_bytes(Role.SERVER_B, X.size) == 64
    assert to_a.other_commitment == to_b.commitment
    assert to_b.other_commitment == to_a.commitment
    share_b = np.frombuffer(to_b.share_data(), "<i8")
    assert (reconstruct(mask(Secret(to_a.share_data()), to_a.context, X.size), share_b) == X).all()


def test_nothing_random_is_used_twice() -> None:
    seen: set[bytes] = set()
    for _ in range(20):
        to_a, to_b = made()
        parts = {
            to_a.share_data(),
            to_b.share_data(),
            to_a.salt.reveal(),
            to_b.salt.reveal(),
            to_a.context.nonce,
            to_a.other_commitment.value,
            to_b.other_commitment.value,
        }
        assert len(parts) == 7
        assert not parts & seen
        seen |= parts


def test_a_submission_does_not_show_its_secrets() -> None:
    to_a, to_b = made()
    for submission in (to_a, to_b):
        shown = repr(submission)
        for secret in (submission.share, submission.salt):
            assert secret.reveal().hex() not in shown
            assert repr(secret.reveal())[2:-1] not in shown
        assert "<Secret of 32 bytes>" in shown


def test_a_servers_salt_is_not_what_the_other_server_gets() -> None:
    to_a, to_b = made()
    assert to_b.salt.reveal() not in to_a.share_data() + to_a.salt.reveal()
    assert to_a.salt.reveal() not in to_b.share_data() + to_b.salt.reveal()
    assert to_bytes(X) not in to_b.share_data()


@pytest.mark.parametrize("nonce", [b"", bytes(15), bytes(17)])
def test_a_nonce_of_another_length_is_malformed(nonce: bytes) -> None:
    with pytest.raises(RejectedSubmission) as rejected:
        dataclasses.replace(CONTEXT, nonce=nonce)
    assert rejected.value.reason is Rejection.MALFORMED


def test_a_round_before_the_first_is_malformed() -> None:
    with pytest.raises(RejectedSubmission) as rejected:
        dataclasses.replace(CONTEXT, attempt=-1)
    assert rejected.value.reason is Rejection.MALFORMED


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_commitment_of_another_length_is_malformed(length: int) -> None:
    with pytest.raises(RejectedSubmission) as rejected:
        Commitment(bytes(length))
    assert rejected.value.reason is Rejection.MALFORMED
