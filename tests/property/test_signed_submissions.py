"""A submission counts only where both servers hold the same header, signed by its client."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.rig.keys import company_authority
from tests.rig.submissions import signed_anew, upload

from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.collect.matching import HeldList, describe, match
from precad.aggregator.rounds.states import Matched, Opened
from precad.common import clock
from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.authority import Authority, new_key
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import Deployment, create_local_keys
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import CertificateSigner, CertificateVerifier
from precad.common.share.submission import (
    HeldBody,
    Signature,
    Submission,
    SubmissionContext,
    shard,
    signed_bytes,
)
from precad.common.task import Task
from precad.common.wire.messages import header_from_wire, header_to_wire
from precad.protos import precad_pb2 as pb

D = 8
ONE, TWO = ClientId("ward-1"), ClientId("ward-2")
MODEL = Digest(b"\2" * 32)
CONTEXT = SubmissionContext(Digest(b"\1" * 32), 2, 3, ONE, MODEL, bytes(32))
A_B_H = (Digest(b"\3" * 32), Digest(b"\4" * 32), Digest(b"\5" * 32))
FIXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    create_local_keys(directory, [ONE.name, TWO.name])
    return directory


@pytest.fixture(scope="module")
def server(keys: Path) -> CertificateVerifier:
    return CertificateVerifier(Identity.load(keys / "server-a"))


@pytest.fixture(scope="module")
def one(keys: Path) -> CertificateSigner:
    return CertificateSigner(Identity.load(keys / ONE.name))


@pytest.fixture(scope="module")
def task(make_task: Any) -> Task:
    made: Task = make_task(D)
    return made


def reason_of(call: Callable[[], object]) -> Rejection:
    with pytest.raises(RejectedSubmission) as rejected:
        call()
    return rejected.value.reason


# --- what is signed ----------------------------------------------------------------------------

digests = st.binary(min_size=32, max_size=32)
changes = st.one_of(
    st.tuples(st.just("task"), digests.map(Digest)),
    st.tuples(st.just("version"), st.integers(0, 2**64 - 1)),
    st.tuples(st.just("attempt"), st.integers(0, 2**64 - 1)),
    st.tuples(st.just("client"), st.sampled_from([TWO, ClientId("ward-10"), ClientId("w")])),
    st.tuples(st.just("model"), digests.map(Digest)),
    st.tuples(st.just("nonce"), st.binary(min_size=32, max_size=32)),
    st.tuples(st.sampled_from([0, 1, 2]), digests.map(Digest) | st.sampled_from(A_B_H)),
)


@FIXED
@given(changes)
def test_a_signature_holds_for_no_other_field(
    one: CertificateSigner, server: CertificateVerifier, change: tuple[Any, Any]
) -> None:
    signature = one.sign(signed_bytes(CONTEXT, *A_B_H))
    server.check(signature, signed_bytes(CONTEXT, *A_B_H))
    name, value = change
    context, named = CONTEXT, list(A_B_H)
    if isinstance(name, int):
        named[name] = value
    else:
        context = replace(context, **{name: value})
    if (context, *named) == (CONTEXT, *A_B_H):
        return
    other = signed_bytes(context, *named)
    assert reason_of(lambda: server.check(signature, other)) is Rejection.BAD_SIGNATURE


@FIXED
@given(st.integers(0, 71), st.integers(1, 255))
def test_a_changed_signature_is_refused(
    one: CertificateSigner, server: CertificateVerifier, at: int, flip: int
) -> None:
    signed = signed_bytes(CONTEXT, *A_B_H)
    signature = one.sign(signed)
    value = bytearray(signature.value)
    value[at % len(value)] ^= flip
    forged = replace(signature, value=bytes(value))
    assert reason_of(lambda: server.check(forged, signed)) is Rejection.BAD_SIGNATURE


# --- whose certificate -------------------------------------------------------------------------


@pytest.mark.parametrize("party", [TWO.name, "server-a", "server-b", "dealer", "operator"])
def test_another_partys_certificate_is_refused(
    keys: Path, server: CertificateVerifier, party: str
) -> None:
    signature = CertificateSigner(Identity.load(keys / party)).sign(b"")
    assert reason_of(lambda: server.admit(signature, ONE)) is Rejection.BAD_SIGNATURE


def test_another_roots_certificate_is_refused(tmp_path: Path, server: CertificateVerifier) -> None:
    create_local_keys(tmp_path, [ONE.name])
    signature = CertificateSigner(Identity.load(tmp_path / ONE.name)).sign(b"")
    with pytest.raises(RejectedSubmission, match="authority"):
        server.admit(signature, ONE)


@pytest.mark.parametrize(("days", "fault"), [(400, "expired"), (-1, "not yet valid")])
def test_a_certificate_counts_while_it_is_valid(
    one: CertificateSigner,
    server: CertificateVerifier,
    days: int,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock, "wall", lambda: datetime.now(UTC) + timedelta(days=days))
    with pytest.raises(RejectedSubmission, match=fault if days > 0 else "authority|not yet"):
        server.admit(one.sign(b""), ONE)


def test_a_revoked_certificate_is_refused_at_once(tmp_path: Path) -> None:
    create_local_keys(tmp_path, [ONE.name])
    verifier = CertificateVerifier(Identity.load(tmp_path / "server-b"))
    signature = CertificateSigner(Identity.load(tmp_path / ONE.name)).sign(b"")
    verifier.admit(signature, ONE)
    deployment = Deployment.open(tmp_path)
    deployment.revoke(deployment.current_serials(Principal.client(ONE.name)))
    with pytest.raises(RejectedSubmission, match="revoked"):
        verifier.admit(signature, ONE)


def test_an_intermediate_authority_must_come_along(keys: Path) -> None:
    root_key, issuing_key, key = new_key(), new_key(), new_key()
    root = company_authority("root", root_key, "root", root_key)
    issuing = Authority(company_authority("issuing", issuing_key, "root", root_key), issuing_key)
    leaf = issuing.issue(Principal.client(ONE.name), key.public_key(), days=1)
    pem = root.public_bytes(serialization.Encoding.PEM)
    verifier = CertificateVerifier(replace(Identity.load(keys / "server-a"), ca=pem))
    der = [c.public_bytes(serialization.Encoding.DER) for c in (leaf, issuing.certificate)]
    value = key.sign(b"x", ec.ECDSA(hashes.SHA256()))
    verifier.admit(Signature(value, tuple(der)), ONE)
    verifier.check(Signature(value, tuple(der)), b"x")
    alone = Signature(value, (der[0],))
    assert reason_of(lambda: verifier.admit(alone, ONE)) is Rejection.BAD_SIGNATURE


def test_a_certificate_of_no_known_version_is_refused(
    one: CertificateSigner, server: CertificateVerifier
) -> None:
    """The library has an exception of its own for it, which is no ValueError."""
    good = one.sign(b"x")
    der = good.certificates[0]
    version_3 = b"\xa0\x03\x02\x01\x02"
    assert der.count(version_3) == 1
    odd = replace(good, certificates=(der.replace(version_3, version_3[:-1] + b"\x26"),))
    assert reason_of(lambda: server.admit(odd, ONE)) is Rejection.BAD_SIGNATURE


# A damaged serial number or name is still parsed, with a warning; the chain then doesn't hold.
@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
@pytest.mark.filterwarnings("ignore:Attribute's length:UserWarning")
@FIXED
@given(st.integers(0, 5000), st.integers(1, 255), st.binary(max_size=300))
def test_damaged_certificates_are_refused_and_never_crash(
    one: CertificateSigner, server: CertificateVerifier, at: int, flip: int, junk: bytes
) -> None:
    good = one.sign(b"x")
    der = bytearray(good.certificates[0])
    der[at % len(der)] ^= flip
    for certificates in ((bytes(der),), (junk,), (bytes(der), junk), (*good.certificates, junk)):
        damaged = replace(good, certificates=certificates)
        assert reason_of(partial(server.admit, damaged, ONE)) is Rejection.BAD_SIGNATURE


@FIXED
@given(st.binary(max_size=90), st.lists(st.binary(max_size=5000), max_size=6))
def test_headers_from_outside_have_bounded_signatures(
    one: CertificateSigner, value: bytes, certificates: list[bytes]
) -> None:
    message = header_to_wire(signed_pair(one)[0])
    message.ClearField("certificates")
    message.signature = value
    message.certificates.extend(certificates)
    bounded = 1 <= len(value) <= 72 and 1 <= len(certificates) <= 4
    if bounded and max(map(len, certificates)) <= 4096:
        assert header_from_wire(message, Role.SERVER_A).header.signature == Signature(
            value, tuple(certificates)
        )
    elif value or certificates:
        assert reason_of(lambda: header_from_wire(message, Role.SERVER_A)) is Rejection.MALFORMED
    else:
        assert (
            reason_of(lambda: header_from_wire(message, Role.SERVER_A)) is Rejection.BAD_SIGNATURE
        )


def signed_pair(one: CertificateSigner) -> tuple[Submission, Submission]:
    x = np.arange(D, dtype=np.int64)
    return shard(x, SubmissionContext(CONTEXT.task, 2, 3, ONE, MODEL), one)


def test_a_header_survives_the_wire(one: CertificateSigner) -> None:
    pair = signed_pair(one)
    for submission in pair:
        data = header_to_wire(submission).SerializeToString()
        read = header_from_wire(pb.SubmissionHeader.FromString(data), submission.role)
        assert read == replace(submission, body=None)
        assert read.header.whole_digest == pair[0].header.whole_digest


def test_neither_repr_nor_the_wire_shows_a_key(keys: Path, one: CertificateSigner) -> None:
    identity = Identity.load(keys / ONE.name)
    signature = one.sign(b"x")
    shown = repr(signature).encode() + repr(one).encode() + b"".join(signature.certificates)
    private = serialization.load_pem_private_key(identity.key.reveal(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    number = private.private_numbers().private_value.to_bytes(32, "big")
    assert number not in shown
    assert number.hex().encode() not in shown


# --- collected and matched ---------------------------------------------------------------------


class Servers:
    """Both servers' inboxes for one round, and their match."""

    def __init__(self, keys: Path, task: Task, folder: Path) -> None:
        self.task = task
        self.verifiers = {
            role: CertificateVerifier(Identity.load(keys / role.value))
            for role in (Role.SERVER_A, Role.SERVER_B)
        }
        self.inboxes = {
            role: Inbox(role, task, verifier, folder / role.value)
            for role, verifier in self.verifiers.items()
        }
        self.spool = folder / Role.SERVER_B.value
        for inbox in self.inboxes.values():
            inbox.open(Opened(3, 2, (ONE, TWO), MODEL, frozenset()))

    def pair(self, identity: Identity, client: ClientId = ONE) -> tuple[Submission, Submission]:
        return shard(
            np.arange(D, dtype=np.int64),
            SubmissionContext(self.task.digest, 2, 3, client, MODEL),
            CertificateSigner(identity),
        )

    def send(self, s: Submission) -> None:
        upload(self.inboxes[s.role], s)

    def match(self, meddle: Callable[[HeldList], HeldList] = lambda held: held) -> list[Matched]:
        """What A makes of B's list, and B of A's as ``meddle`` changed it on its way."""
        opened = Opened(3, 2, (ONE, TWO), MODEL, frozenset((ONE, TWO)))
        collected = {role: inbox.close() for role, inbox in self.inboxes.items()}
        lists = {role: describe(held).to_bytes() for role, held in collected.items()}
        a, b = Role.SERVER_A, Role.SERVER_B
        from_a, from_b = meddle(HeldList.from_bytes(lists[a])), HeldList.from_bytes(lists[b])
        return [match(opened, a, collected[a], from_b), match(opened, b, collected[b], from_a)]


