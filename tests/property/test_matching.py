"""Whatever the servers hold, both come to the same matched and rejected clients."""

import dataclasses
import itertools
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from precad.common.share.commitment import Commitment, SubmissionContext
from tests.rig.keys import signer, verifier

from precad.common.aggregator.collect.matching import describe, match
from precad.common.aggregator.round.messages import HeldEntry, HeldList, MissingEntry
from precad.common.aggregator.round.states import Matched, Opened
from precad.common.errors import PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.secret import Secret
from precad.common.share.signature import Signature, signed_bytes
from precad.common.share.submission import Submission

TASK, MODEL = Digest(b"\1" * 32), Digest(b"\2" * 32)
NAMES = [ClientId(f"c{i}") for i in range(6)]
Item = Submission | Rejection

# Few values, so that equal ones are common: a commitment, and what is claimed for the other's.
commitments = st.integers(0, 2).map(lambda i: bytes([i]) * 32)
reasons = st.sampled_from(Rejection)


@dataclasses.dataclass(frozen=True)
class Claim:
    """What one server got of a client: its share's commitment and the claimed other one."""

    own: bytes
    other: bytes


items = st.builds(Claim, commitments, commitments) | reasons
cohorts = st.lists(st.tuples(items, items), max_size=6)


def held(client: ClientId, role: Role, claim: Claim) -> Submission:
    context = SubmissionContext(TASK, 0, client, MODEL, bytes(16))
    own, other = Commitment(claim.own), Commitment(claim.other)
    pair = (own, other) if role is Role.SERVER_A else (other, own)
    unused = Secret(bytes(32))
    return Submission(context, role, unused, unused, own, other, sign(client, *pair))


@cache
def sign(client: ClientId, a: Commitment, b: Commitment) -> Signature:
    """The client's signature over this pair."""
    context = SubmissionContext(TASK, 0, client, MODEL, bytes(16))
    return signer(client).sign(signed_bytes(context, a, b))


def collected(role: Role, given: list[Claim | Rejection]) -> dict[ClientId, Item]:
    return {
        client: held(client, role, item) if isinstance(item, Claim) else item
        for client, item in zip(NAMES, given, strict=False)
    }


def both(pairs: list[tuple[Claim | Rejection, Claim | Rejection]]) -> tuple[Matched, Matched]:
    cohort = tuple(NAMES[: len(pairs)])
    opened = Opened(0, 0, cohort, MODEL, frozenset(cohort))
    at_a = collected(Role.SERVER_A, [a for a, _ in pairs])
    at_b = collected(Role.SERVER_B, [b for _, b in pairs])
    # As it crosses the link.
    from_a = HeldList.from_bytes(describe(at_a).to_bytes())
    from_b = HeldList.from_bytes(describe(at_b).to_bytes())
    eye = verifier()
    return (
        match(opened, Role.SERVER_A, at_a, from_b, eye),
        match(opened, Role.SERVER_B, at_b, from_a, eye),
    )


@given(cohorts)
def test_both_servers_agree_on_every_client(
    pairs: list[tuple[Claim | Rejection, Claim | Rejection]],
) -> None:
    a, b = both(pairs)
    assert a.rejections == b.rejections
    assert list(a.submissions) == list(b.submissions)
    for client in a.submissions:
        of_a, of_b = a.submissions[client], b.submissions[client]
        assert of_a.commitments == of_b.commitments == (of_a.commitment, of_b.commitment)
    # Everybody in the cohort is one or the other, and never both.
    assert set(a.submissions) | set(a.rejections) == set(NAMES[: len(pairs)])
    assert not set(a.submissions) & set(a.rejections)


@given(cohorts)
def test_exactly_the_cross_checked_submissions_match(
    pairs: list[tuple[Claim | Rejection, Claim | Rejection]],
) -> None:
    a, _ = both(pairs)
    expected = {
        client
        for client, (at_a, at_b) in zip(NAMES, pairs, strict=False)
        if isinstance(at_a, Claim)
        and isinstance(at_b, Claim)
        and at_a.other == at_b.own
        and at_b.other == at_a.own
    }
    assert set(a.submissions) == expected


