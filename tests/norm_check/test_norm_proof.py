"""The proof of a norm: honest updates pass, nothing else does, and every relation
counts.

Its sizes are those of docs/soundness.md's table, and there are none without a sound
proof.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.rig.norm_check import changed
from tests.rig.tasks import task_with

from precad.common.errors import Misconfiguration
from precad.common.identifiers import SERVERS, Digest, Secret
from precad.common.kernel import Rows
from precad.common.proof_shape import P, ProofShape
from precad.norm_check import norm_proof, prime_field
from precad.norm_check.prime_field import (
    FieldKeystream,
    FieldVector,
    arithmetic,
    of_signed,
    signed_of,
)

D = 48
BETA = 30 * 2**10
SHAPE = ProofShape(D, BETA)
BOUNDS = [1, 2, 3, 7, 8, 9, 2**20 - 1, 2**20, 2**20 + 1, 2**25 - 1, 2**25]
ROOT = 2**48
"""ROOT² = −1 in the field."""


@dataclass(frozen=True)
class Transcript:
    """All that a client fixed, before it is shared; tests change one part."""

    shape: ProofShape
    x: FieldVector
    bits: FieldVector
    mask: FieldVector
    values: FieldVector
    number: int = 0

    @property
    def rows(self) -> Secret:
        return Secret(self.number.to_bytes(32, "big"))

    @property
    def mu(self) -> FieldVector:
        return norm_proof.bit_challenges(self.shape, self.rows)


def projected(shape: ProofShape, x: FieldVector, key: Secret) -> FieldVector:
    rows = Rows(key, dimension=shape.dimension, k=shape.rows)
    rows.absorb(x.view(np.int64))
    return norm_proof.projections(rows)


def transcript(
    x: FieldVector,
    number: int = 0,
    shape: ProofShape = SHAPE,
    bits: Callable[[FieldVector, int], FieldVector] | None = None,
) -> Transcript:
    """A client that does its best for any x: bits of what its rows give modulo 2B."""
    made = Transcript(shape, x, x, x, x, number)
    z, squared = projected(shape, x, made.rows), arithmetic().dot(x, x)
    written = (
        norm_proof.bits_of(shape, signed_of(z), squared=squared, bound=shape.bound)
        if bits is None
        else bits(z, squared)
    )
    mask = FieldKeystream(made.rows, "test/mask").words(shape.columns)
    return proved(replace(made, mask=mask), written)


def proved(made: Transcript, bits: FieldVector) -> Transcript:
    """The same with these bits, of which everything is proved."""
    values = norm_proof.prove(
        made.shape, x=made.x, bits=bits, mu=made.mu, mask=made.mask
    )
    return replace(made, bits=bits, values=values)


def words_of(
    made: Transcript, query: norm_proof.Query, pieces: int = 17
) -> tuple[norm_proof.ProofWords, norm_proof.ProofWords]:
    key, parts = Secret(b"\x07" * 32), ("x", "bits", "mask", "values")
    own, other = {}, {}
    for name in parts:
        whole = getattr(made, name)
        own[name] = FieldKeystream(key, "test/share", name.encode()).words(whole.size)
        other[name] = arithmetic().subtract(whole, own[name])

    def answered(held: dict[str, FieldVector], *, holds: bool) -> norm_proof.ProofWords:
        z = projected(made.shape, held["x"], made.rows)
        beside = norm_proof.ProofShare(
            bits=held["bits"],
            mask=held["mask"],
            values=held["values"],
            z=z,
            bound=made.shape.bound,
            holds_constants=holds,
        )
        cuts = np.split(held["x"], range(pieces, made.shape.dimension, pieces))
        return norm_proof.answer(query, iter(cuts), lambda: beside, made.mu)

    return answered(own, holds=True), answered(other, holds=False)


def accepted(made: Transcript, coin: int = 1, pieces: int = 17) -> bool:
    query = norm_proof.Query.drawn(
        made.shape, Secret(coin.to_bytes(32, "big")), Digest(bytes(32))
    )
    return norm_proof.accepts(*words_of(made, query, pieces))


def field(*values: int) -> FieldVector:
    found = np.zeros(D, dtype=np.uint64)
    found[: len(values)] = [each % P for each in values]
    return found


def of_norm(norm: float, seed: int, dimension: int = D) -> FieldVector:
    v = np.random.default_rng(seed).standard_normal(dimension)
    return of_signed(np.trunc(v / np.linalg.norm(v) * norm).astype(np.int64))


HONEST = {
    "zero": field(),
    "minus the bound": field(0, -BETA),
    "two coordinates": field(BETA * 3 // 5, -BETA * 4 // 5),
} | {
    f"random {seed}": of_norm(BETA * (1 - 1e-6) / (1 + seed % 3), seed)
    for seed in range(12)
}


@pytest.mark.parametrize("x", HONEST.values(), ids=HONEST)
def test_honest_updates_pass(x: FieldVector) -> None:
    made = transcript(x)
    assert [accepted(made, pieces=pieces) for pieces in (1, 17, D)] == [True] * 3


@pytest.mark.parametrize("beta", BOUNDS)
@pytest.mark.parametrize("dimension", [1, 7, 650])
def test_the_bound_itself_passes_and_one_more_does_not(
    beta: int, dimension: int
) -> None:
    for norm in (beta, beta + 1):
        x = np.zeros(dimension, dtype=np.uint64)
        x[-1] = norm
        made = transcript(x, shape=ProofShape(dimension, beta))
        assert accepted(made, pieces=100) is (norm == beta)


FORGED = {
    "one unit more": field(BETA + 1),
    "twice the bound": field(2 * BETA),
    "a square of β² + 1": field(BETA, 1),
    "a root of −1 and 1": field(ROOT, 1),
    "β times these": field(ROOT * BETA, BETA),
    "(p + 1)/2": field((P + 1) // 2),
    "(p − 1)/2": field((P - 1) // 2),
    "(p + 1)/2 twice": field((P + 1) // 2, (P + 1) // 2),
    "± p/3": field(P // 3, -(P // 3)),
    "roots everywhere": field(*[ROOT, 1] * (D // 2)),
    "2^32": field(2**32),
    "16β": field(16 * BETA),
    "69β spread": field(*[10 * BETA] * D),
    "random words": FieldKeystream(Secret(bytes(32)), "test/forged").words(D),
}


@pytest.mark.parametrize("x", FORGED.values(), ids=FORGED)
def test_forged_updates_are_refused_however_well_they_are_proved(
    x: FieldVector,
) -> None:
    for number in range(3):
        assert not accepted(transcript(x, number), coin=number)


def non_bits(z: FieldVector, squared: int) -> FieldVector:
    """Every number in the word of its lowest bit: all linear relations hold."""
    found = np.zeros(SHAPE.bits, dtype=np.uint64)
    width = len(SHAPE.weights)
    found[: SHAPE.rows * width : width] = [
        (int(each) + SHAPE.half_width) % P for each in z
    ]
    found[SHAPE.rows * width] = (BETA**2 - squared) % P
    return found


def lowered(bad: int) -> Callable[[FieldVector, int], FieldVector]:
    """The first word is no bit, and the next is lowered by as much: its number is
    right."""

    def written(z: FieldVector, squared: int) -> FieldVector:
        found = norm_proof.bits_of(
            SHAPE, signed_of(z), squared=squared, bound=SHAPE.bound
        )
        half = (bad - int(found[0])) * pow(2, -1, P)
        found[0], found[1] = bad, (int(found[1]) - half) % P
        return found

    return written


@pytest.mark.parametrize(
    ("x", "bits"),
    [
        (field(2**40), non_bits),
        (field(3), non_bits),
        *((field(5, -7), lowered(bad)) for bad in (2, P - 1, (P + 1) // 2)),
    ],
)
def test_words_that_are_no_bits_are_refused_though_right(
    x: FieldVector, bits: Callable[[FieldVector, int], FieldVector]
) -> None:
    assert not accepted(transcript(x, bits=bits))


def test_non_bits_that_cancel_under_the_first_challenge_fail_under_the_second() -> None:
    """e and e' = 3e with μ₁²·(e² − e) + μ₁'²·(e'² − e') = 0: what one challenge can't
    tell."""
    made = transcript(field(5, -7))
    squared = [[int(made.mu[number, i]) ** 2 % P for i in (0, 1)] for number in (0, 1)]
    first, second = squared[0]
    tried = (first + 3 * second) * pow(first + 9 * second, -1, P) % P
    bits = made.bits.copy()
    bits[0], bits[1] = tried, 3 * tried % P
    left = [
        sum(s * e * (e - 1) for s, e in zip(each, map(int, bits[:2]), strict=True)) % P
        for each in squared
    ]
    assert left[0] == 0 != left[1]
    assert not accepted(proved(made, bits))


HONEST_PROOF = transcript(of_norm(BETA * 0.9, 3))
LIES: dict[str, Callable[[Transcript], Transcript]] = {
    "x in its first word": lambda made: replace(made, x=changed(made.x, 0)),
    "x in its last word": lambda made: replace(made, x=changed(made.x, D - 1)),
    "a bit": lambda made: replace(made, bits=changed(made.bits, 3)),
    "the slack": lambda made: replace(made, bits=changed(made.bits, -1)),
    "the mask": lambda made: replace(made, mask=changed(made.mask, 0)),
} | {
    f"h at {name}": lambda made, at=at: replace(made, values=changed(made.values, at))
    for name, at in (
        *(("1", 0), ("an update's row", 1), ("a bits' row", 1 + SHAPE.update_rows)),
        *(("the last row", SHAPE.used), ("an odd point", 1 + SHAPE.used)),
        ("the last odd point", SHAPE.values - 1),
    )
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_whatever_is_changed_afterwards_is_noticed(
    lie: Callable[[Transcript], Transcript],
) -> None:
    assert accepted(HONEST_PROOF)
    for coin in range(3):
        assert not accepted(lie(HONEST_PROOF), coin=coin)


def test_a_proof_that_adds_a_multiple_of_x_to_the_n_minus_1_is_refused() -> None:
    """It has h's values at all N-th roots, and others at the odd points: −2 there."""
    values, odd = HONEST_PROOF.values.copy(), slice(1 + SHAPE.used, None)
    values[odd] = arithmetic().add(
        values[odd], np.full(SHAPE.points, P - 2, dtype=np.uint64)
    )
    assert not accepted(replace(HONEST_PROOF, values=values))