@pytest.fixture
def servers(keys: Path, task: Task, tmp_path: Path) -> Servers:
    return Servers(keys, task, tmp_path)


@pytest.fixture
def ward_1(keys: Path) -> Identity:
    return Identity.load(keys / ONE.name)


def both_say(servers: Servers, reason: Rejection) -> None:
    a, b = servers.match()
    assert a.rejections == b.rejections == {ONE: reason, TWO: Rejection.ABSENT}
    assert not a.submissions
    assert not b.submissions
    # What doesn't count leaves nothing behind.
    assert list(servers.spool.iterdir()) == []


FIELDS = ("header", "signature", "seed", "salt")
"""Of what server A gets; server B gets the body's salt and the body besides."""
FIELDS_B = (*FIELDS, "salt_h", "body")


def assembled(pairs: Sequence[Submission], whose: Mapping[str, int]) -> Submission:
    """What one server gets when each field is taken from one of two submissions to it."""
    header, signature, seed, salt = (pairs[whose[field]] for field in FIELDS)
    submission = Submission(
        replace(header.header, signature=signature.header.signature),
        header.role,
        seed.seed,
        salt.salt,
    )
    if header.role is Role.SERVER_A:
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
    keys: Path, task: Task, tmp_path: Path, at_a: tuple[int, ...]
) -> None:
    """Every field of what A and B get from either of two good submissions: all 1,024 ways."""
    servers = Servers(keys, task, tmp_path)
    cheat, honest = (Identity.load(keys / client.name) for client in (ONE, TWO))
    tales = servers.pair(cheat), servers.pair(cheat)
    bystander = servers.pair(honest, TWO)
    of_a = dict(zip(FIELDS, at_a, strict=True))
    for at_b in product((0, 1), repeat=6):
        of_b = dict(zip(FIELDS_B, at_b, strict=True))
        for inbox in servers.inboxes.values():
            inbox.open(Opened(3, 2, (ONE, TWO), MODEL, frozenset()))
        for submission in bystander:
            servers.send(submission)
        found = []
        for number, whose in enumerate((of_a, of_b)):
            sent = assembled([tale[number] for tale in tales], whose)
            reason = door(whose)
            found.append(reason)
            if reason is None:
                servers.send(sent)
            else:
                assert reason_of(partial(servers.send, sent)) is reason
                # As the service says to the inbox, whatever the body did.
                servers.inboxes[sent.role].refuse(3, ONE, reason)
        unlike = Rejection.UNMATCHED if of_a["header"] != of_b["header"] else None
        expected = found[0] or found[1] or unlike
        for matched in servers.match():
            assert matched.rejections == ({} if expected is None else {ONE: expected})
            assert list(matched.submissions) == ([ONE, TWO] if expected is None else [TWO])
        for inbox in servers.inboxes.values():
            inbox.cancel()
        assert list(servers.spool.iterdir()) == []


