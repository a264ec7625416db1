"""The database behind a server's stores: its two kinds, and transactions in it.

A commit is on the disk when it returns. A failure of the database is raised as
StorageFailure. A PostgreSQL that is still starting, or starts again, is waited for.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Executable,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    ProgrammingError,
)
from sqlalchemy.pool import QueuePool, StaticPool

from precad.aggregator.store import connection_options
from precad.common import (
    CLOCK,
    Clock,
    Misconfiguration,
    Retries,
    RetryPolicy,
    StorageFailure,
    StorageGone,
    address_fault,
    log,
)

AnyRow = Any
"""A row that a query returned: its columns are attributes, and it unpacks like a tuple.

Nothing gives the columns' types to a type checker."""
AnyValue = Any
"""A column's value, or one option of ``sqlalchemy.create_engine``."""
START_S = 60.0
"""Seconds for which a starting database is waited for: one that was killed first reads
what it had logged."""
_WAITS = RetryPolicy(first_s=0.5, longest_s=5.0)
_BACKENDS = "give sqlite:///path/to/state.db or postgresql://user@host/database"
_SQLITE_FILE = "sqlite:///"
Result = TypeVar("Result")


class Transaction:
    """Transactions in one server's database: each is durable as a whole, or undone.

    Threads take turns: there is one connection, and on PostgreSQL the lock on the state
    belongs to it. A block inside another block of the same thread is part of the outer
    one.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._turn = threading.RLock()
        self._connection: Connection | None = None
        self._broken = False
        self._writing = False
        self._cache: dict[Hashable, object] = {}

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection that may change the database; durable when the block ends.

        An exception in the block undoes the whole transaction.

        Raises StorageFailure: the database failed, and nothing was changed.
        """
        with self.read() as connection:
            self._cache.clear()
            outer_writing = self._writing
            self._writing = True
            try:
                yield connection
            except BaseException:
                self._broken = True
                raise
            finally:
                self._writing = outer_writing
                self._cache.clear()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection for a block that changes nothing.

        Raises StorageFailure: the database failed.
        """
        with self._turn:
            if self._connection is not None:
                try:
                    yield self._connection
                except BaseException:
                    # PostgreSQL undoes a whole transaction in which one query failed,
                    # and reports nothing when the transaction ends.
                    self._broken |= self._writing
                    raise
                return
            try:
                with storage_errors(), self.engine.begin() as self._connection:
                    yield self._connection
                    if self._broken:
                        raise AssertionError(
                            "a transaction goes on after a part of it has failed"
                        )
            finally:
                self._connection = None
                self._broken = False

    def rows(self, query: Executable, **parameters: object) -> Sequence[AnyRow]:
        """Return all rows of ``query``.

        Raises StorageFailure, as ``first`` and ``value`` do: the database failed.
        """
        with self.read() as connection:
            return connection.execute(query, parameters).all()

    def first(self, query: Executable, **parameters: object) -> AnyRow | None:
        """Return the first row of ``query``, or None where it has none."""
        with self.read() as connection:
            return connection.execute(query, parameters).first()

    def value(self, query: Executable, **parameters: object) -> AnyValue:
        """Return the first column of the first row, or None where there is no row."""
        with self.read() as connection:
            return connection.scalar(query, parameters)

    def execute(
        self, change: Executable, values: Sequence[AnyValue] | AnyValue = None
    ) -> int:
        """Make a change, and return how many rows it changed.

        ``values`` are one row's by column, or a list of such rows; none in it change
        nothing.
        """
        with self.write() as connection:
            return 0 if values == [] else connection.execute(change, values).rowcount

    def cached(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Return what ``compute`` returns, kept under ``key`` until the next write.

        Every owner of a cohort asks the same. Nothing that is kept can become wrong:
        this server alone writes its database (``Store.open``).
        """
        with self._turn:
            if key not in self._cache:
                self._cache[key] = compute()
            return cast("Result", self._cache[key])

    def close(self) -> None:
        """Close the database's connections."""
        with self._turn:
            self.engine.dispose()


