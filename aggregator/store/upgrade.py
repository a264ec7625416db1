"""The steps from an older schema to this version's; the one place that loads Alembic."""

import logging
import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from precad.aggregator.store.migrate import name_of
from precad.common.errors import Misconfiguration

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
