"""A server's session on PostgreSQL: its lock, its connection, and whose tables it uses.

A PostgreSQL may run on another machine, and others may have databases and schemas on
it. The session's advisory lock keeps a second process out. The lock lives and dies with
the one connection that writes.
"""

import hashlib
import secrets
from ipaddress import ip_address
from typing import Any

from sqlalchemy import URL, Connection, Engine, event, text
from sqlalchemy.pool import ConnectionPoolEntry

from precad.aggregator.store import metadata
from precad.common import MayPass, Misconfiguration, Retries, RetryPolicy, log

STOP_IT_FIRST = "stop it first, or give this server a state of its own"

_PsycopgConnection = Any
"""The driver's own connection; a server on SQLite doesn't need the driver."""
_PATIENCE_S = 1.0
"""Seconds to wait for the lock over a Unix socket: PostgreSQL takes a moment to see
that a process was killed, and then ends its session."""
_REMOTE_PATIENCE_S = 90.0
"""Seconds to wait for the lock over a network: PostgreSQL sees by ``_KEEPALIVE`` that a
machine is gone, within a minute."""
_WAITS = RetryPolicy(first_s=0.1, longest_s=5.0)
_KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""TCP keepalive, in seconds and tries, set at both ends of the connection."""
_SESSION = "precad_session"
"""Key under which a pooled connection's ``info`` holds the mark of its session."""
_FOREIGN_TABLES = text(
    "SELECT relname, pg_get_userbyid(relowner) AS owner FROM pg_class "
    "WHERE relnamespace = to_regnamespace(quote_ident(current_schema())) "
    "AND relname = ANY(:names) AND NOT pg_has_role(current_user, relowner, 'USAGE')"
)


def connection_options(url: URL) -> dict[str, str | int]:
    """Return libpq's options beside the URL; what the URL itself sets is left out.

    Another machine must show a certificate for its name: libpq alone would go on
    without encryption with whoever answers, and show it the password.
    """
    options: dict[str, str | int] = {
        # A database that was made without a locale is SQL_ASCII: its text would come as
        # bytes.
        "client_encoding": "utf8",
        # Neither a network partition nor a firewall that forgets the connection may
        # make a wait longer than a minute.
        **_KEEPALIVE,
        "connect_timeout": 10,
        "tcp_user_timeout": 60_000,
    }
    if _is_remote(url):
        options["sslmode"] = "verify-full"
    return {name: value for name, value in options.items() if name not in url.query}


def _is_remote(url: URL) -> bool:
    """Return whether any host that the URL names is another machine."""
    in_query = url.query.get("host", ())
    hosts = [url.host, *([in_query] if isinstance(in_query, str) else in_query)]
    return any(
        host and not host.startswith("/") and not _is_this_machine(host)
        for host in hosts
    )


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def hold_session(engine: Engine) -> None:
    """Make every connection of ``engine`` take the advisory lock before anything else.

    A connection that broke and comes back finds out whether another process took the
    database meanwhile. Each transaction checks that its session is still the one that
    holds the lock: a pooler may give the session away, or share it.

    From then on connecting, or beginning a transaction, raises Misconfiguration:
    another process has the database open, or a pooler shares the session.
    """
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "connect", _advisory_lock)
    event.listen(engine, "begin", _require_same_session)


def _prepare(connection: _PsycopgConnection, entry: ConnectionPoolEntry) -> None:
    """Mark a new session and set what durable commits need, for ``hold_session``.

    Warns when the whole PostgreSQL runs without fsync, which a session can't change.
    """
    mark = secrets.token_hex(16)
    entry.info[_SESSION] = mark
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('precad.session', %s, false)", (mark,))
        # A database or a role may be set to answer before a commit is on the disk.
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', false) "
            "WHERE current_setting('synchronous_commit') = 'off'"
        )
        for name, value in _KEEPALIVE.items():
            cursor.execute(
                "SELECT set_config(%s, %s, false)", (f"tcp_{name}", str(value))
            )
        cursor.execute("SELECT current_setting('fsync')")
        if cursor.fetchone() == ("off",):
            risk = "a power cut may lose a charge whose share has left; set it on"
            log.warning("PostgreSQL runs with fsync = off: %s", risk)
    connection.commit()


def _advisory_lock(connection: _PsycopgConnection, _entry: object) -> None:
    """Take the lock on the state in a new session, waiting for one that still ends.

    Raises MayPass: another process holds it; the connection is closed then.
    """
    with connection.cursor() as cursor:
        # Advisory locks belong to the whole database: the key has the schema in it, so
        # that states in two schemas don't disturb each other.
        cursor.execute("SELECT current_schema(), inet_client_addr() IS NULL")
        schema, over_unix_socket = cursor.fetchone()
        digest = hashlib.sha256(f"precad/v1/state/{schema}".encode()).digest()
        key = int.from_bytes(digest[:8], byteorder="big", signed=True)
        remedy = f"another process works with this database; {STOP_IT_FIRST}"
        refusal = MayPass("state", connection.info.dbname, remedy)
        patience = Retries(
            total_s=_PATIENCE_S if over_unix_socket else _REMOTE_PATIENCE_S,
            policy=_WAITS,
            counted_from_now=True,
        )
        while True:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", (key,))
            if cursor.fetchone() == (True,):
                break
            try:
                patience.wait(refusal)
            except MayPass:
                connection.close()
                raise
    connection.commit()


def _require_same_session(connection: Connection) -> None:
    """Check that a transaction begins in the session that this engine marked.

    Raises Misconfiguration: something between shares the session, and the lock with it.
    """
    mark = connection.exec_driver_sql(
        "SELECT current_setting('precad.session', true)"
    ).scalar()
    if mark != connection.info[_SESSION]:
        raise Misconfiguration(
            "database",
            connection.engine.url.database,
            "something between gives this session to others, or resets it, and the lock"
            " on the state with it; give a direct connection, or a pooler that keeps"
            " sessions",
        )


_MAY_CREATE = text(
    "SELECT current_user AS role, current_schema() AS schema, "
    "has_schema_privilege(current_schema(), 'CREATE') AS allowed "
    "WHERE to_regclass('alembic_version') IS NULL"
)


def require_own_tables(connection: Connection) -> None:
    """Refuse a schema where no tables can be made, or where another user owns some.

    Where others may make tables in the schema, as in ``public`` before PostgreSQL 15,
    theirs would be used as this server's own. Of SQLite nothing is checked.

    Raises Misconfiguration: there is such a table, or this server's user has no schema,
    or no right to make its first tables.
    """
    if connection.dialect.name != "postgresql":
        return
    new = connection.execute(_MAY_CREATE).first()
    if new is not None and not new.allowed:
        remedy = (
            f"user {new.role} may make no tables in schema {new.schema}, as no new user"
            f" since PostgreSQL 15: GRANT USAGE, CREATE ON SCHEMA {new.schema} TO"
            f" {new.role}, or make the user the database's owner"
        )
        if new.schema is None:
            remedy = (
                f"user {new.role} has no schema to make tables in: its search_path"
                f" names none that there is; ALTER ROLE {new.role} SET search_path"
            )
        raise Misconfiguration("database", connection.engine.url.database, remedy)
    names = [*metadata.tables, "alembic_version"]
    foreign = connection.execute(_FOREIGN_TABLES, {"names": names}).first()
    if foreign is not None:
        ownership = f"table {foreign.relname} belongs to user {foreign.owner}"
        raise Misconfiguration(
            "database",
            connection.engine.url.database,
            f"{ownership}; give a schema in which this server's user alone makes tables",
        )
