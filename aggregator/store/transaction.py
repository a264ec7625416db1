"""The database behind a server's stores: which kinds there are, and transactions in them.

Commits are durable, a failure of the database is a StorageFailure, and one that starts
beside the server or again is waited for.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

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

from precad.aggregator.store.postgres import connection_options
from precad.common.clock import CLOCK, Clock, Retries, RetryPolicy
from precad.common.errors import Misconfiguration, StorageFailure
from precad.common.process_settings import address_fault

log = logging.getLogger("precad")

START_S = 60.0
"""A database that was killed first reads what it had logged."""
_WAITS = RetryPolicy(0.5, 5.0)
_BACKENDS = "give sqlite:///path/to/state.db or postgresql://user@host/database"
Found = TypeVar("Found")


class Transaction:
    """Blocks in which one server's database is read and written, each all of it or nothing.

    Threads take turns: there is one connection, which is also what the lock hangs on. A
    block inside another one of the same thread is part of it.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._turn = threading.RLock()
        self._connection: Connection | None = None
        self._broken = self._writing = False
        self._looks: dict[Hashable, Any] = {}

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A block that changes something, durable at its end. Raises StorageFailure."""
        with self.read() as connection:
            self._looks.clear()
            outer = self._writing
            self._writing = True
            try:
                yield connection
            except BaseException:
                self._broken = True
                raise
            finally:
                self._writing = outer
                self._looks.clear()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A block that changes nothing. Raises StorageFailure."""
        with self._turn:
            if self._connection is not None:
                try:
                    yield self._connection
                except BaseException:
                    # PostgreSQL takes back a whole transaction in which a look failed,
                    # and says nothing at its end.
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

    def rows(self, query: Executable, **parameters: object) -> Sequence[Any]:
        """Return all that ``query`` finds.

        Raises StorageFailure, as what follows does.
        """
        with self.read() as connection:
            return connection.execute(query, parameters).all()

    def first(self, query: Executable, **parameters: object) -> Any:
        """Return the first row that ``query`` finds, or None."""
        with self.read() as connection:
            return connection.execute(query, parameters).first()

    def value(self, query: Executable, **parameters: object) -> Any:
        """Return the first column of the first row, or None."""
        with self.read() as connection:
            return connection.scalar(query, parameters)

    def look(self, what: Hashable, find: Callable[[], Found]) -> Found:
        """Return what ``find`` finds, kept until the next write: every owner of a cohort asks.

        This server alone writes its database (``Store.open``).
        """
        with self._turn:
            if what not in self._looks:
                self._looks[what] = find()
            found: Found = self._looks[what]
            return found

    def close(self) -> None:
        """Let go of the database."""
        with self._turn:
            self.engine.dispose()


def parse_url(text: str) -> URL:
    """Return the URL of a database that precad can use. Raises Misconfiguration."""
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
            # Before a look-up of half a password, where an @ of it isn't written %40.
            if host and (fault := address_fault(f"{host}:{port}")):
                remedy = (
                    f"{fault}; signs of a password are written as in URLs, @ as %40"
                )
                raise Misconfiguration("database", "…", remedy)
            return url.set(drivername="postgresql+psycopg")
        case other:
            raise Misconfiguration("database", other, _BACKENDS)


def is_in_memory(url: URL) -> bool:
    """Return whether the database ends with its connection."""
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def file_of(url: URL) -> Path | None:
    """Return the file of an SQLite database; None for the others."""
    if url.get_backend_name() != "sqlite" or is_in_memory(url):
        return None
    return Path(url.database or "").resolve()


def writing_engine(url: URL) -> Engine:
    """Return an engine with one connection, for the one server that owns the database.

    A session's lock on PostgreSQL must live and die with it (``hold_session``), and an
    SQLite database in memory exists once per connection.
    """
    if is_in_memory(url):
        engine = _engine(url, poolclass=StaticPool)
    else:
        # A file is always there: only a database behind a network is asked before each
        # use.
        ping = url.get_backend_name() != "sqlite"
        engine = _engine(
            url,
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=ping,
        )
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _durable_sqlite)
        # IMMEDIATE: what a transaction reads can't change before it writes.
        event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def reading_engine(url: URL) -> Engine:
    """Return an engine that changes nothing, beside a server.

    Raises Misconfiguration: no file.
    """
    path = file_of(url)
    if path is not None and not path.is_file():
        raise Misconfiguration("state", str(path), "there is no such file")
    if url.get_backend_name() == "postgresql":
        readonly = {"postgresql_readonly": True}
        return _engine(
            url, isolation_level="REPEATABLE READ", execution_options=readonly
        )
    engine = _engine(url)
    event.listen(engine, "connect", _read_only_sqlite)
    event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN"))
    return engine


def wait_for_database(engine: Engine, clock: Clock = CLOCK) -> None:
    """Wait until it takes a connection; a file does at once, or never.

    Raises StorageFailure.
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
    """Refuse a file that is damaged, or copied beside a running server.

    Raises StorageFailure.

    Later it would show in the middle of a round, or in what is read wrongly.
    """
    if file_of(engine.url) is not None:
        with storage_errors(), engine.connect() as connection:
            found = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar())
            if found != "ok":
                raise sqlite3.DatabaseError(f"malformed: {found}")


@contextmanager
def storage_errors() -> Iterator[None]:
    """Raise the database's failures as StorageFailure; mistakes in statements stay the same.

    Raises Misconfiguration: the URL has an option that there isn't.
    """
    try:
        yield
    except (IntegrityError, ProgrammingError, DataError) as error:
        if error.statement is not None:
            raise
        # Before any statement: an option in the URL.
        raise Misconfiguration(
            "database", "…", " ".join(str(error.orig).split())
        ) from None
    except DBAPIError as error:
        raise StorageFailure(_explain(error.orig or error)) from error
    except (
        sqlite3.Error
    ) as error:  # from setting a connection up, which SQLAlchemy doesn't wrap
        raise StorageFailure(_explain(error)) from error


def _engine(url: URL, **options: Any) -> Engine:
    try:
        if url.get_backend_name() == "sqlite":
            # Python's module would keep statements with what was bound to them: a noisy
            # share.
            arguments: dict[str, Any] = {"cached_statements": 0}
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
        remedy = f"needs the package {missing.name}: pip install 'precad[postgres]'"
        raise Misconfiguration("database", url.get_backend_name(), remedy) from None
    except ArgumentError:
        raise Misconfiguration("database", "…", f"can't be used; {_BACKENDS}") from None


def _durable_sqlite(connection: Any, _record: object) -> None:
    # Python's module would begin transactions on its own, and never before a CREATE
    # TABLE.
    connection.isolation_level = None
    # FULL: a charge that was committed survives a power cut, also in WAL mode. FAST:
    # where SQLite was built to overwrite what is deleted (as Debian's), a noisy share
    # would be written twice. It is no secret: both together are what everybody gets.
    for setting in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "secure_delete=FAST",
    ):
        connection.execute(f"PRAGMA {setting}")


def _read_only_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only=ON")


def _explain(error: BaseException) -> str:
    said = " ".join(str(error).split())
    again = "start again: the state is as it was before"
    remedy = f"see to the database, then {again}"
    if "malformed" in said or "not a database" in said:
        remedy = (
            "the file is damaged, as one is that cp copied beside a running server:"
            " copy with precad backup. Put back the newest copy only if no round was"
            " played since; otherwise start a new task"
        )
    elif "full" in said or "disk I/O" in said or "No space" in said:
        remedy = f"make room on the disk, then {again}"
    return f"the durable state can't be used ({said}); {remedy}"
