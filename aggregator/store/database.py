"""One server's durable state behind one SQLAlchemy URL (SQLite in WAL mode by default).

Opening brings the database to this version's schema, completely or not at all: a new
database is made as in ``schema.py``, an older one takes the migrations that it lacks
(CONTRIBUTING.md, "How to add a migration"). Data is never thrown away: there is no way
back to an older schema.
"""

import fcntl
import logging
import os
import threading
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection, inspect

from precad.aggregator.store import (
    STOP_IT_FIRST,
    Attempts,
    Enrolments,
    JournalFile,
    Ledger,
    Statements,
    Transaction,
    Versions,
    file_of,
    hold_session,
    is_in_memory,
    ledger_start,
    parse_url,
    require_own_tables,
    require_whole,
    schema,
    wait_for_database,
    writing_engine,
)
from precad.common import MayPass, Misconfiguration, Role, Task, log

NEWEST = "0007"
"""The revision of the tables in ``schema.py``."""
OLDEST_SERVED = "0005"
"""The oldest revision with which a server goes on; readers take any."""
MIGRATIONS = Path(__file__).parent / "migrations"
_ALEMBIC = threading.Lock()
"""Alembic keeps the current migration in a module's globals: one at a time in a
process."""
_STAMP = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own table, in which it keeps a database's revision."""


class Store:
    """One server's durable state: five stores on one database.

    They are ``enrolment``, ``ledger``, ``versions``, ``attempts`` and ``statements``.
    """

    def __init__(
        self,
        transaction: Transaction,
        task: Task,
        role: Role,
        journal_file: JournalFile,
    ) -> None:
        """Put the stores on one database; ``open`` makes it ready for them."""
        self.task = task
        self.role = role
        self.transaction = transaction
        self.enrolment = Enrolments(transaction)
        self.ledger = Ledger(transaction, task)
        self.versions = Versions(transaction, journal_file)
        self.attempts = Attempts(transaction, self.ledger, self.versions, journal_file)
        self.statements = Statements(
            _transaction=transaction,
            _attempts=self.attempts,
            _versions=self.versions,
            _ledger=self.ledger,
        )
        self._lock: int | None = None

    def open(self) -> None:
        """Lock the database, bring its tables up to date, and claim it for this server.

        One process has the database open at a time: two servers on one state would
        release one round twice, each with a noise of its own. What the journal file
        alone still knows is taken back.

        Raises as ``open_store``.
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
                # Nothing older can be in it. Whoever plays rounds in one process opens
                # many, and saves the time of a look.
                schema.metadata.create_all(connection)
            else:
                require_own_tables(connection)
                migrate(connection)
            self._claim(connection)
            self.attempts.take_back()

    def close(self) -> None:
        """Release the database for the next process. May be called twice."""
        self.transaction.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _claim(self, connection: Connection) -> None:
        """Write task and role into a new database; of another one check them.

        Raises Misconfiguration: it belongs to another task or role.
        """
        digest = str(self.task.digest)
        row = connection.execute(sa.select(schema.task)).one_or_none()
        if row is None:
            task_row = {
                "digest": digest,
                "role": self.role,
                "canonical": self.task.canonical,
                "ledger_length": 0,
                "ledger_head": ledger_start(self.task.digest, self.role),
            }
            connection.execute(sa.insert(schema.task), task_row)
        elif (row.digest, row.role) != (digest, self.role):
            raise Misconfiguration(
                "state",
                f"{row.role.value} of task {row.digest}",
                "this database belongs to another task or role; give"
                f" {self.role.value} of task {digest} a state folder of its own",
            )


def open_store(
    url: str,
    task: Task,
    role: Role,
    journal_file: Path | None = None,
) -> Store:
    """Open or create the database of ``role`` for ``task``, and lock it.

    Args:
        url: the database's SQLAlchemy URL.
        task: the training's task.
        role: server A or B.
        journal_file: the journal's path, or None: nothing outlives the database.

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
    """Lock the file ``<database>.lock``, which is never removed; return its descriptor.

    Raises MayPass: another process holds the lock; Misconfiguration: it can't be
    opened.
    """
    path = database.with_name(database.name + ".lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise Misconfiguration("state", path, f"can't be opened: {error}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise MayPass(
            "state",
            database,
            f"process {holder} works with this database; {STOP_IT_FIRST}",
        ) from None
    # The process number is for whoever finds the file locked; the lock itself doesn't
    # depend on it.
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def migrate(connection: Connection) -> None:
    """Make the tables, or run the migrations that they lack, in the open transaction.

    Raises Misconfiguration: a newer or unreleased version of precad wrote the database,
    or it holds tables that precad didn't make.
    """
    current = revision(connection)
    if current is None:
        if set(schema.metadata.tables) & set(inspect(connection).get_table_names()):
            raise Misconfiguration(
                "state",
                _name_of(connection),
                "holds tables that precad didn't make; give an empty database",
            )
        schema.metadata.create_all(connection)
        _STAMP.create(connection, checkfirst=True)
        connection.execute(sa.insert(_STAMP), {"version_num": NEWEST})
    elif current != NEWEST:
        _require_known(connection, current)
        if current < OLDEST_SERVED:
            raise Misconfiguration(
                "state",
                f"schema {current} at {_name_of(connection)}",
                "a version of precad that was never released wrote this database: start"
                " a new task; precad ledger and report read the old one",
            )
        upgrade(connection, current)
        log.warning(
            "state: the database's schema %s is now %s; older versions of precad can't"
            " use it: keep the backup that was made before the upgrade",
            current,
            NEWEST,
        )


def upgrade(
    connection: Connection, current: str, migrations: Path = MIGRATIONS
) -> None:
    """Run the migrations that follow revision ``current``, in the open transaction.

    ``migrations`` is Alembic's folder of them; tests give another one.

    Raises Misconfiguration: ``current`` is no revision that this version knows.
    """
    _require_known(connection, current)
    # Alembic logs its own set-up as it is imported, and every database that it looks
    # at.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Imported here: nearly all servers' tables are this version's, and load nothing of
    # Alembic.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _ALEMBIC:
        command.upgrade(config, "head")


def _require_known(connection: Connection, current: str) -> None:
    """Check that there are migrations from revision ``current``.

    Raises Misconfiguration: there are none.
    """
    known = [path.name[1:5] for path in MIGRATIONS.glob("versions/r*.py")]
    if current not in known:
        raise Misconfiguration(
            "state",
            f"schema {current} at {_name_of(connection)}",
            "a newer precad wrote this database; this one knows schemas up to"
            f" {NEWEST}. Install that version, or the newest",
        )


def revision_to_read(connection: Connection) -> str:
    """Return the revision of a database that this version can read.

    Raises Misconfiguration: a newer version wrote it, or it holds no server's state.
    """
    current = revision(connection)
    if current is None:
        raise Misconfiguration(
            "state", _name_of(connection), "holds no state of a precad server"
        )
    _require_known(connection, current)
    return current


def revision(connection: Connection) -> str | None:
    """Return the revision of the database's schema; None where it has none."""
    if not inspect(connection).has_table(_STAMP.name):
        return None
    return connection.scalar(sa.select(_STAMP.c.version_num))


def _name_of(connection: Connection) -> str:
    """Return the URL without its password and options, which may hold one too."""
    return connection.engine.url.set(query={}).render_as_string(hide_password=True)