def test_commitments_with_the_roles_exchanged_are_refused(
    servers: Servers, ward_1: Identity
) -> None:
    a, b = servers.pair(ward_1)
    signer = CertificateSigner(ward_1)
    turned = replace(
        a.header, commitment_a=a.header.commitment_b, commitment_b=a.header.commitment_a
    )
    header = signed_anew(turned, signer)
    # Each with its own seed, and with the one that its commitment was made of.
    for to_a, to_b in ((a, b), (b, a)):
        for role, seeds in ((Role.SERVER_A, to_a), (Role.SERVER_B, to_b)):
            sent = Submission(header, role, seeds.seed, seeds.salt, b.body)
            assert reason_of(partial(servers.send, sent)) is Rejection.MALFORMED
    both_say(servers, Rejection.MALFORMED)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 1}, Rejection.WRONG_ATTEMPT),
        ({"model": Digest(bytes(32))}, Rejection.WRONG_MODEL),
        ({"nonce": bytes(32)}, Rejection.MALFORMED),
    ],
)
def test_a_commitment_made_for_another_context_is_refused(
    servers: Servers, ward_1: Identity, changes: dict[str, Any], reason: Rejection
) -> None:
    pair = servers.pair(ward_1)
    context = replace(pair[0].context, **changes)
    header = signed_anew(replace(pair[0].header, context=context), CertificateSigner(ward_1))
    for submission in pair:
        moved = replace(submission, header=header)
        assert reason_of(partial(servers.send, moved)) is reason
    both_say(servers, reason)


