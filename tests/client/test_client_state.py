"""What a client keeps through a crash: its account, its update, and the pair that it sends."""

import math
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import TaskMaker
from tests.rig.submissions import MODEL, pair_of

import precad
from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import ExactAccountant
from precad.client import DataOwner
from precad.client.own_account import OwnAccount
from precad.client.pending_update import Pair, Pending
from precad.common.errors import BudgetExceeded, Misconfiguration, StorageFailure
from precad.common.files import state_lock
from precad.common.identifiers import ClientId
from precad.common.task import Task
from precad.common.wire.messages import upload_pieces

ME, OTHER = ClientId("ward-1"), ClientId("ward-2")


@pytest.fixture(scope="module")
def task(make_task: TaskMaker) -> Task:
    return make_task(8)


Make = Callable[[int], Pair]


@pytest.fixture
def pair(task: Task) -> Make:
    return lambda attempt: pair_of(task, ME, attempt)


X = np.arange(8, dtype=np.int64)

# --- the update and the pair -------------------------------------------------------------------


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "pending.bin"


def test_a_pair_is_given_out_for_its_attempt_only(
    task: Task, pair: Make, path: Path | None
) -> None:
    pending = Pending(task, ME, path)
    assert (pending.version, pending.attempt, pending.of_attempt(3)) == (None, None, None)
    kept = pair(3)
    pending.keep(2, X, kept, 0)
    assert (pending.version, pending.attempt) == (2, 3)
    found = pending.of_attempt(3)
    assert found is not None
    assert (found.pair, found.re_releases, found.model) == (kept, 0, MODEL)
    assert pending.of_attempt(2) is pending.of_attempt(4) is None


def test_an_update_is_given_out_for_its_version_only(
    task: Task, pair: Make, path: Path | None
) -> None:
    pending = Pending(task, ME, path)
    pending.keep(2, X, pair(3), 0)
    found = pending.update(2)
    assert found is not None
    assert (found == X).all()
    assert pending.model(2) == MODEL
    assert pending.update(1) is pending.update(3) is None
    assert pending.model(1) is None
    pending.keep(3, None, pair(4), None)
    assert pending.update(3) is pending.update(2) is None
    assert pending.of_attempt(4) is not None


@pytest.mark.parametrize(("update", "re_releases"), [(X, 0), (X, 7), (X, None), (None, None)])
def test_the_same_bytes_come_back_after_a_restart(
    task: Task, pair: Make, tmp_path: Path, update: Any, re_releases: int | None
) -> None:
    kept = pair(3)
    Pending(task, ME, tmp_path / "pending.bin").keep(2, update, kept, re_releases)
    again = Pending(task, ME, tmp_path / "pending.bin").of_attempt(3)
    assert again is not None
    assert (again.version, again.pair, again.re_releases) == (2, kept, re_releases)
    assert (again.update is None) == (update is None)
    assert update is None or (again.update == update).all()
    for found, each in zip(again.pair, kept, strict=True):
        messages = [m.SerializeToString() for m in upload_pieces(found)]
        assert messages == [m.SerializeToString() for m in upload_pieces(each)]


def test_another_clients_or_tasks_pair_is_not_given_out(
    task: Task, pair: Make, tmp_path: Path, make_task: TaskMaker
) -> None:
    Pending(task, ME, tmp_path / "pending.bin").keep(2, X, pair(3), 0)
    other_task = make_task(8, {"privacy.noise_multiplier": 2.5})
    assert Pending(task, OTHER, tmp_path / "pending.bin").of_attempt(3) is None
    assert Pending(other_task, ME, tmp_path / "pending.bin").of_attempt(3) is None


def test_a_damaged_file_counts_as_lost(task: Task, pair: Make, tmp_path: Path) -> None:
    path = tmp_path / "pending.bin"
    Pending(task, ME, path).keep(2, X, pair(3), 0)
    data = path.read_bytes()
    damaged = [data[:n] for n in range(0, len(data), 41)]
    damaged += [data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :] for n in range(0, len(data), 37)]
    for each in [*damaged, data + b"\0", b"\0" * len(data)]:
        path.write_bytes(each)
        assert Pending(task, ME, path).of_attempt(3) is None
    path.write_bytes(data)
    assert Pending(task, ME, path).of_attempt(3) is not None


