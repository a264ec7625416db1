"""Databases that fail at the worst moment, or that others can reach: SQLite's and
PostgreSQL's."""

import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, insert, make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import PoolProxiedConnection
from tests.rig.stores import MODEL, SHARE, VALID_SET, A, Opener, prepared, tamper
from tests.rig.warm import SOURCES

from precad.aggregator.enrol.register import Register
from precad.aggregator.store import Store, schema
from precad.aggregator.store.postgres import connection_options
from precad.aggregator.store.schema import AttemptState
from precad.common.errors import AlreadyReleased, Misconfiguration, StorageFailure
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task


@contextmanager
def answers_lost(store: Store) -> Iterator[None]:
    """Each commit is done, and its answer is lost with the connection."""
    dialect = store.transaction.engine.dialect
    done, dbapi = dialect.do_commit, dialect.dbapi
    assert dbapi is not None

    def commit(connection: PoolProxiedConnection) -> None:
        done(connection)
        raise dbapi.OperationalError("server closed the connection unexpectedly")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialect, "do_commit", commit)
        with pytest.raises(StorageFailure):
            yield


def test_what_is_kept_unanswered_stands_once(
    task: Task, durable_url: str, opener: Opener
) -> None:
    """For its client: an error for ever would leave it out of this server's roster
    alone."""
    store, claim = opener(durable_url), Enrolment(A, 100, task.privacy.record_rate)
    register = Register(task, store)
    with answers_lost(store):
        register.enrol(claim)
    for _ in range(2):
        with pytest.raises(
            Misconfiguration, match=r"with 100 records.*claims are frozen"
        ):
            register.enrol(Enrolment(A, 50, task.privacy.record_rate))
        assert (register.enrol(claim), register.roster()) == (1, Roster({A: claim}))
    store.attempts.begin(attempt=0, version=0, cohort_size=3, model=MODEL)
    with answers_lost(store):
        store.attempts.prepare(0, [A], MODEL, {}, SHARE)
    store.close()
    # The server stops, since it knows nothing; started again it finds what it had kept.
    again = opener(durable_url)
    assert again.attempts.states() == {0: AttemptState.PREPARED}
    assert again.ledger.participations() == {A: 1}
    with pytest.raises(AlreadyReleased, match="attempt 0 was prepared already"):
        again.attempts.prepare(0, [A], MODEL, {}, bytes(64))


def test_no_error_shows_what_was_bound_to_a_statement(each_store: Store) -> None:
    """A log has errors' texts; a noisy share that hasn't left is a secret."""
    secret = b"a noisy share, or a coin"
    with (
        pytest.raises(IntegrityError) as failed,
        each_store.transaction.write() as connection,
    ):
        connection.execute(insert(schema.noisy_share).values(attempt=7, share=secret))
    shown = "".join(traceback.format_exception(failed.value))
    assert "noisy_share" in shown
    assert not [each for each in ("a noisy share, or", secret.hex()) if each in shown]


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


def test_one_process_at_a_time_has_a_database(
    durable_url: str, task: Task, opener: Opener
) -> None:
    command = [sys.executable, "-c", HOLD, durable_url, task.canonical.decode()]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCES},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        try:
            with pytest.raises(
                Misconfiguration, match="works with this database"
            ) as refused:
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


