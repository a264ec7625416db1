"""Settling a round: the servers go on only with one valid set, of one round."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from precad.common.aggregator.release.aggregate import aggregate
from precad.common.aggregator.round.aggregator import Aggregator
from precad.common.aggregator.round.states import Matched, Opened, Summed
from precad.common.errors import PeerViolation
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.link import PeerLink, memory_pair
from precad.common.secret import Secret
from precad.common.task import Task

MODEL = Digest(b"\1" * 32)


@pytest.fixture
def pair(make_task: Callable[..., Task]) -> list[Aggregator]:
    task = make_task()
    unused: Any = None
    return [
        Aggregator(
            task=task,
            role=role,
            roster=unused,
            link=PeerLink(end, task.digest, max_message_bytes=1 << 20, timeout_s=60),
            dealing=unused,
            dealer_key=unused,
            set_secret=Secret(bytes(32)),
            nonces=bytes(64),
            seals=unused,
            coin_key=unused,
            noise=unused,
            journal=unused,
        )
        for role, end in zip((Role.SERVER_A, Role.SERVER_B), memory_pair(), strict=True)
    ]


def settled(pair: list[Aggregator], *numbers: int) -> list[Summed | PeerViolation]:
    """What each server makes of an empty round, under the number that it takes it for."""

    def play(aggregator: Aggregator, number: int) -> Summed | PeerViolation:
        opened = Opened(number, 3, (ClientId("c0"),), MODEL, frozenset())
        try:
            return aggregate(aggregator, Matched(opened, {}, {}))
        except PeerViolation as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(play, pair, numbers))


def test_servers_that_settle_one_round_agree_on_its_set(pair: list[Aggregator]) -> None:
    a, b = settled(pair, 7, 7)
    assert isinstance(a, Summed)
    assert isinstance(b, Summed)
    assert a.counted.valid_set == b.counted.valid_set


def test_the_same_clients_of_another_round_are_another_set(pair: list[Aggregator]) -> None:
    """Else a round's agreement, or its charge, would pass for the next one's."""
    for error in settled(pair, 7, 8):
        assert isinstance(error, PeerViolation)
        assert "'valid-set'" in str(error)
