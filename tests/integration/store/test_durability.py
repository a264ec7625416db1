"""Killed, out of room, damaged, copied: a release is there whole or not at all, never silently."""

import itertools
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from tests.rig.commands import precad, printed
from tests.rig.memory import in_memory
from tests.rig.stores import MODEL, VALID_SET, A, B, C, Opener, charge, prepared, tamper

from precad.aggregator.store import Store, audit_ledger, open_store, summary
from precad.aggregator.store.audit import back_up
from precad.aggregator.store.schema import AttemptState
from precad.common.errors import Misconfiguration, Rejection, StorageFailure
from precad.common.identifiers import Role
from precad.common.task import Task

Found = dict[str, list[dict[str, Any]]]
DURABLE = ("journal_mode", "synchronous")
WRITTEN = {"prepare": "prepared", "learn": "learned", "void": "voided"}


def kill_everywhere(task: Task, **urls: str) -> Found:
    """What is found after a kill -9 at each point of each write; the last one gets through."""
    points = [f"{operation}={url}" for operation, url in urls.items()]
    said = printed(__file__, task.canonical.decode(), *points)
    found = [json.loads(line) for line in said.splitlines()]
    return {each: [line for line in found if line["operation"] == each] for each in urls}


@pytest.fixture(scope="module")
def killed(task: Task) -> Found:
    with in_memory() as folder:
        return kill_everywhere(
            task, **{each: f"sqlite:///{folder}/{each}.db" for each in (*WRITTEN, "confirm")}
        )


def test_killed_beside_postgresql_it_leaves_all_or_nothing(postgres_url: str, task: Task) -> None:
    all_or_nothing(kill_everywhere(task, prepare=postgres_url)["prepare"], "prepared")


@pytest.mark.parametrize("operation", WRITTEN)
def test_a_process_killed_anywhere_leaves_all_or_nothing(killed: Found, operation: str) -> None:
    """kill -9 before every statement and around the commit."""
    all_or_nothing(killed[operation], WRITTEN[operation])


def all_or_nothing(points: list[dict[str, Any]], state: str) -> None:
    assert len(points) > 8
    prepared, whole = state == "prepared", 0
    for found in points:
        assert found["state"] in ("open", state)
        there = found["state"] == state
        whole += there
        # Two charges, one rejection and one entry for every whole one before and at this point.
        expected = {
            "share": there and prepared,
            "charged": 0 if state == "voided" else 2 * whole,
            "rejected": whole if prepared else 0,
            "entries": whole,
            "findings": [],
        }
        assert found | expected == found
    # Killed after the commit it is there; killed before, it isn't; and one got through.
    assert ([found["state"] for found in points][-2:], whole) == ([state] * 2, 2)
    assert [found["survived"] for found in points] == [False] * (len(points) - 1) + [True]


def test_a_noisy_share_goes_after_the_word_that_both_hold_its_model_or_stays(killed: Found) -> None:
    """Killed anywhere in between: never gone before that word, and what is left is sound."""
    points = killed["confirm"]
    assert [(found["state"], found["findings"]) for found in points] == [("done", [])] * len(points)
    left = {(found["confirmed"], found["kept"]) for found in points}
    assert left == {(False, True), (True, True), (True, False)}


