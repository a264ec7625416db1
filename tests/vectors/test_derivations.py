"""Pinned bytes: what two versions of precad must agree on to take part in one task."""

import hashlib
import hmac
import tomllib

import numpy as np
from precad.common.share.additive import mask, split
from precad.common.share.commitment import SubmissionContext, commit

from precad.common.enrolment import Enrolment, Roster
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.keystream import Keystream, derive, encode_context
from precad.common.ring import to_bytes
from precad.common.secret import Secret
from precad.common.task import Task

KEY = Secret(bytes(range(32)))
CONTEXT = SubmissionContext(
    Digest(b"\1" * 32), 7, ClientId("ward-3"), Digest(b"\2" * 32), b"\3" * 16
)
X = np.array([1, -1, 2**63 - 1, -(2**63)], dtype=np.int64)
TASK = """\
name = "ward-study"
fractional_bits = 20
[model]
architecture = "logistic"
parameters = [{ name = "weight", shape = [10, 64] }, { name = "bias", shape = [10] }]
[privacy]
record_clip = 1.0
client_clip = 20.0
noise_multiplier = 2.0
record_rate = 0.2
client_rate = 1.0
[training]
learning_rate = 6.0
rounds = 60
[enrolment]
clients = 10
max_expected_records = 60.0
"""


def test_context() -> None:
    assert encode_context("share", b"ab", 7).hex() == (
        "0f000000"
        "7072656361642f76312f7368617265"  # precad/v1/share
        "02000000"
        "6162"
        "08000000"
        "0700000000000000"
    )


def test_derived_key_is_hkdf_sha256() -> None:
    """RFC 5869, written out: extract with a salt of zeros, expand by one block."""
    extracted = hmac.digest(bytes(32), KEY.reveal(), "sha256")
    info = encode_context("row-secret", b"ab", 7)
    derived = derive(KEY, "row-secret", b"ab", 7).reveal()
    assert derived == hmac.digest(extracted, info + b"\1", "sha256")
    assert derived.hex() == "c71cc49be41f1bb87039690e87a6ecce07433c84a20f65cd757085424f86449e"


def test_keystream() -> None:
    assert Keystream(KEY, "share", b"ab", 7).read(32).hex() == (
        "de72574fe1b32c88c42d8c8e8c5fcb75b56fd244e014f8bbd7479385dfaf9bef"
    )
    assert Keystream(KEY, "share", b"ab", 7).words(2).tolist() == [
        -8634328605295938850,
        8487982980001443268,
    ]


def test_shares() -> None:
    assert mask(KEY, CONTEXT, 4).tolist() == [
        -1243989151074862864,
        -5567378799139981646,
        7009538897523731646,
        5071870220657131110,
    ]
    assert split(X, KEY, CONTEXT).tolist() == [
        1243989151074862865,
        5567378799139981645,
        2213833139331044161,
        4151501816197644698,
    ]


def test_commitments() -> None:
    salt = b"\4" * 32
    of_a = commit(CONTEXT, Role.SERVER_A, Secret(salt), KEY.reveal()).value
    bound_to = encode_context(
        "commitment",
        b"\1" * 32,
        7,
        b"ward-3",
        b"\2" * 32,
        b"\3" * 16,
        b"server-a",
    )
    assert of_a == hashlib.sha256(bound_to + salt + KEY.reveal()).digest()
    assert of_a.hex() == "3047399f01aa8feedcad655b55e29f801f1a1880619f5055241484681b6227c4"
    share = to_bytes(split(X, KEY, CONTEXT))
    assert commit(CONTEXT, Role.SERVER_B, Secret(b"\5" * 32), share).value.hex() == (
        "9aea30d520e87377e179dccc5674ce97c6d32e4a1bb901c476c53b4377e58942"
    )


def test_roster() -> None:
    enrolments = [Enrolment(ClientId("b"), 100, 0.2), Enrolment(ClientId("a"), 7, 0.05)]
    assert str(Roster({e.client: e for e in enrolments}).digest()) == (
        "5a057d2c0b3131bd5dfc7c09c30b828aabc5d9824123535bce6c259fd59beef4"
    )


def test_task() -> None:
    task = Task.parse(tomllib.loads(TASK))
    assert task.canonical.decode() == (
        '{"deadlines":{"collect":60.0,"enrol":120.0,"outage":600.0,"peer":60.0,"rejoin":5.0,'
        '"work":0.5},'
        '"enrolment":{"clients":10,"max_expected_records":60.0,"min_clients":1},'
        '"fractional_bits":20,'
        '"model":{"architecture":"logistic","initial":"zeros","initial_seed":0,'
        '"parameters":[{"name":"weight","shape":[10,64]},{"name":"bias","shape":[10]}]},'
        '"name":"ward-study",'
        '"privacy":{"client_clip":20.0,"client_rate":1.0,"cover_uploads":false,'
        '"delta":1e-05,"epsilon_limit":null,'
        '"noise_multiplier":2.0,"record_clip":1.0,"record_rate":0.2},'
        '"projections":40,'
        '"training":{"attempts":20,"learning_rate":6.0,"rounds":60}}'
    )
    assert str(task.digest) == "48198fb9e750e7bace6e44f9ee4bc88de74cb809128b9223cc59301d1f4de466"
    assert task.digest == Digest.of(b"precad/v1/task\0" + task.canonical)
