"""Submissions that prove themselves: what is bound to what, and what one server can't learn."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from precad.common.errors import RejectedSubmission
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.prime_field import FieldKeystream, FieldVector, P, arithmetic, of_signed
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.share.header import Signature, SubmissionContext
from precad.norm_check import proof_submission
from precad.norm_check.norm_proof import ProofShape, ProofWords, Query, accepts
from precad.norm_check.proof_submission import (
    BodyPart,
    ProofHeader,
    SeedPart,
    answer_of,
    seed_holders,
    share_with_proof,
    verified,
)

SHAPE = ProofShape(300, 1 << 14)
NAMES = [ClientId(f"ward-{i}") for i in range(9)]
Pair = tuple[SeedPart, BodyPart]


class Pen:
    """Signs nothing in earnest: what is signed is another module's."""

    def sign(self, signed: bytes) -> Signature:
        return Signature(Digest.of(signed).value, (b"certificate",))


def context(attempt: int = 3, nonce: bytes = bytes(32)) -> SubmissionContext:
    task, model = Digest(b"t" * 32), Digest(b"m" * 32)
    return SubmissionContext(task, attempt, attempt, NAMES[0], model, nonce)


def update(norm: float = SHAPE.bound * 0.99, seed: int = 1) -> RingVector:
    v = np.random.default_rng(seed).standard_normal(SHAPE.dimension)
    return np.trunc(v / np.linalg.norm(v) * norm).astype(np.int64)


OPENINGS = Digest(b"a" * 32), Digest(b"b" * 32)


def shared(x: RingVector | None = None, holder: Role = Role.SERVER_A, attempt: int = 3) -> Pair:
    return share_with_proof(
        update() if x is None else x, SHAPE, context(attempt), OPENINGS, holder, Pen()
    )


def query_of(part: SeedPart | BodyPart, coin: int = 1) -> Query:
    key = Secret(coin.to_bytes(32, "big"))
    return Query.drawn(SHAPE, key, part.header.whole_digest)


def accepted(seed: SeedPart, body: BodyPart, coin: int = 1) -> bool:
    query = query_of(seed, coin)
    return accepts(answer_of(seed, SHAPE, query), answer_of(body, SHAPE, query))


@pytest.mark.parametrize("holder", [Role.SERVER_A, Role.SERVER_B])
@pytest.mark.parametrize(
    "x",
    [np.zeros(SHAPE.dimension, dtype=np.int64), update(), -update(seed=2), update(100.0)],
    ids=["zero", "at the bound", "another", "small"],
)
def test_honest_submissions_open_and_pass(x: RingVector, holder: Role) -> None:
    seed, body = shared(x, holder)
    assert seed.opens
    body.require_signed(SHAPE)
    assert accepted(seed, body)
    math = arithmetic()
    opened = math.add(seed.header.stream(seed.seed, "x").words(SHAPE.dimension), body.update)
    assert opened.tolist() == of_signed(x).tolist()


@pytest.mark.parametrize("norm", [1.01, 2.0, 16.0, 1e9])
def test_what_is_too_long_is_sent_like_any_other_and_refused(norm: float) -> None:
    seed, body = shared(update(SHAPE.bound * norm))
    assert seed.opens
    body.require_signed(SHAPE)
    assert not accepted(seed, body)
    assert body.update.size == SHAPE.dimension


def test_two_submissions_of_one_update_have_nothing_in_common() -> None:
    (seed, body), (other_seed, other_body) = shared(), shared()
    assert seed.seed != other_seed.seed
    for name in ("update", "bits", "values"):
        assert not (getattr(body, name) == getattr(other_body, name)).any()


