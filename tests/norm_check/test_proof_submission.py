"""Submissions that prove themselves: what is bound to what, and what one server can
learn."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from scipy import stats
from tests.rig import norm_check as rig
from tests.rig.corpus import unit
from tests.rig.documents import Document
from tests.rig.rounds import roster_of
from tests.rig.submissions import reconstructed, words_of

from precad.common.identifiers import SERVERS, ClientId, Digest, Role, Secret
from precad.common.kernel import Rows
from precad.common.proof_shape import P, ProofShape
from precad.common.ring import RingVector
from precad.norm_check import proof_submission
from precad.norm_check.norm_proof import Query, accepts, bit_challenges, bits_of
from precad.norm_check.prime_field import (
    FieldKeystream,
    FieldVector,
    arithmetic,
    of_signed,
)

SHAPE = ProofShape(300, 1 << 14)
NAMES = [ClientId(f"ward-{i}") for i in range(9)]
math = arithmetic()


def query_of(part: proof_submission.ProofSubmission, coin: int = 1) -> Query:
    return Query.drawn(
        SHAPE, Secret(coin.to_bytes(32, "big")), part.header.whole_digest
    )


def accepted(pair: rig.Pair, coin: int = 1) -> bool:
    query = query_of(pair[0], coin)
    return accepts(*(rig.answer_of(part, SHAPE, query) for part in pair))


def prefix_of(body: proof_submission.ProofSubmission) -> Secret:
    assert body.body is not None
    return body.body.prefix


def hash_of(
    body: proof_submission.ProofSubmission, cut: int = 1 << 20
) -> proof_submission.ProofBodyHash:
    """What the body's holder makes of it as it comes, in pieces of so many bytes."""
    found, words = body.body_hash(prefix_of(body), SHAPE), words_of(body)
    for start in range(0, len(words), cut):
        found.update(words[start : start + cut])
    return found


@pytest.mark.parametrize("holder", SERVERS)
@pytest.mark.parametrize(
    "x",
    [
        np.zeros(SHAPE.dimension, dtype=np.int64),
        rig.update(SHAPE),
        -rig.update(SHAPE, seed=2),
    ],
    ids=["zero", "at the bound", "another"],
)
def test_honest_submissions_open_and_pass(x: RingVector, holder: Role) -> None:
    seed, body = rig.shared(SHAPE, x, holder)
    assert (seed.role, seed.awaits_body, seed.opens) == (holder, False, True)
    assert (body.role, body.awaits_body, body.opens) == (rig.other(holder), True, True)
    for cut in (1, 7, 8, 4093, 1 << 20):
        assert hash_of(body, cut).right
    assert accepted((seed, body))
    assert reconstructed((seed, body), SHAPE.dimension).tolist() == x.tolist()
    # A body that ends early, wherever, is none.
    words = words_of(body)
    for length in (0, 8 * SHAPE.dimension, len(words) - 8, len(words) - 1):
        found = body.body_hash(prefix_of(body), SHAPE)
        found.update(words[:length])
        assert not found.right


@pytest.mark.parametrize(
    "x",
    [
        *(rig.update(SHAPE, SHAPE.bound * norm) for norm in (1.01, 2.0, 16.0, 1e9)),
        # Each of 100 rows has this one coordinate once in four times with the sign that
        # fails.
        *(
            unit(SHAPE.dimension, word)
            for word in (SHAPE.half_width, -SHAPE.half_width - 1)
        ),
    ],
)
def test_what_is_too_long_is_sent_like_any_other_and_refused(x: RingVector) -> None:
    """As many bytes, and bits, also where a row fails: nothing shows before the servers
    say so."""
    pair = rig.shared(SHAPE, x)
    assert hash_of(pair[1]).right
    assert (
        len(words_of(pair[1]))
        == 8 * SHAPE.body_words
        == len(words_of(rig.shared(SHAPE)[1]))
    )
    assert set(rig.written_of(SHAPE, pair).tolist()) == {0, 1}
    assert not accepted(pair)


def test_two_submissions_of_one_update_have_nothing_in_common() -> None:
    (seed, body), (other_seed, other_body) = rig.shared(SHAPE), rig.shared(SHAPE)
    for mine, its in (
        *((seed.seed, other_seed.seed), (seed.salt, other_seed.salt)),
        (prefix_of(body), prefix_of(other_body)),
    ):
        assert mine != its
    own, others = rig.segments(SHAPE, body), rig.segments(SHAPE, other_body)
    assert not any((own[name] == others[name]).any() for name in rig.SEGMENTS)


