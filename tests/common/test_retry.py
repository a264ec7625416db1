"""Trying again: how long, how often, and what is said when it is given up."""

import errno
import socket
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import grpc
import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from tests.rig.clock import LeapingClock, LonelyClock

from precad.aggregator.store.transaction import START_S, wait_for_database
from precad.aggregator.training.session import Progress, Session
from precad.aggregator.training.training_loop import persist
from precad.cli.start import TRY_AGAIN, said
from precad.common.clock import Retries, RetryPolicy
from precad.common.errors import (
    MayPass,
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    StorageFailure,
)
from precad.common.process_settings import LISTEN_S, wait_for_address
from precad.common.wire.calls import call_with_retries

GONE = PeerUnavailable("gone")


@pytest.fixture
def lonely() -> LonelyClock:
    """Whose jitter is its longest."""
    clock = LonelyClock()
    clock.jitter = lambda: 1.5  # type: ignore[method-assign]
    return clock


def give_up(retries: Retries) -> None:
    while retries.remaining() > 0:
        retries.wait(GONE)
    with pytest.raises(PeerUnavailable, match="gone"):
        retries.wait(GONE)


def test_waits_grow_to_the_total_and_begin_anew_after_what_worked(
    lonely: LonelyClock,
) -> None:
    retries = Retries(total_s=10, policy=RetryPolicy(1, 3), clock=lonely)
    for _ in range(3):
        retries.wait(GONE)
    retries.renew()
    lonely.time += 100
    give_up(retries)
    # The last one is cut.
    assert (lonely.slept, lonely.time) == ([1, 2, 3, 1, 2, 3, 3, 1], 1116)
    # The total counts from now, or from a failure.
    for from_now, left in ((True, 6), (False, 10)):
        retries = Retries(
            total_s=10,
            policy=RetryPolicy(20, 20),
            clock=lonely,
            counted_from_now=from_now,
        )
        lonely.time += 4
        assert retries.remaining() == left
        give_up(retries)
        assert lonely.slept[-1] == left


def test_a_patient_call_is_never_given_more_than_what_is_left(
    lonely: LonelyClock,
) -> None:
    given: list[float] = []
    unreachable = grpc.RpcError()
    code = grpc.StatusCode.UNAVAILABLE
    unreachable.code = lambda: code  # type: ignore[method-assign]

    def call(timeout_s: float) -> None:
        given.append(round(timeout_s, 6))
        lonely.time += 1
        raise unreachable

    with pytest.raises(grpc.RpcError):
        call_with_retries(call, 3.0, lonely)
    assert given == [3.0, 1.8, 0.6]


OUTAGE_S = 10.0


@pytest.fixture
def clock() -> LeapingClock:
    return LeapingClock()


@pytest.fixture
def session(clock: LeapingClock) -> Session:
    task = SimpleNamespace(deadlines=SimpleNamespace(outage=OUTAGE_S))
    return cast("Session", SimpleNamespace(task=task, progress=Progress(), clock=clock))


nothing = Mock()  # It fails without having heard from anybody


def failing(*attempts: Callable[[], object]) -> Callable[[], None]:
    left = list(attempts)

    def attempt() -> None:
        left.pop(0)()
        if left:
            raise GONE

    return attempt


def test_it_tries_again_until_it_works_or_gives_up(
    clock: LeapingClock, session: Session
) -> None:
    # What trying again can't mend ends it.
    with pytest.raises(PeerViolation):
        persist(
            session, Mock(side_effect=PeerViolation("the servers' trainings differ"))
        )
    assert clock.slept == []
    persist(session, failing(*[nothing] * 5))
    assert (clock.slept, session.progress.error) == ([0.2, 0.4, 0.8, 1.6], "")
    began = clock.now()
    with pytest.raises(PeerUnavailable):
        persist(session, failing(*[nothing] * 100))
    # The last wait is cut to what is left.
    assert clock.now() - began == pytest.approx(OUTAGE_S)
    assert "trying again" in session.progress.error


