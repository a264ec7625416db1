"""Bring a database to this version's schema when it is opened, all of it or nothing.

A new database is made as ``schema.py`` says; an older one takes the steps that it lacks
(``upgrade``), for which alone Alembic is loaded. To change the tables: change ``schema.py``, add a
file to ``migrations/versions`` whose ``down_revision`` is the newest one's, and name it in
``NEWEST``. Data is never thrown away, so there is no way down.
"""

import sqlalchemy as sa
from sqlalchemy import Connection, inspect

from precad.aggregator.store.schema import metadata
from precad.common.errors import Misconfiguration

NEWEST = "0006"
"""The schema of ``schema.py``."""
_STAMP = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own, where it looks for a database's schema."""


def migrate(connection: Connection) -> None:
    """Make the tables, or run the steps that they lack, inside the connection's transaction.

    Args:
        connection: in a transaction of the caller's, whose end makes all steps durable at once.

    Raises:
        Misconfiguration: a newer version of precad wrote the database, or somebody else did.
    """
    current = revision(connection)
    if current is None:
        if set(metadata.tables) & set(inspect(connection).get_table_names()):
            raise Misconfiguration(
                "state",
                name_of(connection),
                "holds tables that precad didn't make; give an empty database",
            )
        metadata.create_all(connection)
        _STAMP.create(connection, checkfirst=True)
        connection.execute(sa.insert(_STAMP), {"version_num": NEWEST})
    elif current != NEWEST:
        from precad.aggregator.store.upgrade import upgrade  # noqa: PLC0415

        upgrade(connection, current)


def require_current(connection: Connection) -> None:
    """For readers, which change nothing: refuse another schema than this version's.

    Raises:
        Misconfiguration: the database is older, newer, or not precad's.
    """
    current = revision(connection)
    if current is None:
        raise Misconfiguration("state", name_of(connection), "holds no state of a precad server")
    if current != NEWEST:
        from precad.aggregator.store.upgrade import require_known  # noqa: PLC0415

        require_known(connection, current)
        raise Misconfiguration(
            "state",
            f"schema {current} at {name_of(connection)}",
            f"this precad reads schema {NEWEST}; start the server once with it, which brings the "
            "database up to date",
        )


def revision(connection: Connection) -> str | None:
    """The database's schema; None when it has none."""
    if not inspect(connection).has_table(_STAMP.name):
        return None
    found: str | None = connection.scalar(sa.select(_STAMP.c.version_num))
    return found


def name_of(connection: Connection) -> str:
    """The database, as its operator knows it."""
    return connection.engine.url.render_as_string(hide_password=True)