@pytest.mark.parametrize("where", ["update", "bits"])
def test_padding_that_is_not_zero_is_refused(where: str) -> None:
    """A prover whose last row goes on behind d, or behind the last bit."""
    # The sizes differ in nothing else: a dimension, or a slack bit, more.
    made, one = HONEST_PROOF, np.uint64(1)
    if where == "update":
        longer, x = ProofShape(D + 1, BETA), np.append(made.x, one)
        values = norm_proof.prove(
            longer, x=x, bits=made.bits, mu=made.mu, mask=made.mask
        )
    else:
        assert SHAPE.bits % SHAPE.columns
        mu = np.concatenate([made.mu, np.ones((2, 1), dtype=np.uint64)], axis=1)
        values = norm_proof.prove(
            SHAPE, x=made.x, bits=np.append(made.bits, one), mu=mu, mask=made.mask
        )
    assert not accepted(replace(made, values=values))


def off_by_one(made: Transcript, number: int) -> tuple[Transcript, int]:
    """The same with that relation off, and no other one; and by how much."""
    if number in (1, 2):
        # An output of the bits' rows: what h says of μ∘e alone.
        at = 1 + SHAPE.update_rows + (number - 1) * SHAPE.bit_rows
        return replace(made, values=changed(made.values, at)), 1
    # A bit turned, and everything proved honestly about what stands there now.
    row = number - 3
    at = SHAPE.rows * len(SHAPE.weights) if number == 0 else row * len(SHAPE.weights)
    bits = made.bits.copy()
    bits[at] = 1 - int(bits[at])
    more = int(bits[at]) - int(made.bits[at])
    return proved(made, bits), more if number == 0 else -more


