"""A submission, byte by byte: what clients, both servers and the dealer must compute alike."""

import hashlib
import hmac
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from google.protobuf.message import DecodeError

from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.ring import dot, from_bytes, to_bytes
from precad.common.secret import Secret
from precad.common.share.header import Signature, SignedHeader, SubmissionContext
from precad.common.share.mask import commit, mask_stream, norm_word, opens, word_mask
from precad.common.share.submission import Submission, body_hasher
from precad.common.wire.submission_messages import header_from_wire, header_to_wire
from precad.protos import precad_pb2 as pb

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
        return SubmissionContext(
            Digest(bytes.fromhex(given["task"])),
            given["version"],
            given["attempt"],
            ClientId(given["client"]),
            Digest(bytes.fromhex(given["model"])),
            bytes.fromhex(given["nonce"]),
        )

    def commitment(self, letter: str) -> Digest:
        salt, seed = self.secret(f"salt_{letter}"), self.secret(f"seed_{letter}")
        return commit(ROLES[letter], self.context.digest, salt, seed)

    def body_digest(self, b: bytes) -> Digest:
        hasher = body_hasher(self.context.digest, self.secret("salt_h"))
        hasher.update(b)
        return Digest(hasher.digest())

    def header(self, b: bytes) -> SignedHeader:
        certificates = tuple(bytes.fromhex(each) for each in self.given["certificates"])
        return SignedHeader(
            self.context,
            self.commitment("a"),
            self.commitment("b"),
            self.body_digest(b),
            Signature(bytes.fromhex(self.given["signature"]), certificates),
        )


GOOD = Computed(GIVEN)
B = bytes.fromhex(MADE["b"])


def spelled(tag: str, *parts: bytes | int) -> bytes:
    """``encode_context``, written out: the tag and each part with its length before it."""
    found = b""
    for part in (b"precad/v1/" + tag.encode(), *parts):
        data = struct.pack("<Q", part) if isinstance(part, int) else part
        found += struct.pack("<I", len(data)) + data
    return found


def given(*names: str) -> list[bytes]:
    return [bytes.fromhex(GIVEN[name]) for name in names]


def made(*names: str) -> list[bytes]:
    return [bytes.fromhex(MADE[name]) for name in names]


def context_parts() -> list[bytes | int]:
    task, model, nonce = given("task", "model", "nonce")
    return [task, GIVEN["version"], GIVEN["attempt"], GIVEN["client"].encode(), model, nonce]


def test_context() -> None:
    assert str(GOOD.context.digest) == MADE["ctx"]
    expected = hashlib.sha256(spelled("submission-context", *context_parts())).hexdigest()
    assert expected == MADE["ctx"]


@pytest.mark.parametrize("letter", ROLES)
def test_commitments(letter: str) -> None:
    assert str(GOOD.commitment(letter)) == MADE[f"commitment_{letter}"]
    role = f"server-{letter}".encode()
    data = spelled(
        "seed-commitment", role, *made("ctx"), *given(f"salt_{letter}", f"seed_{letter}")
    )
    assert hashlib.sha256(data).hexdigest() == MADE[f"commitment_{letter}"]


@pytest.mark.parametrize("letter", ROLES)
def test_masks_are_aes_256_ctr_under_a_key_by_hkdf(letter: str) -> None:
    names = [Digest(value) for value in made("ctx", "commitment_a", "commitment_b")]
    stream = mask_stream(GOOD.secret(f"seed_{letter}"), ROLES[letter], *names)
    assert stream.words(4).tolist() == MADE[f"mask_{letter}"]
    info = spelled("mask", f"server-{letter}".encode(), *(each.value for each in names))
    (seed,) = given(f"seed_{letter}")
    extracted = hmac.digest(bytes(32), seed, "sha256")
    key = hmac.digest(extracted, info + b"\1", "sha256")
    words = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(32))
    assert np.frombuffer(words, "<i8").tolist() == MADE[f"mask_{letter}"]


def test_body() -> None:
    x, a, b = (np.array(v, dtype=np.int64) for v in (GIVEN["x"], MADE["mask_a"], MADE["mask_b"]))
    assert to_bytes(x - a - b).hex() == MADE["b"]
    assert str(GOOD.body_digest(B)) == MADE["body_digest"]
    data = spelled("submission-body", *made("ctx"), *given("salt_h")) + B
    assert blake3(data).hexdigest() == MADE["body_digest"]