def test_whoever_gives_up_says_what_failed(
    clock: LeapingClock, session: Session
) -> None:
    """The dealer is gone, and the last try met a server B that was between two of its
    own."""
    heard, dealer, b = (
        "the link broke an hour ago",
        "the dealer is gone",
        "B sent nothing",
    )
    said = ["gone for ever", heard, dealer, b, dealer, b]

    def attempt() -> None:
        why = said.pop(0)
        session.progress.contacts += why == heard
        # The last one lasts as long as the outage may: nothing follows it.
        clock.time += 0 if said else 2 * OUTAGE_S
        raise PeerUnavailable(why)

    with pytest.raises(PeerUnavailable) as gave_up:
        persist(session, attempt)
    assert said == []
    assert (
        str(gave_up.value)
        == "B sent nothing (earlier in this outage: the dealer is gone; the link broke"
        " an hour ago)"
    )
    # A status page says what a log says.
    assert session.progress.error == f"{gave_up.value}; trying again"


def test_a_round_longer_than_the_outage_is_none(
    clock: LeapingClock, session: Session
) -> None:
    """Heard from, then hours of collecting, then the link breaks: that isn't hours of
    outage."""

    def play() -> None:
        session.progress.contacts += 1
        clock.time += 100 * OUTAGE_S

    persist(session, failing(play, nothing, play, nothing, nothing))
    assert (clock.slept, session.progress.error) == ([0.2, 0.4, 0.2, 0.4], "")


def test_who_comes_back_is_said_to_be_back(
    clock: LeapingClock, session: Session
) -> None:
    """The first contact is no return; a return after several tries counts from the
    first loss."""
    away: list[float | None] = []

    def play() -> None:
        away.append(session.progress.heard_from_peers(clock.now()))

    persist(session, failing(play, lambda: clock.sleep(3.0), play, nothing))
    assert (away, session.progress.error) == (
        [None, pytest.approx(0.2 + 3.0 + 0.4)],
        "",
    )


def engine(fails: int, why: str) -> Engine:
    outcomes = [*[OperationalError("", {}, Exception(why))] * fails, nullcontext()]
    dialect = SimpleNamespace(name="postgresql")
    made = SimpleNamespace(dialect=dialect, connect=Mock(side_effect=outcomes))
    return cast("Engine", made)


def test_a_database_is_waited_for(
    clock: LeapingClock, caplog: pytest.LogCaptureFixture
) -> None:
    wait_for_database(engine(3, "FATAL: the database system is starting up"), clock)
    assert len(clock.slept) == 3
    for words in ("starting up", "trying again for 60 s"):
        assert words in caplog.text
    # One that never comes is an error.
    began = clock.time
    with pytest.raises(StorageFailure, match="refused"):
        wait_for_database(engine(10_000, "connection refused"), clock)
    assert START_S <= clock.time - began < 2 * START_S


def test_an_address_that_is_not_up_yet_is_waited_for_and_then_tried_by_another_start(
    clock: LeapingClock, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MayPass, match=r"in use.*taken, or not up yet") as given_up:
            wait_for_address("listen", f"127.0.0.1:{port}", clock)
    assert sum(clock.slept) == LISTEN_S
    # One line for the whole wait; the status is one that a unit starts again.
    (waiting,) = caplog.messages
    assert waiting.startswith(f"listen = '127.0.0.1:{port}'")
    assert waiting.endswith("waiting for 60 s")
    assert said(given_up.value) == TRY_AGAIN
    # It is up now.
    wait_for_address("listen", f"127.0.0.1:{port}", clock)
    wait_for_address("metrics", None, clock)
    assert sum(clock.slept) == LISTEN_S


@pytest.mark.parametrize(
    "address", ["192.0.2.1:7301", "nobody.invalid:7301", "[::2]:0"]
)
def test_an_address_of_no_interface_yet_may_come(
    clock: LeapingClock, address: str
) -> None:
    with pytest.raises(MayPass, match="taken, or not up yet"):
        wait_for_address("listen", address, clock)


def test_a_port_that_this_user_may_not_use_is_a_mistake(
    clock: LeapingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(socket.socket, "bind", Mock(side_effect=refused))
    with pytest.raises(Misconfiguration, match="name a port above 1023") as mistake:
        wait_for_address("listen", "0.0.0.0:443", clock)
    assert (said(mistake.value), clock.slept) == (2, [])
