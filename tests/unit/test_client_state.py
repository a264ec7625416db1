"""What a client keeps through a crash: its account, and the pair that it sends."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.client.own_account import OwnAccount
from precad.client.pending import Pair, Pending
from precad.common.errors import BudgetExceeded, Misconfiguration
from precad.common.identifiers import ClientId, Digest
from precad.common.share import Signature, shard
from precad.common.task import Task

MODEL = Digest(b"\2" * 32)
ME, OTHER = ClientId("ward-1"), ClientId("ward-2")


@pytest.fixture(scope="module")
def task(make_task: Any) -> Task:
    made: Task = make_task(8)
    return made


class Pen:
    """Signs anything, the same way."""

    def sign(self, signed: bytes) -> Signature:
        return Signature(signed[:64], (b"certificate",))


Make = Callable[..., Pair]


@pytest.fixture
def pair(task: Task) -> Make:
    def make(number: int = 3, client: ClientId = ME, task: Task = task) -> Pair:
        x = np.arange(8, dtype=np.int64)
        return shard(x, task=task.digest, attempt=number, client=client, model=MODEL, signer=Pen())

    return make


# --- the pair ----------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "pending.bin"


def test_a_pair_is_given_out_for_its_round_only(task: Task, pair: Make, path: Path | None) -> None:
    pending = Pending(task, ME, path)
    assert (pending.attempt, pending.get(3)) == (None, None)
    kept = pair(3)
    pending.keep(kept)
    assert pending.attempt == 3
    assert pending.get(3) == kept
    assert pending.get(2) is pending.get(4) is None


def test_a_newer_pair_takes_the_older_ones_place(task: Task, pair: Make, path: Path | None) -> None:
    pending = Pending(task, ME, path)
    pending.keep(pair(3))
    newer = pair(4)
    pending.keep(newer)
    assert (pending.get(3), pending.get(4)) == (None, newer)


def test_what_was_dropped_is_gone(task: Task, pair: Make, tmp_path: Path) -> None:
    path = tmp_path / "pending.bin"
    pending = Pending(task, ME, path)
    pending.keep(pair(3))
    pending.drop()
    pending.drop()
    assert pending.get(3) is None
    assert list(tmp_path.iterdir()) == []
    assert Pending(task, ME, path).get(3) is None


def test_the_same_bytes_come_back_after_a_restart(task: Task, pair: Make, tmp_path: Path) -> None:
    kept = pair(3)
    Pending(task, ME, tmp_path / "pending.bin").keep(kept)
    again = Pending(task, ME, tmp_path / "pending.bin").get(3)
    assert again == kept
    assert again is not None
    assert again[0].signature == kept[0].signature
    assert [each.commitment for each in again] == [each.commitment for each in kept]


def test_only_the_owner_can_read_the_pair(task: Task, pair: Make, tmp_path: Path) -> None:
    path = tmp_path / "pending.bin"
    Pending(task, ME, path).keep(pair(3))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_another_clients_or_tasks_pair_is_not_given_out(
    task: Task, pair: Make, tmp_path: Path, make_task: Any
) -> None:
    Pending(task, ME, tmp_path / "pending.bin").keep(pair(3))
    other_task = make_task(8, {"privacy.noise_multiplier": 2.5})
    assert Pending(task, OTHER, tmp_path / "pending.bin").get(3) is None
    assert Pending(other_task, ME, tmp_path / "pending.bin").get(3) is None


def test_a_damaged_file_counts_as_lost(task: Task, pair: Make, tmp_path: Path) -> None:
    path = tmp_path / "pending.bin"
    Pending(task, ME, path).keep(pair(3))
    data = path.read_bytes()
    damaged = [data[:n] for n in range(0, len(data), 7)]
    damaged += [data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :] for n in range(0, len(data), 5)]
    for each in [*damaged, data + b"\0", b"\0" * len(data)]:
        path.write_bytes(each)
        assert Pending(task, ME, path).get(3) is None
    path.write_bytes(data)
    assert Pending(task, ME, path).get(3) is not None


def test_a_crash_while_writing_leaves_the_older_pair(
    task: Task, pair: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pending.bin"
    kept = pair(3)
    pending = Pending(task, ME, path)
    pending.keep(kept)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        pending.keep(pair(4))
    monkeypatch.undo()
    again = Pending(task, ME, path)
    assert again.get(3) == kept
    assert list(tmp_path.iterdir()) == [path]
    again.keep(pair(5))
    assert Pending(task, ME, path).attempt == 5


# --- the account -------------------------------------------------------------------------------


def budget(task: Task, path: Path | None, limit: float | None = None) -> OwnAccount:
    return OwnAccount(task, task.privacy.record_rate, limit, path)


def test_a_round_is_charged_once_however_often_it_is_sent(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "participations.log"
    own = budget(task, path)
    for number in (0, 2, 2, 0, 5):
        own.charge(number)
    assert own.participations == 3
    assert [own.charged(n) for n in range(6)] == [True, False, True, False, False, True]
    again = budget(task, path)
    assert again.participations == 3
    again.charge(5)
    assert again.participations == 3
    assert len(path.read_text().splitlines()) == 3


def test_a_line_that_a_crash_cut_short_swallows_no_later_charge(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "participations.log"
    budget(task, path).charge(0)
    whole = path.read_bytes()
    budget(task, path).charge(11)
    line = path.read_bytes()[len(whole) :]
    for length in range(len(line)):
        path.write_bytes(whole + line[:length])
        own = budget(task, path)
        assert (own.participations, own.charged(1), own.charged(11)) == (1, False, False)
        own.charge(12)
        assert [budget(task, path).charged(n) for n in (0, 11, 12)] == [True, False, True]


def test_other_tasks_charges_do_not_count(task: Task, tmp_path: Path, make_task: Any) -> None:
    path = tmp_path / "participations.log"
    budget(task, path).charge(0)
    other = budget(make_task(8, {"privacy.noise_multiplier": 2.5}), path)
    assert (other.participations, other.charged(0)) == (0, False)


def test_an_unreadable_account_is_refused_rather_than_forgotten(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "participations.log"
    for content in (b"\xff\xfe\n", f"{task.digest}\n".encode(), f"{task.digest} x\n".encode()):
        path.write_bytes(content)
        with pytest.raises(Misconfiguration, match="account"):
            budget(task, path)


def test_without_a_limit_rounds_that_broke_off_end_nothing(task: Task) -> None:
    own = budget(task, None)
    for number in range(3 * task.training.rounds):
        own.charge(number)
    assert not own.exhausted


def test_beyond_the_limit_only_what_is_charged_may_be_sent_again(
    task: Task, tmp_path: Path
) -> None:
    one = budget(task, None)
    one.charge(0)
    limit = one.epsilon() * 1.001
    own = budget(task, tmp_path / "participations.log", limit)
    own.charge(0)
    assert own.exhausted
    own.charge(0)
    with pytest.raises(BudgetExceeded):
        own.charge(1)
    assert budget(task, tmp_path / "participations.log", limit).participations == 1
