"""Whatever the servers hold, both come to the same matched and rejected clients."""

import dataclasses
import itertools
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precad.aggregator.collect.matching import HeldList, Offer, Places, describe, match
from precad.aggregator.rounds.states import Matched, Opened
from precad.common.errors import PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.share.submission import (
    HeldBody,
    Signature,
    SignedHeader,
    Submission,
    SubmissionContext,
)
from precad.common.wire.messages import encode

TASK, MODEL = Digest(b"\1" * 32), Digest(b"\2" * 32)
NAMES = [ClientId(f"c{i}") for i in range(6)]
Item = Submission | Rejection

reasons = st.sampled_from(Rejection)


@dataclasses.dataclass(frozen=True)
class Claim:
    """What one server got of a client: which header, which signature, which certificate."""

    header: int
    signature: int = 0
    certificate: int = 0


Pairs = list[tuple[Claim | Rejection, Claim | Rejection]]

# Few values, so that equal ones are common.
few = st.integers(0, 1)
items = st.builds(Claim, few, few, few) | reasons
cohorts = st.lists(st.tuples(items, items), max_size=6)


def held(client: ClientId, role: Role, claim: Claim) -> Submission:
    context = SubmissionContext(TASK, 0, 0, client, MODEL, bytes(32))
    named = (Digest(bytes([claim.header, 1]) * 16), Digest(bytes(32)), Digest(bytes(32)))
    signature = Signature(bytes([1, claim.signature]), (bytes([claim.certificate]),))
    header = SignedHeader(context, *named, signature)
    return Submission(header, role, Secret(bytes(32)), Secret(bytes(32)))


def collected(role: Role, given: list[Claim | Rejection]) -> dict[ClientId, Item]:
    return {
        client: held(client, role, item) if isinstance(item, Claim) else item
        for client, item in zip(NAMES, given, strict=False)
    }


def both(pairs: Pairs) -> tuple[Matched, Matched]:
    cohort = tuple(NAMES[: len(pairs)])
    opened = Opened(0, 0, cohort, MODEL, frozenset(cohort))
    at_a = collected(Role.SERVER_A, [a for a, _ in pairs])
    at_b = collected(Role.SERVER_B, [b for _, b in pairs])
    # As it crosses the link.
    from_a = HeldList.from_bytes(describe(at_a).to_bytes())
    from_b = HeldList.from_bytes(describe(at_b).to_bytes())
    return (match(opened, Role.SERVER_A, at_a, from_b), match(opened, Role.SERVER_B, at_b, from_a))


@given(cohorts)
def test_both_servers_agree_on_everybody_and_the_same_signed_bytes_alone_match(
    pairs: Pairs,
) -> None:
    a, b = both(pairs)
    assert a.rejections == b.rejections
    assert list(a.submissions) == list(b.submissions)
    for client in a.submissions:
        assert a.submissions[client].header == b.submissions[client].header
    # Everybody in the cohort is one or the other, and never both.
    assert sorted([*a.submissions, *a.rejections]) == NAMES[: len(pairs)]
    assert set(a.submissions) == {
        client
        for client, (at_a, at_b) in zip(NAMES, pairs, strict=False)
        if isinstance(at_a, Claim) and at_a == at_b
    }
    # What crosses is digests and reasons, and no name: a byte each, and 34 more for what is held.
    at_a = collected(Role.SERVER_A, [a for a, _ in pairs])
    held_here = sum(isinstance(each, Submission) for each in at_a.values())
    assert len(describe(at_a).to_bytes()) <= 2 + len(at_a) + 34 * held_here


ALL: list[Claim | Rejection] = [Claim(0), *Rejection]


@pytest.mark.parametrize(("at_a", "at_b"), list(itertools.product(ALL, ALL)))
def test_each_two_outcomes_have_one_reason(
    at_a: Claim | Rejection, at_b: Claim | Rejection
) -> None:
    a, b = both([(at_a, at_b)])
    assert a.rejections == b.rejections
    found = [r for r in (at_a, at_b) if isinstance(r, Rejection) and r is not Rejection.ABSENT]
    if isinstance(at_a, Claim) and isinstance(at_b, Claim):
        assert not a.rejections
    else:
        # A's finding before B's, and any finding before absence.
        alone = isinstance(at_a, Claim) or isinstance(at_b, Claim)
        missing = Rejection.UNMATCHED if alone else Rejection.ABSENT
        assert a.rejections == {NAMES[0]: found[0] if found else missing}


@pytest.mark.parametrize("theirs", [Rejection.ABSENT, Rejection.MALFORMED, Claim(1), Claim(0)])
def test_what_does_not_match_is_discarded(theirs: Claim | Rejection) -> None:
    body = Mock(HeldBody)
    own = dataclasses.replace(held(NAMES[0], Role.SERVER_B, Claim(0)), body=body)
    listed = describe(collected(Role.SERVER_A, [theirs]))
    opened = Opened(0, 0, (NAMES[0],), MODEL, frozenset(NAMES[:1]))
    match(opened, Role.SERVER_B, {NAMES[0]: own}, listed)
    assert body.discard.call_count == (theirs != Claim(0))


@pytest.mark.parametrize("listed", [0, 1, 3])
def test_a_list_over_another_cohort_is_a_violation(listed: int) -> None:
    theirs = HeldList.listing([Rejection.ABSENT] * listed)
    own = collected(Role.SERVER_A, [Rejection.ABSENT, Rejection.ABSENT])
    with pytest.raises(PeerViolation, match="cohort"):
        match(
            Opened(0, 0, tuple(NAMES[:2]), MODEL, frozenset(NAMES[:2])), Role.SERVER_A, own, theirs
        )


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"\xff",
        # Held without a digest, with half of one; a digest of nobody; no such reason.
        encode("HeldList", {"reasons": [0]}),
        encode("HeldList", {"reasons": [0], "signed": [bytes(16)]}),
        encode("HeldList", {"reasons": [1], "signed": [bytes(32)]}),
        encode("HeldList", {"reasons": [len(Rejection) + 1]}),
    ],
)
def test_an_unreadable_list_is_a_violation(data: bytes) -> None:
    with pytest.raises(PeerViolation, match="HeldList"):
        HeldList.from_bytes(data)


@given(st.sets(st.sampled_from(NAMES)))
def test_offers_cross_by_places_where_nobody_stands_twice(clients: set[ClientId]) -> None:
    places = Places(NAMES)
    steps = places.steps(clients)
    assert places.clients(steps) == tuple(sorted(clients))
    assert min(steps, default=1) >= 1
    signed = tuple(str(Digest.of(client.encoded())) for client in clients)
    offer = Offer(clients=steps, signed=signed)
    assert Offer.from_bytes(offer.to_bytes()) == offer
    assert len(offer.to_bytes()) <= 2 + 35 * len(clients)


@pytest.mark.parametrize("steps", [[0], [-1], [7], [3, 0], [1, -1], [2, 5], [2**31]])
def test_places_that_are_nobodys_are_a_violation(steps: list[int]) -> None:
    with pytest.raises(PeerViolation, match="isn't among 6 clients"):
        Places(NAMES).clients(steps)
