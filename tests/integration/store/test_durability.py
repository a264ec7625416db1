"""Killed, out of room, damaged, copied, put back: of a release all is there, or an
error is."""

import itertools
import json
import os
import resource
import shutil
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.pool import PoolProxiedConnection
from tests.conftest import small_task
from tests.rig import stores
from tests.rig.commands import precad, printed
from tests.rig.documents import Document
from tests.rig.memory import in_memory
from tests.rig.stores import (
    MODEL,
    VALID_SET,
    A,
    B,
    C,
    Opener,
    bound,
    prepared,
    sent,
    tamper,
)

from precad.aggregator.store import Store, audit_ledger, open_store, schema, summary
from precad.aggregator.store.audit import back_up
from precad.aggregator.store.schema import AttemptState
from precad.common import errors
from precad.common.identifiers import Role
from precad.common.task import Task

Found = dict[str, list[Document]]
WRITTEN = {"prepare": "prepared", "learn": "learned", "void": "voided"}


def kill_everywhere(task: Task, **urls: str) -> Found:
    """What is found after a kill -9 at each point of each write; the last one gets
    through."""
    points = [f"{operation}={url}" for operation, url in urls.items()]
    said = printed(__file__, task.canonical.decode(), *points)
    found = [json.loads(line) for line in said.splitlines()]
    return {
        each: [line for line in found if line["operation"] == each] for each in urls
    }


@pytest.fixture(scope="module")
def killed(task: Task) -> Found:
    with in_memory() as folder:
        return kill_everywhere(
            task,
            **{each: f"sqlite:///{folder}/{each}.db" for each in (*WRITTEN, "confirm")},
        )


def test_killed_beside_postgresql_it_leaves_all_or_nothing(
    postgres_url: str, task: Task
) -> None:
    all_or_nothing(kill_everywhere(task, prepare=postgres_url)["prepare"], "prepared")


@pytest.mark.parametrize("operation", WRITTEN)
def test_a_process_killed_anywhere_leaves_all_or_nothing(
    killed: Found, operation: str
) -> None:
    """kill -9 before every statement and around the commit."""
    all_or_nothing(killed[operation], WRITTEN[operation])


def all_or_nothing(points: list[Document], state: str) -> None:
    assert len(points) > 8
    prepared, whole = state == "prepared", 0
    for found in points:
        assert found["state"] in ("open", state)
        there = found["state"] == state
        whole += there
        # Two charges, one rejection and one entry for every whole one before and at
        # this point.
        expected: Document = {
            "share": there and prepared,
            "entries": whole,
            "findings": [],
        }
        expected["charged"] = 0 if state == "voided" else 2 * whole
        expected["rejected"] = whole if prepared else 0
        assert found | expected == found
    # Killed after the commit it is there; killed before, it isn't; and one got through.
    assert ([found["state"] for found in points][-2:], whole) == ([state] * 2, 2)
    assert [found["survived"] for found in points] == [False] * (len(points) - 1) + [
        True
    ]


def test_a_noisy_share_goes_after_the_word_that_both_hold_its_model_or_stays(
    killed: Found,
) -> None:
    """Killed anywhere in between: never gone before that word, and what is left is
    sound."""
    points = killed["confirm"]
    assert [(found["state"], found["findings"]) for found in points] == [
        ("done", [])
    ] * len(points)
    left = {(found["confirmed"], found["kept"]) for found in points}
    assert left == {(False, True), (True, True), (True, False)}


def test_on_a_full_disk_nothing_is_prepared(
    tmp_path: Path, url: str, opener: Opener
) -> None:
    store, how = opener(url), ("journal_mode", "synchronous")
    with store.transaction.engine.connect() as connection:
        # A commit survives a power cut: the second is FULL.
        pragmas = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in how
        ]
    assert pragmas == ["wal", 2]
    store.attempts.begin(attempt=0, version=0, cohort_size=3, model=MODEL)
    size = max(file.stat().st_size for file in tmp_path.iterdir())
    share, before = bytes(1 << 20), resource.getrlimit(resource.RLIMIT_FSIZE)
    # As on a full disk, for this process's files.
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, before[1]))
    try:
        with pytest.raises(errors.StorageFailure, match="make room"):
            store.attempts.prepare(0, [A, B], VALID_SET, {}, share)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (store.attempts.states(), store.ledger.participations()) == (
        {0: AttemptState.OPEN},
        {},
    )
    store.close()
    # After the restart too; and with room again the attempt can be prepared.
    again = opener(url)
    assert again.attempts.states() == {0: AttemptState.OPEN}
    again.attempts.prepare(0, [A, B], VALID_SET, {}, share)
    assert (again.ledger.participations(), again.attempts.rejections()) == (
        {A: 1, B: 1},
        {},
    )
    again.close()
    (finding,) = audit_ledger(url).findings
    assert finding.what == "of a cohort of 3, 2 are charged and 0 rejected"


