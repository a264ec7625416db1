"""Pinned bytes of tasks, rosters and models: what two versions of precad must agree on.

Of contexts, derived keys, masks and rows: test_submission.py and test_proof.py.
"""

import hashlib
import struct
import tomllib

import numpy as np
import pytest
from tests.vectors.proof_reference import spelled

from precad.common.identifiers import ClientId, Digest
from precad.common.model import ModelVector, initial_vector, model_digest, unrounded_start
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task
from precad.common.task_schema import ModelSection, Parameter

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


PARAMETERS = (Parameter(name="w", shape=(2, 3)), Parameter(name="b", shape=(2,)))
OF_TASK = Digest(bytes(range(32)))
THETA = np.array([0.0, -0.0, 1.5, -2.25, 1e-300, 3.0, 0.1, -7.0])


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
    ids=["float32", "float64"],
)
def test_a_models_digest_is_of_these_bytes(theta: ModelVector, layout: str, pinned: str) -> None:
    shapes = spelled("tensor", b"w", 2, 3), spelled("tensor", b"b", 2)
    data = spelled("model", OF_TASK.value, 5, *shapes) + struct.pack("<Q", 8)
    expected = hashlib.sha256(data + struct.pack(layout, *theta)).hexdigest()
    assert str(model_digest(OF_TASK, 5, PARAMETERS, theta)) == expected == pinned


def test_a_models_digest_tells_everything_apart() -> None:
    renamed = (Parameter(name="v", shape=(2, 3)), PARAMETERS[1])
    reshaped = (Parameter(name="w", shape=(3, 2)), PARAMETERS[1])
    inputs = (
        (OF_TASK, 5, PARAMETERS, THETA),
        (OF_TASK, 6, PARAMETERS, THETA),
        (Digest(bytes(32)), 5, PARAMETERS, THETA),
        (OF_TASK, 5, renamed, THETA),
        (OF_TASK, 5, reshaped, THETA),
        (OF_TASK, 5, PARAMETERS, np.where(THETA == 0, 0.0, THETA)),
        (OF_TASK, 5, PARAMETERS, np.nextafter(THETA, 9.0)),
        (OF_TASK, 5, PARAMETERS, THETA.astype(np.float32)),
    )
    assert len({model_digest(*each) for each in inputs}) == len(inputs)


def test_a_uniform_start_is_pinned() -> None:
    section = ModelSection(parameters=PARAMETERS, initial="uniform", initial_seed=42)
    context = spelled("initial-parameters", 42, b"w")
    words = struct.unpack("<6Q", hashlib.shake_256(context).digest(48))
    expected = [((word >> 11) - 2**52) / 2**52 / 3**0.5 for word in words] + [0.0, 0.0]
    assert unrounded_start(section).tolist() == expected
    assert expected[0] == 0.24826077858897005
    assert initial_vector(section).tobytes() == struct.pack("<8f", *expected)