def test_another_clients_commitments_are_refused(
    servers: Servers, keys: Path, ward_1: Identity
) -> None:
    """A replayed header under the own name and signature opens nothing."""
    stolen = servers.pair(Identity.load(keys / TWO.name), TWO)
    context = replace(stolen[0].context, client=ONE)
    header = signed_anew(replace(stolen[0].header, context=context), CertificateSigner(ward_1))
    for submission in stolen:
        own = replace(submission, header=header)
        assert reason_of(partial(servers.send, own)) is Rejection.MALFORMED
    both_say(servers, Rejection.MALFORMED)


def test_two_certificates_of_one_client_are_unmatched_on_both(task: Task, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    create_local_keys(keys, [ONE.name])
    servers = Servers(keys, task, tmp_path)
    first = Identity.load(keys / ONE.name)
    Deployment.open(keys).renew(Principal.client(ONE.name))
    second = Identity.load(keys / ONE.name)
    a, b = servers.pair(first)
    servers.send(a)
    servers.send(replace(b, header=signed_anew(b.header, CertificateSigner(second))))
    both_say(servers, Rejection.UNMATCHED)


def test_what_the_other_server_says_otherwise_is_unmatched_and_touches_nobody_else(
    servers: Servers, keys: Path, ward_1: Identity
) -> None:
    for client, identity in ((ONE, ward_1), (TWO, Identity.load(keys / TWO.name))):
        for submission in servers.pair(identity, client):
            servers.send(submission)

    def meddle(held: HeldList) -> HeldList:
        return HeldList.listing(["00" * 32, held.signed[1]])

    at_b = servers.match(meddle)[1]
    assert at_b.rejections == {ONE: Rejection.UNMATCHED}
    assert list(at_b.submissions) == [TWO]
