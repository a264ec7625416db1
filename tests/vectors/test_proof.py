"""A proof of a norm, word by word: what client and servers must compute alike."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tests.rig.memory_link import memory_pair
from tests.rig.norm_check import A, B, Pair, answer_of, other
from tests.rig.submissions import expanded, words_of
from tests.vectors.proof_reference import Document, packed, vectors

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.validate import check_by_proof
from precad.common.identifiers import SERVERS, ClientId, Digest, Role, Secret
from precad.common.kernel import Rows, built_library
from precad.common.proof_shape import P, ProofShape
from precad.common.submission import Signature, SubmissionContext
from precad.norm_check import norm_proof, prime_field, share_update
from precad.norm_check.norm_proof import Query, accepts, bit_challenges, projections
from precad.norm_check.prime_field import (
    FieldKeystream,
    FieldVector,
    arithmetics,
    of_signed,
)
from precad.norm_check.proof_submission import ForProof, ProofSubmission

VECTORS = json.loads(Path(__file__).with_name("proof.json").read_text(encoding="utf-8"))
PROOFS = VECTORS["proofs"]
of_each = pytest.mark.parametrize(
    "case", PROOFS, ids=[f"d={len(c['given']['x'])}" for c in PROOFS]
)


def test_the_file_is_what_the_reference_makes() -> None:
    """In Python's integers, without a line of precad's."""
    assert json.loads(json.dumps(vectors())) == VECTORS


def test_the_keystream_with_a_word_that_is_too_large() -> None:
    given = VECTORS["keystream"]
    stream = FieldKeystream(Secret(bytes.fromhex(given["key"])), given["purpose"])
    assert stream.words(3).tolist() == given["first"]
    assert stream.words(5, given["rejected"] - 2).tolist() == given["around"]


def shape_of(case: Document) -> ProofShape:
    return ProofShape(len(case["given"]["x"]), case["given"]["beta"])


def digest(value: str) -> Digest:
    return Digest(bytes.fromhex(value))


@pytest.fixture(params=arithmetics(built_library()))
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled and by NumPy."""
    found = arithmetics(built_library())[request.param]
    for module in (norm_proof, prime_field):
        monkeypatch.setattr(module, "arithmetic", lambda: found)


