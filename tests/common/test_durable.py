"""What a power cut may not take: on the disk before the call returns, file and folder."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from tests.rig.submissions import ONE, pair_of
from tests.rig.tasks import task_with

from precad.client.own_account import OwnAccount
from precad.client.pending_update import Pending
from precad.common import files
from precad.common.model import save_model

TASK = task_with({})


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


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_a_written_file_is_whole_and_on_the_disk(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"one", b"another"):
        files.write_file(path, content)
        assert (path.read_bytes(), disk.has(path)) == (content, True)
    first = tmp_path / "first"
    files.write_file(first, b"first", replace=False)
    with pytest.raises(FileExistsError):
        files.write_file(first, b"second", replace=False)
    assert (first.read_bytes(), disk.has(first)) == (b"first", True)
    assert names(tmp_path) == {"file", "first"}


def test_several_files_are_on_the_disk_and_their_folder_once(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"older and longer")
    wanted = {"a": b"one", "b": b"two"}
    files.write_files(tmp_path, wanted)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == wanted
    assert all(disk.has(entry) for entry in tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_file_has_its_mode_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o277)
    try:
        files.write_file(tmp_path / "file", b"", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_a_failure_leaves_the_old_file_and_no_draft_and_a_crashs_drafts_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    files.write_file(path, b"old")
    for name in (".file.abc.part", ".other.abc.part"):
        (tmp_path / name).touch()
    files.remove_drafts(path)
    assert names(tmp_path) == {".other.abc.part", "file"}

    def fail(_descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        files.write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == {".other.abc.part", "file"}


def test_each_appended_line_is_on_the_disk(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(3):
        files.append_line(path, f"line {number}")
        assert disk.has(path, new=number == 0)
    assert path.read_text(encoding="utf-8") == "line 0\nline 1\nline 2\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_model_is_on_the_disk_when_it_counts_as_kept(disk: Disk, tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", TASK, 3, np.zeros(8))
    assert disk.has(tmp_path / "model.safetensors")


def test_an_owners_charge_is_on_the_disk_before_anything_is_sent(
    disk: Disk, tmp_path: Path
) -> None:
    path = tmp_path / "participations.log"
    account = OwnAccount(TASK, 0.2, None, path)
    for version in (4, 7):
        account.charge(version)
        assert disk.has(path, new=version == 4)


def test_update_and_pair_are_on_the_disk_before_any_is_sent(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "pending.bin"
    Pending(TASK, ONE, path).keep(2, np.arange(8), pair_of(TASK), 0)
    assert disk.has(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
