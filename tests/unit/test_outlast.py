"""`precad join --wait`: an owner that is started once outlasts planned stops."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.rig.clock import LeapingClock

from precad.client.outlast import outlast
from precad.client.participant import Participation
from precad.common.errors import Misidentified, PeerUnavailable, TaskMismatch

HOUR_S = 3600.0
A_ROUND: Any = object()


class Stopping:
    """Servers that are away again and again: each try takes `outage_s`, then fails, or not."""

    def __init__(self, clock: LeapingClock, *tries: Exception | str) -> None:
        self.clock, self.tries, self.count = clock, list(tries), 0

    def __call__(self, on_round: Callable[[Any], object]) -> Participation:
        self.count += 1
        self.clock.time += 600
        match self.tries.pop(0):
            case Exception() as error:
                raise error
            case "a round, then away":
                on_round(A_ROUND)
                raise PeerUnavailable("away")
        return Participation(ended="finished")


def test_it_takes_part_again_until_the_training_is_over() -> None:
    clock = LeapingClock()
    run = Stopping(clock, *[PeerUnavailable("away")] * 5, "over")
    assert outlast(run, 10 * HOUR_S, clock=clock).ended == "finished"
    assert run.count == 6


def test_it_gives_up_after_what_it_was_told_to_wait() -> None:
    clock = LeapingClock()
    run = Stopping(clock, *[PeerUnavailable("away")] * 100)
    with pytest.raises(PeerUnavailable, match="away"):
        outlast(run, HOUR_S, clock=clock)
    assert HOUR_S <= clock.time - clock.start < 2 * HOUR_S


def test_each_round_that_is_seen_begins_the_wait_anew() -> None:
    clock = LeapingClock()
    told: list[Any] = []
    away = [PeerUnavailable("away")] * 4
    run = Stopping(clock, *away, "a round, then away", *away, "over")
    assert outlast(run, HOUR_S, told.append, clock).ended == "finished"
    assert told == [A_ROUND]
    assert clock.time - clock.start > HOUR_S


@pytest.mark.parametrize("error", [Misidentified("another"), TaskMismatch("aa", "bb")])
def test_what_waiting_does_not_mend_ends_it_at_once(error: Exception) -> None:
    clock = LeapingClock()
    with pytest.raises(type(error)):
        outlast(Stopping(clock, error), HOUR_S, clock=clock)
    assert clock.slept == []