@pytest.mark.parametrize("letter", ROLES)
def test_words_are_masked_by_the_first_word_of_a_key_by_hkdf(letter: str) -> None:
    names = made("ctx", "commitment_a", "commitment_b")
    mask = word_mask(
        GOOD.secret(f"seed_{letter}"), ROLES[letter], *(Digest(value) for value in names)
    )
    info = spelled("norm-word", f"server-{letter}".encode(), *names)
    (seed,) = given(f"seed_{letter}")
    key = hmac.digest(hmac.digest(bytes(32), seed, "sha256"), info + b"\1", "sha256")
    assert mask == struct.unpack("<q", key[:8])[0] == MADE[f"word_mask_{letter}"]
    crossed = dot(from_bytes(B), np.array(MADE[f"mask_{letter}"], dtype=np.int64))
    assert norm_word(crossed, mask) == MADE[f"word_{letter}"]


def test_what_is_signed_and_what_is_compared() -> None:
    header = GOOD.header(B)
    assert header.signed.hex() == MADE["signed"]
    digests = made("commitment_a", "commitment_b", "body_digest")
    assert header.signed == spelled("submission-signature", *context_parts(), *digests)
    assert str(header.whole_digest) == MADE["whole_digest"]
    certificates = [bytes.fromhex(each) for each in GIVEN["certificates"]]
    data = spelled("whole-submission", header.signed, *given("signature"), *certificates)
    assert hashlib.sha256(data).hexdigest() == MADE["whole_digest"]


@pytest.mark.parametrize("bad", VECTORS["bad"], ids=lambda bad: "-".join(bad["change"]))
def test_what_must_not_open(bad: dict[str, Any]) -> None:
    """Each change alone breaks what the vector names, and all that depends on it."""
    changed = Computed({**GIVEN, **bad["change"]})
    ctx = changed.context.digest
    opened = {
        f"commitment_{letter}": opens(
            Digest(*made(f"commitment_{letter}")),
            role,
            ctx,
            changed.secret(f"salt_{letter}"),
            changed.secret(f"seed_{letter}"),
        )
        for letter, role in ROLES.items()
    }
    same = opened | {
        "ctx": str(ctx) == MADE["ctx"],
        "body_digest": str(changed.body_digest(B)) == MADE["body_digest"],
        "whole_digest": str(changed.header(B).whole_digest) == MADE["whole_digest"],
    }
    fails = bad["fails"]
    broken = {"whole_digest", *([*same] if fails == "ctx" else [fails])}
    assert {name for name, holds in same.items() if not holds} == broken


def test_a_changed_body_is_not_the_one_that_was_signed() -> None:
    for change in (B[:-1], B + b"\0", B[::-1], bytes([B[0] ^ 1]) + B[1:], b""):
        assert str(GOOD.body_digest(change)) != MADE["body_digest"]


# --- with words ----------------------------------------------------------------------------------

WITH_WORDS = VECTORS["with_words"]


def read(wire: str) -> Submission:
    return header_from_wire(pb.SubmissionHeader.FromString(bytes.fromhex(wire)), Role.SERVER_A)


def test_a_header_with_words_is_signed_and_compared_with_them() -> None:
    words = MADE["word_a"] % 2**64, MADE["word_b"] % 2**64
    digests = made("commitment_a", "commitment_b", "body_digest")
    expected = spelled("submission-signature-with-words", *context_parts(), *digests, *words)
    assert expected.hex() == WITH_WORDS["signed"]
    header = read(WITH_WORDS["wire_a"]).header
    assert header.words == (MADE["word_a"], MADE["word_b"])
    assert header.signed == expected
    assert str(header.whole_digest) == WITH_WORDS["whole_digest"] != MADE["whole_digest"]


def test_a_header_with_words_on_the_wire() -> None:
    submission = read(WITH_WORDS["wire_a"])
    assert header_to_wire(submission).SerializeToString().hex() == WITH_WORDS["wire_a"]
    assert submission.opens
    assert submission.word_mask == MADE["word_mask_a"]


@pytest.mark.parametrize("bad", WITH_WORDS["bad"], ids=lambda bad: bad["what"].replace(" ", "-"))
def test_a_header_with_other_words_is_none_that_was_signed(bad: dict[str, Any]) -> None:
    match bad["fails"]:
        case "unreadable":
            with pytest.raises(DecodeError):
                read(bad["wire_a"])
        case "malformed":
            with pytest.raises(RejectedSubmission, match="one word of the norm") as refused:
                read(bad["wire_a"])
            assert refused.value.reason is Rejection.MALFORMED
        case "not-signed":
            header = read(bad["wire_a"]).header
            assert header.signed.hex() != WITH_WORDS["signed"]
            assert str(header.whole_digest) != WITH_WORDS["whole_digest"]
        case other:
            raise AssertionError(other)
