"""What a power cut may not take: on the disk before the call returns, file and folder.

The coin keys there: one for all tasks, until a task's operators want new coins for it.
"""

import asyncio
import os
import re
import stat
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tests.rig import refusals, submissions, tasks
from tests.rig.task_files import task_to_toml

from precad.aggregator.server_process import open_session
from precad.aggregator.settings import ServerBSettings
from precad.client.own_account import OwnAccount
from precad.client.pending_update import Pending
from precad.common import files, model
from precad.common.errors import StorageFailure
from precad.common.identifiers import Digest, Role, Secret
from precad.common.identity.credentials import (
    COIN_FILE,
    read_coin_key,
    replace_coin_key,
)
from precad.common.identity.deployment_keys import create_local_keys

TASK = tasks.task_with({})


@dataclass
class Disk:
    """Notes what is synced, by i-node, and what the file held at that moment."""

    synced: dict[int, int] = field(default_factory=dict)
    folders: set[int] = field(default_factory=set)

    def fsync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self.folders.add(status.st_ino)
        else:
            self.synced[status.st_ino] = status.st_size

    def has(self, path: Path, *, new: bool = True) -> bool:
        """Whether all of ``path``, and its name in the folder if it is new, survive a power cut."""
        status = path.stat()
        named = not new or path.parent.stat().st_ino in self.folders
        return self.synced.get(status.st_ino) == status.st_size and named


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    noted = Disk()
    monkeypatch.setattr(os, "fsync", noted.fsync)
    return noted


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_a_written_file_is_whole_and_on_the_disk(disk: Disk, tmp_path: Path) -> None:
    path, first = tmp_path / "file", tmp_path / "first"
    for content in (b"one", b"another"):
        files.write_file(path, content)
        assert (path.read_bytes(), disk.has(path)) == (content, True)
    files.write_file(first, b"first", replace=False)
    with pytest.raises(FileExistsError):
        files.write_file(first, b"second", replace=False)
    assert (first.read_bytes(), disk.has(first)) == (b"first", True)
    wanted = {"file": b"1", "first": b"2", "third": b"three"}
    files.write_files(tmp_path, wanted)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == wanted
    assert all(disk.has(entry) for entry in tmp_path.iterdir())
    # Whatever the umask.
    before = os.umask(0o277)
    try:
        for mode in (0o600, 0o644):
            files.write_file(path, b"", mode=mode)
            assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(before)
    # So is each line that is appended.
    path = tmp_path / "log"
    for number in range(3):
        files.append_line(path, f"line {number}")
        assert disk.has(path, new=number == 0)
    assert path.read_text(encoding="utf-8") == "line 0\nline 1\nline 2\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_failure_leaves_the_old_file(
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
    assert (path.read_bytes(), names(tmp_path)) == (b"old", {".other.abc.part", "file"})


def test_an_owners_charge_is_on_the_disk_before_anything_is_sent(
    disk: Disk, tmp_path: Path
) -> None:
    path = tmp_path / "participations.log"
    account = OwnAccount(TASK, 0.2, None, path)
    for version in (4, 7):
        account.charge(version)
        assert disk.has(path, new=version == 4)
    # So are the update and its pair.
    path = tmp_path / "pending.bin"
    Pending(TASK, submissions.ONE, path).keep(
        2, np.arange(8), submissions.pair_of(TASK), 0
    )
    assert (disk.has(path), stat.S_IMODE(path.stat().st_mode)) == (True, 0o600)
    # Nor does a model count as kept before.
    model.save_model(tmp_path / "model.safetensors", TASK, 3, np.zeros(8))
    assert disk.has(tmp_path / "model.safetensors")


WARDS, CLINICS = Digest.of(b"wards"), Digest.of(b"clinics")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("keys", "journal"):
        (tmp_path / name).mkdir()
    return tmp_path / "keys", tmp_path / "journal"


