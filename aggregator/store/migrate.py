"""Bring a database to this version's schema when it is opened, all of it or nothing.

A new database is made as ``schema.py`` says; an older one takes the steps that it lacks. To change
the tables: change ``schema.py``, add a file to ``migrations/versions`` whose ``down_revision`` is
the newest one's, and name it in ``NEWEST``. Data is never thrown away: there is no way down.
"""

import logging
import threading
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection, inspect

from precad.aggregator.store.schema import metadata
from precad.common.errors import Misconfiguration

NEWEST = "0006"
"""The schema of ``schema.py``."""
MIGRATIONS = Path(__file__).parent / "migrations"
_ALEMBIC = threading.Lock()
"""Alembic keeps the migration at hand in a module's globals: one at a time in a process."""
_STAMP = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own, where it looks for a database's schema."""


def migrate(connection: Connection) -> None:
    """Make the tables, or run the steps that they lack, inside the connection's transaction.

    Raises Misconfiguration: a newer version of precad wrote the database, or somebody else did.
    """
    current = revision(connection)
    if current is None:
        if set(metadata.tables) & set(inspect(connection).get_table_names()):
            raise Misconfiguration(
                "state",
                _name_of(connection),
                "holds tables that precad didn't make; give an empty database",
            )
        metadata.create_all(connection)
        _STAMP.create(connection, checkfirst=True)
        connection.execute(sa.insert(_STAMP), {"version_num": NEWEST})
    elif current != NEWEST:
        upgrade(connection, current)


def upgrade(connection: Connection, current: str, migrations: Path = MIGRATIONS) -> None:
    """Run the steps that the tables lack, inside the connection's transaction.

    Raises Misconfiguration: a newer version of precad wrote the database.
    """
    # A server whose tables are this version's, as nearly all are, loads nothing of Alembic.
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
    """Refuse a schema that this version has never heard of. Raises Misconfiguration."""
    known = sorted(path.name[1:5] for path in MIGRATIONS.glob("versions/r*.py"))
    if current not in known:
        why = (
            "a version of precad that was never released wrote this database: start a new task"
            if current < known[0]
            else f"a newer precad wrote this database; this one knows schemas up to {NEWEST}. "
            "Install that version, or the newest"
        )
        raise Misconfiguration("state", f"schema {current} at {_name_of(connection)}", why)


def require_current(connection: Connection) -> None:
    """For readers, which change nothing: refuse another schema than this version's.

    Raises Misconfiguration: the database is older, newer, or not precad's.
    """
    current = revision(connection)
    if current is None:
        raise Misconfiguration("state", _name_of(connection), "holds no state of a precad server")
    if current != NEWEST:
        _require_known(connection, current)
        raise Misconfiguration(
            "state",
            f"schema {current} at {_name_of(connection)}",
            f"this precad reads schema {NEWEST}; start the server once with it, which brings the "
            "database up to date",
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
