"""One server's durable state behind one SQLAlchemy URL (SQLite in WAL mode by default)."""

from pathlib import Path

from sqlalchemy import Connection, insert, select

from precad.aggregator.store import schema
from precad.aggregator.store.attempts import Attempts
from precad.aggregator.store.enrolment import Enrolments
from precad.aggregator.store.journal_file import JournalEntries, JournalFile
from precad.aggregator.store.ledger import Ledger, ledger_start
from precad.aggregator.store.lock import FileLock, lock_database
from precad.aggregator.store.migrate import migrate
from precad.aggregator.store.statements import Statements
from precad.aggregator.store.transaction import (
    Transaction,
    is_in_memory,
    parse_url,
    storage_errors,
    wait_for_database,
    writing_engine,
)
from precad.aggregator.store.versions import Versions
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.task import Task


class Store:
    """One server's durable state: five stores on one database.

    Args:
        transaction: of the database, which nobody else has open.
        task: the database belongs to this task alone.
        role: and to this role.
        journal_file: beside the database; None in tests of other things.
    """

    def __init__(
        self, transaction: Transaction, task: Task, role: Role, journal_file: JournalFile | None
    ) -> None:
        entries = JournalEntries() if journal_file is None else journal_file.read()
        self.task = task
        self.role = role
        self.transaction = transaction
        self.enrolment = Enrolments(transaction)
        self.ledger = Ledger(transaction, task)
        self.attempts = Attempts(transaction, self.ledger, journal_file, entries)
        self.versions = Versions(transaction, journal_file)
        self.statements = Statements(transaction, self.attempts, self.versions, self.ledger)
        self._lock: FileLock | None = None

    def open(self) -> None:
        """Lock the database, bring its tables up to date, and claim it or check whose it is."""
        engine = self.transaction.engine
        with storage_errors():
            self._lock = lock_database(engine)
        wait_for_database(engine)
        with self.transaction.write() as connection:
            if is_in_memory(engine.url):
                # Nothing older can be in it; whoever plays rounds in one process opens many.
                schema.metadata.create_all(connection)
            else:
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

    Args:
        url: SQLAlchemy URL, such as ``sqlite:///state/server-a.db``.
        task: the database belongs to this task alone.
        role: and to this role.
        journal_file: the file beside the database; none in tests of other things.

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
