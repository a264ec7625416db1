"""A submission counts only with its client's signature over just this pair of shares."""

import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from precad.common.share.additive import split
from precad.common.share.commitment import Commitment, SubmissionContext, commit

from precad.common.aggregator.collect import Inbox
from precad.common.aggregator.collect.matching import describe, match
from precad.common.aggregator.round.messages import HeldEntry, HeldList
from precad.common.aggregator.round.states import Matched, Opened
from precad.common.errors import PeerViolation, RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment import Deployment, create_local_keys
from precad.common.identity.pki import Authority, new_key
from precad.common.identity.principal import Principal
from precad.common.identity.sign import CertificateSigner, CertificateVerifier
from precad.common.ring import to_bytes
from precad.common.secret import Secret
from precad.common.share.signature import Signature, signed_bytes
from precad.common.share.submission import Submission, SubmissionHeader, shard
from precad.common.task import Task
from precad.common.wire.submission import header_from_wire, header_to_wire
from precad.protos import precad_pb2 as pb

D = 8
ONE, TWO = ClientId("ward-1"), ClientId("ward-2")
MODEL = Digest(b"\2" * 32)
CONTEXT = SubmissionContext(Digest(b"\1" * 32), 3, ONE, MODEL, bytes(16))
A_B = (Commitment(b"\3" * 32), Commitment(b"\4" * 32))
FIXED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)


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
    st.tuples(st.just("attempt"), st.integers(0, 2**64 - 1)),
    st.tuples(st.just("client"), st.sampled_from([TWO, ClientId("ward-10"), ClientId("w")])),
    st.tuples(st.just("model"), digests.map(Digest)),
    st.tuples(st.just("nonce"), st.binary(min_size=16, max_size=16)),
    st.tuples(st.just("a"), digests.map(Commitment)),
    st.tuples(st.just("b"), digests.map(Commitment)),
)


@FIXED
@given(changes)
def test_a_signature_holds_for_no_other_field(
    one: CertificateSigner, server: CertificateVerifier, change: tuple[str, Any]
) -> None:
    signature = one.sign(signed_bytes(CONTEXT, *A_B))
    server.check(signature, signed_bytes(CONTEXT, *A_B))
    name, value = change
    context, (a, b) = CONTEXT, A_B
    match name:
        case "a":
            a = value
        case "b":
            b = value
        case _:
            context = replace(context, **{name: value})
    if (context, a, b) == (CONTEXT, *A_B):
        return
    other = signed_bytes(context, a, b)
    assert reason_of(lambda: server.check(signature, other)) is Rejection.BAD_SIGNATURE


def test_the_two_commitments_are_not_interchangeable(
    one: CertificateSigner, server: CertificateVerifier
) -> None:
    signature = one.sign(signed_bytes(CONTEXT, *A_B))
    turned = signed_bytes(CONTEXT, A_B[1], A_B[0])
    assert reason_of(lambda: server.check(signature, turned)) is Rejection.BAD_SIGNATURE


def test_what_is_signed_never_changes() -> None:
    digest = hashlib.sha256(signed_bytes(CONTEXT, *A_B)).hexdigest()
    assert digest == "e7d0d26ec203183d35324bde2c85a57ce9799bf330bf8a1a50d883bf24a8ab9a"


@FIXED
@given(st.integers(0, 71), st.integers(1, 255))
def test_a_changed_signature_is_refused(
    one: CertificateSigner, server: CertificateVerifier, at: int, flip: int
) -> None:
    signed = signed_bytes(CONTEXT, *A_B)
    signature = one.sign(signed)
    value = bytearray(signature.value)
    value[at % len(value)] ^= flip
    forged = replace(signature, value=bytes(value))
    assert reason_of(lambda: server.check(forged, signed)) is Rejection.BAD_SIGNATURE


# --- whose certificate -------------------------------------------------------------------------


def test_the_clients_own_certificate_is_admitted(
    one: CertificateSigner, server: CertificateVerifier
) -> None:
    server.admit(one.sign(b""), ONE)


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
    one: CertificateSigner, server: CertificateVerifier, days: int, fault: str
) -> None:
    now = datetime.now(UTC) + timedelta(days=days)
    with pytest.raises(RejectedSubmission, match=fault if days > 0 else "authority|not yet"):
        server.admit(one.sign(b""), ONE, now=now)


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
    root = authority_certificate("root", root_key, "root", root_key)
    issuing = Authority(
        authority_certificate("issuing", issuing_key, "root", root_key), issuing_key
    )
    leaf = issuing.issue(Principal.client(ONE.name), key.public_key(), days=1)
    pem = root.public_bytes(serialization.Encoding.PEM)
    verifier = CertificateVerifier(replace(Identity.load(keys / "server-a"), ca=pem))
    der = [c.public_bytes(serialization.Encoding.DER) for c in (leaf, issuing.certificate)]
    value = key.sign(b"x", ec.ECDSA(hashes.SHA256()))
    verifier.admit(Signature(value, tuple(der)), ONE)
    verifier.check(Signature(value, tuple(der)), b"x")
    alone = Signature(value, (der[0],))
    assert reason_of(lambda: verifier.admit(alone, ONE)) is Rejection.BAD_SIGNATURE


