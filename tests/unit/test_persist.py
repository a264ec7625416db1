"""How long a server tries to get back to the other one and to the dealer."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.rig.clock import LeapingClock

from precad.common.aggregator.training.persist import persist
from precad.common.aggregator.training.session import Progress, Session
from precad.common.errors import PeerUnavailable, PeerViolation

OUTAGE_S = 10.0


@pytest.fixture
def clock() -> LeapingClock:
    return LeapingClock()


@pytest.fixture
def session(clock: LeapingClock) -> Session:
    task = SimpleNamespace(deadlines=SimpleNamespace(outage=OUTAGE_S))
    return cast("Session", SimpleNamespace(task=task, progress=Progress(), clock=clock))


def failing(*attempts: Callable[[], Any]) -> Callable[[], None]:
    """An attempt that does these one after the other, and fails after each but the last."""
    left = list(attempts)

    def attempt() -> None:
        left.pop(0)()
        if left:
            raise PeerUnavailable("gone")

    return attempt


def test_it_tries_again_with_growing_waits_and_ends_when_it_works(
    clock: LeapingClock, session: Session
) -> None:
    persist(session, failing(*[lambda: None] * 5))
    assert clock.slept == [0.2, 0.4, 0.8, 1.6]
    assert session.progress.error == ""


def test_it_gives_up_after_an_outage(clock: LeapingClock, session: Session) -> None:
    with pytest.raises(PeerUnavailable):
        persist(session, failing(*[lambda: None] * 100))
    # The last wait is cut to what is left.
    assert clock.now() - clock.start == pytest.approx(OUTAGE_S)
    assert "trying again" in session.progress.error


def fails(why: str) -> Callable[[], None]:
    def attempt() -> None:
        raise PeerUnavailable(why)

    return attempt


def one_by_one(attempts: list[Callable[[], None]]) -> Callable[[], None]:
    def attempt() -> None:
        attempts.pop(0)()

    return attempt


def test_whoever_gives_up_says_what_failed_since_both_were_heard_from(
    clock: LeapingClock, session: Session
) -> None:
    """The dealer is gone, and the last try met a server B that was between two of its own."""

    def play() -> None:
        session.progress.contacts += 1
        raise PeerUnavailable("the link broke an hour ago")

    def lasts() -> None:
        # As long as the outage may: nothing follows it.
        clock.time += 2 * OUTAGE_S
        raise PeerUnavailable("B sent nothing")

    said = ["the dealer is gone", "B sent nothing", "the dealer is gone"]
    attempts = [fails("gone for ever"), play, *map(fails, said), lasts]
    with pytest.raises(PeerUnavailable) as gave_up:
        persist(session, one_by_one(attempts))
    assert attempts == []
    assert str(gave_up.value) == (
        "B sent nothing (earlier in this outage: the dealer is gone; the link broke an hour ago)"
    )
    # A status page says what a log says.
    assert session.progress.error == f"{gave_up.value}; trying again"


def test_an_outage_of_ever_other_words_is_told_by_its_newest_five(session: Session) -> None:
    """Words may hold a port or a time: a day of them is no line for a log."""
    attempts = [fails(f"failure {n}") for n in range(8)]
    with pytest.raises(PeerUnavailable) as gave_up:
        persist(session, one_by_one(attempts))
    assert attempts == []
    assert str(gave_up.value) == (
        "failure 7 (earlier in this outage: failure 6; failure 5; failure 4; failure 3)"
    )


def test_a_round_longer_than_the_outage_is_none(clock: LeapingClock, session: Session) -> None:
    """Heard from, then hours of collecting, then the link breaks: that isn't hours of outage."""

    def play() -> None:
        session.progress.contacts += 1
        clock.time += 100 * OUTAGE_S

    persist(session, failing(play, lambda: None, play, lambda: None, lambda: None))
    assert session.progress.error == ""
    assert clock.slept == [0.2, 0.4, 0.2, 0.4]


def test_whoever_comes_back_is_said_to_be_back_and_after_how_long(
    clock: LeapingClock, session: Session
) -> None:
    """The first contact is no return; a return after several tries counts from the first loss."""
    away: list[float | None] = []

    def play() -> None:
        away.append(session.progress.heard_from_peers(clock.now()))

    def wait() -> None:
        clock.time += 3.0

    persist(session, failing(play, wait, play, lambda: None))
    assert away == [None, pytest.approx(0.2 + 3.0 + 0.4)]
    assert session.progress.error == ""


def test_an_attempt_that_hears_nobody_counts_in_full(clock: LeapingClock, session: Session) -> None:
    def wait() -> None:
        clock.time += OUTAGE_S * 0.6

    with pytest.raises(PeerUnavailable):
        persist(session, failing(*[wait] * 4))


def test_what_trying_again_cannot_mend_ends_it_at_once(
    clock: LeapingClock, session: Session
) -> None:
    def differ() -> None:
        raise PeerViolation("the servers' trainings differ")

    with pytest.raises(PeerViolation):
        persist(session, differ)
    assert clock.slept == []
