"""A worker's folder goes with its block; a killed worker's goes when the next one starts."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from precad.common.aggregator.work.disk import own_folder, remove_left_over

PROGRAM = """
import sys, time
from precad.common.aggregator.work.disk import own_folder

with own_folder() as folder:
    (folder / "0").write_bytes(b"noise")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_what_a_killed_worker_left_is_removed_and_nothing_in_use(temporary: Path) -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as killed,
        own_folder() as used,
    ):
        assert killed.stdout is not None
        left = Path(killed.stdout.readline().strip())
        assert left.parent == temporary
        remove_left_over()
        assert left.exists()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.exists()
        remove_left_over()
        assert not left.exists()
        assert used.exists()
    assert not used.exists()


def test_folders_of_others_stay(temporary: Path) -> None:
    for name in ("precad-bodies-x", "other"):
        (temporary / name).mkdir()
    (temporary / "precad-bodies-link").symlink_to(temporary / "other")
    remove_left_over()
    assert len(list(temporary.iterdir())) == 3
