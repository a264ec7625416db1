"""One server's durable state behind one SQLAlchemy URL (SQLite in WAL mode by default).

Opened, it is brought to this version's schema, all of it or nothing: a new database is
made as ``schema.py`` says, an older one takes the steps that it lacks (CONTRIBUTING.md,
"How to add a migration"). Data is never thrown away: there is no way down.
"""

import fcntl
import logging
import os
import threading
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection, inspect

from precad.aggregator.store import schema
from precad.aggregator.store.attempts import Attempts
from precad.aggregator.store.journal_file import JournalFile
from precad.aggregator.store.ledger import Ledger, ledger_start
from precad.aggregator.store.owners import Enrolments, Statements
from precad.aggregator.store.postgres import (
    STOP_IT_FIRST,
    hold_session,
    require_own_tables,
)
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

NEWEST = "0006"
"""The schema of ``schema.py``."""
MIGRATIONS = Path(__file__).parent / "migrations"
_ALEMBIC = threading.Lock()
"""Alembic keeps the migration at hand in a module's globals: one at a time in a
process."""
_STAMP = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own, where it looks for a database's schema."""


class Store:
    """One server's durable state: five stores on one database."""

    def __init__(
        self,
        transaction: Transaction,
        task: Task,
        role: Role,
        journal_file: JournalFile,
    ) -> None:
        self.task = task
        self.role = role
        self.transaction = transaction
        self.enrolment = Enrolments(transaction)
        self.ledger = Ledger(transaction, task)
        self.versions = Versions(transaction, journal_file)
        self.attempts = Attempts(transaction, self.ledger, self.versions, journal_file)
        self.statements = Statements(
            transaction, self.attempts, self.versions, self.ledger
        )
        self._lock: int | None = None

    def open(self) -> None:
        """Lock the database, bring its tables up to date, and claim it or check whose it is.

        One process per database, while it lives: two servers on one state would release
        one round twice, each with a noise of its own.
        """
        engine = self.transaction.engine
        path = file_of(engine.url)
        if path is not None:
            self._lock = _lock_beside(path)
        elif engine.dialect.name == "postgresql":
            hold_session(engine)
        wait_for_database(engine)
        require_whole(engine)
        with self.transaction.write() as connection:
            if is_in_memory(engine.url):
                # Nothing older can be in it; whoever plays rounds in one process opens
                # many.
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
        row = connection.execute(sa.select(schema.task)).one_or_none()
        if row is None:
            fresh = {
                "digest": owner[0],
                "role": self.role,
                "canonical": self.task.canonical,
            }
            start = {
                "ledger_length": 0,
                "ledger_head": ledger_start(self.task.digest, self.role),
            }
            connection.execute(sa.insert(schema.task), fresh | start)
        elif (row.digest, row.role) != owner:
            own = (
                f"give {self.role.value} of task {self.task.digest} a state folder of"
                " its own"
            )
            remedy = f"this database belongs to another task or role; {own}"
            raise Misconfiguration(
                "state", f"{row.role.value} of task {row.digest}", remedy
            )


def open_store(
    url: str,
    task: Task,
    role: Role,
    journal_file: Path | None = None,
) -> Store:
    """Open or create the database of ``role`` for ``task``; nobody else may have it open.

    Raises Misconfiguration: it holds another task or role, is open elsewhere, or was
    written by a newer version of precad; StorageFailure: it can't be read or written.
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
    """Lock ``<database>.lock``, which stays, and return its descriptor.

    Raises Misconfiguration.
    """
    path = database.with_name(database.name + ".lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise Misconfiguration(
            "state", str(path), f"can't be opened: {error}"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        remedy = f"process {holder} works with this database; {STOP_IT_FIRST}"
        raise Misconfiguration("state", str(database), remedy) from None
    # For whoever finds it locked; the lock itself doesn't depend on it.
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def migrate(connection: Connection) -> None:
    """Make the tables, or run the steps that they lack, inside the connection's transaction.

    Raises Misconfiguration: a newer version of precad wrote the database, or somebody
    else did.
    """
    current = revision(connection)
    if current is None:
        if set(schema.metadata.tables) & set(inspect(connection).get_table_names()):
            remedy = "holds tables that precad didn't make; give an empty database"
            raise Misconfiguration("state", _name_of(connection), remedy)
        schema.metadata.create_all(connection)
        _STAMP.create(connection, checkfirst=True)
        connection.execute(sa.insert(_STAMP), {"version_num": NEWEST})
    elif current != NEWEST:
        upgrade(connection, current)


def upgrade(
    connection: Connection, current: str, migrations: Path = MIGRATIONS
) -> None:
    """Run the steps that the tables lack, in the caller's transaction.

    Raises Misconfiguration.
    """
    # A server whose tables are this version's, as nearly all are, loads nothing of
    # Alembic.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    _require_known(connection, current)
    # It says of every database that it looks at it.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _ALEMBIC:
        command.upgrade(config, "head")


def _require_known(connection: Connection, current: str) -> None:
    known = sorted(path.name[1:5] for path in MIGRATIONS.glob("versions/r*.py"))
    if current not in known:
        why = (
            "a version of precad that was never released wrote this database: start a"
            " new task"
        )
        if current >= known[0]:
            newer = "a newer precad wrote this database; this one knows schemas up to"
            why = f"{newer} {NEWEST}. Install that version, or the newest"
        raise Misconfiguration(
            "state", f"schema {current} at {_name_of(connection)}", why
        )


def require_current(connection: Connection) -> None:
    """For readers, which change nothing: refuse another schema.

    Raises Misconfiguration.
    """
    current = revision(connection)
    if current is None:
        raise Misconfiguration(
            "state", _name_of(connection), "holds no state of a precad server"
        )
    if current != NEWEST:
        _require_known(connection, current)
        remedy = "start the server once with it, which brings the database up to date"
        remedy = f"this precad reads schema {NEWEST}; {remedy}"
        raise Misconfiguration(
            "state", f"schema {current} at {_name_of(connection)}", remedy
        )


def revision(connection: Connection) -> str | None:
    """The database's schema; None when it has none."""
    if not inspect(connection).has_table(_STAMP.name):
        return None
    found: str | None = connection.scalar(sa.select(_STAMP.c.version_num))
    return found


def _name_of(connection: Connection) -> str:
    """The database, as its operator knows it, but for options: they may hold a password."""
    return connection.engine.url.set(query={}).render_as_string(hide_password=True)
