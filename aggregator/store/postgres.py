"""A server's session on PostgreSQL: who holds it alone, how it is reached, and what may lie there.

A PostgreSQL may be another machine, and others may have databases and schemas on it.
The session's advisory lock keeps a second process out; it lives and dies with the one
connection that writes.
"""

import hashlib
import logging
import secrets
from ipaddress import ip_address
from typing import Any

from sqlalchemy import URL, Connection, Engine, event, text

from precad.aggregator.store.schema import metadata
from precad.common.clock import Retries, RetryPolicy
from precad.common.errors import Misconfiguration

log = logging.getLogger("precad")

STOP_IT_FIRST = "stop it first, or give this server a state of its own"

_PATIENCE_S, _REMOTE_PATIENCE_S, _WAITS = 1.0, 90.0, RetryPolicy(0.1, 5.0)
"""PostgreSQL takes a moment to see that a process was killed, and then ends its
session; that a machine is gone it sees by ``_KEEPALIVE``, within a minute."""
_KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
_SESSION = "precad_session"
"""Under this name a connection's record keeps what its session was marked with."""
_FOREIGN_TABLES = text(
    "SELECT relname, pg_get_userbyid(relowner) AS owner FROM pg_class "
    "WHERE relnamespace = to_regnamespace(quote_ident(current_schema())) "
    "AND relname = ANY(:names) AND NOT pg_has_role(current_user, relowner, 'USAGE')"
)


def connection_options(url: URL) -> dict[str, Any]:
    """Return what libpq is told beside the URL, which comes first where it says otherwise.

    Another machine must show a certificate in its name: libpq alone would go on in the
    clear with whoever answers, and show it the password.
    """
    # A database that was made without a locale is SQL_ASCII: its text would come as
    # bytes.
    options: dict[str, Any] = {"client_encoding": "utf8"}
    # A partition, or a firewall that forgets a connection, ends a wait within a minute.
    options |= _KEEPALIVE | {"connect_timeout": 10, "tcp_user_timeout": 60_000}
    if _is_remote(url):
        options["sslmode"] = "verify-full"
    return {name: value for name, value in options.items() if name not in url.query}


def _is_remote(url: URL) -> bool:
    named = url.query.get("host", ())
    hosts = [url.host, *([named] if isinstance(named, str) else named)]
    return any(
        host and not host.startswith("/") and not _is_here(host) for host in hosts
    )


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def hold_session(engine: Engine) -> None:
    """Have every connection of ``engine`` take the lock before it does anything.

    One that broke and comes back finds out whether somebody else moved in meanwhile.
    Each transaction looks whether its session is still the one that was locked: a
    pooler may give it away, or share it. Connecting or beginning raises
    Misconfiguration: somebody has the database open, or a pooler shares the session.
    """
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "connect", _advisory_lock)
    event.listen(engine, "begin", _require_same_session)


def _prepare(connection: Any, record: Any) -> None:
    record.info[_SESSION] = mark = secrets.token_hex(16)
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
            why = "a power cut may lose a charge whose share has left; set it on"
            log.warning("PostgreSQL runs with fsync = off: %s", why)
    connection.commit()


def _advisory_lock(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        # Advisory locks are the database's; states in two schemas don't disturb each
        # other.
        cursor.execute("SELECT current_schema(), inet_client_addr() IS NULL")
        schema, here = cursor.fetchone()
        digest = hashlib.sha256(f"precad/v1/state/{schema}".encode()).digest()
        key = int.from_bytes(digest[:8], "big", signed=True)
        remedy = f"another process works with this database; {STOP_IT_FIRST}"
        taken = Misconfiguration("state", connection.info.dbname, remedy)
        patience_s = _PATIENCE_S if here else _REMOTE_PATIENCE_S
        patience = Retries(
            total_s=patience_s,
            policy=_WAITS,
            counted_from_now=True,
        )
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


def _require_same_session(connection: Connection) -> None:
    mark = connection.exec_driver_sql(
        "SELECT current_setting('precad.session', true)"
    ).scalar()
    if mark != connection.info[_SESSION]:
        remedy = (
            "something between gives this session to others, or resets it, and the lock"
            " on the state with it; give a direct connection, or a pooler that keeps"
            " sessions"
        )
        raise Misconfiguration("database", connection.engine.url.database, remedy)


def require_own_tables(connection: Connection) -> None:
    """Refuse tables of the state's names that another user owns.

    Raises Misconfiguration.

    Where others may make tables in the schema, as in ``public`` before PostgreSQL 15,
    theirs would be used as this server's own.
    """
    if connection.dialect.name != "postgresql":
        return
    names = [*metadata.tables, "alembic_version"]
    found = connection.execute(_FOREIGN_TABLES, {"names": names}).first()
    if found is not None:
        said = f"table {found.relname} belongs to user {found.owner}"
        remedy = f"{said}; give a schema in which this server's user alone makes tables"
        raise Misconfiguration("database", connection.engine.url.database, remedy)
