"""A copy of one server's state, taken while the server runs."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from precad.aggregator.store.audit import Audit, audit_ledger
from precad.aggregator.store.transaction import storage_errors
from precad.common.errors import Misconfiguration, StorageFailure
from precad.common.files import make_folder

DATABASE = "state.db"
BESIDE = ("model.seal", "model.safetensors")
"""The seal first: of a model that is there it is never the older."""
TOKENS = "tokens"


def back_up(state: Path, copy: Path) -> Audit:
    """Copy what a state folder may be put back from, and audit the copy.

    The database comes first and whole, as of one moment; the model may be a round newer, which a
    start after a crash knows too. Bodies in the spool aren't copied: they end with their attempt.
    Nor is the journal file, which a copy must never replace (docs/durable-state.md).

    Args:
        state: the server's state folder, with an SQLite database; the server may be running.
        copy: a folder that doesn't exist.

    Returns:
        What the copy's ledger is like. Its head is what to note elsewhere.

    Raises:
        Misconfiguration: ``state`` holds no database, or ``copy`` exists.
        StorageFailure: the database can't be read or the copy can't be written.
    """
    database = state / DATABASE
    if not database.is_file():
        raise Misconfiguration(
            "STATE",
            str(state),
            f"holds no {DATABASE}; of a database on PostgreSQL make a copy with pg_dump, and copy "
            f"{' and '.join(BESIDE)} beside it",
        )
    if copy.exists():
        raise Misconfiguration("COPY", str(copy), "exists already: name a new folder")
    draft = copy.with_name(f".{copy.name}.part")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        make_folder(draft)
        with storage_errors():
            _copy_database(database, draft / DATABASE)
        for name in BESIDE:
            if (state / name).exists():
                shutil.copy2(state / name, draft / name)
        if (state / TOKENS).is_dir():
            shutil.copytree(state / TOKENS, draft / TOKENS)
        for path in (*draft.rglob("*"), draft):
            _sync(path)
        draft.rename(copy)
        _sync(copy.parent)
    except OSError as error:
        raise StorageFailure(
            f"{copy} can't be written ({error.strerror}); make room there, or name another folder"
        ) from None
    return audit_ledger(f"sqlite:///{(copy / DATABASE).resolve()}")


def _copy_database(source: Path, target: Path) -> None:
    target.touch(mode=0o600)
    with closing(sqlite3.connect(source)) as database, closing(sqlite3.connect(target)) as copied:
        database.execute("PRAGMA query_only=ON")
        database.backup(copied)
        # One file, without the log that WAL keeps beside it.
        copied.execute("PRAGMA journal_mode=DELETE")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
