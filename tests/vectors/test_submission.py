"""A submission, byte by byte: what clients, both servers and the dealer must compute alike."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from tests.vectors.proof_reference import ctr, derived, hashed, spelled

from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.ring import commit, mask_stream, opens, to_bytes
from precad.common.share.submission import Signature, SignedHeader, SubmissionContext, body_hasher

VECTORS = json.loads(Path(__file__).with_name("submission.json").read_text(encoding="utf-8"))
GIVEN, MADE = VECTORS["given"], VECTORS["made"]
ROLES = {"a": Role.SERVER_A, "b": Role.SERVER_B}


@dataclass(frozen=True)
class Computed:
    """All that follows from the inputs, by precad's own functions."""

    given: dict[str, Any]

    def secret(self, name: str) -> Secret:
        return Secret(bytes.fromhex(self.given[name]))

    @property
    def context(self) -> SubmissionContext:
        given = self.given
        task, model, nonce = (bytes.fromhex(given[name]) for name in ("task", "model", "nonce"))
        attempt = given["version"], given["attempt"], ClientId(given["client"])
        return SubmissionContext(Digest(task), *attempt, Digest(model), nonce)

    def commitment(self, letter: str) -> Digest:
        salt, seed = self.secret(f"salt_{letter}"), self.secret(f"seed_{letter}")
        return commit(ROLES[letter], self.context.digest, salt, seed)

    def body_digest(self, b: bytes) -> Digest:
        hasher = body_hasher(self.context.digest, self.secret("salt_h"))
        hasher.update(b)
        return Digest(hasher.digest())

    def header(self, b: bytes) -> SignedHeader:
        certificates = tuple(bytes.fromhex(each) for each in self.given["certificates"])
        signature = Signature(bytes.fromhex(self.given["signature"]), certificates)
        commitments = self.commitment("a"), self.commitment("b")
        return SignedHeader(self.context, *commitments, self.body_digest(b), signature)


GOOD = Computed(GIVEN)
B = bytes.fromhex(MADE["b"])


def given(*names: str) -> list[bytes]:
    return [bytes.fromhex(GIVEN[name]) for name in names]


def made(*names: str) -> list[bytes]:
    return [bytes.fromhex(MADE[name]) for name in names]


def context_parts() -> list[bytes | int]:
    task, model, nonce = given("task", "model", "nonce")
    return [task, GIVEN["version"], GIVEN["attempt"], GIVEN["client"].encode(), model, nonce]


def test_context() -> None:
    expected = hashed("submission-context", *context_parts()).hex()
    assert str(GOOD.context.digest) == expected == MADE["ctx"]


@pytest.mark.parametrize("letter", ROLES)
def test_commitments(letter: str) -> None:
    opened = made("ctx") + given(f"salt_{letter}", f"seed_{letter}")
    expected = hashed("seed-commitment", f"server-{letter}".encode(), *opened).hex()
    assert str(GOOD.commitment(letter)) == expected == MADE[f"commitment_{letter}"]


@pytest.mark.parametrize("letter", ROLES)
def test_masks_are_aes_256_ctr_under_a_key_by_hkdf(letter: str) -> None:
    names = made("ctx", "commitment_a", "commitment_b")
    stream = mask_stream(GOOD.secret(f"seed_{letter}"), ROLES[letter], *map(Digest, names))
    (seed,) = given(f"seed_{letter}")
    key = derived(seed, "mask", f"server-{letter}".encode(), *names)
    expected = np.frombuffer(ctr(key, 0, 2), "<i8").tolist()
    assert stream.words(4).tolist() == expected == MADE[f"mask_{letter}"]


def test_body() -> None:
    x, a, b = (np.array(v, dtype=np.int64) for v in (GIVEN["x"], MADE["mask_a"], MADE["mask_b"]))
    assert to_bytes(x - a - b).hex() == MADE["b"]
    data = spelled("submission-body", *made("ctx"), *given("salt_h")) + B
    assert str(GOOD.body_digest(B)) == blake3(data).hexdigest() == MADE["body_digest"]
    for change in (B[:-1], B + b"\0", B[::-1], bytes([B[0] ^ 1]) + B[1:], b""):
        assert str(GOOD.body_digest(change)) != MADE["body_digest"]


def test_what_is_signed_and_what_is_compared() -> None:
    header = GOOD.header(B)
    digests = made("commitment_a", "commitment_b", "body_digest")
    signed = spelled("submission-signature", *context_parts(), *digests)
    assert header.signed.hex() == signed.hex() == MADE["signed"]
    certificates = [bytes.fromhex(each) for each in GIVEN["certificates"]]
    expected = hashed("whole-submission", signed, *given("signature"), *certificates).hex()
    assert str(header.whole_digest) == expected == MADE["whole_digest"]


@pytest.mark.parametrize("bad", VECTORS["bad"], ids=lambda bad: "-".join(bad["change"]))
def test_what_must_not_open(bad: dict[str, Any]) -> None:
    """Each change alone breaks what the vector names, and all that depends on it."""
    changed = Computed({**GIVEN, **bad["change"]})
    ctx = changed.context.digest
    opened = {}
    for letter, role in ROLES.items():
        salt, seed = changed.secret(f"salt_{letter}"), changed.secret(f"seed_{letter}")
        name = f"commitment_{letter}"
        opened[name] = opens(Digest(*made(name)), role, ctx, salt, seed)
    same = opened | {
        "ctx": str(ctx) == MADE["ctx"],
        "body_digest": str(changed.body_digest(B)) == MADE["body_digest"],
        "whole_digest": str(changed.header(B).whole_digest) == MADE["whole_digest"],
    }
    fails = bad["fails"]
    broken = {"whole_digest", *([*same] if fails == "ctx" else [fails])}
    assert {name for name, holds in same.items() if not holds} == broken
