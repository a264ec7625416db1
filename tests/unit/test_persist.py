"""How long a server tries to get back to the other one and to the dealer."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from precad.common.aggregator.service import training
from precad.common.aggregator.service.session import Session
from precad.common.errors import PeerUnavailable, PeerViolation

OUTAGE_S = 10.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(training, "time", clock)
    return clock


@pytest.fixture
def session() -> Session:
    task = SimpleNamespace(deadlines=SimpleNamespace(outage=OUTAGE_S))
    return cast("Session", SimpleNamespace(task=task, contacts=0, error=""))


def failing(*attempts: Callable[[], Any]) -> Callable[[], None]:
    """An attempt that does these one after the other, and fails after each but the last."""
    left = list(attempts)

    def attempt() -> None:
        left.pop(0)()
        if left:
            raise PeerUnavailable("gone")

    return attempt


def test_it_tries_again_with_growing_waits_and_ends_when_it_works(
    clock: Clock, session: Session
) -> None:
    training.persist(session, failing(*[lambda: None] * 5))
    assert clock.slept == [0.2, 0.4, 0.8, 1.6]
    assert session.error == ""


def test_it_gives_up_after_an_outage(clock: Clock, session: Session) -> None:
    with pytest.raises(PeerUnavailable):
        training.persist(session, failing(*[lambda: None] * 100))
    assert OUTAGE_S < clock.now - 1000.0 < OUTAGE_S + 2 * training.LONGEST_WAIT_S
    assert "trying again" in session.error


def test_a_round_longer_than_the_outage_is_none(clock: Clock, session: Session) -> None:
    """Heard from, then hours of collecting, then the link breaks: that isn't hours of outage."""

    def play() -> None:
        session.contacts += 1
        clock.now += 100 * OUTAGE_S

    training.persist(session, failing(play, lambda: None, play, lambda: None, lambda: None))
    assert session.error == ""
    assert clock.slept == [0.2, 0.4, 0.2, 0.4]


def test_an_attempt_that_hears_nobody_counts_in_full(clock: Clock, session: Session) -> None:
    def wait() -> None:
        clock.now += OUTAGE_S * 0.6

    with pytest.raises(PeerUnavailable):
        training.persist(session, failing(*[wait] * 4))


def test_what_trying_again_cannot_mend_ends_it_at_once(clock: Clock, session: Session) -> None:
    def differ() -> None:
        raise PeerViolation("the servers' trainings differ")

    with pytest.raises(PeerViolation):
        training.persist(session, differ)
    assert clock.slept == []
