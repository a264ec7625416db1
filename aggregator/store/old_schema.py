"""Databases of older schemas, read without a change to them.

A reader copies the database into memory, brings the copy to this version's schema, and
reads that: an auditor of later years needs neither the old software nor the right to
write.
"""

import sqlite3
from typing import cast

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from precad.aggregator.store import (
    NEWEST,
    parse_url,
    revision_to_read,
    storage_errors,
    upgrade,
    writing_engine,
)


def copy_of_older(source: Connection) -> Engine | None:
    """Return a copy in memory of an older database, at the newest schema.

    None where ``source`` has the newest schema itself.

    Raises Misconfiguration: ``source`` holds no server's state, or a newer version's;
    StorageFailure: it can't be read.
    """
    current = revision_to_read(source)
    if current == NEWEST:
        return None
    engine = writing_engine(parse_url("sqlite://"))
    with storage_errors():
        if source.dialect.name == "sqlite":
            with engine.connect() as copy:
                _driver(source).backup(_driver(copy))
        else:
            with engine.begin() as copy:
                _copy_rows(source, copy)
        with engine.begin() as copy:
            upgrade(copy, current)
    return engine


def _driver(connection: Connection) -> sqlite3.Connection:
    return cast("sqlite3.Connection", connection.connection.driver_connection)


def _copy_rows(source: Connection, copy: Connection) -> None:
    """Copy all tables, without their indexes: those only make searches faster."""
    tables = sa.MetaData()
    tables.reflect(source)
    for table in tables.sorted_tables:
        table.indexes.clear()
        for column in table.columns:
            column.type = column.type.as_generic()
            column.server_default = None
        rows = source.execute(sa.select(table)).mappings().all()
        table.create(copy)
        if rows:
            copy.execute(sa.insert(table), [dict(row) for row in rows])
