"""Pinned bytes of tasks, rosters and models, and a submission, byte by byte.

What two versions of precad must agree on, and clients, servers and the dealer compute
alike; of proofs: test_proof.py.
"""

import hashlib
import json
import struct
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from tests.vectors.proof_reference import Document, ctr, derived, hashed, spelled

from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.model import initial_vector, model_digest, unrounded_start
from precad.common.ring import commit, mask_stream, opens, to_bytes
from precad.common.roster import Enrolment, Roster
from precad.common.submission import (
    Signature,
    SignedHeader,
    SubmissionContext,
    body_hasher,
)
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


def test_roster_and_task() -> None:
    enrolments = [Enrolment(ClientId("b"), 100, 0.2), Enrolment(ClientId("a"), 7, 0.05)]
    assert (
        str(Roster({e.client: e for e in enrolments}).digest())
        == "5a057d2c0b3131bd5dfc7c09c30b828aabc5d9824123535bce6c259fd59beef4"
    )
    task = Task.parse(tomllib.loads(TASK))
    assert (
        task.canonical.decode()
        == '{"deadlines":{"collect":60.0,"enrol":120.0,"outage":600.0,"peer":60.0,'
        '"rejoin":5.0,'
        '"work":0.5},'
        '"enrolment":{"clients":10,"max_expected_records":60.0,"min_clients":1},'
        '"fractional_bits":20,'
        '"model":{"architecture":"logistic","initial":"zeros","initial_seed":0,'
        '"parameters":[{"name":"weight","shape":[10,64]},'
        '{"name":"bias","shape":[10]}]},'
        '"name":"ward-study",'
        '"privacy":{"client_clip":20.0,"client_rate":1.0,"cover_uploads":false,'
        '"delta":1e-05,"epsilon_limit":null,'
        '"noise_multiplier":2.0,"record_clip":1.0,"record_rate":0.2},'
        '"projections":40,'
        '"training":{"attempts":20,"learning_rate":6.0,"rounds":60},'
        '"validation":"crypten"}'
    )
    assert (
        str(task.digest)
        == "c83e2c140752153acc5ebf32b5697d51aca00796bdc32d59c29a6c6777511a3e"
    )
    assert task.digest == Digest.of(b"precad/v1/task\0" + task.canonical)


PARAMETERS = (Parameter(name="w", shape=(2, 3)), Parameter(name="b", shape=(2,)))
OF_TASK = Digest(bytes(range(32)))
THETA = np.array([0.0, -0.0, 1.5, -2.25, 1e-300, 3.0, 0.1, -7.0])


PINNED = {
    "<8f": "8cce2b907226899e41f1c8d9d4b25079ebc56fb36e165f871118626310135fe4",
    # A model that was made when models were float64.
    "<8d": "4c50237391f7e6dc54998ca70ca666c8ab4f95294a2346410d5e2460d74e4ead",
}


def test_a_models_digest_is_of_these_bytes_and_tells_everything_apart() -> None:
    shapes = spelled("tensor", b"w", 2, 3), spelled("tensor", b"b", 2)
    data = spelled("model", OF_TASK.value, 5, *shapes) + struct.pack("<Q", 8)
    for layout, pinned in PINNED.items():
        theta = THETA.astype(layout.replace("8", "", 1))
        expected = hashlib.sha256(data + struct.pack(layout, *theta)).hexdigest()
        assert str(model_digest(OF_TASK, 5, PARAMETERS, theta)) == expected == pinned
    renamed, reshaped = (
        (Parameter(name=name, shape=shape), PARAMETERS[1])
        for name, shape in (("v", (2, 3)), ("w", (3, 2)))
    )
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


VECTORS = json.loads(
    Path(__file__).with_name("submission.json").read_text(encoding="utf-8")
)
GIVEN, MADE = VECTORS["given"], VECTORS["made"]
ROLES = {"a": Role.SERVER_A, "b": Role.SERVER_B}


