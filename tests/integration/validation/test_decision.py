"""Deciding between parties that don't agree, or use randomness twice."""

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
from precad.common.task import TAU
from precad.dealer.dealer_role import DealerRole
from precad.norm_check.dealing import DealtRandomness

Bits = list[bool]
TASK = task_of(16)


@pytest.fixture
def dealer() -> DealerRole:
    return DealerRole.of(TASK)


def forgetful(dealer: DealerRole) -> DealerRole:
    """One that forgot what it dealt, so that only the servers notice."""
    keys = {role: dealer.key_for(role) for role in SERVERS}
    return DealerRole(TASK.digest, TASK.dimension, keys)


def words_of(role: Role, count: int = 2, *, row: int = 0, z: int = 0) -> list[RingVector]:
    """Shares of submissions whose projections are 0, but for one, and whose excess is −1."""
    values = np.zeros(TASK.projections + 1, dtype=np.int64)
    values[row], values[-1] = z, -1
    mask = np.full(values.size, 0x5DEECE66D1234567, dtype=np.int64)
    return [mask if role is Role.SERVER_A else values - mask] * count


def decided(
    role: Role, link: PeerLink, dealer: DealerRole, words: list[RingVector], **changed: Any
) -> Bits:
    """What this server decides; a test changes some of its things."""
    request = deal_request(TASK, 0, 0, len(words), bytes(64))
    corrections = dealer.corrections(role, request)
    randomness = DealtRandomness(role, dealer.key_for(role), request, corrections)
    given = {"link": link, "spent": MemorySpentTriples(), "label": "same", **changed}
    bits: Bits = decide(words, task=TASK, randomness=randomness, **given).tolist()
    return bits


def test_other_submissions_or_another_number_are_a_violation_and_no_wrong_verdict(
    dealer: DealerRole,
) -> None:
    def others(role: Role, link: PeerLink) -> Bits:
        return decided(role, link, dealer, words_of(role), label=role.value)

    def more(role: Role, link: PeerLink) -> Bits:
        words = words_of(role, 2 if role is Role.SERVER_A else 3)
        return decided(role, link, forgetful(dealer), words)

    for play, says in ((others, "out of step"), (more, "bytes, expected")):
        with pytest.raises(PeerViolation, match=says):
            play_both(play, task=TASK.digest)


def test_randomness_is_never_used_twice_and_nothing_is_opened_then(dealer: DealerRole) -> None:
    memories = {role: MemorySpentTriples() for role in SERVERS}
    sent: list[int] = []

    def play(role: Role, link: PeerLink) -> Bits:
        try:
            own = forgetful(dealer)
            return decided(role, link, own, words_of(role), spent=memories[role])
        finally:
            sent.append(link.bytes_sent)

    play_both(play, task=TASK.digest)
    with pytest.raises(PeerViolation, match="used before"):
        play_both(play, task=TASK.digest)
    assert min(sent[:2]) > 0
    assert sent[2:] == [0, 0]


def test_randomness_is_spent_before_the_first_opening(dealer: DealerRole) -> None:
    order: list[tuple[int, int, int]] = []

    def play(role: Role, link: PeerLink) -> Bits:
        class Spent:
            def spend(self, attempt: int, batch: int) -> None:
                order.append((attempt, batch, link.bytes_sent))

        return decided(role, link, dealer, words_of(role), spent=Spent())

    play_both(play, task=TASK.digest)
    assert order == [(0, 0, 0)] * 2


MOST = TAU * TASK.bound


@pytest.mark.parametrize(
    ("z", "passes"),
    [
        (MOST, True),
        (-MOST, True),
        (MOST + 1, False),
        (-MOST - 1, False),
        (2**62, False),
        (-(2**62), False),
        (2**63 - 1, False),
        (-(2**63), False),
    ],
    ids=["τβ", "−τβ", "τβ+1", "−τβ−1", "2^62", "−2^62", "2^63−1", "−2^63"],
)
@pytest.mark.parametrize("row", [0, 39])
def test_one_projection_outside_the_range_is_enough(
    row: int, z: int, *, passes: bool, dealer: DealerRole
) -> None:
    def play(role: Role, link: PeerLink) -> Bits:
        return decided(role, link, dealer, words_of(role, 1, row=row, z=z))

    assert play_both(play, task=TASK.digest) == ([passes], [passes])