def test_a_full_disk_is_said_with_the_file_and_what_to_do(
    task: Task, pair: Make, tmp_path: Path
) -> None:
    with pytest.raises(StorageFailure, match=r"pending.bin can't be written.*mend the disk"):
        Pending(task, ME, tmp_path / "absent" / "pending.bin").keep(2, X, pair(3), 0)
    with pytest.raises(StorageFailure, match=r"own.log can't be written.*mend the disk"):
        budget(task, tmp_path / "absent" / "own.log").charge(0)


# --- the account -------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "participations.log"


def budget(task: Task, path: Path | None, limit: float | None = None) -> OwnAccount:
    return OwnAccount(task, task.privacy.record_rate, limit, path)


def cost(task: Task, *re_releases: int, delta: float | None = None) -> float:
    """Exact ε of one version each, with so many re-releases."""
    privacy = task.privacy
    accountant = ExactAccountant()
    for m in re_releases:
        sigma = privacy.noise_multiplier / math.sqrt(1 + m)
        accountant.compose(poisson_gaussian(rate=privacy.record_rate, noise_multiplier=sigma))
    return accountant.epsilon(privacy.delta if delta is None else delta)


def test_a_version_is_charged_once_however_often_it_is_shared(task: Task, log: Path) -> None:
    own = budget(task, log)
    for number in (0, 2, 2, 0, 5):
        own.charge(number)
    assert own.participations == 3
    assert [own.charged(n) for n in range(6)] == [True, False, True, False, False, True]
    again = budget(task, log)
    assert again.participations == 3
    again.charge(5)
    assert again.participations == 3
    assert len(log.read_text().splitlines()) == 3
    assert again.epsilon() == pytest.approx(cost(task, 0, 0, 0))


def test_a_further_release_takes_the_place_of_the_step_before(task: Task, log: Path) -> None:
    own = budget(task, log)
    own.charge(0)
    own.charge(1, 2)
    own.charge(1, 1)
    own.charge(1)
    own.charge(0, 1)
    for each in (own, budget(task, log)):
        assert each.epsilon() == pytest.approx(cost(task, 1, 2))
        assert each.participations == 2
        assert [each.charged(1, m) for m in range(4)] == [True, True, True, False]
    # Two releases of one update cost less than two updates, and more than one.
    assert cost(task, 0) < cost(task, 1) < cost(task, 0, 0) * 2


def test_two_names_of_one_data_set_are_two_samples(task: Task, log: Path) -> None:
    for name in (ME, OTHER):
        OwnAccount(task, 0.2, None, log, name).charge(0)
    assert OwnAccount(task, 0.2, None, log, ME).epsilon() == pytest.approx(cost(task, 0, 0))


def test_an_unreadable_account_is_refused_rather_than_forgotten(task: Task, log: Path) -> None:
    budget(task, log, 2.0).charge(0)
    limit, charge = log.read_bytes().splitlines(keepends=True)
    damaged = [b"\xff\xfe\n", f"{task.digest}\n".encode(), charge.replace(b" 0 0 ", b" 0 1 ")]
    damaged += [limit.replace(b"2.0", b"3.0"), b"\n", charge[8:]]
    for content in damaged:
        log.write_bytes(limit + content + charge)
        with pytest.raises(Misconfiguration, match=r"account.*can't be read at"):
            budget(task, log)


def filled(own: OwnAccount) -> int:
    """Charges as many versions as the limit admits."""
    version = 0
    while own.allows(version):
        own.charge(version)
        version += 1
    return version


def test_beyond_the_limit_only_what_is_charged_may_be_shared_again(task: Task, log: Path) -> None:
    own = budget(task, log, 1.5)
    most = filled(own)
    assert most > 1
    assert not own.allows(-1)
    assert own.epsilon() <= 1.5
    own.charge(0)
    before = log.read_bytes()
    for version, re_releases in ((most, 0), (0, 50)):
        assert not own.allows(version, re_releases)
        with pytest.raises(BudgetExceeded):
            own.charge(version, re_releases)
    assert log.read_bytes() == before
    assert budget(task, log, 1.5).participations == most


def test_an_upgrade_needs_room_for_the_difference_alone(make_task: TaskMaker) -> None:
    """It takes the place of the step before: beside it, it would pass the limit."""
    task = make_task(8, {"training.rounds": 100})  # too long for the limit to go to it whole
    most = filled(budget(task, None, 1.7))
    for charged in range(most, 0, -1):
        own = budget(task, None, 1.7)
        for version in range(charged):
            own.charge(version)
        if own.allows(0, 1):
            break
    assert not own.allows(most, 1)  # the same step, with none that it replaces
    own.charge(0, 1)
    assert own.epsilon() == pytest.approx(cost(task, 1, *[0] * (charged - 1)))