@pytest.fixture
def closed(tmp_path: Path, url: str, opener: Opener) -> Path:
    """An SQLite database with a prepared attempt, several pages long."""
    store = opener(url)
    prepared(store, share=bytes(range(256)) * 64)
    store.close()
    return tmp_path / "state.db"


SPOILT = {"header": (0, 100), "schema": (100, 4100), "page 2": (4096, 8192)}
SPOILT |= {"page of a torn copy": (-8192, -4096)}


@pytest.mark.parametrize("where", [*SPOILT, "cut off"])
def test_a_damaged_file_is_an_error(
    closed: Path, url: str, opener: Opener, where: str
) -> None:
    data, (start, end) = closed.read_bytes(), SPOILT.get(where, (8192, 8192))
    rest = b"" if where == "cut off" else b"\xa5" * len(data[start:end]) + data[end:]
    closed.write_bytes(data[:start] + rest)
    # At the start, and not when a round comes to that page.
    with pytest.raises(errors.StorageFailure, match=r"damaged.*precad backup"):
        opener(url)
    with pytest.raises(errors.StorageFailure, match="damaged"):
        audit_ledger(url)


def test_one_changed_bit_of_a_share_is_noticed(
    closed: Path, url: str, opener: Opener
) -> None:
    """SQLite has no checksums; the ledger's digest of the share serves as one."""
    data = bytearray(closed.read_bytes())
    data[data.rindex(bytes(range(100, 200)))] ^= 1
    closed.write_bytes(data)
    with pytest.raises(errors.StorageFailure, match="attempt 0"):
        opener(url).attempts.pending()
    assert [finding.where for finding in audit_ledger(url).findings] == ["attempt 0"]


def test_the_copy_is_what_the_server_had_and_no_more(
    tmp_path: Path, opener: Opener
) -> None:
    """While that runs: its database is open and locked."""
    state, copy, again = (tmp_path / name for name in ("state", "copy", "again"))
    for name in ("model.seal", "model.safetensors", "tokens/0", "spool/body"):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_bytes(name.encode())
    prepared(opener(f"sqlite:///{state / 'state.db'}"))
    # Of a server elsewhere, whose password isn't said.
    for other in (tmp_path, Path("postgresql://precad:planted@db/precad")):
        with pytest.raises(errors.Misconfiguration, match="pg_dump") as refused:
            back_up(other, copy)
        assert ("planted" in str(refused.value), copy.exists()) == (False, False)
    done = precad("backup", state, copy)
    head = audit_ledger(f"sqlite:///{state / 'state.db'}").head
    assert (done.exit_code, done.stdout) == (0, f"sound: 1 entries, head {head}\n")
    kept = sorted(
        str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()
    )
    assert kept == ["model.safetensors", "model.seal", "state.db", "tokens/0"]
    assert [path.stat().st_mode & 0o777 for path in (copy, copy / "state.db")] == [
        0o700,
        0o600,
    ]
    # A server opens it.
    store = opener(f"sqlite:///{copy / 'state.db'}")
    assert len(store.ledger.participations()) == 2
    store.close()
    tamper(f"sqlite:///{copy / 'state.db'}", "UPDATE charge SET record_rate = 0.01")
    broken = precad("backup", copy, again)
    assert (broken.exit_code, "BROKEN" in broken.stdout) == (1, True)
    # A copy is never written over.
    again = tmp_path / "empty"
    again.mkdir()
    with pytest.raises(errors.Misconfiguration, match="name a new folder"):
        back_up(state, again)
    assert list(again.iterdir()) == []


