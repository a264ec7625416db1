"""One server departs from the protocol of proofs, the other doesn't (docs/cheating-server.md).

Whatever it does, everything that the honest server sends before its noisy share it could have
computed itself, and it ends in a named fault or a refused submission. Its words can be computed
from the wires, which are uniform: value and zero follow from the cheater's own, true words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.integration.validation.conftest import aggregator_of, task_of, with_proofs
from tests.rig.aggregators import MODEL, OPENINGS, SERVERS, Halves, submissions_of
from tests.rig.norm_check import UNCHECKED
from tests.rig.parties import opened, play_both

from precad.aggregator.peer_link import Frame, PeerLink
from precad.aggregator.release import aggregate
from precad.aggregator.rounds.states import Matched, Summed
from precad.aggregator.validate.check_by_proof import ByProof, shape_of, words_bytes
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.kernel import Rows
from precad.common.prime_field import FieldVector, arithmetic, of_signed
from precad.common.proof_shape import P
from precad.common.ring import RingVector, encode_context
from precad.common.share.proof_submission import ForProof, ProofSubmission
from precad.common.share.submission import SubmissionContext
from precad.common.task import Task
from precad.norm_check.norm_proof import (
    ProofShare,
    ProofWords,
    Query,
    answer,
    bit_challenges,
    bits_of,
    share_with_proof,
)

A, B = SERVERS
COIN, WORDS = "proof-coin/0", "proof/0"
Change = Callable[[bytes], bytes]


@pytest.fixture
def task() -> Task:
    return with_proofs(task_of(64, client_clip=30.1))


def updates(task: Task) -> list[RingVector]:
    """Two candidates for the first client's update, both within the bound; and another client's."""
    one = np.zeros(task.dimension, dtype=np.int64)
    other = np.full(task.dimension, task.bound // 16, dtype=np.int64)
    other[0] = -(task.bound // 2)
    return [one, other, np.ones(task.dimension, dtype=np.int64)]


@dataclass(frozen=True)
class Cheat:
    """What a server sends in place of the messages of a step."""

    step: str = ""
    change: Change = lambda data: data


class Wire:
    """A transport whose owner's messages are changed, or seen."""

    def __init__(self, end: Any, cheat: Cheat | None) -> None:
        self._end, self._cheat = end, cheat
        self.sent: list[tuple[str, bytes]] = []

    def put(self, frame: Frame) -> None:
        payload, cheat = bytes(frame.payload), self._cheat
        self.sent.append((frame.step, payload))
        if cheat is not None and cheat.step == frame.step:
            payload = cheat.change(payload)
        said = Frame(frame.task, frame.attempt, frame.step, frame.sequence, payload, frame.last)
        self._end.put(said)

    def get(self, timeout_s: float) -> Frame:
        return cast("Frame", self._end.get(timeout_s))

    def require_alive(self) -> None:
        self._end.require_alive()


@dataclass
class Played:
    """How it ended for the honest server, and what both put on the wire."""

    summed: Summed | None
    error: Exception | None
    honest: list[tuple[str, bytes]]
    cheater: list[tuple[str, bytes]]
    """What it would have said, before it changed it."""


def play(task: Task, halves: Halves, cheater: Role, cheat: Cheat) -> Played:
    wires: dict[Role, Wire] = {}

    def at(role: Role, link: PeerLink) -> Summed | Exception:
        wire = wires[role] = Wire(link._transport, cheat if role is cheater else None)
        link._transport = wire
        link.begin_attempt(0)
        matched = Matched(opened(0, halves[role]), halves[role], {})
        try:
            return aggregate(aggregator_of(task, role, link, None), matched)
        except Exception as error:  # noqa: BLE001 -- looked at below
            return error

    honest = B if cheater is A else A
    outcomes = dict(zip(SERVERS, play_both(at, task=task.digest), strict=True))
    found = outcomes[honest]
    return Played(
        found if isinstance(found, Summed) else None,
        found if isinstance(found, Exception) else None,
        wires[honest].sent,
        wires[cheater].sent,
    )


def messages(sent: Sequence[tuple[str, bytes]], step: str) -> list[bytes]:
    return [payload for named, payload in sent if named == step]


def words_in(data: bytes, task: Task) -> list[ProofWords]:
    size, columns = words_bytes(shape_of(task)), shape_of(task).columns
    found = []
    for start in range(0, len(data), size):
        assert data[start : start + 1] == b"w"
        words = np.frombuffer(data[start + 1 : start + size], dtype="<u8").astype(np.uint64)
        found.append(ProofWords(words[:columns], int(words[-2]), int(words[-1])))
    return found


def require_nothing_new(task: Task, halves: Halves, cheater: Role, played: Played) -> None:
    """What the honest server said of its words follows from what the cheater truly holds.

    The coin is that of both servers' words as they crossed; the cheater's true words are computed
    from its own halves at the honest server's query.
    """
    sent = messages(played.honest, WORDS)
    if not sent:
        return
    coins = messages(played.honest, COIN)
    assert len(coins) == (2 if cheater is B else 1)
    said = words_in(sent[0], task)
    honest = B if cheater is A else A
    digests = [each.header.whole_digest for each in halves[honest].values()]
    batch = Digest.of(encode_context("proof-batch", *(each.value for each in digests)))
    coin = coin_of(played, cheater, batch)
    truth = [
        answered(task, cheater, half, Query.drawn(shape_of(task), coin, digest))
        for half, digest in zip(halves[cheater].values(), digests, strict=True)
    ]
    assert all(follows(one, other) for one, other in zip(said, truth, strict=True))


