"""The file beside the database: what this server has bound itself to, whatever is put back."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from tests.conftest import small_task
from tests.rig.stores import NEXT, A, B, Opener, bound, prepared, released, sent, tamper

from precad.aggregator.store import Store, schema
from precad.aggregator.store.schema import AttemptState
from precad.common.errors import AlreadyReleased, Misconfiguration, PeerViolation, StorageFailure
from precad.common.task import Task


@dataclass(frozen=True, slots=True)
class Place:
    """A database and the file beside it, which stays when the database is put back."""

    url: str
    outside: Path
    opener: Opener
    stores: list[Store] = field(default_factory=list)

    def open(self, *, old: bool = False) -> Store:
        """Anew: as it is, or from before anything happened, when a start makes its tables."""
        for store in self.stores:
            store.close()
        if old:
            tables = [each.name for each in reversed(schema.metadata.sorted_tables)]
            tamper(self.url, *(f"DROP TABLE {each}" for each in (*tables, "alembic_version")))
        self.stores.append(self.opener(self.url, outside=self.outside))
        return self.stores[-1]


@pytest.fixture
def place(durable_url: str, tmp_path: Path, opener: Opener) -> Place:
    outside = tmp_path / "outside" / "journal.jsonl"
    outside.parent.mkdir()
    return Place(durable_url, outside, opener)


def test_a_database_from_an_old_copy_learns_what_this_server_countersigned(place: Place) -> None:
    store = place.open()
    released(store, 2)
    # Never countersigned: not in the file.
    prepared(store, 3, 1)
    store.attempts.void(1, 3)
    store.attempts.begin(5, 1, 3, NEXT)
    store.versions.count_opened(1, 5)
    again = place.open(old=True)
    assert again.attempts.states() == {2: AttemptState.LEARNED}
    assert again.ledger.participations() == {A: 1, B: 1}
    # Its number was used, though the database doesn't know.
    found = again.versions.opened(0), again.versions.opened(1), again.attempts.next_number()
    assert found == (0, 1, 6)
    with pytest.raises(PeerViolation, match="isn't above 5"):
        again.attempts.begin(5, 1, 3, NEXT)
    length = again.ledger.head().length
    assert place.open().ledger.head().length == length


def test_what_both_servers_voided_after_a_put_back_stays_voided(place: Place) -> None:
    """The other server countersigned nothing, so nothing left, and its ledger has no charge."""
    store = place.open()
    sent(store, 2)
    again = place.open(old=True)
    assert again.attempts.states() == {2: AttemptState.LEARNED}
    again.attempts.void(0, 2)
    # At the next start, and where the same old copy is put back once more.
    for old, states in ((False, {2: AttemptState.VOIDED}), (True, {})):
        again = place.open(old=old)
        assert (again.attempts.states(), again.ledger.participations()) == (states, {})
        # No attempt's number is used again.
        assert again.attempts.next_number() == 3


def test_what_the_file_holds_is_never_voided(place: Place) -> None:
    """Killed after the file's line and before the database's: the word may have left."""
    store = place.open()
    prepared(store)

    def fail(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("UPDATE attempt"):
            raise OSError("no")

    event.listen(store.transaction.engine, "before_cursor_execute", fail)
    with pytest.raises(OSError, match="no"):
        bound(store)
    event.remove(store.transaction.engine, "before_cursor_execute", fail)
    assert store.attempts.states() == {0: AttemptState.PREPARED}
    again = place.open()
    assert again.attempts.states() == {0: AttemptState.COUNTERSIGNED}
    with pytest.raises(AlreadyReleased, match="never voided"):
        again.attempts.void(0, 0)


def test_no_word_leaves_that_the_file_could_not_take(place: Place) -> None:
    shutil.rmtree(place.outside.parent)
    store = place.open()
    prepared(store)
    for attempt in (lambda: bound(store), lambda: store.versions.count_opened(0, 0)):
        with pytest.raises(StorageFailure, match="can't be written"):
            attempt()
    assert (store.attempts.states(), store.versions.opened(0)) == ({0: AttemptState.PREPARED}, 0)
    place.outside.parent.mkdir()
    bound(store)
    assert store.attempts.states() == {0: AttemptState.SENT}


@pytest.mark.parametrize("cut", [1, 10])
def test_a_line_that_a_crash_cut_short_is_dropped(place: Place, cut: int) -> None:
    """It was never answered for: its word left only after the whole line was on the disk."""
    store, outside = place.open(), place.outside
    released(store)
    whole = outside.read_bytes()
    sent(store, 1, 1)
    outside.write_bytes(outside.read_bytes()[:-cut])
    again = place.open(old=True)
    assert (again.attempts.states(), outside.read_bytes()) == ({0: AttemptState.LEARNED}, whole)
    # What is written next is a line of its own.
    sent(again, 1, 1)
    assert len(place.open(old=True).attempts.states()) == 2


OWN = (
    b"1}",
    b'-1,"attempt":0}',
    b'1,"attempt":99999999999999999999}',
    b'1,"attempt":2,"clients":["No Client"]}',
    b'1,"attempt":2,"clients":3}',
)
BAD = (b"x", b"[]", b"{}", b'{"task": "f00"', b"\xff", b"[" * 100_000)


@pytest.mark.parametrize(
    "line",
    [*BAD, *(b'{"task":"TASK","version":' + each for each in OWN)],
    ids=lambda line: line[:60].decode(errors="replace"),
)
def test_a_file_that_no_server_wrote_is_refused(place: Place, task: Task, line: bytes) -> None:
    place.outside.write_bytes(line.replace(b"TASK", str(task.digest).encode()) + b"\n")
    with pytest.raises(Misconfiguration, match="newest file back"):
        place.open()


def test_another_tasks_lines_do_not_count(place: Place, tmp_path: Path) -> None:
    other = small_task(8, {"privacy.noise_multiplier": 2.5})
    store = place.opener(f"sqlite:///{tmp_path}/other.db", task=other, outside=place.outside)
    sent(store, 3)
    # Nor do those of another form, which a precad to come may write.
    with place.outside.open("ab") as file:
        file.write(b'{"task":"f00","kind":"of another form"}\n')
    assert place.open().attempts.next_number() == 0
