"""What one server sees of a proof in its one answer: nothing of the update."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from tests.rig import norm_check as rig
from tests.rig.tasks import task_with

from precad.common.identifiers import Role, Secret
from precad.common.kernel import Rows
from precad.common.prime_field import FieldKeystream, FieldVector, arithmetic, of_signed
from precad.common.proof_shape import P, ProofShape
from precad.common.ring import RingVector
from precad.common.share.proof_submission import SERVERS, ProofDraft, ProofHeader, ProofSubmission
from precad.norm_check.norm_proof import Query, accepts, bit_challenges, bits_of

TASK = task_with({"validation": "proof"}, 60)
assert TASK.proof is not None
SHAPE: ProofShape = TASK.proof
math = arithmetic()


def query_of(part: ProofSubmission, coin: int = 1) -> Query:
    return Query.drawn(SHAPE, Secret(coin.to_bytes(32, "big")), part.header.whole_digest)


def rows_of(header: ProofHeader, x: RingVector) -> FieldVector:
    """The circuit's rows but for the masking one, of whoever guesses x: all else is public."""
    rows = Rows(header.rows_key, SHAPE.dimension, SHAPE.rows)
    rows.absorb(x)
    words = of_signed(x)
    bits = bits_of(SHAPE, rows.z(), math.dot(words, words))
    mu = bit_challenges(SHAPE, header.bits_key)
    found: list[FieldVector] = []
    for vector in (words, *(math.multiply(each, bits) for each in mu)):
        padded = np.pad(vector, (0, -vector.size % SHAPE.columns))
        found += list(padded.reshape(-1, SHAPE.columns))
    return np.ascontiguousarray(found)


def unmasked(query: Query, rows: FieldVector) -> FieldVector:
    """Σ over the rows with inputs of L_m(t)·row: f(t) but for the masking row."""
    out = np.zeros(SHAPE.columns, dtype=np.uint64)
    math.combine(rows, query.wires[1 : 1 + len(rows)].copy(), out)
    return out


def scaled(vector: FieldVector, by: int) -> FieldVector:
    return math.multiply(vector, np.full_like(vector, by % P))


def opened(pair: rig.Pair, query: Query) -> FieldVector:
    """f(t): what both servers' words add up to."""
    own, theirs = (rig.answer_of(part, SHAPE, query).wires for part in pair)
    return math.add(own, theirs)


@pytest.mark.parametrize("scheme", ["as it is", "u = PRG(s) alone"])
def test_a_masking_row_from_the_seed_alone_would_show_the_update_to_its_holder(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    x = rig.update(SHAPE, seed=1)
    if scheme != "as it is":
        drawn = ProofHeader.stream
        seeds: list[Secret] = []

        def stream(self: ProofHeader, secret: Secret, purpose: str) -> FieldKeystream:
            seeds.append(secret)
            return drawn(self, seeds[0] if purpose == "u" else secret, purpose)

        monkeypatch.setattr(ProofDraft, "stream", stream)
        monkeypatch.setattr(ProofHeader, "stream", stream)
    pair = rig.shared(SHAPE, x)
    query, seed = query_of(pair[0]), pair[0]
    seen = opened(pair, query)
    assert seed.seed is not None
    # What the seed's holder guesses, of both halves of the masking row.
    half = seed.header.stream(seed.seed, "u").words(SHAPE.columns)
    guess = math.add(half, half)
    rows = rows_of(seed.header, x)
    predicted = math.add(unmasked(query, rows), scaled(guess, int(query.wires[0])))
    assert (predicted == seen).all() == (scheme != "as it is")


@pytest.mark.parametrize("bad", SERVERS)
def test_offsets_of_one_server_meet_a_verdict_that_does_not_depend_on_the_update(bad: Role) -> None:
    """Whatever the bad server adds to its words, it knows before what the honest one will say."""
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
    """Two candidates, 60 proofs of each: f_i(t) of an all-zero update is as random as another's."""
    tops: list[list[float]] = [[], []]
    for found, x in zip(
        tops, (np.zeros(SHAPE.dimension, np.int64), rig.update(SHAPE)), strict=True
    ):
        for number in range(60):
            pair = rig.shared(SHAPE, x, holder)
            found += [int(each) / P for each in opened(pair, query_of(pair[0], number))]
        assert stats.kstest(found, "uniform").pvalue > 1e-6
    assert stats.ks_2samp(*tops).pvalue > 1e-6