Change = Callable[[ProofHeader], ProofHeader]
OTHER = Digest(b"o" * 32)
CHANGES: dict[str, Change] = {
    "task": lambda h: replace(h, context=replace(h.context, task=OTHER)),
    "version": lambda h: replace(h, context=replace(h.context, version=9)),
    "attempt": lambda h: replace(h, context=replace(h.context, attempt=9)),
    "client": lambda h: replace(h, context=replace(h.context, client=NAMES[1])),
    "model": lambda h: replace(h, context=replace(h.context, model=OTHER)),
    "nonce": lambda h: replace(h, context=replace(h.context, nonce=b"n" * 32)),
    "A's opening": lambda h: replace(h, openings=(OTHER, h.openings[1])),
    "B's opening": lambda h: replace(h, openings=(h.openings[0], OTHER)),
    "commitment": lambda h: replace(h, commitment=OTHER),
    "update": lambda h: replace(h, update_digest=OTHER),
    "bits": lambda h: replace(h, bits_digest=OTHER),
    "proof": lambda h: replace(h, proof_digest=OTHER),
}
# What each key may depend on: rows on nothing that comes after the bits, μ on nothing after the
# proof, the point on everything that was signed.
MOVES_ROWS = set(CHANGES) - {"bits", "proof"}
MOVES_BITS = set(CHANGES) - {"proof"}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_is_signed_moves_the_rows_the_challenges_and_the_point(name: str) -> None:
    header = shared()[0].header
    other = CHANGES[name](header)
    assert (other.rows_key != header.rows_key) is (name in MOVES_ROWS)
    assert (other.bits_key != header.bits_key) is (name in MOVES_BITS)
    assert other.signed != header.signed
    assert other.whole_digest != header.whole_digest


@pytest.mark.parametrize(
    "name", ["nonce", "attempt", "client", "model", "task", "commitment", "A's opening"]
)
def test_a_seed_means_other_words_in_another_submission(name: str) -> None:
    seed, body = shared()
    moved = replace(seed, header=CHANGES[name](seed.header))
    if name != "commitment":
        assert not moved.opens
    assert not accepted(moved, replace(body, header=moved.header))


def test_a_commitment_is_to_one_servers_seed_alone() -> None:
    seed, _ = shared(holder=Role.SERVER_A)
    swapped = replace(seed.header, seed_holder=Role.SERVER_B)
    assert seed.opens
    assert not replace(seed, header=swapped).opens


@pytest.mark.parametrize("name", ["update", "bits", "values"])
@pytest.mark.parametrize("at", [0, -1])
def test_a_body_that_is_not_what_was_signed_is_refused_before_any_word_leaves(
    name: str, at: int
) -> None:
    _, body = shared()
    words = getattr(body, name).copy()
    words[at] = (int(words[at]) + 1) % P
    with pytest.raises(RejectedSubmission, match="isn't the one that was signed"):
        replace(body, **{name: words}).require_signed(SHAPE)


def test_salts_and_the_masking_seed_are_signed_too() -> None:
    _, body = shared()
    other = Secret(bytes(32))
    for changed in (replace(body, salt=other), replace(body, mask_seed=other)):
        with pytest.raises(RejectedSubmission, match="isn't the one that was signed"):
            changed.require_signed(SHAPE)


@pytest.mark.parametrize("word", [P, P + 5, 2**64 - 1])
@pytest.mark.parametrize("name", ["update", "bits", "values"])
def test_words_from_p_on_are_refused_though_they_were_signed(
    monkeypatch: pytest.MonkeyPatch, name: str, word: int
) -> None:
    """A client that shares words that are none of the field, and signs them."""
    purpose = {"update": "x", "bits": "e", "values": "h"}[name]
    honest, math = FieldKeystream.words, arithmetic()
    streams: list[FieldKeystream] = []

    def stream(self: ProofHeader, secret: Secret, wanted: str) -> FieldKeystream:
        found = original(self, secret, wanted)
        if wanted == purpose:
            streams.append(found)
        return found

    class Masking:
        """Everything as it is, but for the first word of what is masked with that stream."""

        def __getattr__(self, name: str) -> object:
            return getattr(math, name)

        def subtract(self, a: FieldVector, b: FieldVector) -> FieldVector:
            found = math.subtract(a, b)
            if streams and b.size and b[0] == honest(streams[-1], 1)[0]:
                found[0] = word
            return found

    original = ProofHeader.stream
    monkeypatch.setattr(ProofHeader, "stream", stream)
    monkeypatch.setattr(proof_submission, "arithmetic", Masking)
    _, body = shared()
    with pytest.raises(RejectedSubmission, match=f"word 0 of the {name} is p or more"):
        body.require_signed(SHAPE)