def parse_url(text: str) -> URL:
    """Return the SQLAlchemy URL of a database that precad can use.

    What follows ``sqlite:///`` is a file's path as it is: a ? or a % in a folder's name
    is no sign of a URL's.

    Raises Misconfiguration: it is no URL, of another kind of database, or its host or
    port can't be one.
    """
    if text.startswith(_SQLITE_FILE):
        return URL.create("sqlite", database=text.removeprefix(_SQLITE_FILE))
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # The text may hold a password: it isn't repeated.
        raise Misconfiguration(
            "database", "…", f"isn't a SQLAlchemy URL; {_BACKENDS}"
        ) from None
    match url.get_backend_name():
        case "sqlite":
            return url.set(drivername="sqlite")
        case "postgresql":
            host = f"[{url.host}]" if ":" in (url.host or "") else url.host
            port = 1 if url.port is None else url.port
            # Checked before the host is looked up: where an @ of the password isn't
            # written %40, a part of the password stands in the host's place.
            fault = address_fault(f"{host}:{port}") if host else None
            if fault:
                raise Misconfiguration(
                    "database",
                    "…",
                    f"{fault}; signs of a password are written as in URLs, @ as %40",
                )
            return url.set(drivername="postgresql+psycopg")
        case backend:
            raise Misconfiguration("database", backend, _BACKENDS)


def is_in_memory(url: URL) -> bool:
    """Return whether the database is gone when its connection ends."""
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def file_of(url: URL) -> Path | None:
    """Return the file of an SQLite database; None for one in memory and PostgreSQL."""
    if url.get_backend_name() != "sqlite" or is_in_memory(url):
        return None
    return Path(url.database or "").resolve()


def writing_engine(url: URL) -> Engine:
    """Return an engine with one connection, for the one server that owns the database.

    A session's lock on PostgreSQL must live and die with the connection
    (``hold_session``), and an SQLite database in memory exists once per connection.

    Raises Misconfiguration: the driver isn't installed, or the URL can't be used.
    """
    if is_in_memory(url):
        engine = _engine(url, poolclass=StaticPool)
    else:
        # A file is always there. Only a connection over a network is tested before each
        # use.
        behind_network = url.get_backend_name() != "sqlite"
        engine = _engine(
            url,
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=behind_network,
        )
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _durable_sqlite)
        # IMMEDIATE: what a transaction reads can't change before it writes.
        event.listen(
            engine,
            "begin",
            lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"),
        )
    return engine


def reading_engine(url: URL) -> Engine:
    """Return an engine that changes nothing, for use beside a running server.

    Raises Misconfiguration: the SQLite file doesn't exist, the driver isn't installed,
    or the URL can't be used.
    """
    path = file_of(url)
    if path is not None and not path.is_file():
        raise Misconfiguration("state", path, "there is no such file")
    if url.get_backend_name() == "postgresql":
        return _engine(
            url,
            isolation_level="REPEATABLE READ",
            execution_options={"postgresql_readonly": True},
        )
    uri = None if path is None else _uri_to_read(path)
    engine = _engine(
        url,
        creator=lambda: sqlite3.connect(
            uri or ":memory:",
            uri=True,
            check_same_thread=False,
        ),
    )
    event.listen(engine, "connect", _read_only_sqlite)
    event.listen(
        engine,
        "begin",
        lambda connection: connection.exec_driver_sql("BEGIN"),
    )
    return engine


def _uri_to_read(path: Path) -> str:
    """Return the URI that opens an SQLite file so that none of its bytes changes.

    Raises Misconfiguration: what was written last stands in a log beside the file that
    can't be read without a writable folder.
    """
    uri = path.as_uri()
    write_log = path.with_name(path.name + "-wal")
    logged = write_log.is_file() and write_log.stat().st_size > 0
    if os.access(path.parent, os.W_OK):
        # A connection that may write puts the log into the file as it closes.
        return f"{uri}?mode=ro" if logged else uri
    if logged and not path.with_name(path.name + "-shm").is_file():
        remedy = "copy the folder to one that you can write to, and read it there"
        raise Misconfiguration(
            "state", path, f"needs {write_log.name} written into it; {remedy}"
        )
    # Without a log SQLite would make one; no server can run here without it.
    return f"{uri}?mode=ro" if logged else f"{uri}?immutable=1"


