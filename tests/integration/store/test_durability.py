"""Killed, out of room, damaged: a release is there whole or not at all, and never silently."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.common.aggregator.release.release import prepare
from precad.common.aggregator.round.journal import AttemptState
from precad.common.aggregator.round.states import Counted, Noised, Opened
from precad.common.aggregator.store import Store, audit_ledger
from precad.common.errors import StorageFailure
from precad.common.identifiers import ClientId, Digest
from precad.common.task import Task

MODEL, VALID_SET = Digest(b"\1" * 32), Digest(b"\3" * 32)
A, B = ClientId("ward-a"), ClientId("ward-b")
HERE = Path(__file__).parent
Opener = Callable[..., Store]


def killed_everywhere(url: str, task: Task, operation: str) -> list[dict[str, Any]]:
    """What is found after a kill -9 at each point of a write; the last one gets through."""
    done = subprocess.run(
        [sys.executable, HERE / "kill_points.py", url, task.canonical.decode(), operation],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[2] / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("operation", ["prepare", "learn", "void"])
def test_a_process_killed_anywhere_leaves_all_or_nothing(
    durable_url: str, task: Task, operation: str
) -> None:
    """kill -9 before and after every statement and around the commit."""
    points = killed_everywhere(durable_url, task, operation)
    assert len(points) > 14
    whole = 0
    for found in points:
        assert found["findings"] == [], found
        if found["state"] == "open":
            assert not found["share"]
        else:
            whole += 1
            states = {"prepare": "prepared", "learn": "learned", "void": "voided"}
            assert found["state"] == states[operation]
            assert found["share"] == (operation == "prepare")
        # Two charges, one rejection and one entry for every whole one before and at this point.
        assert found["charged"] == (0 if operation == "void" else 2 * whole), found
        assert found["rejected"] == (whole if operation == "prepare" else 0), found
        assert found["entries"] == whole, found
    # Killed after the commit it is there; killed before, it isn't; and one got through.
    assert [found["state"] != "open" for found in points][-2:] == [True, True]
    assert whole == 2
    assert [found["survived"] for found in points] == [False] * (len(points) - 1) + [True]


def test_a_noisy_share_goes_after_the_word_that_both_hold_its_model_or_stays(
    durable_url: str, task: Task
) -> None:
    """Killed anywhere in between: never gone before that word, and what is left is sound."""
    points = killed_everywhere(durable_url, task, "confirm")
    for found in points:
        assert found["state"] == "done"
        assert found["kept"] or found["confirmed"]
        assert found["findings"] == []
    left = {(found["confirmed"], found["kept"]) for found in points}
    assert left == {(False, True), (True, True), (True, False)}


# --- no room -----------------------------------------------------------------------------------


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
    store.begin_attempt(0, 0, 3, MODEL)
    size = max(file.stat().st_size for file in tmp_path.iterdir())
    share = bytes(1 << 20)
    with files_no_longer_than(size + 8192), pytest.raises(StorageFailure, match="make room"):
        store.prepare(0, [A, B], VALID_SET, {}, share)
    assert store.states() == {0: AttemptState.OPEN}
    assert store.participations() == {}
    store.close()
    # After the restart too; and with room again the attempt can be prepared.
    again = opener(url)
    assert again.states() == {0: AttemptState.OPEN}
    again.prepare(0, [A, B], VALID_SET, {}, share)
    assert again.participations() == {A: 1, B: 1}
    assert again.rejections() == {}
    again.close()
    assert [f.what for f in audit_ledger(url).findings] == [
        "of a cohort of 3, 2 are charged and 0 rejected"
    ]


def test_a_release_that_cannot_be_kept_is_never_sent(tmp_path: Path, opener: Opener) -> None:
    """The round's own step: the noisy share isn't handed to what would send it."""
    store = opener(f"sqlite:///{tmp_path}/state.db")
    store.begin_attempt(0, 0, 2, MODEL)
    d = 1 << 17
    counted = Counted(Opened(0, 0, (A, B), MODEL, frozenset((A, B))), (A, B), VALID_SET, {})
    noised = Noised(counted, np.ones(d, dtype=np.int64))
    size = max(file.stat().st_size for file in tmp_path.iterdir())
    with files_no_longer_than(size + 8192), pytest.raises(StorageFailure):
        prepare(store, noised)
    assert store.states() == {0: AttemptState.OPEN}
    assert store.participations() == {}
    # Room again: the share that may leave is the one that was kept.
    done = prepare(store, noised)
    record = store.pending()
    assert record is not None
    assert record.noisy_share == done.noisy_share.astype("<i8").tobytes()


# --- damage ------------------------------------------------------------------------------------


@pytest.fixture
def prepared_file(tmp_path: Path, opener: Opener, prepared: Callable[..., None]) -> Path:
    """A closed SQLite database with a prepared attempt, several pages long."""
    store = opener(f"sqlite:///{tmp_path}/state.db")
    prepared(store, share=bytes(range(256)) * 64)
    store.close()
    return tmp_path / "state.db"


@pytest.mark.parametrize(
    ("start", "length"), [(0, 100), (100, 4000), (4096, 4096)], ids=["header", "schema", "page 2"]
)
def test_a_damaged_file_is_an_error_and_not_an_empty_state(
    prepared_file: Path, opener: Opener, start: int, length: int
) -> None:
    data = bytearray(prepared_file.read_bytes())
    data[start : start + length] = b"\xa5" * length
    prepared_file.write_bytes(data)
    with pytest.raises(StorageFailure, match="damaged"):
        opener(f"sqlite:///{prepared_file}").pending()
    with pytest.raises(StorageFailure, match="damaged"):
        audit_ledger(f"sqlite:///{prepared_file}")


def test_one_changed_bit_of_a_share_is_noticed(prepared_file: Path, opener: Opener) -> None:
    """SQLite has no checksums; the ledger's digest of the share serves as one."""
    data = bytearray(prepared_file.read_bytes())
    place = data.rindex(bytes(range(100, 200)))
    data[place] ^= 1
    prepared_file.write_bytes(data)
    with pytest.raises(StorageFailure, match="attempt 0"):
        opener(f"sqlite:///{prepared_file}").pending()
    (finding,) = audit_ledger(f"sqlite:///{prepared_file}").findings
    assert finding.where == "attempt 0"


def test_a_truncated_file_is_an_error(prepared_file: Path, opener: Opener) -> None:
    os.truncate(prepared_file, 8192)
    with pytest.raises(StorageFailure, match="damaged"):
        opener(f"sqlite:///{prepared_file}").pending()


def test_a_commit_survives_a_power_cut(tmp_path: Path, opener: Opener) -> None:
    store = opener(f"sqlite:///{tmp_path}/state.db")
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
