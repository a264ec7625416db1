"""What a server's workers are told: whole paths, wherever they are started."""

from pathlib import Path

import pytest
from tests.conftest import small_task
from tests.rig.aggregators import session_of

from precad.aggregator.settings import ServerSettings
from precad.aggregator.store import open_store
from precad.aggregator.workers.worker_pairs import _starts
from precad.common.identifiers import Role


@pytest.mark.parametrize("passphrase", [None, Path("passphrase")])
def test_workers_are_told_whole_paths_of_relative_settings(
    passphrase: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    task = small_task()
    store = open_store("sqlite://", task, Role.SERVER_A)
    settings = ServerSettings(
        task=Path("task.toml"),
        identity=Path("keys"),
        key_passphrase_file=passphrase,
        state=Path("state"),
        listen="127.0.0.1:0",
        workers=2,
    )
    for start in _starts(session_of(Role.SERVER_A, task, store, tmp_path), settings):
        assert (start.task, start.identity) == (
            tmp_path / "task.toml",
            tmp_path / "keys",
        )
        whole = None if passphrase is None else tmp_path / passphrase
        assert start.key_passphrase_file == whole
    store.close()
