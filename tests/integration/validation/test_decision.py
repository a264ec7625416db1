"""Deciding between parties that don't agree, or use randomness twice."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.integration.validation.conftest import task_of
from tests.rig.aggregators import SERVERS, MemorySpentTriples
from tests.rig.parties import play_both

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.validate.crypten_comparisons import decide
from precad.aggregator.validate.validation import deal_request
from precad.common.errors import PeerViolation
from precad.common.identifiers import Role
from precad.common.ring import RingVector
from precad.common.task import TAU, Task
from precad.dealer.dealer_role import DealerRole
from precad.norm_check.dealing import DealRequest, DealtRandomness, SpentTriples

DIMENSION = 16
NONCES = bytes(64)
Bits = list[bool]


@pytest.fixture
def task() -> Task:
    return task_of(DIMENSION)


@pytest.fixture
def dealer(task: Task) -> DealerRole:
    return DealerRole(task.digest, task.dimension)


class Server:
    """Calls ``decide`` with this server's things; a test changes some of them."""

    def __init__(self, task: Task, dealer: DealerRole) -> None:
        self.task = task
        self.dealer = dealer

    def randomness(self, role: Role, request: DealRequest) -> DealtRandomness:
        corrections = self.dealer.corrections(role, request)
        return DealtRandomness(role, self.dealer.key_for(role), request, corrections)

    def forgetful(self) -> "Server":
        """With a dealer that forgot what it dealt, so that only the servers notice."""
        keys = {role: self.dealer.key_for(role) for role in SERVERS}
        return Server(self.task, DealerRole(self.task.digest, self.task.dimension, keys))

    def decide(self, role: Role, link: PeerLink, words: list[RingVector], **changed: Any) -> Bits:
        arguments = {
            "task": self.task,
            "link": link,
            "spent": MemorySpentTriples(),
            "label": "same",
            **changed,
        }
        if "randomness" not in arguments:
            request = deal_request(self.task, 0, 0, len(words), NONCES)
            arguments["randomness"] = self.randomness(role, request)
        bits: Bits = decide(words, **arguments).tolist()
        return bits


@pytest.fixture
def server(task: Task, dealer: DealerRole) -> Server:
    return Server(task, dealer)


def words_of(
    task: Task, role: Role, count: int = 2, *, row: int = 0, z: int = 0, y: int = -1
) -> list[RingVector]:
    """Shares of submissions whose projections are 0, but for one, and whose excess is ``y``."""
    values = np.zeros(task.projections + 1, dtype=np.int64)
    values[row], values[-1] = z, y
    mask = np.full(values.size, 0x5DEECE66D1234567, dtype=np.int64)
    return [mask if role is Role.SERVER_A else values - mask] * count


def decide_with(server: Server, **changed: Callable[[Role], Any]) -> tuple[Bits, Bits]:
    """Both servers' verdicts on two submissions, where each role's things are as given."""
    task = server.task

    def play(role: Role, link: PeerLink) -> Bits:
        arguments = {name: make(role) for name, make in changed.items()}
        words = words_of(task, role, arguments.pop("count", 2))
        return server.decide(role, link, words, **arguments)

    return play_both(play, task=task.digest)


def test_other_submissions_or_another_number_are_a_violation_and_no_wrong_verdict(
    server: Server, task: Task
) -> None:
    with pytest.raises(PeerViolation, match="out of step"):
        decide_with(server, label=lambda role: role.value)

    def count(role: Role) -> int:
        return 2 if role is Role.SERVER_A else 3

    def dealt(role: Role) -> DealtRandomness:
        return server.forgetful().randomness(role, deal_request(task, 0, 0, count(role), NONCES))

    with pytest.raises(PeerViolation, match="bytes, expected"):
        decide_with(server, count=count, randomness=dealt)


def test_randomness_is_never_used_twice_and_nothing_is_opened_then(
    server: Server, task: Task
) -> None:
    memories: dict[Role, SpentTriples] = {role: MemorySpentTriples() for role in SERVERS}
    sent: list[int] = []

    def play(role: Role, link: PeerLink) -> Bits:
        dealt = server.forgetful().randomness(role, deal_request(task, 0, 0, 2, NONCES))
        try:
            return server.decide(
                role, link, words_of(task, role), spent=memories[role], randomness=dealt
            )
        finally:
            sent.append(link.bytes_sent)

    play_both(play, task=task.digest)
    with pytest.raises(PeerViolation, match="used before"):
        play_both(play, task=task.digest)
    assert min(sent[:2]) > 0
    assert sent[2:] == [0, 0]


def test_randomness_is_spent_before_the_first_opening(server: Server, task: Task) -> None:
    order: list[str] = []

    def play(role: Role, link: PeerLink) -> Bits:
        class Spent:
            def spend(self, attempt: int, batch: int) -> None:
                assert (attempt, batch) == (0, 0)
                order.append(f"spent, {link.bytes_sent} bytes sent")

        return server.decide(role, link, words_of(task, role), spent=Spent())

    play_both(play, task=task.digest)
    assert order == ["spent, 0 bytes sent"] * 2


@pytest.mark.parametrize(
    ("projection", "passes"),
    [
        (lambda half_width: half_width, True),
        (lambda half_width: -half_width, True),
        (lambda half_width: half_width + 1, False),
        (lambda half_width: -half_width - 1, False),
        (lambda _: 2**62, False),
        (lambda _: -(2**62), False),
        (lambda _: 2**63 - 1, False),
        (lambda _: -(2**63), False),
    ],
    ids=["τβ", "−τβ", "τβ+1", "−τβ−1", "2^62", "−2^62", "2^63−1", "−2^63"],
)
@pytest.mark.parametrize("row", [0, 39])
def test_one_projection_outside_the_range_is_enough(
    row: int, projection: Callable[[int], int], *, passes: bool, server: Server, task: Task
) -> None:
    z = projection(TAU * task.bound)

    def play(role: Role, link: PeerLink) -> Bits:
        return server.decide(role, link, words_of(task, role, 1, row=row, z=z))

    assert play_both(play, task=task.digest) == ([passes], [passes])