def test_a_line_beyond_the_limit_counts_for_nobody(task: Task, tmp_path: Path) -> None:
    """Two wrote at once: the later line was over, and whoever wrote it sends nothing."""
    path, beside = tmp_path / "participations.log", tmp_path / "beside.log"
    most = filled(budget(task, path, 1.5))
    unlimited = budget(task, beside)
    unlimited.charge(1000)
    path.write_bytes(path.read_bytes() + beside.read_bytes())
    again = budget(task, path, 1.5)
    assert (again.participations, again.charged(1000)) == (most, False)


def test_the_limit_of_an_account_is_fixed_with_its_first_charge(task: Task, log: Path) -> None:
    budget(task, log, 1.5)
    own = budget(task, log, 2.0)  # nothing was charged under the other one
    own.charge(0)
    for other in (1.5, 2.5):
        with pytest.raises(Misconfiguration, match=r"limit is ε = 2, δ = 1e-05.*--raise-limit"):
            budget(task, log, other)
    assert budget(task, log).limit == budget(task, log, 2.0).limit == own.limit


@pytest.fixture
def tight(task: Task) -> float:
    """A limit that the task's exact ε meets, and that a filter over tasks would pass early."""
    return cost(task, *[0] * task.training.rounds)


def test_a_limit_equal_to_the_tasks_epsilon_lasts_to_its_end(
    task: Task, tight: float, log: Path
) -> None:
    rounds = task.training.rounds
    own = budget(task, log, tight)
    assert own.whole_task()
    assert own.rounds_left(2 * rounds) == rounds
    for version in range(rounds):
        own.charge(version)
    with pytest.raises(BudgetExceeded):
        own.charge(rounds)
    again = budget(task, log)
    assert (again.allows(-1), again.epsilon()) == (False, tight)


def test_a_limit_of_one_task_has_no_room_for_what_a_cut_link_chose(
    task: Task, tight: float, tmp_path: Path
) -> None:
    own = budget(task, tmp_path / "participations.log", tight)
    assert not own.allows(0, 1)
    with pytest.raises(BudgetExceeded):
        own.charge(0, 1)
    own.charge(0)
    assert own.charged(0)
    assert not own.allows(0, 1)
    with pytest.raises(BudgetExceeded):
        own.charge(0, 1)
    assert own.epsilon() == cost(task, 0)


def test_a_limit_that_went_to_one_task_refuses_others_and_another_rate(
    task: Task, tight: float, log: Path, make_task: TaskMaker
) -> None:
    other = make_task(8, {"privacy.noise_multiplier": 9.0})
    early = budget(other, log, tight)  # has seen an empty account
    budget(task, log, tight).charge(0)
    with pytest.raises(BudgetExceeded):
        early.charge(0)
    for of, rate, name in ((other, 0.2, None), (task, 0.1, None), (task, 0.2, OTHER)):
        with pytest.raises(Misconfiguration, match=r"all of it went to task .* of their own"):
            OwnAccount(of, rate, None, log, name)


def test_a_limit_never_goes_to_one_task_once_others_were_charged(
    task: Task, tight: float, log: Path, make_task: TaskMaker
) -> None:
    budget(make_task(8, {"privacy.noise_multiplier": 50.0}), log).charge(0)
    assert not budget(task, log, 1.01 * tight).whole_task()


def test_the_limit_that_leaves_room_for_other_tasks_is_the_least_one(task: Task) -> None:
    ample = budget(task, None, 1.0).ample()
    enough, short = budget(task, None, ample), budget(task, None, ample - 0.01)
    assert not enough.whole_task()
    assert enough.rounds_left(task.training.rounds) == task.training.rounds
    assert short.whole_task()


def test_of_two_limits_at_once_the_stricter_one_is_kept(task: Task, log: Path) -> None:
    """Both processes started before either had charged anything."""
    strict, loose = budget(task, log, 1.5), budget(task, log, 3.0)
    loose.charge(0)
    most = filled(strict)
    assert strict.epsilon() <= 1.5
    with pytest.raises(BudgetExceeded, match="has a higher limit by now"):
        strict.charge(most)
    assert loose.allows(most)
    log.unlink()
    strict, loose = budget(task, log, 1.5), budget(task, log, 3.0)
    strict.charge(0)
    assert 0 < filled(loose) < filled(budget(task, None, 3.0))
    assert loose.epsilon() <= 1.5


def raised(task: Task, path: Path | None, limit: float) -> OwnAccount:
    return OwnAccount(task, task.privacy.record_rate, limit, path, raise_limit=True)