def test_seeds_alternate_along_an_order_that_no_client_chooses() -> None:
    task = Digest(b"t" * 32)
    holders = seed_holders(task, NAMES)
    assert holders == seed_holders(task, reversed(NAMES))
    counts = [list(holders.values()).count(role) for role in proof_submission.SERVERS]
    assert abs(counts[0] - counts[1]) <= 1
    assert holders != seed_holders(Digest(b"u" * 32), NAMES)


def rows_of(header: ProofHeader, x: RingVector, written: FieldVector) -> list[FieldVector]:
    """The circuit's rows but for the masking one, as the client made them."""
    from precad.norm_check.norm_proof import bit_challenges  # noqa: PLC0415

    mu, math = bit_challenges(SHAPE, header.bits_key), arithmetic()
    found: list[FieldVector] = []
    for vector in (of_signed(x), *(math.multiply(each, written) for each in mu)):
        padded = np.zeros(-(-vector.size // SHAPE.columns) * SHAPE.columns, dtype=np.uint64)
        padded[: vector.size] = vector
        found += list(padded.reshape(-1, SHAPE.columns))
    return found


def wires(words: Sequence[ProofWords]) -> FieldVector:
    return arithmetic().add(words[0].wires, words[1].wires)


def unmasked(query: Query, rows: list[FieldVector]) -> FieldVector:
    """Σ over the rows with inputs of L_m(t)·row: f(t) but for the masking row."""
    out = np.zeros(SHAPE.columns, dtype=np.uint64)
    weights = query.wires[1 : 1 + len(rows)].copy()
    arithmetic().combine(np.ascontiguousarray(rows), weights, out)
    return out


def written_of(seed: SeedPart, body: BodyPart) -> FieldVector:
    return arithmetic().add(seed.header.stream(seed.seed, "e").words(SHAPE.bits), body.bits)


def scaled(vector: FieldVector, by: int) -> FieldVector:
    return arithmetic().multiply(vector, np.full_like(vector, by % P))


def test_two_answers_to_one_submission_tell_its_update_and_one_answer_does_not() -> None:
    """Why a server answers a header once only: the masking row cancels between two points."""
    x, y = update(seed=1), update(seed=2)
    seed, body = shared(x)
    written = written_of(seed, body)
    candidates = {name: rows_of(seed.header, v, written) for name, v in (("x", x), ("y", y))}
    queries = [query_of(seed, coin) for coin in (1, 2)]
    seen = [
        wires([answer_of(seed, SHAPE, query), answer_of(body, SHAPE, query)]) for query in queries
    ]
    first, second = (int(query.wires[0]) for query in queries)
    math = arithmetic()
    without_mask = math.subtract(scaled(seen[0], second), scaled(seen[1], first))
    right = {
        name: (
            math.subtract(
                scaled(unmasked(queries[0], rows), second),
                scaled(unmasked(queries[1], rows), first),
            )
            == without_mask
        ).all()
        for name, rows in candidates.items()
    }
    assert right == {"x": True, "y": False}
    # From one answer each candidate's masking row follows, and both are as likely.
    for rows in candidates.values():
        mask = scaled(math.subtract(seen[0], unmasked(queries[0], rows)), pow(first, -1, P))
        assert len(set(mask.tolist())) == SHAPE.columns


def test_a_masking_row_from_the_seed_alone_would_show_the_update_to_its_holder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = update(seed=1)
    math = arithmetic()
    for mutant in (False, True):
        with monkeypatch.context() as patch:
            if mutant:
                patch.setattr("precad.norm_check.proof_submission.secrets.token_bytes", bytes)
            seed, body = shared(x)
            query = query_of(seed)
            seen = wires([answer_of(seed, SHAPE, query), answer_of(body, SHAPE, query)])
        # What the seed's holder guesses: the other half of the masking row comes from zeros.
        guess = math.add(
            seed.header.stream(seed.seed, "u").words(SHAPE.columns),
            seed.header.stream(Secret(bytes(32)), "u").words(SHAPE.columns),
        )
        rows = rows_of(seed.header, x, written_of(seed, body))
        predicted = math.add(unmasked(query, rows), scaled(guess, int(query.wires[0])))
        assert (predicted == seen).all() == mutant


@pytest.mark.parametrize("bad", [Role.SERVER_A, Role.SERVER_B])
def test_offsets_of_one_server_meet_a_verdict_that_does_not_depend_on_the_update(
    bad: Role,
) -> None:
    """Whatever the bad server adds to its words, it knows before what the honest one will say."""
    for seed_of_update in (1, 2):
        seed, body = shared(update(seed=seed_of_update), Role.SERVER_A)
        query = query_of(seed)
        words = {
            Role.SERVER_A: answer_of(seed, SHAPE, query),
            Role.SERVER_B: answer_of(body, SHAPE, query),
        }
        own = words[bad]
        shifted = own.wires.copy()
        shifted[0] = (int(shifted[0]) + 1) % P
        lies = (
            replace(own, zero=(own.zero + 1) % P),
            replace(own, value=(own.value + 1) % P),
            replace(own, wires=shifted),
        )
        honest = words[Role.SERVER_B if bad is Role.SERVER_A else Role.SERVER_A]
        assert accepts(honest, own)
        assert [accepts(honest, lie) for lie in lies] == [False] * 3


@pytest.mark.parametrize("holder", proof_submission.SERVERS)
def test_a_part_is_verified_whole_before_it_counts(holder: Role) -> None:
    other = Role.SERVER_B if holder is Role.SERVER_A else Role.SERVER_A
    seed, body = shared(holder=holder)
    held: list[tuple[SeedPart | BodyPart, Role]] = [(seed, holder), (body, other)]
    for part, own in held:
        opening = OPENINGS[proof_submission.SERVERS.index(own)]
        assert verified(part, SHAPE, own, opening).part is part
        # Of another process's opening of the attempt: a kept upload that is sent again.
        with pytest.raises(RejectedSubmission, match="another opening of this attempt"):
            verified(part, SHAPE, own, OTHER)


@pytest.mark.parametrize("name", ["update", "bits", "values"])
@pytest.mark.parametrize("by", [-1, 1])
def test_words_too_few_or_too_many_cost_their_client(name: str, by: int) -> None:
    """Signed as they are: of another length no hash says anything."""
    _, body = shared()
    words = getattr(body, name)
    other: dict[str, Any] = {name: np.resize(words, words.size + by)}
    changed = replace(body, **other)
    with pytest.raises(RejectedSubmission, match=f"{name} has a length of"):
        verified(changed, SHAPE, Role.SERVER_B, OPENINGS[1])


def test_salts_and_seeds_of_another_length_cost_their_client() -> None:
    seed, body = shared()
    short = Secret(bytes(31))
    for changed in (replace(body, salt=short), replace(body, mask_seed=short)):
        with pytest.raises(RejectedSubmission, match="has a length of 31"):
            verified(changed, SHAPE, Role.SERVER_B, OPENINGS[1])
    for of_seed in (replace(seed, salt=short), replace(seed, seed=short)):
        with pytest.raises(RejectedSubmission, match="don't open the commitment"):
            verified(of_seed, SHAPE, Role.SERVER_A, OPENINGS[0])


def test_only_servers_hold_seeds() -> None:
    with pytest.raises(ValueError, match="holds no seed"):
        shared(holder=Role.DEALER)
