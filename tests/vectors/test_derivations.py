"""Pinned bytes: what two versions of precad must agree on to take part in one task."""

import hashlib
import hmac
import struct
import tomllib

import numpy as np
import pytest

from precad.common.identifiers import ClientId, Digest, Secret
from precad.common.kernel import Rows
from precad.common.model import ModelVector, initial_vector, model_digest, unrounded_start
from precad.common.ring import Keystream, derive, encode_context
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task
from precad.common.task_schema import ModelSection, Parameter

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


# --- a model's digest and its start --------------------------------------------------------------

PARAMETERS = (Parameter(name="w", shape=(2, 3)), Parameter(name="b", shape=(2,)))
OF_TASK = Digest(bytes(range(32)))
THETA = np.array([0.0, -0.0, 1.5, -2.25, 1e-300, 3.0, 0.1, -7.0])


def part(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def word(value: int) -> bytes:
    return struct.pack("<Q", value)


@pytest.mark.parametrize(
    ("theta", "layout", "pinned"),
    [
        (
            THETA.astype(np.float32),
            "<8f",
            "8cce2b907226899e41f1c8d9d4b25079ebc56fb36e165f871118626310135fe4",
        ),
        # A model that was made when models were float64.
        (THETA, "<8d", "4c50237391f7e6dc54998ca70ca666c8ab4f95294a2346410d5e2460d74e4ead"),
    ],
)
def test_the_digest_is_sha256_of_these_bytes(theta: ModelVector, layout: str, pinned: str) -> None:
    w = part(b"precad/v1/tensor") + part(b"w") + part(word(2)) + part(word(3))
    b = part(b"precad/v1/tensor") + part(b"b") + part(word(2))
    header = part(b"precad/v1/model") + part(bytes(range(32))) + part(word(5)) + part(w) + part(b)
    expected = hashlib.sha256(header + word(8) + struct.pack(layout, *theta)).hexdigest()
    found = str(model_digest(OF_TASK, 5, PARAMETERS, theta))
    assert found == expected == pinned


def test_the_digest_tells_everything_apart() -> None:
    renamed = (Parameter(name="v", shape=(2, 3)), PARAMETERS[1])
    reshaped = (Parameter(name="w", shape=(3, 2)), PARAMETERS[1])
    unsigned = np.where(THETA == 0, 0.0, THETA)
    digests = {
        model_digest(OF_TASK, 5, PARAMETERS, THETA),
        model_digest(OF_TASK, 6, PARAMETERS, THETA),
        model_digest(Digest(bytes(32)), 5, PARAMETERS, THETA),
        model_digest(OF_TASK, 5, renamed, THETA),
        model_digest(OF_TASK, 5, reshaped, THETA),
        model_digest(OF_TASK, 5, PARAMETERS, unsigned),
        model_digest(OF_TASK, 5, PARAMETERS, np.nextafter(THETA, 9.0)),
        model_digest(OF_TASK, 5, PARAMETERS, THETA.astype(np.float32)),
    }
    assert len(digests) == 8


def test_a_uniform_start_is_pinned() -> None:
    section = ModelSection(parameters=PARAMETERS, initial="uniform", initial_seed=42)
    context = part(b"precad/v1/initial-parameters") + part(word(42)) + part(b"w")
    words = struct.unpack("<6Q", hashlib.shake_256(context).digest(48))
    expected = [((word >> 11) - 2**52) / 2**52 / 3**0.5 for word in words] + [0.0, 0.0]
    assert unrounded_start(section).tolist() == expected
    assert expected[0] == 0.24826077858897005
    assert initial_vector(section).tobytes() == struct.pack("<8f", *expected)


# --- rows of the range test ----------------------------------------------------------------------

D, K = 70, 3
X = (np.arange(D, dtype=np.int64) - 35) * 0x0123_4567_89AB_CDEF
MASKS = [
    [
        [0x4D28CDB1E27288F1, 0x3545B4F10C8DC841],
        [0x644BAD9AA07ABF50, 0x2267340BDC8C05E8],
        [0xC8C82DBE9BB63B73, 0x929D4292A4650CB0],
    ],
    [
        [0xE18D0E71A6D3A166, 0xF6402483D2D720CC],
        [0x4399B4BFD9088D56, 0x02BC8C965E083F79],
        [0x20BCB386204728A1, 0xE9F128C52DA08A1B],
    ],
]
"""For the coordinates 0 to 63 and then 64 to 127, for each row: u, v."""
Z = [-4181261990040831645, -5165088340638674385, -1721696113546224554]


def test_masks_of_rows() -> None:
    stream = Keystream(KEY, "validate/rows").read(2 * K * 2 * 8)
    assert np.frombuffer(stream, dtype="<u8").reshape(2, K, 2).tolist() == MASKS


def test_projections() -> None:
    rows = Rows(KEY, D, K)
    rows.absorb(X)
    assert rows.z().tolist() == Z


def test_projections_are_what_the_masks_say() -> None:
    for row in range(K):
        z = 0
        for place in range(D):
            u, v = MASKS[place // 64][row]
            z += int(X[place]) * ((u >> place % 64 & 1) - (v >> place % 64 & 1))
        assert (z - Z[row]) % 2**64 == 0
