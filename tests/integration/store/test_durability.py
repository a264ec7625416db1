"""Killed, out of room, damaged: a release is there whole or not at all, and never silently."""

import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.store.conftest import MODEL, VALID_SET, A, B, Opener
from tests.rig.commands import printed
from tests.rig.memory import in_memory

from precad.aggregator.store import audit_ledger
from precad.aggregator.store.schema import AttemptState
from precad.common.errors import StorageFailure
from precad.common.task import Task

Found = dict[str, list[dict[str, Any]]]


def kill_everywhere(task: Task, **urls: str) -> Found:
    """What is found after a kill -9 at each point of each write; the last one gets through."""
    points = [f"{operation}={url}" for operation, url in urls.items()]
    said = printed(Path(__file__).with_name("kill_points.py"), task.canonical.decode(), *points)
    found: Found = {operation: [] for operation in urls}
    for line in map(json.loads, said.splitlines()):
        found[line["operation"]].append(line)
    return found


@pytest.fixture(scope="module")
def killed(task: Task) -> Found:
    with in_memory() as folder:
        operations = ("prepare", "learn", "void", "confirm")
        return kill_everywhere(task, **{o: f"sqlite:///{folder}/{o}.db" for o in operations})


WRITTEN = {"prepare": "prepared", "learn": "learned", "void": "voided"}


def test_a_process_killed_anywhere_beside_postgresql_leaves_all_or_nothing(
    postgres_url: str, task: Task
) -> None:
    all_or_nothing(kill_everywhere(task, prepare=postgres_url)["prepare"], "prepared")


@pytest.mark.parametrize("operation", WRITTEN)
def test_a_process_killed_anywhere_leaves_all_or_nothing(killed: Found, operation: str) -> None:
    """kill -9 before every statement and around the commit."""
    all_or_nothing(killed[operation], WRITTEN[operation])


def all_or_nothing(points: list[dict[str, Any]], state: str) -> None:
    assert len(points) > 8
    whole = 0
    for found in points:
        assert found["findings"] == [], found
        if found["state"] == "open":
            assert not found["share"]
        else:
            whole += 1
            assert found["state"] == state
            assert found["share"] == (state == "prepared")
        # Two charges, one rejection and one entry for every whole one before and at this point.
        assert found["charged"] == (0 if state == "voided" else 2 * whole), found
        assert found["rejected"] == (whole if state == "prepared" else 0), found
        assert found["entries"] == whole, found
    # Killed after the commit it is there; killed before, it isn't; and one got through.
    assert ([found["state"] != "open" for found in points][-2:], whole) == ([True, True], 2)
    assert [found["survived"] for found in points] == [False] * (len(points) - 1) + [True]


def test_a_noisy_share_goes_after_the_word_that_both_hold_its_model_or_stays(killed: Found) -> None:
    """Killed anywhere in between: never gone before that word, and what is left is sound."""
    points = killed["confirm"]
    for found in points:
        assert found["state"] == "done"
        assert found["kept"] or found["confirmed"]
        assert found["findings"] == []
    left = {(found["confirmed"], found["kept"]) for found in points}
    assert left == {(False, True), (True, True), (True, False)}


@contextmanager
def files_no_longer_than(limit: int) -> Iterator[None]:
    """Like a full disk, for this process's files: writing beyond ``limit`` bytes fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_on_a_full_disk_nothing_is_prepared(tmp_path: Path, opener: Opener) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    store = opener(url)
    store.attempts.begin(0, 0, 3, MODEL)
    size = max(file.stat().st_size for file in tmp_path.iterdir())
    share = bytes(1 << 20)
    with files_no_longer_than(size + 8192), pytest.raises(StorageFailure, match="make room"):
        store.attempts.prepare(0, [A, B], VALID_SET, {}, share)
    assert (store.attempts.states(), store.ledger.participations()) == ({0: AttemptState.OPEN}, {})
    store.close()
    # After the restart too; and with room again the attempt can be prepared.
    again = opener(url)
    assert again.attempts.states() == {0: AttemptState.OPEN}
    again.attempts.prepare(0, [A, B], VALID_SET, {}, share)
    assert (again.ledger.participations(), again.attempts.rejections()) == ({A: 1, B: 1}, {})
    again.close()
    assert [f.what for f in audit_ledger(url).findings] == [
        "of a cohort of 3, 2 are charged and 0 rejected"
    ]


@pytest.fixture
def prepared_file(tmp_path: Path, opener: Opener, prepared: Callable[..., None]) -> Path:
    """A closed SQLite database with a prepared attempt, several pages long."""
    store = opener(f"sqlite:///{tmp_path}/state.db")
    prepared(store, share=bytes(range(256)) * 64)
    store.close()
    return tmp_path / "state.db"


@pytest.mark.parametrize(
    ("start", "length"),
    [(0, 100), (100, 4000), (4096, 4096), (-8192, 4096)],
    ids=["header", "schema", "page 2", "page of a torn copy"],
)
def test_a_damaged_file_is_an_error_and_not_an_empty_state(
    prepared_file: Path, opener: Opener, start: int, length: int
) -> None:
    data = bytearray(prepared_file.read_bytes())
    start %= len(data)
    data[start : start + length] = b"\xa5" * length
    prepared_file.write_bytes(data)
    # At the start, and not when a round comes to that page.
    with pytest.raises(StorageFailure, match=r"damaged.*precad backup"):
        opener(f"sqlite:///{prepared_file}")
    with pytest.raises(StorageFailure, match="damaged"):
        audit_ledger(f"sqlite:///{prepared_file}")


def test_one_changed_bit_of_a_share_is_noticed(prepared_file: Path, opener: Opener) -> None:
    """SQLite has no checksums; the ledger's digest of the share serves as one."""
    data = bytearray(prepared_file.read_bytes())
    place = data.rindex(bytes(range(100, 200)))
    data[place] ^= 1
    prepared_file.write_bytes(data)
    with pytest.raises(StorageFailure, match="attempt 0"):
        opener(f"sqlite:///{prepared_file}").attempts.pending()
    (finding,) = audit_ledger(f"sqlite:///{prepared_file}").findings
    assert finding.where == "attempt 0"


def test_a_truncated_file_is_an_error(prepared_file: Path, opener: Opener) -> None:
    os.truncate(prepared_file, 8192)
    with pytest.raises(StorageFailure, match="damaged"):
        opener(f"sqlite:///{prepared_file}")


def test_a_commit_survives_a_power_cut(tmp_path: Path, opener: Opener) -> None:
    store = opener(f"sqlite:///{tmp_path}/state.db")
    with store.transaction.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
