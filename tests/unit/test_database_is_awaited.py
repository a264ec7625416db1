"""A server that starts before its database, or while it recovers, waits for it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from tests.rig.clock import LeapingClock

from precad.common.aggregator.store.awaited import START_S, wait_for_database
from precad.common.errors import StorageFailure


def engine(connect: Callable[[], Any]) -> Any:
    return SimpleNamespace(dialect=SimpleNamespace(name="postgresql"), connect=connect)


class Connection:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_exception: object) -> None:
        return None


def test_a_database_that_recovers_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    clock, fails = LeapingClock(), [3]

    def connect() -> Connection:
        if fails[0]:
            fails[0] -= 1
            raise OperationalError("", {}, Exception("FATAL: the database system is starting up"))
        return Connection()

    wait_for_database(engine(connect), clock)
    assert len(clock.slept) == 3
    assert "starting up" in caplog.text
    assert "trying again for 60 s" in caplog.text


def test_a_database_that_never_comes_is_an_error() -> None:
    clock = LeapingClock()

    def connect() -> Connection:
        raise OperationalError("", {}, Exception("connection refused"))

    with pytest.raises(StorageFailure, match="refused"):
        wait_for_database(engine(connect), clock)
    assert START_S <= clock.time - clock.start < 2 * START_S
