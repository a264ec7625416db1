"""A database server that starts beside this one, or again, is waited for."""

import logging

from sqlalchemy import Engine

from precad.aggregator.store.engine import storage_errors
from precad.common.clock import CLOCK, Clock, Retries, RetryPolicy
from precad.common.errors import StorageFailure

log = logging.getLogger("precad")

START_S = 60.0
"""A database that was killed first reads what it had logged."""
_WAITS = RetryPolicy(0.5, 5.0)


def wait_for_database(engine: Engine, clock: Clock = CLOCK) -> None:
    """Until it takes a connection; a file takes one at once, or never.

    Args:
        engine: of the database.
        clock: passes the time.

    Raises:
        StorageFailure: it took none for ``START_S``.
    """
    if engine.dialect.name == "sqlite":
        return
    patience = Retries(START_S, _WAITS, clock)
    while True:
        try:
            with storage_errors(), engine.connect():
                return
        except StorageFailure as error:
            log.warning("%s; trying again for %.0f s", error, max(0.0, patience.remaining()))
            patience.wait(error)
