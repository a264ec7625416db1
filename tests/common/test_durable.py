"""What a power cut may not take: on the disk before the call returns, file and folder."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import TaskMaker
from tests.rig.submissions import pair_of

from precad.client.own_account import OwnAccount
from precad.client.pending_update import Pending
from precad.common import files
from precad.common.identifiers import ClientId
from precad.common.model import save_model


class Disk:
    """Notes what is synced, by i-node, and what the file held at that moment."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.synced: dict[int, int] = {}
        self.folders: set[int] = set()
        original = os.fsync

        def fsync(descriptor: int) -> None:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                self.folders.add(status.st_ino)
            else:
                self.synced[status.st_ino] = status.st_size
            original(descriptor)

        patch.setattr(os, "fsync", fsync)

    def has(self, path: Path, *, new: bool = True) -> bool:
        """Whether all of ``path``, and its name in the folder if it is new, survive a power cut."""
        status = path.stat()
        named = not new or path.parent.stat().st_ino in self.folders
        return self.synced.get(status.st_ino) == status.st_size and named


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_written_file_is_whole_and_on_the_disk(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"one", b"another"):
        files.write_file(path, content)
        assert path.read_bytes() == content
        assert disk.has(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_several_files_are_on_the_disk_each_and_their_folder_once(
    disk: Disk, tmp_path: Path
) -> None:
    (tmp_path / "b").write_bytes(b"older and longer")
    files.write_files(tmp_path, {"a": b"one", "b": b"two"})
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {
        "a": b"one",
        "b": b"two",
    }
    assert all(disk.has(entry) for entry in tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_file_has_its_mode_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o277)
    try:
        files.write_file(tmp_path / "file", b"", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_without_replacing_the_first_writer_wins(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_file(path, b"first", replace=False)
    assert disk.has(path)
    with pytest.raises(FileExistsError):
        files.write_file(path, b"second", replace=False)
    assert path.read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_failure_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    files.write_file(path, b"old")

    def fail(_descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        files.write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_each_appended_line_is_on_the_disk(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(3):
        files.append_line(path, f"line {number}")
        assert disk.has(path, new=number == 0)
    assert path.read_text(encoding="utf-8") == "line 0\nline 1\nline 2\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_drafts_that_a_crash_left_are_removed_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for name in (".file.abc.part", ".other.abc.part", "file"):
        (tmp_path / name).touch()
    files.remove_drafts(path)
    assert {entry.name for entry in tmp_path.iterdir()} == {".other.abc.part", "file"}


# --- what has to be durable ----------------------------------------------------------------------


def test_the_model_is_on_the_disk_when_it_counts_as_kept(
    disk: Disk, tmp_path: Path, make_task: TaskMaker
) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, make_task(8), 3, np.zeros(8))
    assert disk.has(path)


def test_an_owners_charge_is_on_the_disk_before_anything_is_sent(
    disk: Disk, tmp_path: Path, make_task: TaskMaker
) -> None:
    path = tmp_path / "participations.log"
    account = OwnAccount(make_task(8), 0.2, None, path)
    for version in (4, 7):
        account.charge(version)
        assert disk.has(path, new=version == 4)


def test_update_and_pair_are_on_the_disk_before_anything_is_sent(
    disk: Disk, tmp_path: Path, make_task: TaskMaker
) -> None:
    task, client = make_task(8), ClientId("ward-1")
    path = tmp_path / "pending.bin"
    Pending(task, client, path).keep(2, np.arange(8), pair_of(task, client), 0)
    assert disk.has(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
