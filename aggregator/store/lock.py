"""One process per database, for as long as it lives; the system ends the lock with the process.

Two servers on one state would release one round twice, each with a noise of its own.
"""

import fcntl
import hashlib
import os
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from precad.aggregator.store.transaction import file_of
from precad.common.clock import Retries, RetryPolicy
from precad.common.errors import Misconfiguration

_REMEDY = "stop it first, or give this server a state of its own"

_PATIENCE_S, _WAITS = 1.0, RetryPolicy(0.1, 0.1)
"""PostgreSQL takes a moment to see that a process was killed, and then ends its session."""


class FileLock:
    """An exclusive lock on a file beside an SQLite database.

    Args:
        database: the database's file; the lock is ``<database>.lock`` and stays as a file.

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
                f"process {holder or 'unknown'} works with this database; {_REMEDY}",
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

    An SQLite file gets a FileLock. On PostgreSQL every connection of the engine takes the
    session's advisory lock before it does anything: a connection that broke and comes back
    finds out whether somebody else moved in meanwhile. A database in memory needs none.

    Raises:
        Misconfiguration: somebody has the database open.
    """
    if (path := file_of(engine.url)) is not None:
        return FileLock(path)
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _advisory_lock)
    return None


def _advisory_lock(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        # Advisory locks are the database's; states in two schemas don't disturb each other.
        cursor.execute("SELECT current_schema()")
        (schema,) = cursor.fetchone()
        digest = hashlib.sha256(f"precad/v1/state/{schema}".encode()).digest()
        key = int.from_bytes(digest[:8], "big", signed=True)
        taken = Misconfiguration(
            "state",
            connection.info.dbname,
            f"another process works with this database; {_REMEDY}",
        )
        patience = Retries(_PATIENCE_S, _WAITS, counted_from_now=True)
        while True:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", (key,))
            if cursor.fetchone() == (True,):
                break
            try:
                patience.wait(taken)
            except Misconfiguration:
                connection.close()
                raise
    connection.commit()
