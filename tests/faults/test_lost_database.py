"""PostgreSQL restarts in the middle of a training: both servers go on by themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.processes import (
    SERVER_ROLES,
    FaultyDeployment,
    Order,
    check,
    kill_all,
)
from tests.rig.postgres import Postgres, running

from precad.aggregator.store import audit_ledger

POINTS = (
    # Within the transaction that charges, and keeps the noisy share: all of it is gone.
    "Ledger.append",
    # The journal file has the line, and the database hasn't.
    "JournalFile.countersigned",
    # Between two transactions, with the model on the disk and its round not done.
    "ModelStore.put",
)


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with running() as server:
        yield server


@pytest.mark.parametrize("role", SERVER_ROLES)
def test_a_database_that_restarts_ends_no_training_and_charges_nobody_twice(
    postgres: Postgres, role: str, tmp_path: Path
) -> None:
    databases = {name: postgres.schema() for name in SERVER_ROLES}
    parts = FaultyDeployment(tmp_path, validation="proof", databases=databases)
    try:
        parts.start_all()
        for point in POINTS:
            parts.hold(Order(role, "pause-after", point))
            postgres.stop()
            before = len(parts.log(role))
            parts.let_go(role)
            lost = "the database can't be reached"
            parts.wait_for(lambda: lost in parts.log(role)[before:])  # noqa: B023
            postgres.start()
            parts.strike(())
        # Nobody was started again.
        assert parts.restarts == []
        kill_all(parts)
        check(parts)
        for url in databases.values():
            assert audit_ledger(url).findings == ()
    finally:
        kill_all(parts)