def wait_for_database(engine: Engine, clock: Clock = CLOCK) -> None:
    """Wait until PostgreSQL takes a connection, for at most ``START_S``.

    An SQLite database isn't waited for: a file opens at once, or never.

    Raises StorageFailure: the time is over.
    """
    if engine.dialect.name == "sqlite":
        return
    patience = Retries(
        total_s=START_S,
        policy=_WAITS,
        clock=clock,
    )
    while True:
        try:
            with storage_errors(), engine.connect():
                return
        except StorageFailure as error:
            log.warning(
                "%s; trying again for %.0f s", error, max(0.0, patience.remaining())
            )
            patience.wait(error)


def require_whole(engine: Engine) -> None:
    """Refuse an SQLite file that is damaged, or was copied beside a running server.

    Found later, the damage would stop the middle of a round, or give wrong values.

    Raises StorageFailure: the file isn't whole.
    """
    if file_of(engine.url) is not None:
        with storage_errors(), engine.connect() as connection:
            result = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar())
            if result != "ok":
                raise sqlite3.DatabaseError(f"malformed: {result}")


@contextmanager
def storage_errors() -> Iterator[None]:
    """Raise failures of the database in the block as StorageFailure.

    Mistakes in statements are bugs, and stay the exceptions that they are. A lost
    connection is a StorageGone.

    Raises Misconfiguration: the URL has an option that doesn't exist.
    """
    try:
        yield
    except (IntegrityError, ProgrammingError, DataError) as error:
        if error.statement is not None:
            raise
        # It failed before any statement: an option in the URL.
        raise Misconfiguration(
            "database", "…", _in_one_line(error.orig or error)
        ) from None
    except DBAPIError as error:
        cause = error.orig or error
        # Without a statement no connection came about.
        lost = error.connection_invalidated or error.statement is None
        if lost and not isinstance(cause, sqlite3.Error):
            raise StorageGone(
                f"the database can't be reached ({_in_one_line(cause)}); see to it:"
                " nothing is lost"
            ) from error
        raise _failure(cause) from error
    # From setting a connection up, which SQLAlchemy doesn't wrap.
    except sqlite3.Error as error:
        raise _failure(error) from error


def _engine(url: URL, **options: AnyValue) -> Engine:
    """Make an engine for ``url`` that keeps no noisy share and shows none in errors.

    Raises Misconfiguration: the driver isn't installed, or the URL can't be used.
    """
    try:
        if url.get_backend_name() == "sqlite":
            # Python's module would keep statements together with what was bound to
            # them: a noisy share.
            arguments: dict[str, str | int] = {"cached_statements": 0}
        else:
            arguments = connection_options(url)
        # What is bound to a statement may be a share: no error shows it.
        return create_engine(
            url,
            hide_parameters=True,
            connect_args=arguments,
            **options,
        )
    except ModuleNotFoundError as missing:
        raise Misconfiguration(
            "database",
            url.get_backend_name(),
            f"needs the package {missing.name}: pip install 'precad[postgres]'",
        ) from None
    except ArgumentError:
        raise Misconfiguration("database", "…", f"can't be used; {_BACKENDS}") from None


def _durable_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    """Set up a new connection of the server's own engine."""
    # Python's module would begin transactions on its own, and never before a CREATE
    # TABLE.
    connection.isolation_level = None
    # FULL: a charge that was committed survives a power cut, in WAL mode too. FAST: an
    # SQLite that was built to overwrite deleted data (Debian's is) would write every
    # noisy share twice. A noisy share is no secret: the sum of both servers' is what
    # everybody gets.
    for setting in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "secure_delete=FAST",
    ):
        connection.execute(f"PRAGMA {setting}")


def _read_only_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    """Set up a new connection of a reader's engine."""
    connection.isolation_level = None
    connection.execute("PRAGMA query_only=ON")


def _in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _failure(error: BaseException) -> StorageFailure:
    """Return what the database said, and what the operator can do about it."""
    message = _in_one_line(error)
    kind = StorageFailure
    remedy = "see to the database, then start again: the state is as it was before"
    if "malformed" in message or "not a database" in message:
        remedy = (
            "the file is damaged, as one is that cp copied beside a running server:"
            " copy with precad backup. Put back the newest copy only if no round was"
            " played since; otherwise start a new task"
        )
    elif "full" in message or "disk I/O" in message or "No space" in message:
        kind = StorageGone
        remedy = "make room on the disk: the state is as it was before"
    return kind(f"the durable state can't be used ({message}); {remedy}")