def authority_certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, issuer_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=10))
        .not_valid_after(now + timedelta(days=9))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )


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
        assert header_from_wire(message).signature == Signature(value, tuple(certificates))
    elif value or certificates:
        assert reason_of(lambda: header_from_wire(message)) is Rejection.MALFORMED
    else:
        assert reason_of(lambda: header_from_wire(message)) is Rejection.BAD_SIGNATURE


def signed_pair(one: CertificateSigner) -> tuple[Submission, Submission]:
    x = np.arange(D, dtype=np.int64)
    return shard(x, task=CONTEXT.task, attempt=3, client=ONE, model=MODEL, signer=one)


def test_a_signature_survives_the_wire(one: CertificateSigner) -> None:
    pair = signed_pair(one)
    for submission in pair:
        data = header_to_wire(submission).SerializeToString()
        assert header_from_wire(pb.SubmissionHeader.FromString(data)).signature == pair[0].signature


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
            inbox.open(3, [ONE, TWO], MODEL)

    def pair(self, identity: Identity, client: ClientId = ONE) -> tuple[Submission, Submission]:
        return shard(
            np.arange(D, dtype=np.int64),
            task=self.task.digest,
            attempt=3,
            client=client,
            model=MODEL,
            signer=CertificateSigner(identity),
        )

    def send(self, s: Submission) -> None:
        header = SubmissionHeader(
            s.context, s.salt, s.other_commitment, len(s.share_data()), s.signature
        )
        upload = self.inboxes[s.role].start(header)
        upload.add(s.share_data())
        upload.finish()

    def match(self, meddle: Callable[[HeldList], HeldList] = lambda held: held) -> list[Matched]:
        """What A makes of B's list, and B of A's as ``meddle`` changed it on its way."""
        opened = Opened(3, 3, (ONE, TWO), MODEL, frozenset((ONE, TWO)))
        collected = {role: inbox.close() for role, inbox in self.inboxes.items()}
        lists = {role: describe(held).to_bytes() for role, held in collected.items()}
        a, b = Role.SERVER_A, Role.SERVER_B
        from_a, from_b = meddle(HeldList.from_bytes(lists[a])), HeldList.from_bytes(lists[b])
        return [
            match(opened, a, collected[a], from_b, self.verifiers[a]),
            match(opened, b, collected[b], from_a, self.verifiers[b]),
        ]


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


def test_an_honest_pair_matches(servers: Servers, ward_1: Identity) -> None:
    for submission in servers.pair(ward_1):
        servers.send(submission)
    for matched in servers.match():
        assert list(matched.submissions) == [ONE]
        assert matched.rejections == {TWO: Rejection.ABSENT}


def test_a_share_that_was_not_signed_for_is_never_held(servers: Servers, ward_1: Identity) -> None:
    for submission in servers.pair(ward_1):
        changed = bytearray(submission.share_data())
        changed[0] ^= 1
        swapped = replace(submission, share=Secret(bytes(changed)))
        assert reason_of(partial(servers.send, swapped)) is Rejection.BAD_SIGNATURE
    assert list(servers.spool.iterdir()) == []
    both_say(servers, Rejection.BAD_SIGNATURE)


@pytest.mark.parametrize("role", [Role.SERVER_A, Role.SERVER_B])
def test_another_claim_for_the_other_server_is_never_held(
    servers: Servers, ward_1: Identity, role: Role
) -> None:
    for submission in servers.pair(ward_1):
        if submission.role is role:
            lie = replace(submission, other_commitment=Commitment(bytes(32)))
            assert reason_of(partial(servers.send, lie)) is Rejection.BAD_SIGNATURE
        else:
            servers.send(submission)
    both_say(servers, Rejection.BAD_SIGNATURE)


def test_two_signed_pairs_are_unmatched_on_both(servers: Servers, ward_1: Identity) -> None:
    servers.send(servers.pair(ward_1)[0])
    servers.send(servers.pair(ward_1)[1])
    both_say(servers, Rejection.UNMATCHED)


def test_two_nonces_are_unmatched_on_both_though_commitments_cross(
    servers: Servers, ward_1: Identity
) -> None:
    """Commitments that cross-check, each in a context of its own, all of it signed."""
    signer = CertificateSigner(ward_1)
    base = SubmissionContext(servers.task.digest, 3, ONE, MODEL, secrets.token_bytes(16))
    contexts = (base, replace(base, nonce=secrets.token_bytes(16)))
    seed, salts = Secret.random(), (Secret.random(), Secret.random())
    share = Secret(to_bytes(split(np.arange(D, dtype=np.int64), seed, contexts[0])))
    a = commit(contexts[0], Role.SERVER_A, salts[0], seed.reveal())
    b = commit(contexts[1], Role.SERVER_B, salts[1], share.reveal())
    signatures = [signer.sign(signed_bytes(context, a, b)) for context in contexts]
    servers.send(Submission(contexts[0], Role.SERVER_A, salts[0], seed, a, b, signatures[0]))
    servers.send(Submission(contexts[1], Role.SERVER_B, salts[1], share, b, a, signatures[1]))
    both_say(servers, Rejection.UNMATCHED)