def coin_of(played: Played, cheater: Role, batch: Digest) -> Secret:
    honest, theirs = messages(played.honest, COIN), messages(played.cheater, COIN)
    of_a, of_b = (theirs[1], honest[0]) if cheater is A else (honest[1], theirs[0])
    joint = encode_context("proof-joint-coin", of_a, of_b, batch.value)
    return Secret(Digest.of(joint).value)


def answered(task: Task, role: Role, half: Any, query: Query) -> ProofWords:
    server = cast("Any", SimpleNamespace(task=task, role=role, link=None))
    words = ByProof(server, 0, ())._answer(half, query)
    assert words is not None
    return words


def follows(honest: ProofWords, own: ProofWords) -> bool:
    wires = arithmetic().add(honest.wires, own.wires)
    value = (arithmetic().dot(wires, wires) - own.value) % P
    return (honest.value, honest.zero) == (value, -own.zero % P)


def at_word(place: int, change: Callable[[int], int]) -> Change:
    """One word of the first submission's otherwise; −2 is the value, −1 the zero."""

    def changed(data: bytes) -> bytes:
        size = WIDTH
        words = np.frombuffer(data[1:size], dtype="<u8").copy()
        words[place] = np.uint64(change(int(words[place])))
        return data[:1] + words.tobytes() + data[size:]

    return changed


WIDTH = words_bytes(shape_of(with_proofs(task_of(64, client_clip=30.1))))
REFUSED: dict[str, Change] = {
    "a wire": at_word(0, lambda word: (word + 1) % P),
    "the last wire": at_word(-3, lambda word: (word + P // 2) % P),
    "the value": at_word(-2, lambda word: (word + 1) % P),
    "the zero": at_word(-1, lambda word: (word + 1) % P),
    "all zeros": lambda data: data[:1] + bytes(WIDTH - 1) + data[WIDTH:],
}


@pytest.mark.parametrize("cheater", SERVERS)
@pytest.mark.parametrize("candidate", [0, 1])
@pytest.mark.parametrize("lie", ["none", *REFUSED])
def test_a_server_hears_what_it_could_have_computed_whether_its_words_lie_or_not(
    task: Task, cheater: Role, candidate: int, lie: str
) -> None:
    every = updates(task)
    halves = submissions_of(task, [every[candidate], every[2]])
    cheat = Cheat(WORDS, REFUSED[lie]) if lie in REFUSED else Cheat()
    played = play(task, halves, cheater, cheat)
    require_nothing_new(task, halves, cheater, played)
    if lie in REFUSED:
        # The cheater itself takes the first for valid: the sets differ, and nothing leaves.
        assert isinstance(played.error, PeerViolation | PeerUnavailable)
    else:
        assert played.summed is not None
        assert played.summed.counted.rejections == {}


def proved(task: Task, x: RingVector) -> tuple[ProofSubmission, ProofSubmission]:
    context = SubmissionContext(task.digest, 0, 0, ClientId("victim"), MODEL)
    return share_with_proof(x, shape_of(task), context, ForProof(OPENINGS, A), UNCHECKED)


def told_apart(
    task: Task,
    pair: tuple[ProofSubmission, ProofSubmission],
    queries: tuple[Query, Query],
    candidates: Sequence[RingVector],
) -> list[bool]:
    """Which candidates fit what A and B answered at both points: the masking row falls out."""
    shape, math, header = shape_of(task), arithmetic(), pair[0].header
    opened = [
        math.add(*(answered(task, each.role, each, query).wires for each in pair))
        for query in queries
    ]
    found = []
    for x in candidates:
        rows = Rows(header.rows_key, shape.dimension, shape.rows)
        rows.absorb(x)
        words, mu = of_signed(x), bit_challenges(shape, header.bits_key)
        bits = bits_of(shape, rows.z(), math.dot(words, words))

        def plain(query: Query, words: FieldVector = words, bits: FieldVector = bits,
                  mu: FieldVector = mu) -> FieldVector:  # fmt: skip
            none = np.zeros(max(shape.columns, shape.values, shape.rows), dtype=np.uint64)
            share = ProofShare(
                bits, none[: shape.columns], none[: shape.values], none[: shape.rows],
                holds_constants=False,
            )  # fmt: skip
            return answer(query, iter([words]), lambda: share, mu).wires

        # f(t) less the candidate's inputs is the masking row times its weight, at both points.
        masks = [math.subtract(f, plain(q)) for f, q in zip(opened, queries, strict=True)]
        scaled = [
            math.multiply(mask, np.full_like(mask, other.wires[0]))
            for mask, other in zip(masks, reversed(queries), strict=True)
        ]
        found.append(bool((scaled[0] == scaled[1]).all()))
    return found


@pytest.mark.parametrize("truth", [0, 1])
def test_two_answers_at_different_points_would_tell_candidates_apart(
    task: Task, truth: int
) -> None:
    """Hence one answer a header: this is what a bad server would do with a second one."""
    candidates = updates(task)[:2]
    pair = proved(task, candidates[truth])
    digest = pair[0].header.whole_digest
    one, other = (Query.drawn(shape_of(task), Secret.random(), digest) for _ in range(2))
    assert told_apart(task, pair, (one, other), candidates) == [truth == 0, truth == 1]
    # One point alone fits everybody: u is fresh and its weight isn't 0.
    assert told_apart(task, pair, (one, one), candidates) == [True, True]