@dataclass(frozen=True)
class Computed:
    given: Document

    def secret(self, name: str) -> Secret:
        return Secret(bytes.fromhex(self.given[name]))

    @property
    def context(self) -> SubmissionContext:
        given = self.given
        return SubmissionContext(
            task=Digest(bytes.fromhex(given["task"])),
            version=given["version"],
            attempt=given["attempt"],
            client=ClientId(given["client"]),
            model=Digest(bytes.fromhex(given["model"])),
            nonce=bytes.fromhex(given["nonce"]),
        )

    def commitment(self, letter: str) -> Digest:
        salt, seed = self.secret(f"salt_{letter}"), self.secret(f"seed_{letter}")
        return commit(ROLES[letter], self.context.digest, salt=salt, seed=seed)

    def body_digest(self, b: bytes) -> Digest:
        hasher = body_hasher(self.context.digest, self.secret("salt_h"))
        hasher.update(b)
        return Digest(hasher.digest())

    def header(self, b: bytes) -> SignedHeader:
        certificates = tuple(bytes.fromhex(each) for each in self.given["certificates"])
        signature = Signature(bytes.fromhex(self.given["signature"]), certificates)
        return SignedHeader(
            context=self.context,
            commitment_a=self.commitment("a"),
            commitment_b=self.commitment("b"),
            body_digest=self.body_digest(b),
            signature=signature,
        )


GOOD = Computed(GIVEN)
B = bytes.fromhex(MADE["b"])


def given(*names: str) -> list[bytes]:
    return [bytes.fromhex((GIVEN | MADE)[name]) for name in names]


def context_parts() -> list[bytes | int]:
    task, model, nonce = given("task", "model", "nonce")
    return [
        task,
        GIVEN["version"],
        GIVEN["attempt"],
        GIVEN["client"].encode(),
        model,
        nonce,
    ]


@pytest.mark.parametrize("letter", ROLES)
def test_context_commitments_and_masks(letter: str) -> None:
    expected = hashed("submission-context", *context_parts()).hex()
    assert str(GOOD.context.digest) == expected == MADE["ctx"]
    holder = f"server-{letter}".encode()
    opened = given("ctx", f"salt_{letter}", f"seed_{letter}")
    expected = hashed("seed-commitment", holder, *opened).hex()
    assert str(GOOD.commitment(letter)) == expected == MADE[f"commitment_{letter}"]
    # Masks are AES-256-CTR under a key by HKDF.
    names = given("ctx", "commitment_a", "commitment_b")
    ctx, commitment_a, commitment_b = map(Digest, names)
    stream = mask_stream(
        GOOD.secret(f"seed_{letter}"),
        ROLES[letter],
        ctx=ctx,
        commitment_a=commitment_a,
        commitment_b=commitment_b,
    )
    words = np.frombuffer(
        ctr(derived(opened[2], "mask", holder, *names), 0, 2), "<i8"
    ).tolist()
    assert stream.words(4).tolist() == words == MADE[f"mask_{letter}"]


def test_body_and_what_is_signed() -> None:
    x, a, b = (
        np.array(v, dtype=np.int64)
        for v in (GIVEN["x"], MADE["mask_a"], MADE["mask_b"])
    )
    assert to_bytes(x - a - b).hex() == MADE["b"]
    data = spelled("submission-body", *given("ctx", "salt_h")) + B
    assert str(GOOD.body_digest(B)) == blake3(data).hexdigest() == MADE["body_digest"]
    for change in (B[:-1], B + b"\0", B[::-1], bytes([B[0] ^ 1]) + B[1:], b""):
        assert str(GOOD.body_digest(change)) != MADE["body_digest"]
    # What is signed, and what is compared.
    header = GOOD.header(B)
    digests = given("commitment_a", "commitment_b", "body_digest")
    signed = spelled("submission-signature", *context_parts(), *digests)
    assert header.signed.hex() == signed.hex() == MADE["signed"]
    certificates = [bytes.fromhex(each) for each in GIVEN["certificates"]]
    expected = hashed(
        "whole-submission", signed, *given("signature"), *certificates
    ).hex()
    assert str(header.whole_digest) == expected == MADE["whole_digest"]


@pytest.mark.parametrize("bad", VECTORS["bad"], ids=lambda bad: "-".join(bad["change"]))
def test_what_must_not_open(bad: Document) -> None:
    """Each change alone breaks what the vector names, and all that depends on it."""
    changed = Computed({**GIVEN, **bad["change"]})
    ctx = changed.context.digest
    opened = {}
    for letter, role in ROLES.items():
        salt, seed = changed.secret(f"salt_{letter}"), changed.secret(f"seed_{letter}")
        name = f"commitment_{letter}"
        opened[name] = opens(
            commitment=Digest(*given(name)), role=role, ctx=ctx, salt=salt, seed=seed
        )
    same = opened | {
        "ctx": str(ctx) == MADE["ctx"],
        "body_digest": str(changed.body_digest(B)) == MADE["body_digest"],
        "whole_digest": str(changed.header(B).whole_digest) == MADE["whole_digest"],
    }
    fails = bad["fails"]
    broken = {"whole_digest", *([*same] if fails == "ctx" else [fails])}
    assert {name for name, holds in same.items() if not holds} == broken