def test_two_certificates_of_one_client_are_a_bad_signature_on_both(
    task: Task, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    create_local_keys(keys, [ONE.name])
    servers = Servers(keys, task, tmp_path)
    first = Identity.load(keys / ONE.name)
    Deployment.open(keys).renew(Principal.client(ONE.name))
    second = Identity.load(keys / ONE.name)
    a, b = servers.pair(first)
    resigned = CertificateSigner(second).sign(
        signed_bytes(b.context, b.other_commitment, b.commitment)
    )
    servers.send(a)
    servers.send(replace(b, signature=resigned))
    both_say(servers, Rejection.BAD_SIGNATURE)


def test_a_second_signature_over_the_same_pair_is_the_same_submission(
    servers: Servers, ward_1: Identity
) -> None:
    """ECDSA has many signatures for one message; only what is signed counts."""
    a, b = servers.pair(ward_1)
    again = CertificateSigner(ward_1).sign(
        signed_bytes(b.context, b.other_commitment, b.commitment)
    )
    assert again != b.signature
    servers.send(a)
    servers.send(replace(b, signature=again))
    assert [list(matched.submissions) for matched in servers.match()] == [[ONE], [ONE]]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"signature": "00" * 70}, Rejection.BAD_SIGNATURE),
        ({"certificate": "00" * 32}, Rejection.BAD_SIGNATURE),
        ({"signed": "00" * 32}, Rejection.UNMATCHED),
        ({"own": "00" * 32}, Rejection.UNMATCHED),
        ({"other": "00" * 32}, Rejection.UNMATCHED),
    ],
)
def test_a_server_that_can_not_show_the_signature_is_not_believed(
    servers: Servers, ward_1: Identity, changes: dict[str, str], reason: Rejection
) -> None:
    for submission in servers.pair(ward_1):
        servers.send(submission)

    def meddle(held: HeldList) -> HeldList:
        mine, other = held.entries
        return HeldList(entries=(HeldEntry(**{**mine.model_dump(), **changes}), other))

    at_b = servers.match(meddle)[1]
    assert at_b.rejections[ONE] is reason
    assert not at_b.submissions


def test_another_clients_signature_is_not_shown_in_its_place(
    servers: Servers, keys: Path, ward_1: Identity
) -> None:
    for client, identity in ((ONE, ward_1), (TWO, Identity.load(keys / TWO.name))):
        for submission in servers.pair(identity, client):
            servers.send(submission)

    def meddle(held: HeldList) -> HeldList:
        one, two = held.entries
        assert isinstance(two, HeldEntry)
        swapped = one.model_copy(update={"signature": two.signature})
        return HeldList(entries=(swapped, two))

    at_b = servers.match(meddle)[1]
    assert at_b.rejections == {ONE: Rejection.BAD_SIGNATURE}
    assert list(at_b.submissions) == [TWO]


HELD = {
    "client": "c",
    **dict.fromkeys(("own", "other", "signed", "certificate"), "00" * 32),
    "signature": "00",
}


@pytest.mark.parametrize("entry", [HELD, {"client": "c", "reason": "absent"}])
def test_whole_entries_are_read(entry: dict[str, str]) -> None:
    HeldList.from_bytes(json.dumps({"entries": [entry]}).encode())


@pytest.mark.parametrize(
    "entry",
    [
        {"client": "c"},
        {"client": "c", "own": "00" * 32, "other": "00" * 32},
        {**HELD, "reason": "absent"},
        *({key: value for key, value in HELD.items() if key != missing} for missing in HELD),
        {**HELD, "signature": None},
        {**HELD, "signature": ""},
        {**HELD, "signature": "00" * 73},
        {**HELD, "signature": "0"},
        {"client": "c", "reason": "absent", "signature": "00", "certificate": "00" * 32},
    ],
)
def test_an_entry_is_held_or_has_a_reason(entry: dict[str, str]) -> None:
    with pytest.raises(PeerViolation, match="HeldList"):
        HeldList.from_bytes(json.dumps({"entries": [entry]}).encode())


def test_what_a_held_submission_shows_has_no_share(servers: Servers, ward_1: Identity) -> None:
    pair = servers.pair(ward_1)
    for submission in pair:
        servers.send(submission)
    for inbox in servers.inboxes.values():
        collected = inbox.close()
        held = collected[ONE]
        assert isinstance(held, Submission)
        sent = describe(collected).to_bytes()
        for submission in pair:
            for secret in (submission.share_data(), submission.salt.reveal()):
                assert secret not in sent
                assert secret.hex().encode() not in sent
