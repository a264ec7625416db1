"""A submission is bound to everything that it is about, and shows nothing of what it hides."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.rig.keys import signer
from tests.rig.submissions import body_of, reconstructed, words_of

from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.ring import commit, opens
from precad.common.share.submission import Submission, SubmissionContext, body_hasher, shard

CONTEXT = SubmissionContext(
    Digest(b"\1" * 32), 5, 7, ClientId("ward-3"), Digest(b"\2" * 32), b"\3" * 32
)
OTHERS = [
    dataclasses.replace(CONTEXT, task=Digest(b"\0" * 32)),
    dataclasses.replace(CONTEXT, version=7, attempt=5),
    dataclasses.replace(CONTEXT, version=6),
    dataclasses.replace(CONTEXT, attempt=8),
    dataclasses.replace(CONTEXT, client=ClientId("ward-4")),
    dataclasses.replace(CONTEXT, model=Digest(b"\0" * 32)),
    dataclasses.replace(CONTEXT, nonce=b"\0" * 32),
]
X = np.arange(-4, 4, dtype=np.int64)
A, B = Role.SERVER_A, Role.SERVER_B


def made(number: int = 7) -> tuple[Submission, Submission]:
    return shard(
        X,
        SubmissionContext(CONTEXT.task, CONTEXT.version, number, CONTEXT.client, CONTEXT.model),
        signer(CONTEXT.client),
    )


def test_every_field_of_a_context_is_in_its_digest() -> None:
    digests = {context.digest for context in [CONTEXT, *OTHERS]}
    assert len(digests) == len(OTHERS) + 1


def test_each_server_gets_its_seed_and_both_the_same_header() -> None:
    to_a, to_b = made()
    assert (to_a.role, to_b.role) == (A, B)
    assert to_a.header is to_b.header
    assert to_a.opens
    assert to_b.opens
    assert to_a.body is None
    assert len(body_of(to_b)) == 32 + 64
    assert (reconstructed((to_a, to_b), X.size) == X).all()
    assert to_b.body is not None
    hasher = body_hasher(to_b.context.digest, to_b.body.prefix)
    hasher.update(words_of(to_b))
    assert hasher.digest() == to_b.header.body_digest.value


def test_nothing_random_is_used_twice() -> None:
    seen: set[bytes] = set()
    for _ in range(20):
        to_a, to_b = made()
        assert to_b.body is not None
        parts = {
            to_a.seed.reveal(),
            to_b.seed.reveal(),
            to_a.salt.reveal(),
            to_b.salt.reveal(),
            to_b.body.prefix.reveal(),
            words_of(to_b),
            to_a.context.nonce,
            to_a.header.commitment_a.value,
            to_a.header.commitment_b.value,
            to_a.header.body_digest.value,
        }
        assert len(parts) == 10
        assert not parts & seen
        seen |= parts


def test_a_submission_does_not_show_its_secrets() -> None:
    for submission in made():
        shown = repr(submission) + str(submission)
        secrets = [submission.seed.reveal(), submission.salt.reveal()]
        if submission.body is not None:
            shown += repr(submission.body)
            secrets += [submission.body.prefix.reveal(), words_of(submission)]
        for secret in secrets:
            assert secret.hex() not in shown
            assert repr(secret)[2:-1] not in shown


@pytest.mark.parametrize(
    ("whole", "field", "value"),
    [
        *((CONTEXT, "nonce", bytes(length)) for length in (0, 16, 31, 33)),
        *((CONTEXT, field, -1) for field in ("version", "attempt")),
        *((made()[0], name, Secret(bytes(n))) for name in ("seed", "salt") for n in (0, 31, 33)),
    ],
)
def test_a_value_of_another_length_or_a_round_before_the_first_is_malformed(
    whole: Any, field: str, value: Any
) -> None:
    with pytest.raises(RejectedSubmission, match=field) as rejected:
        dataclasses.replace(whole, **{field: value})
    assert rejected.value.reason is Rejection.MALFORMED


# --- commitments and masks -----------------------------------------------------------------------


CTX, OTHER_CTX = Digest(b"\1" * 32), Digest(b"\2" * 32)
SALT, SEED = Secret(b"\3" * 32), Secret(b"\4" * 32)


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_commitment_to_a_seed_or_salt_of_another_length_never_opens(length: int) -> None:
    odd = Secret(bytes(length))
    assert not opens(commit(A, CTX, SALT, odd), A, CTX, SALT, odd)
    assert not opens(commit(A, CTX, odd, SEED), A, CTX, odd, SEED)