@pytest.fixture
def pair(
    case: Document,
    by: None,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> Pair:
    """The seed's holder's part and the body's, of a client whose random bytes are the
    vector's."""
    given = case["given"]
    drawn = [
        Secret(bytes.fromhex(given[x])) for x in ("seed", "salt", "salt_h", "mask_seed")
    ]
    context = SubmissionContext(
        task=digest(given["task"]),
        version=given["version"],
        attempt=given["attempt"],
        client=ClientId(given["client"]),
        model=digest(given["model"]),
        nonce=bytes.fromhex(given["nonce"]),
    )
    of_a, of_b = (digest(each) for each in given["openings"])
    stated = ForProof((of_a, of_b), Role(given["seed_holder"]))
    x = np.array(given["x"], dtype=np.int64)
    certificates = tuple(bytes.fromhex(each) for each in given["certificates"])
    pen = Mock()
    pen.sign.return_value = Signature(bytes.fromhex(given["signature"]), certificates)
    with monkeypatch.context() as patched:
        random = Mock(side_effect=drawn)
        patched.setattr(Secret, "random", random)
        to_a, to_b = share_update.share_with_proof(
            x, shape_of(case), context, stated, pen
        )
    assert [each.args for each in random.mock_calls] == [(len(each),) for each in drawn]
    return (to_a, to_b) if stated.seed_holder is A else (to_b, to_a)


def long(words: FieldVector) -> dict[str, object]:
    data = hashlib.sha256(words.astype("<u8").tobytes()).hexdigest()
    return {
        "count": words.size,
        "first": int(words[0]),
        "last": int(words[-1]),
        "sha256": data,
    }


@of_each
def test_sizes_and_the_clients_header_and_body(case: Document, pair: Pair) -> None:
    (seed, body), made, given = pair, case["made"], case["given"]
    shape, sizes = shape_of(case), made["sizes"]
    assert {n: getattr(shape, n) for n in sizes} | {
        "weights": list(shape.weights)
    } == sizes
    header = seed.header
    assert body.header == header
    names = (
        "ctx",
        "commitment",
        "update_digest",
        "bits_digest",
        "proof_digest",
        "whole_digest",
    )
    found = {name: str(getattr(header, name)) for name in names}
    found |= {
        name: getattr(header, name).reveal().hex() for name in ("rows_key", "bits_key")
    }
    found |= {"signed": header.signed.hex()}
    assert found == {name: made[name] for name in found}
    assert seed.seed is not None
    assert seed.salt is not None
    assert body.body is not None
    assert (seed.seed.reveal().hex(), seed.salt.reveal().hex()) == (
        given["seed"],
        given["salt"],
    )
    assert body.body.prefix.reveal().hex() == given["salt_h"] + given["mask_seed"]
    assert long(np.frombuffer(words_of(body), dtype="<u8")) == made["words_words"]
    assert seed.opens
    assert right(case, body, body.body.prefix)


def right(case: Document, body: ProofSubmission, prefix: Secret) -> bool:
    """Whether the body is what was signed, behind this prefix."""
    hashing = body.body_hash(prefix, shape_of(case))
    hashing.update(words_of(body))
    return hashing.right


@of_each
def test_rows_and_challenges(case: Document, pair: Pair) -> None:
    shape, header = shape_of(case), pair[0].header
    x, z = np.array(case["given"]["x"], dtype=np.int64), case["made"]["z"]
    of_integers, of_field = (
        Rows(header.rows_key, dimension=shape.dimension, k=shape.rows) for _ in range(2)
    )
    of_integers.absorb(x)
    of_field.absorb(of_signed(x).view(np.int64))
    assert of_integers.z().tolist() == z
    assert projections(of_field).tolist() == [each % P for each in z]
    assert (
        long(bit_challenges(shape, header.bits_key).ravel()) == case["made"]["mu_words"]
    )


def query_of(case: Document, part: ProofSubmission) -> Query:
    coin = Secret(bytes.fromhex(case["made"]["coin"]))
    return Query.drawn(shape_of(case), coin, part.header.whole_digest)


@of_each
def test_the_servers_query_and_answers(case: Document, pair: Pair) -> None:
    made, query = case["made"], query_of(case, pair[0])
    assert (query.t, long(query.rho)) == (made["t"], made["rho_words"])
    words = [answer_of(part, shape_of(case), query) for part in pair]
    for holder, found in zip(("seed", "body"), words, strict=True):
        said = made[f"{holder}_answer"]
        assert long(found.wires) == said["wires_words"]
        assert (found.value, found.zero) == (said["value"], said["zero"])
    assert accepts(*words)


@of_each
@pytest.mark.parametrize("role", SERVERS)
def test_a_servers_whole_turn(
    case: Document, pair: Pair, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other server's messages lie ready; what this one sends is the reference's."""
    given, made = case["given"], case["made"]
    coins = dict(
        zip(SERVERS, (bytes.fromhex(each) for each in given["coins"]), strict=True)
    )
    commitment = bytes.fromhex(made["coin_commitment"])
    saying = {A: [commitment, coins[A]], B: [coins[B]]}
    own, peer = (
        next(part for part in pair if part.role is r) for r in (role, other(role))
    )
    task: Any = SimpleNamespace(
        digest=digest(given["task"]),
        proof=shape_of(case),
        dimension=len(given["x"]),
        name="x",
    )
    here, there = (
        PeerLink(
            transport=end, task=task.digest, max_message_bytes=1 << 20, timeout_s=60
        )
        for end in memory_pair()
    )
    for message in saying[other(role)]:
        there.send("proof-coin/0", message)
    words = answer_of(peer, shape_of(case), query_of(case, peer))
    there.send(
        "proof/0", b"w" + packed([*words.wires.tolist(), words.value, words.zero])
    )
    monkeypatch.setattr(Secret, "random", lambda _: Secret(coins[role]))
    server: Any = SimpleNamespace(
        role=role, task=task, link=here, bound_of=lambda _: shape_of(case).bound
    )
    check = check_by_proof.ByProof(server, given["attempt"], [own.context.client])
    check.take([own])
    assert [there.receive("proof-coin/0") for _ in saying[role]] == saying[role]
    holder = "body" if own.awaits_body else "seed"
    sent = hashlib.sha256(there.receive("proof/0")).hexdigest()
    assert sent == made[f"{holder}_answer"]["message_sha256"]
    verdicts = check.decide()
    assert verdicts.rejections == {}
    assert (verdicts.share_sum == expanded(own, len(given["x"]))).all()


@of_each
def test_what_must_not_open(case: Document, pair: Pair) -> None:
    seed, body = pair
    assert not replace(seed, seed=Secret(bytes(32))).opens
    assert not replace(seed, salt=Secret(bytes(32))).opens
    assert body.body is not None
    for at in range(0, 64, 21):
        prefix = bytearray(body.body.prefix.reveal())
        prefix[at] ^= 1
        assert not right(case, body, Secret(bytes(prefix)))
    for role in SERVERS:
        assert replace(seed, role=role).opens == (
            role is not other(seed.header.seed_holder)
        )
