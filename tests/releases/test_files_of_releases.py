"""What each release left on disks is opened for ever (``record.py`` made it)."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from precad.aggregator.store import audit_ledger, read_training
from precad.client.account_file import AccountCharge, AccountFile
from precad.common.task import served_task

RELEASES = sorted(each.parent for each in Path(__file__).parent.glob("*/said.json"))
SERVERS = ("server-a", "server-b")
assert RELEASES, "no release was recorded"


@pytest.fixture(params=RELEASES, ids=lambda each: str(each.name))
def release(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


def test_ledgers_tasks_and_accounts_of_a_release_say_what_it_said(
    release: Path, tmp_path: Path
) -> None:
    said = json.loads((release / "said.json").read_text())
    task = served_task(release / "task.toml")
    assert task.digest.value.hex() == said["task"]
    for server in SERVERS:
        database = tmp_path / f"{server}.db"
        with closing(sqlite3.connect(database)) as connection:
            connection.executescript((release / f"{server}.sql").read_text())
        url = f"sqlite:///{database}"
        audit = audit_ledger(url)
        training = read_training(url)
        assert audit.findings == ()
        assert {
            "entries": audit.entries,
            "head": audit.head.value.hex(),
            "participations": training.participations_by_version(),
            "clients": [each.client.name for each in training.clients],
        } == said[server]
        assert training.task.digest == task.digest
        assert training.rounds == task.training.rounds
        for client in training.clients:
            entries = AccountFile(release / f"{client.client.name}.log").new_entries()
            charged = {
                each.version for each in entries if isinstance(each, AccountCharge)
            }
            assert charged == set(range(task.training.rounds))