@dataclass(frozen=True, slots=True)
class Place:
    """A database and the file beside it, which stays when the database is put back."""

    url: str
    outside: Path
    opener: Opener
    stores: list[Store] = field(default_factory=list)

    def open(self, *, old: bool = False) -> Store:
        """Anew: as it is, or from before anything happened, when a start makes its
        tables."""
        for store in self.stores:
            store.close()
        if old:
            tables = [each.name for each in reversed(schema.metadata.sorted_tables)]
            tamper(
                self.url,
                *(f"DROP TABLE {each}" for each in (*tables, "alembic_version")),
            )
        self.stores.append(self.opener(self.url, outside=self.outside))
        return self.stores[-1]


@pytest.fixture
def place(durable_url: str, tmp_path: Path, opener: Opener) -> Place:
    outside = tmp_path / "outside" / "journal.jsonl"
    outside.parent.mkdir()
    return Place(durable_url, outside, opener)


def test_a_database_from_an_old_copy_learns_what_this_server_countersigned(
    place: Place,
) -> None:
    store = place.open()
    stores.released(store, 2)
    # Never countersigned: not in the file.
    prepared(store, 3, 1)
    store.attempts.void(1, 3)
    store.attempts.begin(attempt=5, version=1, cohort_size=3, model=stores.NEXT)
    store.versions.count_opened(1, 5)
    again = place.open(old=True)
    assert again.attempts.states() == {2: AttemptState.LEARNED}
    assert again.ledger.participations() == {A: 1, B: 1}
    # Its number was used, though the database doesn't know.
    found = (
        again.versions.opened(0),
        again.versions.opened(1),
        again.attempts.next_number(),
    )
    assert found == (0, 1, 6)
    with pytest.raises(errors.PeerViolation, match="isn't above 5"):
        again.attempts.begin(attempt=5, version=1, cohort_size=3, model=stores.NEXT)
    length = again.ledger.head().length
    assert place.open().ledger.head().length == length


def test_what_both_servers_voided_after_a_put_back_stays_voided(place: Place) -> None:
    """The other server countersigned nothing, so nothing left, and its ledger has no
    charge."""
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


@pytest.mark.parametrize("started_again", [True, False])
def test_what_the_file_holds_is_never_voided(
    place: Place, *, started_again: bool
) -> None:
    """Killed, or without a database, after the file's line and before the database's:
    the word may have left."""
    store = place.open()
    prepared(store)

    def fail(
        _connection: object, _cursor: object, statement: str, *_rest: object
    ) -> None:
        if statement.startswith("UPDATE attempt"):
            raise OSError("no")

    event.listen(store.transaction.engine, "before_cursor_execute", fail)
    with pytest.raises(OSError, match="no"):
        bound(store)
    event.remove(store.transaction.engine, "before_cursor_execute", fail)
    assert store.attempts.states() == {0: AttemptState.PREPARED}
    again = place.open() if started_again else store
    if not started_again:
        store.attempts.take_back()
    assert again.attempts.states() == {0: AttemptState.COUNTERSIGNED}
    with pytest.raises(errors.AlreadyReleased, match="never voided"):
        again.attempts.void(0, 0)


def test_no_word_leaves_that_the_file_could_not_take(place: Place) -> None:
    shutil.rmtree(place.outside.parent)
    store = place.open()
    prepared(store)
    for attempt in (lambda: bound(store), lambda: store.versions.count_opened(0, 0)):
        with pytest.raises(errors.StorageFailure, match="can't be written"):
            attempt()
    assert (store.attempts.states(), store.versions.opened(0)) == (
        {0: AttemptState.PREPARED},
        0,
    )
    place.outside.parent.mkdir()
    bound(store)
    assert store.attempts.states() == {0: AttemptState.SENT}


@pytest.mark.parametrize("cut", [1, 10])
def test_a_line_that_a_crash_cut_short_is_dropped(place: Place, cut: int) -> None:
    """It was never answered for: its word left only after the whole line was on the
    disk."""
    store, outside = place.open(), place.outside
    stores.released(store)
    whole = outside.read_bytes()
    sent(store, 1, 1)
    outside.write_bytes(outside.read_bytes()[:-cut])
    again = place.open(old=True)
    assert (again.attempts.states(), outside.read_bytes()) == (
        {0: AttemptState.LEARNED},
        whole,
    )
    # What is written next is a line of its own.
    sent(again, 1, 1)
    assert len(place.open(old=True).attempts.states()) == 2