def test_no_part_shows_its_secrets() -> None:
    seed, body = rig.shared(SHAPE)
    shown = repr(seed) + repr(body) + repr(body.body) + repr(query_of(seed))
    words = [str(int(each)) for each in rig.segments(SHAPE, body)["update"][:8]]
    for secret in (seed.seed, seed.salt, prefix_of(body)):
        assert secret is not None
        words += [secret.reveal().hex(), repr(secret.reveal())[2:-1]]
    assert not [each for each in words if each in shown]


Change = Callable[[proof_submission.ProofHeader], proof_submission.ProofHeader]
OTHER = Digest(b"o" * 32)


def with_context(**changed: object) -> Change:
    return lambda h: replace(h, context=replace(h.context, **cast("Document", changed)))


def with_header(**changed: object) -> Change:
    return lambda h: replace(h, **cast("Document", changed))


CHANGES: dict[str, Change] = {
    "task": with_context(task=OTHER),
    **{name: with_context(**{name: 9}) for name in ("version", "attempt")},
    "client": with_context(client=NAMES[1]),
    "model": with_context(model=OTHER),
    "nonce": with_context(nonce=b"n" * 32),
    "A's opening": lambda h: replace(h, openings=(OTHER, h.openings[1])),
    "B's opening": lambda h: replace(h, openings=(h.openings[0], OTHER)),
    "openings swapped": lambda h: replace(h, openings=h.openings[::-1]),
    "commitment": with_header(commitment=OTHER),
    **{name: with_header(**{f"{name}_digest": OTHER}) for name in rig.SEGMENTS},
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_is_signed_moves_the_rows_the_challenges_and_the_point(
    name: str,
) -> None:
    """Rows depend on nothing that comes after the bits, μ on nothing after the
    proof."""
    seed, _ = rig.shared(SHAPE)
    header, moved = seed.header, CHANGES[name](seed.header)
    assert (moved.rows_key != header.rows_key) is (name not in ("bits", "proof"))
    assert (moved.bits_key != header.bits_key) is (name != "proof")
    mine, its = (bit_challenges(SHAPE, each.bits_key) for each in (header, moved))
    assert (mine != its).any() == (name != "proof")
    assert moved.signed != header.signed
    assert moved.whole_digest != header.whole_digest
    one, another = query_of(seed), query_of(replace(seed, header=moved))
    assert one.t != another.t
    assert not (one.rho == another.rho).any()


def test_the_point_is_moved_by_the_signature_and_by_the_coin_alone_too() -> None:
    seed, _ = rig.shared(SHAPE)
    anew = replace(
        seed.header, signature=replace(seed.header.signature, value=b"another")
    )
    points = [
        query_of(seed),
        query_of(replace(seed, header=anew)),
        query_of(seed, coin=2),
    ]
    assert (len({each.t for each in points}), anew.signed) == (3, seed.header.signed)
    again = query_of(seed)
    assert (again.t, again.rho.tolist()) == (points[0].t, points[0].rho.tolist())


@pytest.mark.parametrize(
    "name",
    [
        "nonce",
        "attempt",
        "client",
        "model",
        "task",
        "commitment",
        "A's opening",
        "B's opening",
    ],
)
def test_a_seed_means_other_words_in_another_submission(name: str) -> None:
    seed, body = rig.shared(SHAPE)
    moved = CHANGES[name](seed.header)
    assert not replace(seed, header=moved).opens
    assert not hash_of(replace(body, header=moved)).right or name == "commitment"
    assert not accepted((replace(seed, header=moved), replace(body, header=moved)))


def test_a_commitment_is_to_one_servers_seed_alone() -> None:
    for holder in SERVERS:
        seed, body = rig.shared(SHAPE, holder=holder)
        # The same header and seed, brought to the other server.
        moved = replace(seed.header, seed_holder=rig.other(holder))
        assert not replace(seed, header=moved, role=rig.other(holder)).opens
        # Nor does a seed come along with a body.
        assert not replace(body, seed=seed.seed, salt=seed.salt).opens
        # A header for one holder, and what was made for the other one, are no
        # submission.
        foreign = rig.shared(SHAPE, holder=rig.other(holder))
        assert not replace(foreign[0], header=seed.header).opens
        assert not hash_of(replace(foreign[1], header=body.header)).right
    with pytest.raises(ValueError, match="holds no seed"):
        rig.shared(SHAPE, holder=Role.DEALER)


def test_seeds_alternate_along_an_order_that_no_client_chooses() -> None:
    (holders, again), others = (
        [roster_of(names).seed_holders(task) for names in (NAMES, reversed(NAMES))]
        for task in (Digest(b"t" * 32), Digest(b"u" * 32))
    )
    counts = [list(holders.values()).count(role) for role in SERVERS]
    assert (holders, abs(counts[0] - counts[1]) <= 1) == (again, True)
    assert holders not in others


def rows_of(header: proof_submission.ProofHeader, x: RingVector) -> FieldVector:
    """The circuit's rows but for the masking one, of whoever guesses x: all else is
    public."""
    rows = Rows(header.rows_key, dimension=SHAPE.dimension, k=SHAPE.rows)
    rows.absorb(x)
    words = of_signed(x)
    bits = bits_of(SHAPE, rows.z(), squared=math.dot(words, words), bound=SHAPE.bound)
    mu = bit_challenges(SHAPE, header.bits_key)
    found: list[FieldVector] = []
    for vector in (words, *(math.multiply(each, bits) for each in mu)):
        padded = np.pad(vector, (0, -vector.size % SHAPE.columns))
        found += list(padded.reshape(-1, SHAPE.columns))
    return np.ascontiguousarray(found)


def opened(pair: rig.Pair, query: Query) -> FieldVector:
    own, theirs = (rig.answer_of(part, SHAPE, query).wires for part in pair)
    return math.add(own, theirs)


@pytest.mark.parametrize("scheme", ["as it is", "u = PRG(s) alone"])
def test_a_masking_row_from_the_seed_alone_would_show_the_update_to_its_holder(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    x = rig.update(SHAPE, seed=1)
    if scheme != "as it is":
        drawn = proof_submission.ProofHeader.stream
        seeds: list[Secret] = []

        def stream(
            self: proof_submission.ProofDraft, secret: Secret, purpose: str
        ) -> FieldKeystream:
            seeds.append(secret)
            return drawn(self, seeds[0] if purpose == "u" else secret, purpose)

        monkeypatch.setattr(proof_submission.ProofDraft, "stream", stream)
        monkeypatch.setattr(proof_submission.ProofHeader, "stream", stream)
    pair = rig.shared(SHAPE, x)
    query, seed = query_of(pair[0]), pair[0]
    seen = opened(pair, query)
    assert seed.seed is not None
    # What the seed's holder guesses, of both halves of the masking row.
    half = seed.header.stream(seed.seed, "u").words(SHAPE.columns)
    guess = math.add(half, half)
    rows = rows_of(seed.header, x)
    # Σ over the rows with inputs of L_m(t)·row: f(t) but for the masking row, and with
    # the guess.
    predicted = math.multiply(guess, np.full_like(guess, int(query.wires[0]) % P))
    math.combine(rows, query.wires[1 : 1 + len(rows)].copy(), predicted)
    assert (predicted == seen).all() == (scheme != "as it is")


@pytest.mark.parametrize("bad", SERVERS)
def test_offsets_of_one_server_meet_a_verdict_that_does_not_depend_on_the_update(
    bad: Role,
) -> None:
    """Whatever the bad server adds to its words, it knows before what the honest one
    will say."""
    for number in (1, 2):
        pair = rig.shared(SHAPE, rig.update(SHAPE, seed=number), rig.A)
        words = {part.role: rig.answer_of(part, SHAPE, query_of(part)) for part in pair}
        own, honest = words[bad], words[rig.other(bad)]
        assert accepts(honest, own)
        for lie in (
            replace(own, zero=(own.zero + 1) % P),
            replace(own, value=(own.value + 1) % P),
            replace(own, wires=rig.changed(own.wires, 0)),
        ):
            assert not accepts(honest, lie)


@pytest.mark.parametrize("holder", SERVERS)
def test_what_both_answers_open_is_uniform_whatever_the_update_is(holder: Role) -> None:
    """Two candidates, 60 proofs of each: f_i(t) of an all-zero update is as random as
    another's."""
    tops: list[list[float]] = [[], []]
    updates = np.zeros(SHAPE.dimension, np.int64), rig.update(SHAPE)
    for found, x in zip(tops, updates, strict=True):
        for number in range(60):
            pair = rig.shared(SHAPE, x, holder)
            found += [int(each) / P for each in opened(pair, query_of(pair[0], number))]
        assert stats.kstest(found, "uniform").pvalue > 1e-6
    assert stats.ks_2samp(*tops).pvalue > 1e-6
