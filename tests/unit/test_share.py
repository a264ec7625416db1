"""A submission is bound to everything that it is about, and shows nothing of what it hides."""

import dataclasses
import hashlib
import itertools
from typing import Any

import numpy as np
import pytest
from tests.rig.keys import signer
from tests.rig.submissions import body_of, expanded, reconstructed, words_of

from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.keystream import encode_context
from precad.common.ring import to_bytes
from precad.common.secret import Secret
from precad.common.share.body import PIECE_BYTES, HeldBody, body_bytes, body_hasher
from precad.common.share.context import SubmissionContext
from precad.common.share.header import signed_bytes
from precad.common.share.mask import opens
from precad.common.share.submission import Submission, shard

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
        task=CONTEXT.task,
        version=CONTEXT.version,
        attempt=number,
        client=CONTEXT.client,
        model=CONTEXT.model,
        signer=signer(CONTEXT.client),
    )


def test_every_field_of_a_context_is_in_its_digest() -> None:
    digests = {context.digest for context in [CONTEXT, *OTHERS]}
    assert len(digests) == len(OTHERS) + 1


def test_a_body_is_bound_to_its_context_its_salt_and_every_byte() -> None:
    salt, body = Secret(b"\4" * 32), bytes(range(64))

    def digest(ctx: Digest, salt: Secret, body: bytes) -> bytes:
        hasher = body_hasher(ctx, salt)
        hasher.update(body)
        return hasher.digest()

    digests = [
        digest(CONTEXT.digest, salt, body),
        digest(CONTEXT.digest, Secret(b"\5" * 32), body),
        *(digest(other.digest, salt, body) for other in OTHERS),
        *(
            digest(CONTEXT.digest, salt, body[:i] + bytes([body[i] ^ 1]) + body[i + 1 :])
            for i in range(64)
        ),
        digest(CONTEXT.digest, salt, body[:-1]),
        digest(CONTEXT.digest, salt, body + b"\0"),
    ]
    assert len(set(digests)) == len(digests)


def test_each_server_gets_its_seed_and_both_the_same_header() -> None:
    to_a, to_b = made()
    assert (to_a.role, to_b.role) == (A, B)
    assert to_a.header is to_b.header
    assert to_a.opens
    assert to_b.opens
    assert to_a.body is None
    assert len(body_of(to_b)) == body_bytes(X.size) == 32 + 64
    assert (reconstructed((to_a, to_b), X.size) == X).all()
    assert to_b.body is not None
    hasher = body_hasher(to_b.context.digest, to_b.body.salt)
    hasher.update(words_of(to_b))
    assert hasher.digest() == to_b.header.body_digest.value


def test_a_commitment_does_not_open_for_the_other_role() -> None:
    """Else a server could be given the other one's seed, and both masks were one."""
    to_a, to_b = made()
    ctx, c_a, c_b = to_a.context.digest, to_a.header.commitment_a, to_a.header.commitment_b
    assert opens(c_a, A, ctx, to_a.salt, to_a.seed)
    assert not opens(c_a, B, ctx, to_a.salt, to_a.seed)
    assert not opens(c_b, A, ctx, to_b.salt, to_b.seed)
    exchanged = dataclasses.replace(to_a.header, commitment_a=c_b, commitment_b=c_a)
    for each in (to_a, to_b):
        assert not dataclasses.replace(each, header=exchanged).opens
        other = A if each.role is B else B
        assert not dataclasses.replace(each, header=exchanged, role=other).opens


@pytest.mark.parametrize("other", OTHERS, ids=lambda c: f"{c.version}-{c.attempt}-{c.client}")
def test_a_commitment_is_useless_in_another_context(other: SubmissionContext) -> None:
    to_a, to_b = made()
    # Beside its own nonce only the given field differs.
    moved = dataclasses.replace(other, nonce=to_a.context.nonce)
    if moved == to_a.context:
        moved = other
    header = dataclasses.replace(to_a.header, context=moved)
    for each in (to_a, to_b):
        replayed = dataclasses.replace(each, header=header)
        assert not replayed.opens
        assert not np.isin(replayed.mask().words(50), each.mask().words(50)).any()


