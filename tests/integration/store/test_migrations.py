"""Opening a database brings it to this version's schema, all of it or nothing."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DatabaseError
from tests.rig.stores import Opener, prepared, tamper

from precad.aggregator.store import (
    Store,
    audit_ledger,
    read_training,
    schema,
    transaction,
)
from precad.aggregator.store.database import (
    MIGRATIONS,
    NEWEST,
    migrate,
    revision,
    upgrade,
)
from precad.common.errors import Misconfiguration

NEXT_STEP = """
from alembic import op
import sqlalchemy as sa
revision = "next"
down_revision = "0007"

def upgrade():
    op.add_column("charge", sa.Column("note", sa.String(8)))
    op.execute("UPDATE charge SET note = 'old'")
    {then}
"""


@contextmanager
def changing(url: str) -> Iterator[Connection]:
    engine = transaction.writing_engine(transaction.parse_url(url))
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def columns(url: str, table: str) -> set[str]:
    with changing(url) as connection:
        return {column["name"] for column in inspect(connection).get_columns(table)}


def migrated(connection: Connection) -> MigrationContext:
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    assert compare_metadata(context, schema.metadata) == []
    return context


@pytest.mark.parametrize("older", [True, False])
def test_a_migrated_schema_is_the_used_one(
    durable_url: str, store: Store, *, older: bool
) -> None:
    if older:
        # As that version left it, which no later version changes.
        script = Path(__file__).with_name("schema_0005.sql").read_text()
        binary = "BYTEA" if durable_url.startswith("postgresql") else "BLOB"
        tamper(
            durable_url, *filter(str.strip, script.replace("BLOB", binary).split(";\n"))
        )
    with changing(durable_url) as connection:
        migrate(connection)
        assert revision(connection) == NEWEST
        # As Alembic sees it, whoever has stamped it.
        (head,) = ScriptDirectory(str(MIGRATIONS)).get_heads()
        assert migrated(connection).get_current_heads() == (head,)
        # compare_metadata doesn't look into an index's condition.
        indexes = {
            index["name"]: index for index in inspect(connection).get_indexes("attempt")
        }
        options = indexes["one_release_of_a_version"]["dialect_options"]
        condition = str(options[f"{connection.dialect.name}_where"])
        assert all(
            each in condition for each in ("prepared", "countersigned", "sent", "done")
        )
    # One in memory is made without migrations, for speed.
    with store.transaction.write() as connection:
        migrated(connection)


def test_an_older_database_keeps_its_data(
    durable_url: str, tmp_path: Path, opener: Opener
) -> None:
    """Brought up to date, or as it was; and an older precad refuses it then."""
    store = opener(durable_url)
    prepared(store)
    store.close()
    newer = tmp_path / "100% newer"
    shutil.copytree(MIGRATIONS, newer, ignore=shutil.ignore_patterns("__pycache__"))
    broken = 'op.execute("DROP TABLE charge"); op.execute("no SQL")'
    (newer / "versions" / "next.py").write_text(NEXT_STEP.format(then=broken))
    with pytest.raises(DatabaseError), changing(durable_url) as connection:
        upgrade(connection, NEWEST, newer)
    assert "note" not in columns(durable_url, "charge")
    store = opener(durable_url)
    assert len(store.ledger.participations()) == 2
    store.close()
    (newer / "versions" / "next.py").write_text(NEXT_STEP.format(then=""))
    with changing(durable_url) as connection:
        upgrade(connection, NEWEST, newer)
    for use in (opener, read_training, audit_ledger):
        with pytest.raises(Misconfiguration, match=r"newer precad .* up to 0007"):
            use(durable_url)
    # And stays as it is.
    with changing(durable_url) as connection:
        notes = connection.execute(
            text("SELECT client, note FROM charge ORDER BY client")
        ).all()
    assert [tuple(row) for row in notes] == [("ward-a", "old"), ("ward-b", "old")]
    # Nor does a server go on with one of before the first release.
    tamper(durable_url, "UPDATE alembic_version SET version_num = '0003'")
    with pytest.raises(Misconfiguration, match=r"schema 0003 .*never released"):
        opener(durable_url)


def test_tables_of_others_are_no_state_and_are_left_alone(
    durable_url: str, opener: Opener
) -> None:
    for statements in ((), ("CREATE TABLE other (name VARCHAR(8))",)):
        tamper(durable_url, *statements)
        with pytest.raises(Misconfiguration, match="no state of a precad server"):
            read_training(durable_url)
    # One of a name that is needed; and others beside are no obstacle.
    tamper(durable_url, "CREATE TABLE task (name VARCHAR(8))")
    with pytest.raises(Misconfiguration, match="empty database"):
        opener(durable_url)
    assert columns(durable_url, "task") == {"name"}
    tamper(durable_url, "DROP TABLE task")
    assert opener(durable_url).attempts.states() == {}
