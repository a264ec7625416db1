"""One server's durable state behind one SQLAlchemy URL (SQLite in WAL mode by default)."""

import fcntl
import os
from pathlib import Path

from sqlalchemy import Connection, insert, select

from precad.aggregator.store import schema
from precad.aggregator.store.attempts import Attempts
from precad.aggregator.store.enrolment import Enrolments
from precad.aggregator.store.journal_file import JournalFile
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
        self, transaction: Transaction, task: Task, role: Role, journal_file: JournalFile
    ) -> None:
        self.task = task
        self.role = role
        self.transaction = transaction
        self.enrolment = Enrolments(transaction)
        self.ledger = Ledger(transaction, task)
        self.versions = Versions(transaction, journal_file)
        self.attempts = Attempts(transaction, self.ledger, self.versions, journal_file)
        self.statements = Statements(transaction, self.attempts, self.versions, self.ledger)
        self._lock: int | None = None

    def open(self) -> None:
        """Lock the database, bring its tables up to date, and claim it or check whose it is.

        One process per database, for as long as it lives; the system ends the lock with the
        process. Two servers on one state would release one round twice, each with a noise of its
        own.
        """
        engine = self.transaction.engine
        if (path := file_of(engine.url)) is not None:
            self._lock = _lock_beside(path)
        elif engine.dialect.name == "postgresql":
            hold_session(engine)
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
        """Release the database for the next process. May be called again."""
        self.transaction.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _claim(self, connection: Connection) -> None:
        owner = (str(self.task.digest), self.role)
        row = connection.execute(select(schema.task)).one_or_none()
        if row is None:
            fresh = {"digest": owner[0], "role": self.role, "canonical": self.task.canonical}
            start = {"ledger_length": 0, "ledger_head": ledger_start(self.task.digest, self.role)}
            connection.execute(insert(schema.task), fresh | start)
        elif (row.digest, row.role) != owner:
            remedy = (
                "this database belongs to another task or role; give "
                f"{self.role.value} of task {self.task.digest} a state folder of its own"
            )
            raise Misconfiguration("state", f"{row.role.value} of task {row.digest}", remedy)


def open_store(url: str, task: Task, role: Role, journal_file: Path | None = None) -> Store:
    """Open or create the database of ``role`` for ``task``; nobody else may have it open.

    Raises:
        Misconfiguration: the database holds another task or role, is open elsewhere, or was
            written by a newer version of precad.
        StorageFailure: it can't be read or written.
    """
    transaction = Transaction(writing_engine(parse_url(url)))
    store = Store(transaction, task, role, JournalFile(journal_file, task.digest))
    try:
        store.open()
    except BaseException:
        store.close()
        raise
    return store


def _lock_beside(database: Path) -> int:
    """Lock the file ``<database>.lock``, which stays, and return its descriptor.

    Raises Misconfiguration: another process, or this one, has the database open.
    """
    path = database.with_name(database.name + ".lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise Misconfiguration("state", str(path), f"can't be opened: {error}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        remedy = f"process {holder} works with this database; {STOP_IT_FIRST}"
        raise Misconfiguration("state", str(database), remedy) from None
    # For whoever finds the database locked; the lock itself doesn't depend on it.
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor
