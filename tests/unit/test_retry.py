"""Trying again: waits grow, and whatever the total is, the last wait ends with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.rig.clock import LeapingClock
from tests.rig.keys import verifier

from precad.common.aggregator.collect import Inbox
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.retry import Patience, Waits
from precad.common.task import Task
from precad.common.wire.patience import call_patiently

GONE = PeerUnavailable("gone")


class Clock(LeapingClock):
    """Whose conditions nobody ever notifies, and whose jitter is its longest."""

    def jitter(self) -> float:
        return 1.5

    def condition(self) -> Any:
        return _Alone(self)


class _Alone:
    """A condition that nobody ever notifies."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __enter__(self) -> None:
        """Nobody else is there."""

    def __exit__(self, *_error: object) -> None:
        """Nobody waits."""

    def notify_all(self) -> None:
        """Nobody waits."""

    def wait(self, timeout: float) -> bool:
        self._clock.sleep(timeout)
        return False


@pytest.fixture
def clock() -> Clock:
    return Clock()


def give_up(patience: Patience) -> None:
    while patience.remaining() > 0:
        patience.wait(GONE)
    with pytest.raises(PeerUnavailable, match="gone"):
        patience.wait(GONE)


def test_waits_grow_and_the_last_one_is_cut_to_the_total(clock: Clock) -> None:
    give_up(Patience(10, Waits(1, 3), clock))
    assert clock.slept == [1, 2, 3, 3, 1]
    assert clock.time == 1010


def test_spread_waits_are_cut_too(clock: Clock) -> None:
    give_up(Patience(10, Waits(2, 4, spread=True), clock))
    assert clock.slept == [3, 6, 1]


@pytest.mark.parametrize(("from_now", "left"), [(True, 6), (False, 10)])
def test_the_total_counts_from_the_first_failure_or_from_now(
    clock: Clock, *, from_now: bool, left: float
) -> None:
    patience = Patience(10, Waits(20, 20), clock, counted_from_now=from_now)
    clock.time += 4
    assert patience.remaining() == left
    give_up(patience)
    assert clock.slept == [left]


def test_what_worked_makes_the_next_failure_a_first_one(clock: Clock) -> None:
    patience = Patience(10, Waits(1, 8), clock)
    for _ in range(3):
        patience.wait(GONE)
    patience.renew()
    clock.time += 100
    give_up(patience)
    assert clock.slept == [1, 2, 4, 1, 2, 4, 3]


class _Unreachable(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE


def test_a_patient_call_is_never_given_more_than_what_is_left(clock: Clock) -> None:
    given = []

    def call(timeout_s: float) -> None:
        given.append(round(timeout_s, 6))
        clock.time += 1
        raise _Unreachable

    with pytest.raises(_Unreachable):
        call_patiently(call, 3.0, clock)
    assert given == [3.0, 1.8, 0.6]


def test_waiting_for_submissions_ends_at_the_deadline_and_not_later(
    clock: Clock, make_task: Callable[..., Task], tmp_path: Path
) -> None:
    inbox = Inbox(Role.SERVER_A, make_task(), verifier(), tmp_path, clock)
    names = [ClientId("ward-1"), ClientId("ward-2")]
    inbox.open(3, names, Digest(b"\2" * 32), version=3)
    inbox.wait(names, clock.time + 1.1)
    assert clock.time == pytest.approx(1001.1, abs=1e-9)
