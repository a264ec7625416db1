"""A submission counts only where both servers hold the same header, signed by its
client."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import small_task
from tests.rig.documents import Arguments
from tests.rig.keys import _identity, company_authority, identity, signer, verifier
from tests.rig.submissions import MODEL, ONE, pair_of, signed_anew, upload

from precad.aggregator.attempt_states import Matched, Opened
from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.collect.matching import HeldList, Offer, Places, describe, match
from precad.common import clock
from precad.common import submission as sharing
from precad.common.errors import PeerViolation, RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.identity.authority import Authority, new_key
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import Deployment, create_local_keys
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import CertificateSigner, CertificateVerifier
from precad.common.submission import (
    HeldBody,
    Signature,
    Submission,
    SubmissionContext,
)
from precad.common.wire.messages import encode
from precad.norm_check.submission_messages import header_from_wire, header_to_wire
from precad.protos import precad_pb2 as pb

A, B = Role.SERVER_A, Role.SERVER_B
TWO = ClientId("ward-2")
CONTEXT = SubmissionContext(
    task=Digest(b"\1" * 32),
    version=2,
    attempt=3,
    client=ONE,
    model=MODEL,
    nonce=bytes(32),
)
A_B_H = (Digest(b"\3" * 32), Digest(b"\4" * 32), Digest(b"\5" * 32))
FEW = settings(max_examples=25)


def reason_of(call: Callable[..., object], *given: object) -> Rejection:
    with pytest.raises(RejectedSubmission) as rejected:
        call(*given)
    return rejected.value.reason


digests = st.binary(min_size=32, max_size=32)
changes = st.one_of(
    st.tuples(st.sampled_from(["task", "model"]), digests.map(Digest)),
    st.tuples(st.sampled_from(["version", "attempt"]), st.integers(0, 2**64 - 1)),
    st.tuples(
        st.just("client"), st.sampled_from([TWO, ClientId("ward-10"), ClientId("w")])
    ),
    st.tuples(st.just("nonce"), digests),
    st.tuples(st.sampled_from([0, 1, 2]), digests.map(Digest) | st.sampled_from(A_B_H)),
)


def signed_by_name(
    context: sharing.SubmissionContext, digests: Sequence[Digest]
) -> bytes:
    commitment_a, commitment_b, body_digest = digests
    return sharing.signed_bytes(
        context,
        commitment_a=commitment_a,
        commitment_b=commitment_b,
        body_digest=body_digest,
    )


@FEW
@given(changes, st.integers(0, 71), st.integers(1, 255))
def test_a_signature_holds_for_no_other_field_and_no_other_bytes(
    change: tuple[Any, Any], at: int, flip: int
) -> None:
    signed = signed_by_name(CONTEXT, A_B_H)
    signature = signer(ONE).sign(signed)
    verifier().check(signature, signed)
    name, value = change
    context, named = CONTEXT, list(A_B_H)
    if isinstance(name, int):
        named[name] = value
    else:
        context = replace(context, **{name: value})
    if (context, *named) != (CONTEXT, *A_B_H):
        other = signed_by_name(context, named)
        assert reason_of(verifier().check, signature, other) is Rejection.BAD_SIGNATURE
    value = bytearray(signature.value)
    value[at % len(value)] ^= flip
    forged = replace(signature, value=bytes(value))
    assert reason_of(verifier().check, forged, signed) is Rejection.BAD_SIGNATURE


@pytest.mark.parametrize(
    "party",
    [
        Principal.client(TWO.name),
        *(Principal.service(r) for r in Role if r.value != "client"),
    ],
    ids=str,
)
def test_another_partys_certificate_is_refused(party: Principal) -> None:
    signature = CertificateSigner(identity(party)).sign(b"")
    assert reason_of(verifier().admit, signature, ONE) is Rejection.BAD_SIGNATURE


@pytest.mark.parametrize(
    ("days", "fault"), [(400, "expired"), (-1, "authority|not yet")]
)
def test_a_certificate_counts_while_it_is_valid(
    days: int, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    eye, signature = verifier(), signer(ONE).sign(b"")
    monkeypatch.setattr(clock, "wall", lambda: datetime.now(UTC) + timedelta(days=days))
    with pytest.raises(RejectedSubmission, match=fault):
        eye.admit(signature, ONE)


def test_another_roots_certificate_is_refused_and_a_revoked_one_at_once(
    tmp_path: Path,
) -> None:
    create_local_keys(tmp_path, [ONE.name])
    signature = CertificateSigner(Identity.load(tmp_path / ONE.name)).sign(b"")
    with pytest.raises(RejectedSubmission, match="authority"):
        verifier().admit(signature, ONE)
    theirs = CertificateVerifier(Identity.load(tmp_path / "server-b"))
    theirs.admit(signature, ONE)
    deployment = Deployment.open(tmp_path)
    deployment.revoke(deployment.current_serials(Principal.client(ONE.name)))
    with pytest.raises(RejectedSubmission, match="revoked"):
        theirs.admit(signature, ONE)


def test_an_intermediate_authority_must_come_along() -> None:
    root_key, issuing_key, key = new_key(), new_key(), new_key()
    root = company_authority("root", root_key, "root", root_key)
    issuing = Authority(
        company_authority("issuing", issuing_key, "root", root_key), issuing_key
    )
    leaf = issuing.issue(Principal.client(ONE.name), key.public_key(), days=1)
    pem = root.public_bytes(serialization.Encoding.PEM)
    eye = CertificateVerifier(replace(identity(Principal.service(A)), ca=pem))
    der = [
        c.public_bytes(serialization.Encoding.DER) for c in (leaf, issuing.certificate)
    ]
    whole = Signature(key.sign(b"x", ec.ECDSA(hashes.SHA256())), tuple(der))
    eye.admit(whole, ONE)
    eye.check(whole, b"x")
    alone = replace(whole, certificates=(der[0],))
    assert reason_of(eye.admit, alone, ONE) is Rejection.BAD_SIGNATURE


# A damaged serial number or name is still parsed, with a warning; the chain then
# doesn't hold.
@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
@pytest.mark.filterwarnings("ignore:Attribute's length:UserWarning")
@FEW
@given(st.integers(0, 5000), st.integers(1, 255), st.binary(max_size=300))
def test_damaged_certificates_are_refused_and_never_crash(
    at: int, flip: int, junk: bytes
) -> None:
    good = signer(ONE).sign(b"x")
    (whole,) = good.certificates
    der = bytearray(whole)
    der[at % len(der)] ^= flip
    # Of no known version: the library has an exception of its own for it, which is no
    # ValueError.
    version_3 = b"\xa0\x03\x02\x01\x02"
    assert whole.count(version_3) == 1
    odd = whole.replace(version_3, version_3[:-1] + b"\x26")
    for certificates in (
        (bytes(der),),
        (junk,),
        (bytes(der), junk),
        (whole, junk),
        (odd,),
    ):
        damaged = replace(good, certificates=certificates)
        assert reason_of(verifier().admit, damaged, ONE) is Rejection.BAD_SIGNATURE


@FEW
@given(st.binary(max_size=90), st.lists(st.binary(max_size=5000), max_size=6))
def test_a_header_survives_the_wire_within_bounds(
    value: bytes, certificates: list[bytes]
) -> None:
    pair = pair_of(small_task())
    for submission in pair:
        data = header_to_wire(submission).SerializeToString()
        read = header_from_wire(pb.SubmissionHeader.FromString(data), submission.role)
        assert read == replace(submission, body=None)
        assert read.header.whole_digest == pair[0].header.whole_digest
    message = header_to_wire(pair[0])
    message.ClearField("certificates")
    message.signature = value
    message.certificates.extend(certificates)
    bounded = 1 <= len(value) <= 72 and 1 <= len(certificates) <= 4
    if bounded and max(map(len, certificates)) <= 4096:
        found = header_from_wire(message, A).header.signature
        assert found == Signature(value, tuple(certificates))
    else:
        some = bool(value or certificates)
        reason = Rejection.MALFORMED if some else Rejection.BAD_SIGNATURE
        assert reason_of(header_from_wire, message, A) is reason


def test_neither_repr_nor_the_wire_shows_a_key() -> None:
    signature = signer(ONE).sign(b"x")
    shown = f"{signature} {signer(ONE)}".encode() + b"".join(signature.certificates)
    pem = identity(Principal.client(ONE.name)).key.reveal()
    private = serialization.load_pem_private_key(pem, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    number = private.private_numbers().private_value.to_bytes(32, "big")
    assert number not in shown
    assert number.hex().encode() not in shown


# --- collected and matched
# ---------------------------------------------------------------------


class Servers:
    def __init__(self, folder: Path) -> None:
        self.task = small_task()
        self.inboxes = {
            r: Inbox(r, self.task, verifier(), folder / r.value) for r in (A, B)
        }
        self.spool = folder / B.value

    def open(self) -> None:
        for inbox in self.inboxes.values():
            inbox.open(
                Opened(
                    attempt=3,
                    version=2,
                    cohort=(ONE, TWO),
                    model=MODEL,
                    counted=frozenset(),
                )
            )

    def send(self, *submissions: Submission) -> None:
        for each in submissions:
            upload(self.inboxes[each.role], each)

    def match(
        self, meddle: Callable[[HeldList], HeldList] = lambda held: held
    ) -> list[Matched]:
        """What A makes of B's list, and B of A's as ``meddle`` changed it on its
        way."""
        of = opened((ONE, TWO))
        collected = {role: inbox.close() for role, inbox in self.inboxes.items()}
        lists = {role: describe(held).to_bytes() for role, held in collected.items()}
        from_a, from_b = (
            meddle(HeldList.from_bytes(lists[A])),
            HeldList.from_bytes(lists[B]),
        )
        return [match(of, A, collected[A], from_b), match(of, B, collected[B], from_a)]

    def both_say(self, reason: Rejection) -> None:
        a, b = self.match()
        assert a.rejections == b.rejections == {ONE: reason, TWO: Rejection.ABSENT}
        assert not [*a.submissions, *b.submissions]
        # What doesn't count leaves nothing behind.
        assert list(self.spool.iterdir()) == []


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    made = Servers(tmp_path)
    made.open()
    return made


FIELDS = ("header", "signature", "seed", "salt")
FIELDS_B = (
    *FIELDS,
    "salt_h",
    "body",
)  # Server B gets the body's salt and the body besides


def assembled(pairs: Sequence[Submission], whose: Mapping[str, int]) -> Submission:
    """What one server gets when each field is taken from one of two submissions to
    it."""
    of, signature, seed, salt = (pairs[whose[field]] for field in FIELDS)
    header = replace(of.header, signature=signature.header.signature)
    submission = Submission(header=header, role=of.role, seed=seed.seed, salt=salt.salt)
    if of.role is A:
        return submission
    salt_h, body = (pairs[whose[field]].body for field in ("salt_h", "body"))
    assert isinstance(salt_h, HeldBody)
    assert isinstance(body, HeldBody)
    return replace(submission, body=HeldBody(salt_h.prefix, body.words))


def door(whose: Mapping[str, int]) -> Rejection | None:
    """What a server must say to it, alone."""
    if whose["signature"] != whose["header"]:
        return Rejection.BAD_SIGNATURE
    return None if len(set(whose.values())) == 1 else Rejection.MALFORMED


@pytest.mark.parametrize("at_a", list(product((0, 1), repeat=4)), ids=str)
def test_two_tales_cost_their_client_alone(
    tmp_path: Path, at_a: tuple[int, ...]
) -> None:
    """Every field of what A and B get from either of two good submissions: all 1,024
    ways."""
    servers = Servers(tmp_path)
    tales = pair_of(servers.task), pair_of(servers.task)
    bystander = pair_of(servers.task, TWO)
    of_a = dict(zip(FIELDS, at_a, strict=True))
    for at_b in product((0, 1), repeat=6):
        of_b = dict(zip(FIELDS_B, at_b, strict=True))
        servers.open()
        servers.send(*bystander)
        found = []
        for number, whose in enumerate((of_a, of_b)):
            sent = assembled([tale[number] for tale in tales], whose)
            reason = door(whose)
            found.append(reason)
            if reason is None:
                servers.send(sent)
            else:
                assert reason_of(servers.send, sent) is reason
                # As the service says to the inbox, whatever the body did.
                servers.inboxes[sent.role].refuse(3, ONE, reason)
        unlike = Rejection.UNMATCHED if of_a["header"] != of_b["header"] else None
        expected = found[0] or found[1] or unlike
        for matched in servers.match():
            assert matched.rejections == ({} if expected is None else {ONE: expected})
            assert list(matched.submissions) == (
                [ONE, TWO] if expected is None else [TWO]
            )
        for inbox in servers.inboxes.values():
            inbox.cancel()
        assert list(servers.spool.iterdir()) == []


def test_commitments_with_the_roles_exchanged_are_refused(servers: Servers) -> None:
    a, b = pair_of(servers.task)
    exchanged = replace(
        a.header,
        commitment_a=a.header.commitment_b,
        commitment_b=a.header.commitment_a,
    )
    header = signed_anew(exchanged, signer(ONE))
    # Each with its own seed, and with the one that its commitment was made of.
    for to_a, to_b in ((a, b), (b, a)):
        for role, seeds in ((A, to_a), (B, to_b)):
            sent = Submission(
                header=header, role=role, seed=seeds.seed, salt=seeds.salt, body=b.body
            )
            assert reason_of(servers.send, sent) is Rejection.MALFORMED
    servers.both_say(Rejection.MALFORMED)


@pytest.mark.parametrize(
    ("made_by", "changes", "reason"),
    [
        (ONE, {"version": 1}, Rejection.WRONG_ATTEMPT),
        (ONE, {"model": Digest(bytes(32))}, Rejection.WRONG_MODEL),
        (ONE, {"nonce": bytes(32)}, Rejection.MALFORMED),
        # A replayed header under the own name and signature opens nothing.
        (TWO, {"client": ONE}, Rejection.MALFORMED),
    ],
    ids=["version", "model", "nonce", "another client's"],
)
def test_a_commitment_made_for_another_context_is_refused(
    servers: Servers, made_by: ClientId, changes: Arguments, reason: Rejection
) -> None:
    pair = pair_of(servers.task, made_by)
    context = replace(pair[0].context, **changes)
    header = signed_anew(replace(pair[0].header, context=context), signer(ONE))
    for submission in pair:
        assert reason_of(servers.send, replace(submission, header=header)) is reason
    servers.both_say(reason)


def test_two_certificates_of_one_client_are_unmatched_on_both(servers: Servers) -> None:
    a, b = pair_of(servers.task)
    renewed = CertificateSigner(_identity.__wrapped__(Principal.client(ONE.name)))
    servers.send(a, replace(b, header=signed_anew(b.header, renewed)))
    servers.both_say(Rejection.UNMATCHED)


def test_what_the_other_server_says_otherwise_touches_that_client_alone(
    servers: Servers,
) -> None:
    servers.send(*pair_of(servers.task), *pair_of(servers.task, TWO))
    at_b = servers.match(lambda held: HeldList.listing([bytes(32), held.signed[1]]))[1]
    assert at_b.rejections == {ONE: Rejection.UNMATCHED}
    assert list(at_b.submissions) == [TWO]


# --- whatever the servers hold
# ------------------------------------------------------------------

NAMES = [ClientId(f"c{i}") for i in range(6)]


class Claim(NamedTuple):
    """What one server got of a client."""

    header: int
    signature: int = 0
    certificate: int = 0


Pairs = list[tuple[Claim | Rejection, Claim | Rejection]]
few = st.integers(0, 1)  # Few values, so that equal ones are common
items = st.builds(Claim, few, few, few) | st.sampled_from(Rejection)
cohorts = st.lists(st.tuples(items, items), max_size=6)


def held(client: ClientId, role: Role, claim: Claim) -> Submission:
    context = replace(CONTEXT, client=client)
    signature = Signature(bytes([1, claim.signature]), (bytes([claim.certificate]),))
    _, commitment_b, body_digest = A_B_H
    header = sharing.SignedHeader(
        context=context,
        commitment_a=Digest(bytes([claim.header, 1]) * 16),
        commitment_b=commitment_b,
        body_digest=body_digest,
        signature=signature,
    )
    return Submission(
        header=header, role=role, seed=Secret(bytes(32)), salt=Secret(bytes(32))
    )


def opened(cohort: Sequence[ClientId]) -> Opened:
    return Opened(
        attempt=3,
        version=2,
        cohort=tuple(cohort),
        model=MODEL,
        counted=frozenset(cohort),
    )


def collected(
    role: Role, given: Sequence[Claim | Rejection]
) -> dict[ClientId, Submission | Rejection]:
    return {
        client: held(client, role, item) if isinstance(item, Claim) else item
        for client, item in zip(NAMES, given, strict=False)
    }


def both(pairs: Pairs) -> tuple[Matched, Matched]:
    of = opened(NAMES[: len(pairs)])
    at_a = collected(A, [a for a, _ in pairs])
    at_b = collected(B, [b for _, b in pairs])
    # As it crosses the link.
    from_a = HeldList.from_bytes(describe(at_a).to_bytes())
    from_b = HeldList.from_bytes(describe(at_b).to_bytes())
    return match(of, A, at_a, from_b), match(of, B, at_b, from_a)


@given(cohorts)
def test_both_servers_agree_on_everybody_and_the_same_signed_bytes_alone_match(
    pairs: Pairs,
) -> None:
    a, b = both(pairs)
    held_at_a, held_at_b = (
        [(c, s.header) for c, s in m.submissions.items()] for m in (a, b)
    )
    assert (a.rejections, held_at_a) == (b.rejections, held_at_b)
    # Everybody in the cohort is one or the other, and never both.
    assert sorted([*a.submissions, *a.rejections]) == NAMES[: len(pairs)]
    assert set(a.submissions) == {
        client
        for client, (at_a, at_b) in zip(NAMES, pairs, strict=False)
        if isinstance(at_a, Claim) and at_a == at_b
    }
    # What crosses is digests and reasons, and no name: a byte each, and 34 more for
    # what is held.
    at_a = collected(A, [a for a, _ in pairs])
    held_here = sum(isinstance(each, Submission) for each in at_a.values())
    assert len(describe(at_a).to_bytes()) <= 2 + len(at_a) + 34 * held_here


ALL: list[Claim | Rejection] = [Claim(0), *Rejection]


@pytest.mark.parametrize("at_b", ALL)
@pytest.mark.parametrize("at_a", ALL)
def test_each_two_outcomes_have_one_reason(
    at_a: Claim | Rejection, at_b: Claim | Rejection
) -> None:
    a, b = both([(at_a, at_b)])
    assert a.rejections == b.rejections
    found = [
        r
        for r in (at_a, at_b)
        if isinstance(r, Rejection) and r is not Rejection.ABSENT
    ]
    if isinstance(at_a, Claim) and isinstance(at_b, Claim):
        assert not a.rejections
    else:
        # A's finding before B's, and any finding before absence.
        alone = isinstance(at_a, Claim) or isinstance(at_b, Claim)
        missing = Rejection.UNMATCHED if alone else Rejection.ABSENT
        assert a.rejections == {NAMES[0]: found[0] if found else missing}


@pytest.mark.parametrize(
    "theirs", [Rejection.ABSENT, Rejection.MALFORMED, Claim(1), Claim(0)]
)
def test_what_does_not_match_is_discarded(theirs: Claim | Rejection) -> None:
    body = Mock(HeldBody)
    own = replace(held(NAMES[0], B, Claim(0)), body=body)
    listed = describe(collected(A, [theirs]))
    match(opened(NAMES[:1]), B, {NAMES[0]: own}, listed)
    assert body.discard.call_count == (theirs != Claim(0))


@pytest.mark.parametrize("listed", [0, 1, 3])
def test_a_list_over_another_cohort_is_a_violation(listed: int) -> None:
    theirs = HeldList.listing([Rejection.ABSENT] * listed)
    own = collected(A, [Rejection.ABSENT, Rejection.ABSENT])
    with pytest.raises(PeerViolation, match="cohort"):
        match(opened(NAMES[:2]), A, own, theirs)


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
def test_offers_cross_by_places_where_nobody_stands_twice(
    clients: set[ClientId],
) -> None:
    places = Places(NAMES)
    steps = places.steps(clients)
    assert places.clients(steps) == tuple(sorted(clients))
    assert min(steps, default=1) >= 1
    signed = tuple(Digest.of(client.encoded()).value for client in clients)
    offer = Offer(clients=steps, signed=signed)
    assert Offer.from_bytes(offer.to_bytes()) == offer
    assert len(offer.to_bytes()) <= 2 + 35 * len(clients)


@pytest.mark.parametrize("steps", [[0], [-1], [7], [3, 0], [1, -1], [2, 5], [2**31]])
def test_places_that_are_nobodys_are_a_violation(steps: list[int]) -> None:
    with pytest.raises(PeerViolation, match="isn't among 6 clients"):
        Places(NAMES).clients(steps)
