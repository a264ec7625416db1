"""The file beside the database: what this server has bound itself to, whatever is put back."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event
from tests.integration.store.conftest import NEXT, A, B, Bind, Opener, Prepare

from precad.aggregator.store import schema
from precad.aggregator.store.schema import AttemptState
from precad.common.errors import AlreadyReleased, Misconfiguration, PeerViolation, StorageFailure
from precad.common.task import Task


@pytest.fixture
def url(durable_url: str) -> str:
    return durable_url


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return tmp_path / "outside" / "journal.jsonl"


@pytest.fixture
def old_copy(tmp_path: Path, url: str, opener: Opener, outside: Path) -> Callable[[], str]:
    """Put the database back from before anything happened; the file outside stays."""
    outside.parent.mkdir()
    opener(url, outside=outside).close()
    postgres = url.startswith("postgresql")
    if not postgres:
        shutil.copy(tmp_path / "state.db", tmp_path / "copy.db")

    def put_back() -> str:
        if postgres:
            _drop_tables(url)
            return url
        for file in tmp_path.glob("state.db*"):
            file.unlink()
        shutil.copy(tmp_path / "copy.db", tmp_path / "state.db")
        return url

    return put_back


def _drop_tables(url: str) -> None:
    """As nothing had happened: the next start makes them."""
    engine = create_engine(url)
    with engine.begin() as connection:
        schema.metadata.drop_all(connection)
        connection.exec_driver_sql("DROP TABLE alembic_version")
    engine.dispose()


def test_a_database_from_an_old_copy_learns_what_this_server_countersigned(
    url: str,
    old_copy: Callable[[], str],
    opener: Opener,
    outside: Path,
    prepared: Prepare,
    bind: Bind,
) -> None:
    store = opener(old_copy(), outside=outside)
    prepared(store, 2)
    bind(store, 2)
    store.attempts.finish(2, NEXT)
    # Never countersigned: not in the file.
    prepared(store, 3, version=1)
    store.attempts.void(1, 3)
    store.attempts.begin(5, 1, 3, NEXT)
    store.versions.count_opened(1, 5)
    store.close()
    again = opener(old_copy(), outside=outside)
    assert again.attempts.states() == {2: AttemptState.LEARNED}
    assert again.ledger.participations() == {A: 1, B: 1}
    assert (again.versions.opened(0), again.versions.opened(1)) == (0, 1)
    # Its number was used, though the database doesn't know.
    assert again.attempts.next_number() == 6
    with pytest.raises(PeerViolation, match="isn't above 5"):
        again.attempts.begin(5, 1, 3, NEXT)
    length = again.ledger.head().length
    again.close()
    same = opener(url, outside=outside)
    assert same.ledger.head().length == length


def test_what_both_servers_voided_after_a_put_back_stays_voided(
    url: str,
    old_copy: Callable[[], str],
    opener: Opener,
    outside: Path,
    prepared: Prepare,
    bind: Bind,
) -> None:
    """The other server countersigned nothing, so nothing left, and its ledger has no charge."""
    store = opener(old_copy(), outside=outside)
    prepared(store, 2)
    bind(store, 2)
    store.close()
    again = opener(old_copy(), outside=outside)
    assert again.attempts.states() == {2: AttemptState.LEARNED}
    again.attempts.void(0, 2)
    again.close()
    # At the next start, and where the same old copy is put back once more.
    started = opener(url, outside=outside)
    assert started.attempts.states() == {2: AttemptState.VOIDED}
    assert started.ledger.participations() == {}
    started.close()
    put_back = opener(old_copy(), outside=outside)
    assert put_back.ledger.participations() == {}
    assert put_back.attempts.next_number() == 3, "an attempt's number would be used again"


def test_what_the_file_holds_is_never_voided(
    tmp_path: Path, url: str, opener: Opener, prepared: Prepare, bind: Bind
) -> None:
    """Killed after the file's line and before the database's: the word may have left."""
    outside = tmp_path / "journal.jsonl"
    store = opener(url, outside=outside)
    prepared(store)

    def fail(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("UPDATE attempt"):
            raise OSError("no")

    event.listen(store.transaction.engine, "before_cursor_execute", fail)
    with pytest.raises(OSError, match="no"):
        bind(store)
    event.remove(store.transaction.engine, "before_cursor_execute", fail)
    assert store.attempts.states() == {0: AttemptState.PREPARED}
    store.close()
    again = opener(url, outside=outside)
    assert again.attempts.states() == {0: AttemptState.COUNTERSIGNED}
    with pytest.raises(AlreadyReleased, match="never voided"):
        again.attempts.void(0, 0)


def test_no_word_leaves_that_the_file_could_not_take(
    url: str, outside: Path, opener: Opener, prepared: Prepare, bind: Bind
) -> None:
    store = opener(url, outside=outside)
    prepared(store)
    for attempt in (lambda: bind(store), lambda: store.versions.count_opened(0, 0)):
        with pytest.raises(StorageFailure, match="can't be written"):
            attempt()
    assert (store.attempts.states(), store.versions.opened(0)) == ({0: AttemptState.PREPARED}, 0)
    outside.parent.mkdir()
    bind(store)
    assert store.attempts.states() == {0: AttemptState.SENT}


@pytest.mark.parametrize("cut", [1, 10])
def test_a_line_that_a_crash_cut_short_is_dropped(
    old_copy: Callable[[], str],
    opener: Opener,
    outside: Path,
    prepared: Prepare,
    bind: Bind,
    cut: int,
) -> None:
    """It was never answered for: its word left only after the whole line was on the disk."""
    store = opener(old_copy(), outside=outside)
    prepared(store, 0)
    bind(store, 0)
    whole = outside.read_bytes()
    store.attempts.finish(0, NEXT)
    prepared(store, 1, version=1)
    bind(store, 1, 1)
    store.close()
    outside.write_bytes(outside.read_bytes()[:-cut])
    again = opener(old_copy(), outside=outside)
    assert (again.attempts.states(), outside.read_bytes()) == ({0: AttemptState.LEARNED}, whole)
    # What is written next is a line of its own.
    prepared(again, 1, version=1)
    bind(again, 1, 1)
    again.close()
    assert len(opener(old_copy(), outside=outside).attempts.states()) == 2


OWN = b'{"task":"TASK",'


@pytest.mark.parametrize(
    "line",
    [
        b"x",
        b"[]",
        b"{}",
        b'{"task": "f00"',
        b"\xff",
        b"[" * 100_000,
        OWN + b'"version":1}',
        OWN + b'"version":-1,"attempt":0}',
        OWN + b'"version":1,"attempt":99999999999999999999}',
        OWN + b'"version":1,"attempt":2,"clients":["No Client"]}',
        OWN + b'"version":1,"attempt":2,"clients":3}',
    ],
    ids=lambda line: line[:60].decode(errors="replace"),
)
def test_a_file_that_no_server_wrote_is_refused(
    tmp_path: Path, url: str, opener: Opener, task: Task, line: bytes
) -> None:
    outside = tmp_path / "journal.jsonl"
    outside.write_bytes(line.replace(b"TASK", str(task.digest).encode()) + b"\n")
    with pytest.raises(Misconfiguration, match="newest file back"):
        opener(url, outside=outside)


def test_another_tasks_lines_do_not_count(
    tmp_path: Path, url: str, opener: Opener, make_task: Any, prepared: Prepare, bind: Bind
) -> None:
    outside = tmp_path / "journal.jsonl"
    other: Task = make_task(8, {"privacy.noise_multiplier": 2.5})
    store = opener(f"sqlite:///{tmp_path}/other.db", task=other, outside=outside)
    prepared(store, 3)
    bind(store, 3)
    # Nor do those of another form, which a precad to come may write.
    with outside.open("ab") as file:
        file.write(b'{"task":"f00","kind":"of another form"}\n')
    assert opener(url, outside=outside).attempts.next_number() == 0