def test_no_process_opens_one_twice(
    durable_url: str, tmp_path: Path, opener: Opener
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    first = opener(durable_url)
    # Nor by another path to the same file.
    for url in {durable_url, durable_url.replace("state.db", "link/state.db")}:
        with pytest.raises(Misconfiguration, match="works with this database"):
            opener(url)
    first.attempts.spend(0, 0)
    first.close()
    first.close()
    opener(durable_url)


def test_a_broken_connection_locks_anew(
    postgres: str, postgres_url: str, opener: Opener
) -> None:
    """After a restart of PostgreSQL, whoever connects first owns the state; the other
    stops."""
    store = opener(postgres_url)
    others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
    cut = f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {others}"
    tamper(postgres, cut)
    store.attempts.spend(0, 0)
    tamper(postgres, cut)
    opener(postgres_url)
    with pytest.raises(Misconfiguration, match="works with this database"):
        store.attempts.spend(0, 1)


def test_a_connection_broken_in_a_prepare_is_no_charge(
    postgres_url: str, opener: Opener
) -> None:
    store = opener(postgres_url)
    store.attempts.begin(attempt=0, version=0, cohort_size=3, model=MODEL)

    def cut(
        connection: Connection, _cursor: object, statement: str, *_rest: object
    ) -> None:
        if statement.startswith("INSERT INTO charge"):
            driven = connection.connection.dbapi_connection
            assert driven is not None
            driven.close()

    event.listen(store.transaction.engine, "before_cursor_execute", cut)
    with pytest.raises(StorageFailure, match="can't be reached"):
        store.attempts.prepare(0, [A], VALID_SET, {}, bytes(64))
    event.remove(store.transaction.engine, "before_cursor_execute", cut)
    assert (store.attempts.states(), store.ledger.participations()) == (
        {0: AttemptState.OPEN},
        {},
    )
    prepared(store, 1, 1)


@pytest.mark.parametrize(
    "resets", ["DISCARD ALL", "SET precad.session = 'somebody else''s'"]
)
def test_a_session_of_others_is_refused(
    postgres_url: str, opener: Opener, resets: str
) -> None:
    """The lock hangs on it: another process may have taken it since."""
    store = opener(postgres_url)
    store.attempts.spend(0, 0)
    own = store.transaction.engine.execution_options(isolation_level="AUTOCOMMIT")
    with own.connect() as connection:
        connection.exec_driver_sql(resets)
    with pytest.raises(Misconfiguration, match="gives this session to others"):
        store.attempts.spend(0, 1)


def test_a_charge_is_on_the_disk_before_it_is_answered(
    postgres_url: str, opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the database is set to."""
    usual = make_url(postgres_url)
    options = f"{usual.query['options']} -csynchronous_commit=off"
    hasty = usual.update_query_dict({"options": options})
    caplog.set_level(logging.WARNING, "precad")
    store = opener(hasty.render_as_string(hide_password=False))
    with store.transaction.read() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    # The tests' own server doesn't care.
    assert "fsync = off" in caplog.text


def test_a_user_that_may_make_no_tables_is_told_which_right_to_grant(
    postgres: str, postgres_url: str, opener: Opener
) -> None:
    own = make_url(postgres_url)
    name = own.query["options"].removeprefix("-csearch_path=")  # type: ignore[union-attr]
    server = own.set(username=f"late_{name}")
    tamper(postgres, f"CREATE ROLE late_{name} LOGIN")
    tamper(postgres, f"GRANT USAGE ON SCHEMA {name} TO late_{name}")
    with pytest.raises(Misconfiguration, match=f"GRANT USAGE, CREATE ON SCHEMA {name}"):
        opener(server.render_as_string(hide_password=False))
    nowhere = server.update_query_dict({"options": "-csearch_path="})
    with pytest.raises(Misconfiguration, match=r"has no schema.*search_path"):
        opener(nowhere.render_as_string(hide_password=False))
    tamper(postgres, f"GRANT CREATE ON SCHEMA {name} TO late_{name}")
    opener(server.render_as_string(hide_password=False)).close()


@pytest.mark.parametrize("table", ["charge", "noisy_share", "alembic_version"])
def test_tables_that_another_user_made_are_not_used(
    postgres: str, postgres_url: str, opener: Opener, table: str
) -> None:
    """In a schema where many may make some: their owner would read and change the
    state."""
    own = make_url(postgres_url)
    name = own.query["options"].removeprefix("-csearch_path=")  # type: ignore[union-attr]
    tamper(
        postgres,
        f"CREATE ROLE server_{name} LOGIN",
        f"CREATE ROLE other_{name} LOGIN",
        f"GRANT ALL ON SCHEMA {name} TO server_{name}, other_{name}",
        f"CREATE TABLE {name}.{table} (a text)",
        f"ALTER TABLE {name}.{table} OWNER TO other_{name}",
        f"GRANT ALL ON {name}.{table} TO server_{name}",
    )
    server = own.set(username=f"server_{name}").render_as_string(hide_password=False)
    with pytest.raises(
        Misconfiguration, match=f"table {table} belongs to user other_{name}"
    ):
        opener(server)
    # Of a group that the server's user is in they are its own.
    tamper(
        postgres, f"DROP TABLE {name}.{table}", f"GRANT other_{name} TO server_{name}"
    )
    opener(server).close()


def test_another_machine_shows_a_certificate() -> None:
    far = {"database.example/d", "10.0.0.7/d", "/d?host=10.0.0.7"}
    far |= {"/d?host=/run/postgresql&host=10.0.0.7"}
    here = {
        "/d?host=/run/postgresql",
        "/d",
        "localhost/d",
        "127.0.0.1:5433/d",
        "[::1]/d",
    }
    # The last is what the operator says.
    modes = {
        where: connection_options(make_url(f"postgresql://u@{where}")).get("sslmode")
        for where in (*here, *far, "database_a/d?sslmode=disable")
    }
    assert {where: mode for where, mode in modes.items() if mode} == dict.fromkeys(
        far, "verify-full"
    )


def test_an_impostor_is_shown_no_password(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is "no TLS here": libpq would go on, and send what it is asked for."""
    monkeypatch.setattr("precad.aggregator.store.transaction.START_S", 0.0)
    heard: list[bytes] = []

    def answer() -> None:
        connection, _ = port.accept()
        with connection, contextlib.suppress(OSError):
            # Does it want TLS? No. Who is it? Then the password, please.
            for said in (b"N", b"R" + struct.pack("!ii", 8, 3), b""):
                heard.append(connection.recv(1024))
                connection.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as port:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        where = f"database.example:{port.getsockname()[1]}/d?hostaddr=127.0.0.1"
        with pytest.raises(StorageFailure, match="SSL") as refused:
            opener(f"postgresql://u:hunter2@{where}")
        thread.join(60.0)
    assert "hunter2" not in str(refused.value)
    assert (len(heard) > 0, b"hunter2" in b"".join(heard)) == (True, False)