OWN = (
    *(b"1}", b'-1,"attempt":0}', b'1,"attempt":99999999999999999999}'),
    *(b'1,"attempt":2,"clients":["No Client"]}', b'1,"attempt":2,"clients":3}'),
)
BAD = (b"x", b"[]", b"{}", b'{"task": "f00"', b"\xff", b"[" * 100_000)


@pytest.mark.parametrize(
    "line",
    [*BAD, *(b'{"task":"TASK","version":' + each for each in OWN)],
    ids=lambda line: line[:60].decode(errors="replace"),
)
def test_a_file_that_no_server_wrote_is_refused(
    place: Place, task: Task, line: bytes
) -> None:
    place.outside.write_bytes(line.replace(b"TASK", str(task.digest).encode()) + b"\n")
    with pytest.raises(errors.Misconfiguration, match="newest file back"):
        place.open()


def test_another_tasks_lines_do_not_count(place: Place, tmp_path: Path) -> None:
    other = small_task(8, {"privacy.noise_multiplier": 2.5})
    store = place.opener(
        f"sqlite:///{tmp_path}/other.db", task=other, outside=place.outside
    )
    sent(store, 3)
    # Nor do those of another form, which a precad to come may write.
    with place.outside.open("ab") as file:
        file.write(b'{"task":"f00","kind":"of another form"}\n')
    assert place.open().attempts.next_number() == 0


# --- as a program: test_durability.py TASK prepare=URL learn=URL …
# -------------------------------


def arm(store: Store, point: int) -> None:
    """Kill this process when it comes to its ``point``-th point from now on."""
    left = itertools.count(-point)

    def pass_point(*_what: object) -> None:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def commit_and_pass(connection: PoolProxiedConnection) -> None:
        commit(connection)
        pass_point()

    engine = store.transaction.engine
    commit = engine.dialect.do_commit
    # After one statement is before the next, or before the commit.
    event.listen(engine, "before_cursor_execute", pass_point)
    event.listen(engine, "commit", pass_point)
    setattr(engine.dialect, "do_commit", commit_and_pass)  # noqa: B010 -- mypy refuses the other


def write(url: str, task: Task, operation: str, point: int) -> None:
    """One round, whose number and model are ``point``, killed at that point."""
    store, share = open_store(url, task, Role.SERVER_A), bytes([point]) * 4096
    attempts, versions = store.attempts, store.versions
    if operation == "confirm":
        prepared(store, point, point, share)
        attempts.finish(point, MODEL)
    else:
        attempts.begin(attempt=point, version=point, cohort_size=3, model=MODEL)
    arm(store, point)
    match operation:
        case "confirm":
            versions.confirm(point + 1)
            attempts.drop_shares(versions.confirmed())
        case "prepare":
            attempts.prepare(
                point, [A, B], VALID_SET, {C: errors.Rejection.ABSENT}, share
            )
        case "learn":
            attempts.learn([stores.charge(point, point, A, B)])
        case _:
            attempts.void(point, point)


def left_behind(url: str, task: Task, operation: str, point: int) -> Document:
    store = open_store(url, task, Role.SERVER_A)
    attempts, share = store.attempts, bytes([point]) * 4096
    record, audit = attempts.pending(), audit_ledger(url)
    found = {
        "operation": operation,
        "state": attempts.states()[point].value,
        "charged": sum(store.ledger.participations().values()),
        "rejected": sum(attempts.rejections().values()),
        "share": record is not None and record.noisy_share == share,
        "kept": attempts.noisy_share(point) is not None,
        "confirmed": store.versions.confirmed() == point + 1,
        "entries": audit.entries,
        "findings": [finding.what for finding in audit.findings],
    }
    attempts.abandon_open()
    # So that the next point's may be the one that is pending.
    attempts.finish(point, MODEL)
    store.close()
    return found


def main(url: str, task: Task, operation: str) -> None:
    """All points, until a process gets through: each a round, and a process of its
    own."""
    points, survived = itertools.count(), False
    while not survived:
        point = next(points)
        child = os.fork()
        if child == 0:
            write(url, task, operation, point)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        survived = status == 0
        if not survived and not os.WIFSIGNALED(status):
            sys.exit("the process failed in another way")
        found = left_behind(url, task, operation, point) | {"survived": survived}
        # Flushed at once: a child must not inherit lines and write them too.
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    for order in sys.argv[2:]:
        name, _, database = order.partition("=")
        main(database, summary.read_task(sys.argv[1].encode()), name)