def relations(made: Transcript, rho: FieldVector) -> int:
    """Their sum by ρ, which is to be 0."""
    own, other = words_of(made, norm_proof.Query.at(SHAPE, 12345, rho))
    return (own.zero + other.zero) % P


def test_each_relation_alone_decides() -> None:
    """The sum of relations is off by that one's ρ, and the submission is refused."""
    made = HONEST_PROOF
    rho = FieldKeystream(made.rows, "rho").words(SHAPE.challenges)
    assert relations(made, rho) == 0
    for number in range(SHAPE.challenges):
        wrong, by = off_by_one(made, number)
        assert relations(wrong, rho) == by * int(rho[number]) % P, number
        assert not norm_proof.accepts(
            *words_of(wrong, norm_proof.Query.at(SHAPE, 12345, rho))
        )
        # Whose ρ is 0 is the one that nobody sees: no relation hides behind another.
        without = rho.copy()
        without[number] = 0
        assert relations(wrong, without) == 0, number


@pytest.mark.parametrize("z", [8 * BETA - 1, 8 * BETA, 8 * BETA + 1, 16 * BETA])
def test_each_row_decides_for_itself_where_its_projection_is_beyond_the_width(
    z: int,
) -> None:
    """One coordinate: rows whose entry is 1 have z, −z or 0, and −8β ≤ z < 8β passes
    alone."""
    for value in (z, -z):
        made = transcript(field(value))
        of_rows = signed_of(projected(SHAPE, made.x, made.rows)).tolist()
        assert set(of_rows) == {value, 0, -value}
        for row, of_row in enumerate(of_rows):
            rho = np.eye(1, SHAPE.challenges, 3 + row, dtype=np.uint64)[0]
            assert (relations(made, rho) == 0) is (-8 * BETA <= of_row < 8 * BETA)