def test_an_owner_raises_its_accounts_limit_with_a_word_and_never_lowers_it(
    task: Task, tight: float, log: Path
) -> None:
    """A limit just below the task's ε ends it early; raised, the task lasts to its end."""
    rounds = task.training.rounds
    low = budget(task, log, 0.999 * tight)
    most = filled(low)
    assert 0 < most < rounds
    with pytest.raises(Misconfiguration, match="raise it, never lower it, with precad join --rai"):
        budget(task, log, tight)
    higher = raised(task, log, tight)
    assert (higher.whole_task(), higher.rounds_left(rounds)) == (True, rounds - most)
    assert higher.allows(most)  # before anything is charged under it
    assert not low.allows(most)  # nothing was charged under it: the old one stands
    for version in range(most, rounds):
        higher.charge(version)
    assert not higher.allows(rounds)
    # Afterwards it is the account's own, without the word; who started before keeps the lower one.
    again = budget(task, log, tight)
    assert (again.limit, again.epsilon()) == (higher.limit, tight)
    assert not low.allows(rounds)
    assert log.read_text().count("raised-") == 1
    with pytest.raises(Misconfiguration, match="never lower it"):
        raised(task, log, 0.999 * tight)


def test_a_raised_limit_over_tasks_holds_for_all_that_was_charged_before(
    task: Task, log: Path, make_task: TaskMaker
) -> None:
    """At the order that the account opened with, though another would admit more by now."""
    early = filled(budget(task, log, 1.5))
    higher = raised(task, log, 4.0)
    assert not higher.whole_task()
    assert early < filled(higher) <= filled(budget(task, None, 4.0))
    assert higher.epsilon() <= 4.0
    other = budget(make_task(8, {"privacy.noise_multiplier": 90.0}), log)
    assert other.limit == higher.limit


def test_a_limit_below_what_was_spent_before_is_refused(task: Task, log: Path) -> None:
    free = budget(task, log)
    for version in range(20):
        free.charge(version)
    with pytest.raises(Misconfiguration, match=r"have spent ε = 2\.\d+ at δ = 1e-05"):
        budget(task, log, 1.5)
    own = budget(task, log, 4.0)
    own.charge(20)
    assert own.epsilon() == pytest.approx(cost(task, *[0] * 21))


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf])
def test_a_limit_that_is_none_is_refused(task: Task, limit: float) -> None:
    with pytest.raises(Misconfiguration, match="epsilon_limit"):
        budget(task, None, limit)


def test_tasks_of_one_data_set_share_the_account_that_their_owners_name(
    tmp_path: Path, make_task: TaskMaker
) -> None:
    weight, bias = {"name": "1.weight", "shape": [2, 3]}, {"name": "1.bias", "shape": [2]}
    model = {"model.architecture": "logistic", "model.parameters": [weight, bias]}

    def owner(number: int, state: Path, account: Path | None = None) -> DataOwner:
        identity: Any = object()  # no server is called
        return DataOwner(
            "ward-1",
            task=make_task(8, {**model, "name": f"task-{number}"}),
            data=(np.zeros((5, 3), np.float32), np.zeros(5, np.int64)),
            server_a="a:1",
            server_b="b:1",
            identity=identity,
            epsilon_limit=1.5,
            state=state,
            account=account,
        )

    def shared(number: int) -> DataOwner:
        return owner(number, tmp_path / f"state-{number}", tmp_path / "account")

    one, two = shared(1), shared(2)
    most = filled(one.budget)
    assert most > 1
    assert not two.budget.allows(0)
    assert [p.name for p in (tmp_path / "account").iterdir()] == ["participations.log"]
    assert not (tmp_path / "state-1" / "participations.log").exists()
    assert stat.S_IMODE((tmp_path / "account").stat().st_mode) == 0o700
    alone = owner(3, tmp_path / "state-3")
    alone.budget.charge(0)
    assert (tmp_path / "state-3" / "participations.log").exists()


# --- the folder --------------------------------------------------------------------------------


def test_two_processes_do_not_take_part_from_one_folder(tmp_path: Path) -> None:
    program = "from pathlib import Path; from precad.common.files import state_lock\n"
    program += f"with state_lock(Path({str(tmp_path)!r})): print('in')"

    def other() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program],
            check=False,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(Path(precad.__file__).parents[1])},
        )

    with state_lock(tmp_path):
        refused = other()
        assert refused.returncode == 1
        assert "another process takes part from this folder" in refused.stderr
    assert other().stdout == "in\n"
    with state_lock(None), state_lock(None):
        pass
