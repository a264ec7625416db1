"""One server departs from the protocol of proofs, the other doesn't
(docs/cheating-server.md).

Whatever it does, everything that the honest server sends before its noisy share it
could have computed itself, and it ends in a named fault or a refused submission. Its
words can be computed from the wires, which are uniform: value and zero follow from the
cheater's own, true words.

And a matched body on its way from B to A: lost, changed, unreadable, or in the sum by
mistake.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from tests.integration.validation import conftest as parts
from tests.rig.aggregators import SERVERS, Halves, submissions_of
from tests.rig.norm_check import Pair, answer_of, other, shape_of, shared
from tests.rig.parties import play_both
from tests.rig.submissions import flipped, masked

from precad.aggregator.attempt_states import Summed
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.validate.check_by_proof import words_bytes
from precad.aggregator.validate.check_with_dealer import receive
from precad.common.errors import (
    BodyUnreadable,
    PeerUnavailable,
    PeerViolation,
    Rejection,
)
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.kernel import Rows
from precad.common.proof_shape import P
from precad.common.ring import RingVector, encode_context
from precad.common.submission import CHUNK_BYTES, Body
from precad.common.task import Task
from precad.norm_check import norm_proof
from precad.norm_check.norm_proof import ProofWords, Query
from precad.norm_check.prime_field import FieldVector, arithmetic, of_signed
from precad.norm_check.proof_submission import ProofSubmission

A, B = SERVERS
COIN, WORDS = "proof-coin/0", "proof/0"
TASK = parts.with_proofs(parts.task_of(64, 30.1))
SHAPE = shape_of(TASK)
WIDTH = words_bytes(SHAPE)
Change = Callable[[bytes], bytes]
Sent = dict[Role, dict[str, list[bytes]]]


def updates() -> list[RingVector]:
    """Two candidates for the first client's update, both within the bound; and another
    client's."""
    dense = np.full(TASK.dimension, TASK.mechanism.bound // 16, dtype=np.int64)
    dense[0] = -(TASK.mechanism.bound // 2)
    return [np.zeros_like(dense), dense, np.ones_like(dense)]


def play(
    halves: Halves, cheater: Role, lie: Change | None
) -> tuple[Summed | Exception, Sent]:
    """How it ends for the honest server; what both would have sent by step, before one
    lies."""
    sent: Sent = {role: defaultdict(list) for role in SERVERS}
    part = parts.aggregation(TASK, halves)

    def at(role: Role, link: PeerLink) -> Summed | Exception:
        send = link.send

        def sending(step: str, payload: bytes | memoryview) -> None:
            sent[role][step].append(said := bytes(payload))
            send(step, lie(said) if lie and (role, step) == (cheater, WORDS) else said)

        link.send = sending  # type: ignore[method-assign]
        try:
            return part(role, link)
        except Exception as error:  # noqa: BLE001 -- looked at below
            return error

    outcomes = dict(zip(SERVERS, play_both(at, task=TASK.digest), strict=True))
    return outcomes[other(cheater)], sent


def words_in(data: bytes) -> list[ProofWords]:
    found = np.frombuffer(data, np.uint8).reshape(-1, WIDTH)
    assert (found[:, 0] == ord("w")).all()
    each = (row[1:].copy().view("<u8").astype(np.uint64) for row in found)
    return [
        ProofWords(words[: SHAPE.columns], int(words[-2]), int(words[-1]))
        for words in each
    ]


def require_nothing_new(halves: Halves, cheater: Role, sent: Sent) -> None:
    """What the honest server said of its words follows from what the cheater truly
    holds.

    The coin is that of both servers' words as they crossed; the cheater's true words
    are computed from its own halves at the honest server's query.
    """
    honest, theirs = sent[other(cheater)], sent[cheater]
    assert len(honest[COIN]) == (2 if cheater is B else 1)
    digests = [each.header.whole_digest for each in halves[other(cheater)].values()]
    batch = Digest.of(encode_context("proof-batch", *(each.value for each in digests)))
    of_a, of_b = (theirs, honest) if cheater is A else (honest, theirs)
    joint = encode_context(
        "proof-joint-coin", of_a[COIN][1], of_b[COIN][0], batch.value
    )
    coin = Secret(Digest.of(joint).value)
    said = words_in(honest[WORDS][0])
    for one, half, digest in zip(said, halves[cheater].values(), digests, strict=True):
        own = answer_of(
            cast("ProofSubmission", half), SHAPE, Query.drawn(SHAPE, coin, digest)
        )
        wires = arithmetic().add(one.wires, own.wires)
        value = (arithmetic().dot(wires, wires) - own.value) % P
        assert (one.value, one.zero) == (value, -own.zero % P)


def at_word(place: int, change: Callable[[int], int]) -> Change:
    """One word of the first submission's otherwise; −2 is the value, −1 the zero."""

    def changed(data: bytes) -> bytes:
        words = np.frombuffer(data[1:WIDTH], dtype="<u8").copy()
        words[place] = np.uint64(change(int(words[place])))
        return data[:1] + words.tobytes() + data[WIDTH:]

    return changed


LIES: dict[str, Change | None] = {
    "none": None,
    "a wire": at_word(0, lambda word: (word + 1) % P),
    "the last wire": at_word(-3, lambda word: (word + P // 2) % P),
    "the value": at_word(-2, lambda word: (word + 1) % P),
    "the zero": at_word(-1, lambda word: (word + 1) % P),
    "all zeros": lambda data: data[:1] + bytes(WIDTH - 1) + data[WIDTH:],
}


@pytest.mark.parametrize("cheater", SERVERS)
@pytest.mark.parametrize("candidate", [0, 1])
@pytest.mark.parametrize("lie", LIES)
def test_a_server_hears_what_it_could_have_computed_whether_its_words_lie_or_not(
    cheater: Role, candidate: int, lie: str
) -> None:
    every = updates()
    halves = submissions_of(TASK, [every[candidate], every[2]])
    ended, sent = play(halves, cheater, LIES[lie])
    require_nothing_new(halves, cheater, sent)
    if LIES[lie]:
        # The cheater itself takes the first for valid: the sets differ, and nothing
        # leaves.
        assert isinstance(ended, PeerViolation | PeerUnavailable)
    else:
        assert isinstance(ended, Summed)
        assert ended.counted.rejections == {}


def told_apart(
    pair: Pair, queries: Sequence[Query], candidates: Sequence[RingVector]
) -> list[bool]:
    """Which candidates fit what A and B answered at both points: the masking row falls
    out."""
    math, header = arithmetic(), pair[0].header
    opened = [
        math.add(*(answer_of(each, SHAPE, q).wires for each in pair)) for q in queries
    ]
    found = []
    for x in candidates:
        rows = Rows(header.rows_key, dimension=SHAPE.dimension, k=SHAPE.rows)
        rows.absorb(x)
        words, mu = of_signed(x), norm_proof.bit_challenges(SHAPE, header.bits_key)
        bits = norm_proof.bits_of(
            SHAPE, rows.z(), squared=math.dot(words, words), bound=SHAPE.bound
        )

        def plain(query: Query, words: FieldVector = words, bits: FieldVector = bits,
                  mu: FieldVector = mu) -> FieldVector:  # fmt: skip
            none = [
                np.zeros(n, np.uint64)
                for n in (SHAPE.columns, SHAPE.values, SHAPE.rows)
            ]
            share = norm_proof.ProofShare(
                bits=bits,
                mask=none[0],
                values=none[1],
                z=none[2],
                bound=SHAPE.bound,
                holds_constants=False,
            )
            return norm_proof.answer(query, iter([words]), lambda: share, mu).wires

        # f(t) less the candidate's inputs is the masking row times its weight, at both
        # points.
        masks = [
            math.subtract(f, plain(q)) for f, q in zip(opened, queries, strict=True)
        ]
        scaled = [
            math.multiply(mask, np.full_like(mask, other.wires[0]))
            for mask, other in zip(masks, reversed(queries), strict=True)
        ]
        found.append(bool((scaled[0] == scaled[1]).all()))
    return found


@pytest.mark.parametrize("truth", [0, 1])
def test_two_answers_at_different_points_would_tell_candidates_apart(
    truth: int,
) -> None:
    """Hence one answer a header: this is what a bad server would do with a second
    one."""
    candidates = updates()[:2]
    pair = shared(SHAPE, candidates[truth])
    digest = pair[0].header.whole_digest
    one, other = (Query.drawn(SHAPE, Secret.random(), digest) for _ in range(2))
    assert told_apart(pair, (one, other), candidates) == [truth == 0, truth == 1]
    # One point alone fits everybody: u is fresh and its weight isn't 0.
    assert told_apart(pair, (one, one), candidates) == [True, True]


DIMENSION = CHUNK_BYTES // 8 * 2 + 65  # Two whole pieces and one more
STEP = "body/test"
LARGE = parts.task_of(DIMENSION)
EITHER_CHECK = pytest.mark.parametrize(
    "either", [LARGE, parts.with_proofs(LARGE)], ids=["share", "proof"]
)


@pytest.fixture
def vectors(rng: np.random.Generator) -> list[RingVector]:
    return [rng.integers(-100, 100, DIMENSION) for _ in range(3)]


UNSIGNED, UNEVEN = "isn't what its client signed", "pieces aren't as long"
OPEN = "without a verdict"
MEDDLED: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "a bit of b": (lambda p: [p[0], flipped(p[1], 0), *p[2:]], UNSIGNED),
    "a bit of the salt": (lambda p: [flipped(p[0], 0), *p[1:]], UNSIGNED),
    "two pieces exchanged": (lambda p: [p[0], p[2], p[1], *p[3:]], UNSIGNED),
    "the last piece lost": (lambda p: [*p[:-2], p[-1]], UNSIGNED),
    "a piece too many": (lambda p: [*p[:-1], bytes(8), p[-1]], UNEVEN),
    "a piece cut in two": (lambda p: [p[0], p[1][:-512], p[1][-512:], *p[2:]], UNEVEN),
    "an empty piece": (lambda p: [p[0], b"", *p[1:]], UNEVEN),
    "a short salt": (lambda p: [p[0][:-1], *p[1:]], "salt has 31 bytes"),
    "no verdict": (lambda p: [*p[:-1], b""], OPEN),
    "half a verdict": (lambda p: [*p[:-1], b"who"], OPEN),
    "nothing else": (lambda p: p[-1:], OPEN),
}


@pytest.mark.parametrize("kind", MEDDLED)
def test_an_unsigned_body_is_the_fault_of_who_sent_it(
    kind: str, vectors: list[RingVector]
) -> None:
    meddle, says = MEDDLED[kind]
    halves = submissions_of(LARGE, vectors[:1])

    def play(role: Role, link: PeerLink) -> None:
        (mine,) = map(masked, halves[role].values())
        if role is A:
            list(receive(link, STEP, mine, DIMENSION))
            return
        assert mine.body is not None
        body = [bytes(piece) for piece in mine.body.pieces()]
        *pieces, last = meddle([mine.body.prefix.reveal(), *body, b"w"])
        for piece in pieces:
            link.send_piece(STEP, piece, last=False)
        link.send_piece(STEP, last, last=True)

    with pytest.raises(PeerViolation, match=says):
        play_both(play, task=LARGE.digest)


def spoil(halves: Halves, client: ClientId, *after: int) -> Role:
    """Its body goes bad, wherever it is, after some bytes, at each reading in turn.

    There.
    """
    (role,) = (role for role in SERVERS if halves[role][client].body is not None)
    whole = halves[role][client].body
    assert whole is not None
    readings = iter(after)

    def pieces() -> Iterator[bytes | memoryview]:
        left = next(readings, DIMENSION * 8)
        for piece in whole.pieces():
            if left:
                yield piece[:left]
            left -= len(piece[:left])
            if left == 0:
                raise BodyUnreadable("meddled with")

    spoilt = SimpleNamespace(prefix=whole.prefix, pieces=pieces, discard=lambda: None)
    halves[role][client] = replace(halves[role][client], body=cast("Body", spoilt))
    return role


@EITHER_CHECK
@pytest.mark.parametrize(
    "later", [0, 2 * CHUNK_BYTES], ids=["still", "and further then"]
)
@pytest.mark.parametrize("after", [0, CHUNK_BYTES, 2 * CHUNK_BYTES])
def test_a_body_that_can_not_be_read_again_costs_that_client_alone(
    after: int, later: int, either: Task, vectors: list[RingVector]
) -> None:
    halves = submissions_of(either, vectors)
    first, second, third = halves[B]
    spoil(halves, second, after, max(after, later))
    both = parts.aggregate_both(either, halves)
    for summed in both:
        assert summed.counted.valid == (first, third)
        assert summed.counted.rejections == {second: Rejection.TRUNCATED}
    assert parts.summed_up(either, both) == (vectors[0] + vectors[2]).tolist()


@EITHER_CHECK
def test_a_body_stuck_in_the_sum_ends_the_attempt(
    either: Task, vectors: list[RingVector]
) -> None:
    """Never a sum with a piece of somebody who doesn't count."""
    halves = submissions_of(either, vectors)
    _, second, _ = halves[B]
    spoilt = spoil(halves, second, 2 * CHUNK_BYTES, CHUNK_BYTES)
    part, errors = parts.aggregation(either, halves), dict[Role, str]()

    def play(role: Role, link: PeerLink) -> None:
        try:
            part(role, link)
        except PeerUnavailable as error:
            errors[role] = str(error)

    play_both(play, task=either.digest)
    assert "taken out of the sum" in errors.pop(spoilt)
    assert ["hung up" in error for error in errors.values()] == [True]


@EITHER_CHECK
def test_the_uncounted_are_checked_and_not_summed(
    either: Task, vectors: list[RingVector]
) -> None:
    too_long = vectors[1].copy()
    too_long[0] = 2**40
    halves = submissions_of(either, [vectors[0], too_long, vectors[2]])
    first, second, _ = halves[A]
    both = parts.aggregate_both(either, halves, 0, {first, second})
    for summed in both:
        assert summed.counted.valid == (first,)
        assert summed.counted.rejections == {second: Rejection.NORM_EXCEEDED}
    assert parts.summed_up(either, both) == vectors[0].tolist()