@pytest.mark.parametrize("order", [1, 2, SHAPE.points, 2 * SHAPE.points])
def test_a_query_whose_point_is_a_root_of_unity_is_refused_and_drawn_again(
    monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    """T^N = 1 and t^N = −1 alike, at both servers."""
    with pytest.raises(ValueError, match="no root of unity"):
        norm_proof.Query.at(SHAPE, prime_field.root_of_unity(order), field())
    assert norm_proof.Query.at(
        SHAPE, prime_field.root_of_unity(4 * SHAPE.points), field()
    ).t
    drawn = FieldKeystream.words

    def words(self: FieldKeystream, count: int, start: int = 0) -> FieldVector:
        found = drawn(self, count, start)
        if count == 1 + SHAPE.challenges and not seen:
            seen.append(int(found[1]))
            found[0] = prime_field.root_of_unity(order)
        return found

    seen: list[int] = []
    first = norm_proof.Query.drawn(SHAPE, Secret(bytes(32)), Digest(bytes(32)))
    monkeypatch.setattr(FieldKeystream, "words", words)
    found = []
    for _ in SERVERS:
        seen.clear()
        found.append(
            norm_proof.Query.drawn(SHAPE, Secret(bytes(32)), Digest(bytes(32)))
        )
        assert seen == [int(first.rho[0])]
    assert found[0].t == found[1].t != first.t
    assert found[0].rho.tolist() == found[1].rho.tolist()
    assert not (found[0].rho == first.rho).any()


@pytest.mark.parametrize("dimension", [1, 7, 90, 650, 9000])
@pytest.mark.parametrize("beta", [1, 1000, 2**25])
def test_no_other_sizes_cost_less(dimension: int, beta: int) -> None:
    """c_w is the least that fits N, and N the power of two with the least 2N + 2c_w."""
    shape = ProofShape(dimension, beta)

    def fits(columns: int, points: int) -> bool:
        rows = -(-shape.dimension // columns) + 2 * -(-shape.bits // columns)
        return rows <= points - 1

    assert fits(shape.columns, shape.points)
    cost = 2 * shape.points + 2 * shape.columns
    for log in range(2, 16):
        for columns in range(8, cost // 2, 8):
            if 2 * 2**log + 2 * columns < cost:
                assert not fits(columns, 2**log)
    assert (
        shape.body_words == shape.dimension + shape.bits + 1 + shape.used + shape.points
    )


def test_sizes_of_no_sound_proof_are_refused() -> None:
    for sizes, named in (
        *(((8, 5, 99), "projections"), ((8, 0, 100), "client_clip")),
        *(((8, 2**25 + 1, 100), "client_clip"), ((0, 5, 100), "dimension")),
        ((2**33, 2**25, 100), "dimension"),
    ):
        with pytest.raises(Misconfiguration, match=named):
            ProofShape(*sizes)
    # So a task with proofs has a hundred rows or more, and no dealer.
    task = task_with({"validation": "proof"})
    assert (task.projections, task.has_dealer, task_with({}).has_dealer) == (
        100,
        False,
        True,
    )
    assert task_with({"validation": "proof", "projections": 128}).projections == 128
    for wrong, words in (
        ({"projections": 99}, "at least 100"),
        ({"validation": "fss"}, "proof"),
    ):
        with pytest.raises(Misconfiguration, match=words):
            task_with({"validation": "proof", **wrong})


def read_back(shape: ProofShape, z: int, squared: int = 0) -> int:
    written = norm_proof.bits_of(
        shape, np.full(shape.rows, z), squared=squared, bound=shape.bound
    )
    assert set(written.tolist()) <= {0, 1}
    bits: list[int] = written[: len(shape.weights)].tolist()
    return sum(weight * bit for weight, bit in zip(shape.weights, bits, strict=True))


@pytest.mark.parametrize("z", [-8 * BETA - 1, 8 * BETA, 2**40])
def test_a_projection_beyond_the_width_is_written_modulo_it_and_never_raises(
    z: int,
) -> None:
    assert read_back(SHAPE, z, BETA**2 + 1) == (z + 8 * BETA) % (16 * BETA)


@pytest.mark.parametrize("beta", BOUNDS)
def test_weights_write_the_whole_width_and_nothing_else(beta: int) -> None:
    shape = ProofShape(48, beta)
    assert (sum(shape.weights), min(shape.weights) > 0) == (16 * beta - 1, True)
    for z in (-8 * beta, -1, 0, 1, 8 * beta - 1, shape.weights[-1] - 8 * beta):
        assert read_back(shape, z) == z + 8 * beta


def test_a_task_digest_covers_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever would compute others is another task's: p, k, N, c_w and w."""
    task = task_with({"validation": "proof"})
    assert task.proof is not None
    sizes = task.proof.parameters
    assert sizes == (
        P,
        100,
        task.proof.points,
        task.proof.columns,
        len(task.proof.weights),
    )
    digests = {task.digest}
    for place in range(len(sizes)):
        other = tuple(each + (number == place) for number, each in enumerate(sizes))
        with monkeypatch.context() as patch:
            # A plain attribute of the class in the property's place.
            patch.setattr(ProofShape, "parameters", other)
            digests.add(task_with({"validation": "proof"}).digest)
    assert len(digests) == 1 + len(sizes)