def test_the_whole_digest_is_over_header_signature_and_certificates() -> None:
    header = made()[0].header
    signature = header.signature
    changed = [
        header,
        dataclasses.replace(header, context=dataclasses.replace(header.context, attempt=8)),
        dataclasses.replace(header, commitment_a=header.commitment_b),
        dataclasses.replace(header, commitment_b=header.commitment_a),
        dataclasses.replace(header, body_digest=header.commitment_a),
        *(
            dataclasses.replace(header, signature=dataclasses.replace(signature, **change))
            for change in (
                {"value": signature.value[:-1]},
                {"certificates": (*signature.certificates, b"x")},
                {"certificates": (signature.certificates[0] + b"x",)},
                {"certificates": (signature.certificates[0], b"")},
            )
        ),
    ]
    assert len({each.whole_digest for each in changed}) == len(changed)
    parts = header.signed, signature.value, *signature.certificates
    spelled = encode_context("whole-submission", *parts)
    assert header.whole_digest.value == hashlib.sha256(spelled).digest()


def test_what_is_signed_says_all_that_fixes_the_submission() -> None:
    header = made()[0].header
    digests = header.commitment_a, header.commitment_b, header.body_digest
    assert header.signed == signed_bytes(header.context, *digests)
    contexts = [header.context, *(dataclasses.replace(c) for c in OTHERS)]
    every = [signed_bytes(context, *digests) for context in contexts]
    every += [signed_bytes(header.context, *p) for p in itertools.permutations(digests)][1:]
    assert len(set(every)) == len(every)


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
            to_b.body.salt.reveal(),
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
            secrets += [submission.body.salt.reveal(), words_of(submission)]
        for secret in secrets:
            assert secret.hex() not in shown
            assert repr(secret)[2:-1] not in shown


def test_what_a_server_gets_holds_nothing_of_the_other_ones() -> None:
    to_a, to_b = made()
    assert to_b.body is not None
    at_b = to_b.seed.reveal() + to_b.salt.reveal() + body_of(to_b)
    for secret in (to_a.seed, to_a.salt):
        assert secret.reveal() not in at_b
    for secret in (to_b.seed, to_b.salt, to_b.body.salt):
        assert secret.reveal() not in to_a.seed.reveal() + to_a.salt.reveal()
    for share in (expanded(to_a, X.size), expanded(to_b, X.size)):
        assert not np.isin(share, X).any()
    assert to_bytes(X) not in at_b


@pytest.mark.parametrize("nonce", [b"", bytes(16), bytes(31), bytes(33)])
def test_a_nonce_of_another_length_is_malformed(nonce: bytes) -> None:
    with pytest.raises(RejectedSubmission) as rejected:
        dataclasses.replace(CONTEXT, nonce=nonce)
    assert rejected.value.reason is Rejection.MALFORMED


@pytest.mark.parametrize("field", ["version", "attempt"])
def test_a_round_before_the_first_is_malformed(field: str) -> None:
    changes: dict[str, Any] = {field: -1}
    with pytest.raises(RejectedSubmission, match=field) as rejected:
        dataclasses.replace(CONTEXT, **changes)
    assert rejected.value.reason is Rejection.MALFORMED


@pytest.mark.parametrize("length", [0, 31, 33])
@pytest.mark.parametrize("field", ["seed", "salt"])
def test_a_seed_or_salt_of_another_length_is_malformed(field: str, length: int) -> None:
    changes: dict[str, Any] = {field: Secret(bytes(length))}
    with pytest.raises(RejectedSubmission, match=field) as rejected:
        dataclasses.replace(made()[0], **changes)
    assert rejected.value.reason is Rejection.MALFORMED


@pytest.mark.parametrize("length", [0, 8, PIECE_BYTES - 8, PIECE_BYTES, PIECE_BYTES + 8])
def test_a_held_body_is_read_in_whole_pieces_without_a_copy(length: int) -> None:
    data = bytearray(length)
    pieces = list(HeldBody(Secret(bytes(32)), data).pieces())
    assert sum(map(len, pieces)) == length
    assert all(len(piece) == PIECE_BYTES for piece in pieces[:-1])
    for piece in pieces:
        piece[0] = 1
    assert sum(data) == len(pieces)