ALL: list[Claim | Rejection] = [Claim(b"\1" * 32, b"\2" * 32), *Rejection]


@pytest.mark.parametrize(("at_a", "at_b"), list(itertools.product(ALL, ALL)))
def test_every_pair_of_outcomes_has_one_reason(
    at_a: Claim | Rejection, at_b: Claim | Rejection
) -> None:
    if isinstance(at_b, Claim):
        at_b = Claim(at_b.other, at_b.own)
    a, b = both([(at_a, at_b)])
    assert a.rejections == b.rejections
    found = [r for r in (at_a, at_b) if isinstance(r, Rejection) and r is not Rejection.ABSENT]
    if isinstance(at_a, Claim) and isinstance(at_b, Claim):
        assert not a.rejections
    else:
        # A's finding before B's, and any finding before absence.
        assert a.rejections == {NAMES[0]: found[0] if found else Rejection.ABSENT}


@pytest.mark.parametrize(
    ("at_a", "at_b"),
    [
        (Claim(b"\1" * 32, b"\2" * 32), Claim(b"\2" * 32, b"\3" * 32)),
        (Claim(b"\1" * 32, b"\3" * 32), Claim(b"\2" * 32, b"\1" * 32)),
        (Claim(b"\1" * 32, b"\1" * 32), Claim(b"\2" * 32, b"\2" * 32)),
    ],
)
def test_one_wrong_claim_is_unmatched_on_both(at_a: Claim, at_b: Claim) -> None:
    a, b = both([(at_a, at_b)])
    assert a.rejections == b.rejections == {NAMES[0]: Rejection.UNMATCHED}


def test_what_does_not_match_is_discarded(tmp_path: Any) -> None:
    path = tmp_path / "x.share"
    path.write_bytes(b"share")
    own = dataclasses.replace(
        held(NAMES[0], Role.SERVER_B, Claim(b"\1" * 32, b"\2" * 32)), share=path
    )
    theirs = describe({NAMES[0]: Rejection.ABSENT})
    opened = Opened(0, 0, (NAMES[0],), MODEL, frozenset(NAMES[:1]))
    match(opened, Role.SERVER_B, {NAMES[0]: own}, theirs, verifier())
    assert not path.exists()


@pytest.mark.parametrize("listed", [[], [0], [0, 1, 2], [0, 0], [0, 5], [0, 1, 1]])
def test_a_list_over_another_cohort_is_a_violation(listed: list[int]) -> None:
    entries = tuple(MissingEntry(client=NAMES[i].name, reason=Rejection.ABSENT) for i in listed)
    own = collected(Role.SERVER_A, [Rejection.ABSENT, Rejection.ABSENT])
    with pytest.raises(PeerViolation, match="cohort"):
        match(
            Opened(0, 0, tuple(NAMES[:2]), MODEL, frozenset(NAMES[:2])),
            Role.SERVER_A,
            own,
            HeldList(entries=entries),
            verifier(),
        )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"entries":[{"client":"C"}]}',
        b'{"entries":[{"client":"c","own":"00"}]}',
        b'{"entries":[{"client":"c"}]}',
        b'{"entries":[{"client":"c","own":"' + b"00" * 32 + b'"}]}',
        b'{"entries":[{"client":"c","reason":"no-such"}]}',
        b'{"entries":[{"client":"c","more":1}]}',
        b'{"entries":[{"client":"c\\n"}]}',
        b"[" * 10_000,
        b"\xff",
    ],
)
def test_an_unreadable_list_is_a_violation(data: bytes) -> None:
    with pytest.raises(PeerViolation, match="HeldList"):
        HeldList.from_bytes(data)


@given(cohorts)
def test_what_crosses_is_commitments_signatures_and_reasons_only(
    pairs: list[tuple[Claim | Rejection, Claim | Rejection]],
) -> None:
    at_a = collected(Role.SERVER_A, [a for a, _ in pairs])
    for entry in describe(at_a).entries:
        held = {"client", "own", "other", "signed", "signature", "certificate"}
        assert set(entry.model_dump()) == (
            held if isinstance(entry, HeldEntry) else {"client", "reason"}
        )