def test_tasks_share_the_first_key_until_one_has_new_coins(
    folders: tuple[Path, Path],
) -> None:
    """Also where both have one journal's folder, one after the other."""
    identity, journal = folders

    def keys() -> list[Secret]:
        return [read_coin_key(identity, journal, task) for task in (WARDS, CLINICS)]

    first, fresh = keys()[0], Secret.random()
    assert (len(first), keys()) == (32, [first] * 2)
    assert [path.name for path in (*identity.iterdir(), *journal.iterdir())] == [
        COIN_FILE
    ]
    replace_coin_key(journal, WARDS, fresh)
    assert keys() == [fresh, first]
    modes = {
        path.stat().st_mode & 0o777
        for path in (*identity.iterdir(), *journal.iterdir())
    }
    assert modes == {0o600}


def test_what_is_no_key_is_refused_with_its_field_and_file(
    folders: tuple[Path, Path],
) -> None:
    identity, journal = folders
    (identity / COIN_FILE).write_bytes(b"short")
    refusals.refused(
        rf"identity = .*{COIN_FILE}", read_coin_key, identity, journal, WARDS
    )
    replace_coin_key(journal, WARDS, Secret(b"short"))
    refusals.refused(
        f"journal = .*coin-{WARDS}.key", read_coin_key, identity, journal, WARDS
    )
    # One that can't be kept says where, and what to do.
    with pytest.raises(
        StorageFailure, match="settings' journal, then start this server again"
    ):
        replace_coin_key(journal / "full", WARDS, Secret.random())


def test_a_server_keeps_new_coins_where_a_container_keeps_things(
    tmp_path: Path,
) -> None:
    """Its identity is read-only there, or in memory and gone with the pod."""
    create_local_keys(tmp_path, [])
    (tmp_path / "task.toml").write_text(task_to_toml(TASK))
    settings = ServerBSettings(
        task=tmp_path / "task.toml",
        identity=(identity := tmp_path / "server-b"),
        state=tmp_path / "state",
        journal=tmp_path / "journal",
        listen="127.0.0.1:0",
        dealer="localhost:1",
    )

    async def opening(*, renewed: bool) -> bytes:
        session = open_session(Role.SERVER_B, settings)
        with closing(session.store):
            if renewed:
                session.coin_key.renew()
            return session.coin_key.opening(TASK.digest, 0).coin

    issued = {path.name: path.read_bytes() for path in identity.iterdir()}
    first, fresh, again = (
        asyncio.run(opening(renewed=each)) for each in (False, True, False)
    )
    assert first != fresh == again
    assert {path.name: path.read_bytes() for path in identity.iterdir()} == issued


@pytest.mark.parametrize("server", ["a", "b"])
def test_what_keeps_a_server_in_a_container_keeps_its_journal(server: str) -> None:
    """And gives it its keys without a way to change them, or a copy that nobody keeps."""

    def text(*place: str) -> str:
        return Path(__file__).parents[2].joinpath(*place).read_text()

    settings = text("deploy", "compose", f"server-{server}.toml")
    assert '\njournal = "journal"\n' in settings
    assert '\nidentity = "keys"\n' in settings
    compose, kit = (
        text("docker-compose.yml"),
        text("cli", "machines", f"server-{server}.yml"),
    )
    service = compose[compose.index(f"\n  server_{server}:") :].partition("\n\n")[0]
    journal = f"server-{server}-journal"
    for part, whole, volume in ((service, compose, journal), (kit, kit, "journal")):
        assert re.search(rf"^ +- {volume}:/precad/journal$", part, re.MULTILINE)
        assert re.search(r"^ +- \S+:/precad/keys:ro$", part, re.MULTILINE)
        assert f"\n  {volume}:\n" in whole[whole.index("\nvolumes:") :] + "\n"
    kubernetes = text("deploy", "kubernetes", f"server-{server}.yml")
    claims = kubernetes[kubernetes.index("volumeClaimTemplates:") :]
    assert "- {name: journal, mountPath: /precad/journal}" in kubernetes
    assert "metadata: {name: journal}" in claims
    assert "metadata: {name: keys}" not in claims
