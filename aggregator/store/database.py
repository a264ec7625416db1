"""One server's durable state behind one SQLAlchemy URL (SQLite in WAL mode by default)."""

import fcntl
import os
from pathlib import Path

from sqlalchemy import Connection, Engine, insert, select

from precad.aggregator.store import schema
from precad.aggregator.store.attempts import Attempts
from precad.aggregator.store.enrolment import Enrolments
from precad.aggregator.store.journal_file import JournalEntries, JournalFile
from precad.aggregator.store.ledger import Ledger, ledger_start
from precad.aggregator.store.migrate import migrate
from precad.aggregator.store.postgres import STOP_IT_FIRST, hold_session, require_own_tables
from precad.aggregator.store.statements import Statements
from precad.aggregator.store.transaction import (
    Transaction,
    file_of,
    is_in_memory,
    parse_url,
    require_whole,
    storage_errors,
    wait_for_database,
    writing_engine,
)
from precad.aggregator.store.versions import Versions
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.task import Task


class Store:
    """One server's durable state: five stores on one database."""

    def __init__(
        self, transaction: Transaction, task: Task, role: Role, journal_file: JournalFile | None
    ) -> None:
        entries = JournalEntries() if journal_file is None else journal_file.read()
        self.task = task
        self.role = role
        self.transaction = transaction
        self.enrolment = Enrolments(transaction)
        self.ledger = Ledger(transaction, task)
        self.versions = Versions(transaction, journal_file)
        self.attempts = Attempts(transaction, self.ledger, self.versions, journal_file, entries)
        self.statements = Statements(transaction, self.attempts, self.versions, self.ledger)
        self._lock: FileLock | None = None

    def open(self) -> None:
        """Lock the database, bring its tables up to date, and claim it or check whose it is."""
        engine = self.transaction.engine
        with storage_errors():
            self._lock = lock_database(engine)
        wait_for_database(engine)
        require_whole(engine)
        with self.transaction.write() as connection:
            if is_in_memory(engine.url):
                # Nothing older can be in it; whoever plays rounds in one process opens many.
                schema.metadata.create_all(connection)
            else:
                require_own_tables(connection)
                migrate(connection)
            self._claim(connection)
            self.attempts.take_back()

    def close(self) -> None:
        """Release the database for the next process."""
        self.transaction.close()
        if self._lock is not None:
            self._lock.release()

    def _claim(self, connection: Connection) -> None:
        owner = (str(self.task.digest), self.role)
        row = connection.execute(select(schema.task)).one_or_none()
        if row is None:
            connection.execute(
                insert(schema.task).values(
                    digest=owner[0],
                    role=self.role,
                    canonical=self.task.canonical,
                    ledger_length=0,
                    ledger_head=ledger_start(self.task.digest, self.role),
                )
            )
        elif (row.digest, row.role) != owner:
            raise Misconfiguration(
                "state",
                f"{row.role.value} of task {row.digest}",
                "this database belongs to another task or role; give "
                f"{self.role.value} of task {self.task.digest} a state folder of its own",
            )


def open_store(url: str, task: Task, role: Role, journal_file: Path | None = None) -> Store:
    """Open or create the database of ``role`` for ``task``; nobody else may have it open.

    Raises:
        Misconfiguration: the database holds another task or role, is open elsewhere, or was
            written by a newer version of precad.
        StorageFailure: it can't be read or written.
    """
    transaction = Transaction(writing_engine(parse_url(url)))
    journal = None if journal_file is None else JournalFile(journal_file, task.digest)
    try:
        store = Store(transaction, task, role, journal)
    except BaseException:
        transaction.close()
        raise
    try:
        store.open()
    except BaseException:
        store.close()
        raise
    return store


# One process per database, for as long as it lives; the system ends the lock with the process. Two
# servers on one state would release one round twice, each with a noise of its own.


class FileLock:
    """An exclusive lock on the file ``<database>.lock`` beside an SQLite database; the file stays.

    Raises:
        Misconfiguration: another process, or this one, has the database open.
    """

    def __init__(self, database: Path) -> None:
        path = database.with_name(database.name + ".lock")
        try:
            self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Misconfiguration("state", str(path), f"can't be opened: {error}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._descriptor, 32).decode(errors="replace").strip()
            self.release()
            raise Misconfiguration(
                "state",
                str(database),
                f"process {holder or 'unknown'} works with this database; {STOP_IT_FIRST}",
            ) from None
        # For whoever finds the database locked; the lock itself doesn't depend on it.
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, str(os.getpid()).encode())

    def release(self) -> None:
        """Let the next process in."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock_database(engine: Engine) -> FileLock | None:
    """Make ``engine`` the only one that writes to its database.

    An SQLite file gets a FileLock, PostgreSQL a session (``hold_session``); a database in memory
    needs none.

    Raises:
        Misconfiguration: somebody has the database open.
    """
    if (path := file_of(engine.url)) is not None:
        return FileLock(path)
    if engine.dialect.name == "postgresql":
        hold_session(engine)
    return None
