"""The coin key on disk: one for all tasks, until a task's operators want new coins for it."""

import stat
from pathlib import Path

import pytest

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Digest
from precad.common.identity.coin_file import COIN_FILE, read_coin_key, replace_coin_key
from precad.common.secret import Secret

WARDS, CLINICS = Digest.of(b"wards"), Digest.of(b"clinics")


def test_tasks_share_the_key_that_is_made_at_first(tmp_path: Path) -> None:
    first = read_coin_key(tmp_path, WARDS).reveal()
    assert len(first) == 32
    assert read_coin_key(tmp_path, CLINICS).reveal() == first
    assert [path.name for path in tmp_path.iterdir()] == [COIN_FILE]


def test_new_coins_for_one_task_leave_the_others_theirs(tmp_path: Path) -> None:
    first = read_coin_key(tmp_path, CLINICS).reveal()
    fresh = Secret.random()
    replace_coin_key(tmp_path, WARDS, fresh)
    assert read_coin_key(tmp_path, WARDS).reveal() == fresh.reveal()
    assert read_coin_key(tmp_path, CLINICS).reveal() == first
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_no_key_is_refused_with_its_file(tmp_path: Path) -> None:
    replace_coin_key(tmp_path, WARDS, Secret(b"short"))
    with pytest.raises(Misconfiguration, match=f"coin-{WARDS}.key"):
        read_coin_key(tmp_path, WARDS)
