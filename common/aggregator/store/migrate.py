"""Bring a database to this version's schema when it is opened, all of it or nothing.

A new database is made as ``tables.py`` says; an older one takes the steps that it lacks. To change
the tables: change ``tables.py``, and add a file to ``migrations/versions`` whose ``down_revision``
is the newest one's. Data is never thrown away, so there is no way down.
"""

import logging
import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from precad.common.aggregator.store.tables import metadata
from precad.common.errors import Misconfiguration

# It says of every database that it looks at it.
logging.getLogger("alembic").setLevel(logging.WARNING)
MIGRATIONS = Path(__file__).parent / "migrations"
_ALEMBIC = threading.Lock()
"""Alembic keeps the migration at hand in a module's globals: one at a time in a process."""


def migrate(connection: Connection, migrations: Path = MIGRATIONS) -> None:
    """Make the tables, or run the steps that they lack, inside the connection's transaction.

    Args:
        connection: in a transaction of the caller's, whose end makes all steps durable at once.
        migrations: Alembic's folder.

    Raises:
        Misconfiguration: a newer version of precad wrote the database, or somebody else did.
    """
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    current = _revision(connection, scripts)
    if current is None:
        if set(metadata.tables) & set(inspect(connection).get_table_names()):
            raise Misconfiguration(
                "state",
                _name(connection),
                "holds tables that precad didn't make; give an empty database",
            )
        metadata.create_all(connection)
        MigrationContext.configure(connection).stamp(scripts, "head")
    elif current != scripts.get_current_head():
        with _ALEMBIC:
            command.upgrade(config, "head")


def require_current(connection: Connection) -> None:
    """For readers, which change nothing: refuse another schema than this version's.

    Raises:
        Misconfiguration: the database is older, newer, or not precad's.
    """
    scripts = ScriptDirectory(str(MIGRATIONS))
    current = _revision(connection, scripts)
    if current is None:
        raise Misconfiguration("state", _name(connection), "holds no state of a precad server")
    if current != scripts.get_current_head():
        raise Misconfiguration(
            "state",
            f"schema {current} at {_name(connection)}",
            f"this precad reads schema {scripts.get_current_head()}; start the server once with "
            "it, which brings the database up to date",
        )


def _revision(connection: Connection, scripts: ScriptDirectory) -> str | None:
    """The database's schema; None when it has none. Raises Misconfiguration for unknown ones."""
    current = MigrationContext.configure(connection).get_current_revision()
    known = [script.revision for script in scripts.walk_revisions()]
    if current is not None and current not in known:
        raise Misconfiguration(
            "state",
            f"schema {current} at {_name(connection)}",
            f"a newer precad wrote this database; this one knows schemas up to {known[0]}. "
            "Install that version, or the newest",
        )
    return current


def _name(connection: Connection) -> str:
    return connection.engine.url.render_as_string(hide_password=True)
