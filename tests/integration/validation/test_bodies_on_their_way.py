"""A matched body on its way from B to A: lost, changed, unreadable, or in the sum by mistake."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.integration.validation import conftest as parts
from tests.rig.aggregators import SERVERS, Halves, submissions_of
from tests.rig.parties import play_both
from tests.rig.submissions import flipped, masked

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.validate.check_with_dealer import receive
from precad.common.errors import BodyUnreadable, PeerUnavailable, PeerViolation, Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.ring import RingVector
from precad.common.share.submission import PIECE_BYTES
from precad.common.task import Task

A, B = SERVERS
DIMENSION = PIECE_BYTES // 8 * 2 + 65
"""Two whole pieces and one more."""
STEP = "body/test"
TASK = parts.task_of(DIMENSION)
EITHER_CHECK = pytest.mark.parametrize(
    "either", [TASK, parts.with_proofs(TASK)], ids=["share", "proof"]
)


@pytest.fixture
def vectors(rng: np.random.Generator) -> list[RingVector]:
    return [rng.integers(-100, 100, DIMENSION) for _ in range(3)]


Meddle = Callable[[list[bytes]], list[bytes]]


UNSIGNED, UNEVEN = "isn't what its client signed", "pieces aren't as long"
OPEN = "without a verdict"
MEDDLED: dict[str, tuple[Meddle, str]] = {
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
def test_an_unsigned_body_is_the_fault_of_who_sent_it(kind: str, vectors: list[RingVector]) -> None:
    meddle, says = MEDDLED[kind]
    halves = submissions_of(TASK, vectors[:1])

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
        play_both(play, task=TASK.digest)


def spoil(halves: Halves, client: ClientId, *after: int) -> Role:
    """Its body goes bad, wherever it is, after some bytes, at each reading in turn. There."""
    (role,) = (role for role in SERVERS if halves[role][client].body is not None)
    whole: Any = halves[role][client].body
    readings = iter(after)

    def pieces() -> Iterator[bytes | memoryview]:
        left = next(readings, DIMENSION * 8)
        for piece in whole.pieces():
            if left:
                yield piece[:left]
            left -= len(piece[:left])
            if left == 0:
                raise BodyUnreadable("meddled with")

    spoilt: Any = SimpleNamespace(prefix=whole.prefix, pieces=pieces, discard=lambda: None)
    halves[role][client] = replace(halves[role][client], body=spoilt)
    return role


@EITHER_CHECK
@pytest.mark.parametrize("later", [0, 2 * PIECE_BYTES], ids=["still", "and further then"])
@pytest.mark.parametrize("after", [0, PIECE_BYTES, 2 * PIECE_BYTES])
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
def test_a_body_stuck_in_the_sum_ends_the_attempt(either: Task, vectors: list[RingVector]) -> None:
    """Never a sum with a piece of somebody who doesn't count."""
    halves = submissions_of(either, vectors)
    _, second, _ = halves[B]
    spoilt = spoil(halves, second, 2 * PIECE_BYTES, PIECE_BYTES)
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
def test_the_uncounted_are_checked_and_not_summed(either: Task, vectors: list[RingVector]) -> None:
    too_long = vectors[1].copy()
    too_long[0] = 2**40
    halves = submissions_of(either, [vectors[0], too_long, vectors[2]])
    first, second, _ = halves[A]
    both = parts.aggregate_both(either, halves, 0, {first, second})
    for summed in both:
        assert summed.counted.valid == (first,)
        assert summed.counted.rejections == {second: Rejection.NORM_EXCEEDED}
    assert parts.summed_up(either, both) == vectors[0].tolist()
