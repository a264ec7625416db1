"""Bring a database to this version's schema when it is opened, all of it or nothing.

A new database is made as ``schema.py`` says; an older one takes the steps that it lacks
(``upgrade``). To change the tables: change ``schema.py``, add a file to ``migrations/versions``
whose ``down_revision`` is the newest one's, and name it in ``NEWEST``. Data is never thrown away,
so there is no way down.
"""

import logging
import threading
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
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


# The steps from an older schema to this version's; the one place that loads Alembic.


# It says of every database that it looks at it.
logging.getLogger("alembic").setLevel(logging.WARNING)
MIGRATIONS = Path(__file__).parent / "migrations"
_ALEMBIC = threading.Lock()
"""Alembic keeps the migration at hand in a module's globals: one at a time in a process."""


def upgrade(connection: Connection, current: str, migrations: Path = MIGRATIONS) -> None:
    """Run the steps that the tables lack, inside the connection's transaction.

    Args:
        connection: in a transaction of the caller's, whose end makes all steps durable at once.
        current: the database's schema.
        migrations: Alembic's folder.

    Raises:
        Misconfiguration: a newer version of precad wrote the database.
    """
    require_known(connection, current)
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _ALEMBIC:
        command.upgrade(config, "head")


def require_known(connection: Connection, current: str) -> None:
    """Refuse a schema that this version has never heard of. Raises Misconfiguration."""
    known = [script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()]
    if current not in known:
        raise Misconfiguration(
            "state",
            f"schema {current} at {name_of(connection)}",
            f"a newer precad wrote this database; this one knows schemas up to {known[0]}. "
            "Install that version, or the newest",
        )