def test_on_a_full_disk_nothing_is_prepared(tmp_path: Path, url: str, opener: Opener) -> None:
    store = opener(url)
    with store.transaction.engine.connect() as connection:
        # A commit survives a power cut: the second is FULL.
        pragmas = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in DURABLE]
    assert pragmas == ["wal", 2]
    store.attempts.begin(0, 0, 3, MODEL)
    size = max(file.stat().st_size for file in tmp_path.iterdir())
    share, before = bytes(1 << 20), resource.getrlimit(resource.RLIMIT_FSIZE)
    # As on a full disk, for this process's files.
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, before[1]))
    try:
        with pytest.raises(StorageFailure, match="make room"):
            store.attempts.prepare(0, [A, B], VALID_SET, {}, share)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (store.attempts.states(), store.ledger.participations()) == ({0: AttemptState.OPEN}, {})
    store.close()
    # After the restart too; and with room again the attempt can be prepared.
    again = opener(url)
    assert again.attempts.states() == {0: AttemptState.OPEN}
    again.attempts.prepare(0, [A, B], VALID_SET, {}, share)
    assert (again.ledger.participations(), again.attempts.rejections()) == ({A: 1, B: 1}, {})
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
def test_a_damaged_file_is_an_error(closed: Path, url: str, opener: Opener, where: str) -> None:
    data, (start, end) = closed.read_bytes(), SPOILT.get(where, (8192, 8192))
    rest = b"" if where == "cut off" else b"\xa5" * len(data[start:end]) + data[end:]
    closed.write_bytes(data[:start] + rest)
    # At the start, and not when a round comes to that page.
    with pytest.raises(StorageFailure, match=r"damaged.*precad backup"):
        opener(url)
    with pytest.raises(StorageFailure, match="damaged"):
        audit_ledger(url)


def test_one_changed_bit_of_a_share_is_noticed(closed: Path, url: str, opener: Opener) -> None:
    """SQLite has no checksums; the ledger's digest of the share serves as one."""
    data = bytearray(closed.read_bytes())
    data[data.rindex(bytes(range(100, 200)))] ^= 1
    closed.write_bytes(data)
    with pytest.raises(StorageFailure, match="attempt 0"):
        opener(url).attempts.pending()
    assert [finding.where for finding in audit_ledger(url).findings] == ["attempt 0"]


def test_the_copy_is_what_the_server_had_and_no_more(tmp_path: Path, opener: Opener) -> None:
    """While that runs: its database is open and locked."""
    state, copy, again = (tmp_path / name for name in ("state", "copy", "again"))
    for name in ("model.seal", "model.safetensors", "tokens/0", "spool/body"):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_bytes(name.encode())
    prepared(opener(f"sqlite:///{state / 'state.db'}"))
    # Of a server elsewhere, whose password isn't said.
    for other in (tmp_path, Path("postgresql://precad:planted@db/precad")):
        with pytest.raises(Misconfiguration, match="pg_dump") as refused:
            back_up(other, copy)
        assert ("planted" in str(refused.value), copy.exists()) == (False, False)
    done = precad("backup", state, copy)
    head = audit_ledger(f"sqlite:///{state / 'state.db'}").head
    assert (done.exit_code, done.stdout) == (0, f"sound: 1 entries, head {head}\n")
    kept = sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
    assert kept == ["model.safetensors", "model.seal", "state.db", "tokens/0"]
    assert [path.stat().st_mode & 0o777 for path in (copy, copy / "state.db")] == [0o700, 0o600]
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
    with pytest.raises(Misconfiguration, match="name a new folder"):
        back_up(state, again)
    assert list(again.iterdir()) == []


# --- as a program: test_durability.py TASK prepare=URL learn=URL … -------------------------------


def arm(store: Store, point: int) -> None:
    """Kill this process when it comes to its ``point``-th point from now on."""
    left = itertools.count(-point)

    def pass_point(*_what: Any) -> None:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def commit_and_pass(connection: Any) -> None:
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
        attempts.begin(point, point, 3, MODEL)
    arm(store, point)
    match operation:
        case "confirm":
            versions.confirm(point + 1)
            attempts.drop_shares(versions.confirmed())
        case "prepare":
            attempts.prepare(point, [A, B], VALID_SET, {C: Rejection.ABSENT}, share)
        case "learn":
            attempts.learn([charge(point, point, A, B)])
        case _:
            attempts.void(point, point)


def left_behind(url: str, task: Task, operation: str, point: int) -> dict[str, Any]:
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
    """All points, until a process gets through: each a round, and a process of its own."""
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
