"""Pinned bytes: what two versions of precad must agree on to take part in one task."""

import hmac
import tomllib

from precad.common.enrolment import Enrolment, Roster
from precad.common.identifiers import ClientId, Digest
from precad.common.keystream import Keystream, derive, encode_context
from precad.common.secret import Secret
from precad.common.task import Task

KEY = Secret(bytes(range(32)))
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
        '"training":{"attempts":20,"learning_rate":6.0,"rounds":60},"validation":"crypten"}'
    )
    assert str(task.digest) == "c83e2c140752153acc5ebf32b5697d51aca00796bdc32d59c29a6c6777511a3e"
    assert task.digest == Digest.of(b"precad/v1/task\0" + task.canonical)
