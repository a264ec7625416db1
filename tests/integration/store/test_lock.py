"""One process per database: the second is refused, also when the first never said goodbye."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event
from tests.rig.stores import MODEL, VALID_SET, A, Opener, prepared
from tests.rig.warm import SOURCES

from precad.aggregator.store.schema import AttemptState
from precad.common.errors import Misconfiguration, StorageFailure
from precad.common.task import Task

HOLD = """
import sys
from precad.common.identifiers import Role
from precad.aggregator.store import open_store
from precad.aggregator.store.summary import read_task
store = open_store(sys.argv[1], read_task(sys.argv[2].encode()), Role.SERVER_A)
store.attempts.spend(0, 0)
print("open", flush=True)
sys.stdin.read()
store.close()
"""
"""Has the database open until its input ends."""


def test_a_second_process_is_refused_until_the_first_ends(
    durable_url: str, task: Task, opener: Opener
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, durable_url, task.canonical.decode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCES},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        try:
            with pytest.raises(Misconfiguration, match="works with this database") as refused:
                opener(durable_url)
            assert refused.value.field == "state"
            if durable_url.startswith("sqlite"):
                assert f"process {process.pid} " in str(refused.value)
                # And killed it holds nothing.
                process.send_signal(signal.SIGKILL)
                process.wait()
            else:
                process.communicate("")
                assert process.returncode == 0
        finally:
            process.kill()
    opener(durable_url)


def test_one_process_does_not_open_a_database_twice(durable_url: str, opener: Opener) -> None:
    first = opener(durable_url)
    with pytest.raises(Misconfiguration, match="works with this database"):
        opener(durable_url)
    first.attempts.spend(0, 0)
    first.close()
    first.close()
    opener(durable_url)


def test_another_path_to_the_same_file_is_the_same_database(tmp_path: Path, opener: Opener) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    opener(f"sqlite:///{tmp_path}/real/state.db")
    with pytest.raises(Misconfiguration, match=str(os.getpid())):
        opener(f"sqlite:///{tmp_path}/link/state.db")


def test_a_broken_connection_takes_the_lock_anew(
    postgres: str, postgres_url: str, opener: Opener
) -> None:
    """After a restart of PostgreSQL, whoever connects first owns the state; the other stops."""
    store = opener(postgres_url)
    admin = create_engine(postgres, isolation_level="AUTOCOMMIT")

    def cut() -> None:
        with admin.connect() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )

    cut()
    store.attempts.spend(0, 0)
    cut()
    opener(postgres_url)
    with pytest.raises(Misconfiguration, match="works with this database"):
        store.attempts.spend(0, 1)
    admin.dispose()


def test_a_connection_that_breaks_inside_a_prepare_is_an_error_and_no_charge(
    postgres_url: str, opener: Opener
) -> None:
    store = opener(postgres_url)
    store.attempts.begin(0, 0, 3, MODEL)

    def cut(connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("INSERT INTO charge"):
            connection.connection.dbapi_connection.close()

    event.listen(store.transaction.engine, "before_cursor_execute", cut)
    with pytest.raises(StorageFailure, match="can't be used"):
        store.attempts.prepare(0, [A], VALID_SET, {}, bytes(64))
    event.remove(store.transaction.engine, "before_cursor_execute", cut)
    assert (store.attempts.states(), store.ledger.participations()) == ({0: AttemptState.OPEN}, {})
    prepared(store, 1, 1)
