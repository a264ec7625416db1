"""What a client keeps through a crash: its account, its update, and the pair that it
sends.

Any charges of any tasks and processes: tests/property/test_owners_account.py.
"""

import hashlib
import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from tests.rig import submissions, tasks
from tests.rig.accounts import Moves, RenyiFilter, drawn_twice, epsilon_by_grid
from tests.rig.questions import asking
from tests.rig.refusals import refused

from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import ExactAccountant, largest_count
from precad.accounting.filter import RenyiLimit, order_for
from precad.client.account_file import (
    AccountCharge,
    AccountFile,
    OldCharge,
    as_chosen,
)
from precad.client.own_account import OwnAccount
from precad.client.pending_update import Pending
from precad.common.errors import BudgetExceeded, StorageFailure
from precad.common.identifiers import ClientId
from precad.common.mechanism import Unit
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.norm_check.submission_messages import upload_pieces

ME, OTHER = ClientId("ward-1"), ClientId("ward-2")
TASK = tasks.task_with({})
ROUNDS = TASK.training.rounds
X = np.arange(8, dtype=np.int64)
PAIR = submissions.pair_of(TASK, ME, 3)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_pair_is_for_its_attempt_and_an_update_for_its_version(
    kind: str, tmp_path: Path
) -> None:
    pending = Pending(TASK, ME, None if kind == "memory" else tmp_path / "pending.bin")
    assert (pending.version, pending.attempt, pending.of_attempt(3)) == (
        None,
        None,
        None,
    )
    pending.keep(2, X, PAIR, 0)
    assert (pending.version, pending.attempt, pending.model(2)) == (
        2,
        3,
        submissions.MODEL,
    )
    found, update = pending.of_attempt(3), pending.update(2)
    assert found is not None
    assert update is not None
    assert (found.pair, found.re_releases, found.model) == (PAIR, 0, submissions.MODEL)
    assert update.tolist() == X.tolist()
    others = pending.of_attempt(2), pending.of_attempt(4), *map(pending.update, (1, 3))
    assert {*others, pending.model(1)} == {None}
    pending.keep(3, None, submissions.pair_of(TASK, ME, 4), None)
    assert pending.update(3) is pending.update(2) is None
    assert pending.of_attempt(4) is not None


@pytest.mark.parametrize(
    ("update", "re_releases"), [(X, 0), (X, 7), (X, None), (None, None)]
)
def test_the_same_bytes_come_back(
    tmp_path: Path, update: RingVector | None, re_releases: int | None
) -> None:
    path = tmp_path / "pending.bin"
    Pending(TASK, ME, path).keep(2, update, PAIR, re_releases)
    again = Pending(TASK, ME, path).of_attempt(3)
    assert again is not None
    assert (again.version, again.pair, again.re_releases) == (2, PAIR, re_releases)
    assert np.array_equal(again.update, update)  # type: ignore[arg-type]
    for found, each in zip(again.pair, PAIR, strict=True):
        messages = [m.SerializeToString() for m in upload_pieces(found)]
        assert messages == [m.SerializeToString() for m in upload_pieces(each)]
    # Another client's or task's pair isn't given out.
    for task, client in (
        (TASK, OTHER),
        (tasks.task_with({"privacy.noise_multiplier": 2.5}), ME),
    ):
        assert Pending(task, client, path).of_attempt(3) is None


def test_a_damaged_file_counts_as_lost(tmp_path: Path) -> None:
    path = tmp_path / "pending.bin"
    Pending(TASK, ME, path).keep(2, X, PAIR, 0)
    data = path.read_bytes()
    damaged = [data[:n] for n in range(0, len(data), 41)]
    damaged += [
        data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :] for n in range(0, len(data), 37)
    ]
    for each in [*damaged, data + b"\0", b"\0" * len(data)]:
        path.write_bytes(each)
        assert Pending(TASK, ME, path).of_attempt(3) is None
    path.write_bytes(data)
    assert Pending(TASK, ME, path).of_attempt(3) is not None


def test_a_full_disk_is_said_with_the_file_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        StorageFailure, match=r"pending.bin can't be written.*mend the disk"
    ):
        Pending(TASK, ME, tmp_path / "absent" / "pending.bin").keep(2, X, PAIR, 0)
    with pytest.raises(
        StorageFailure, match=r"own.log can't be written.*mend the disk"
    ):
        account(path=tmp_path / "absent" / "own.log").charge(0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "participations.log"


def account(
    limit: float | None = None,
    path: Path | None = None,
    task: Task = TASK,
    client: ClientId | None = None,
    *,
    raise_limit: bool = False,
) -> OwnAccount:
    rate = task.privacy.record_rate
    return OwnAccount(task, rate, limit, path, client, raise_limit=raise_limit)


def task_of(noise: float) -> Task:
    return tasks.task_with({"privacy.noise_multiplier": noise})


def cost(*re_releases: int) -> float:
    """Exact ε of one version each, with so many re-releases."""
    privacy = TASK.privacy
    accountant = ExactAccountant()
    for m in re_releases:
        sigma = privacy.noise_multiplier / math.sqrt(1 + m)
        accountant.compose(
            poisson_gaussian(rate=privacy.record_rate, noise_multiplier=sigma)
        )
    return accountant.epsilon(privacy.delta)


TIGHT = cost(*[0] * ROUNDS)
"""A limit that the task's exact ε meets, and that a filter over tasks would pass early.
"""


def filled(own: OwnAccount) -> int:
    version = 0
    while own.allows(version):
        own.charge(version)
        version += 1
    return version


def test_a_version_is_charged_once_by_the_most_of_its_releases(log: Path) -> None:
    own = account(path=log)
    for number, releases in ((0, 0), (1, 2), (1, 1), (1, 0), (0, 1)):
        own.charge(number, releases)
    for each in (own, account(path=log)):
        assert each.participations == 2
        assert each.epsilon() == pytest.approx(cost(1, 2))
        assert [each.charged(1, m) for m in range(4)] == [True, True, True, False]
        assert [each.charged(n) for n in range(3)] == [True, True, False]
    lines = log.read_text().count("\n")
    account(path=log).charge(1)
    assert log.read_text().count("\n") == lines
    # Two releases of one update cost less than two updates, and more than one.
    assert cost(0) < cost(1) < cost(0, 0) * 2
    # What another process has charged since is charged.
    one, two = account(path=log), account(path=log)
    one.charge(3)
    assert (two.charged(3), two.charged(4)) == (True, False)


def test_a_second_name_of_a_data_set_is_refused_before_anything_is_shared(
    log: Path,
) -> None:
    """Both names' updates would stand in one sum: that costs more than two steps."""
    said = r"client = 'ward-.': .* take part in this task as .* in one sum.*Go on as"
    # Both processes start before either has charged anything.
    first, second = (account(path=log, client=name) for name in (ME, OTHER))
    first.charge(0)
    before = log.read_bytes()
    for ask in (second.charge, second.charged, second.allows):
        refused(said, ask, 0)
        refused(said, ask, 1)
    refused(said, account, path=log, client=OTHER)
    refused(said, account, 4.0, log, client=OTHER, raise_limit=True)
    assert log.read_bytes() == before
    assert account(path=log, client=ME).epsilon() == pytest.approx(cost(0))
    # In another task the other name is as good as any: those are two sums.
    account(path=log, client=OTHER, task=task_of(9.0)).charge(0)
    # Both append at one instant: the first line's name goes on, the other sends nothing.
    log.unlink()
    first, second = (account(path=log, client=name) for name in (ME, OTHER))
    append = second._account._file.append

    def beaten(charge: AccountCharge) -> None:
        first.charge(0)
        append(charge)

    with patch.object(second._account._file, "append", beaten):
        refused(said, second.charge, 0)
    first.charge(1)
    refused(said, account, path=log, client=OTHER)


TWICE = [
    ({0: (0, None)}, {((0.2, (1.0,)),): 1}),
    (dict.fromkeys(range(60), (0, 0)), {drawn_twice(0.2, (1.0,), (1.0,)): 60}),
    (
        # m of each name, by version: what two releases of a version show of both.
        {0: (1, 1), 1: (1, 0), 2: (1, 0), 3: (0, None), 4: (None, 0)},
        {
            drawn_twice(0.2, (1.0, 1.0), (1.0, 1.0)): 1,
            drawn_twice(0.2, (1.0, 1.0), (0.0, 1.0)): 2,
            ((0.2, (1.0, 0.0)),): 2,
        },
    ),
]


@pytest.mark.parametrize(("charged", "seen"), TWICE)
def test_two_names_that_an_older_version_took_are_counted_no_less_than_one_sums_move(
    log: Path,
    charged: dict[int, tuple[int | None, int | None]],
    seen: dict[Moves, int],
) -> None:
    for limit in (None, 3.9):
        log.unlink(missing_ok=True)
        file = AccountFile(log)
        if limit is not None:
            file.append(order_for(limit, 1e-5, charge_of(ME, 0, 0).event))
        for version, pair in charged.items():
            for name, m in zip((ME, OTHER), pair, strict=True):
                if m is not None:
                    file.append(charge_of(name, version, m))
        own = account(path=log, client=ME)
        true = epsilon_by_grid(seen, TASK.privacy.noise_multiplier, 1e-5)
        assert own.epsilon() >= true - 2e-3
        two = len(charged) > 1
        assert two == (own.epsilon() > true + 0.01)
        # The first name goes on, within the limit as it is counted now.
        refused("take part in this task as ward-1", account, path=log, client=OTHER)
        versions = own.participations
        assert own.allows(100) == (limit is None or not two)
        for version in range(100, 130):
            with suppress(BudgetExceeded):
                own.charge(version)
        assert (own.participations > versions) == own.charged(100)
        again = account(path=log, client=ME)
        assert again.epsilon() == pytest.approx(own.epsilon())
        assert again.participations == own.participations


def test_lines_after_a_second_name_count_as_the_version_that_wrote_them_took_them(
    log: Path,
) -> None:
    """It found two steps where one sum stood, and sent what is too much."""
    file = AccountFile(log)
    charges = [charge_of(name, n, 0) for n in range(60) for name in (ME, OTHER)]
    file.append(order_for(6.0, 1e-5, charges[0].event))
    taken = RenyiFilter(order_for(6.0, 1e-5, charges[0].event))
    for charge in charges:
        with suppress(BudgetExceeded):
            taken.charge(charge.event)
            file.append(charge)
    whole = len(log.read_text().splitlines()) - 1
    own = account(path=log, client=ME)
    assert own._account.events().total() * 2 >= whole
    sums = {drawn_twice(0.2, (1.0,), (1.0,)): whole // 2}
    true = epsilon_by_grid(sums, TASK.privacy.noise_multiplier, 1e-5)
    spent = own.epsilon()
    assert spent >= true > 6
    assert not own.allows(200)
    # A higher limit lets the first name go on, and isn't passed either.
    higher = account(60.0, log, client=ME, raise_limit=True)
    with suppress(BudgetExceeded):
        for version in range(200, 400):
            higher.charge(version)
    assert spent < higher.epsilon() <= 60


def charge_of(client: ClientId, version: int, m: int) -> AccountCharge:
    """A line as older versions wrote it."""
    privacy = TASK.privacy
    return OldCharge(
        task=TASK.digest,
        client=client.name,
        version=version,
        re_releases=m,
        noise_multiplier=privacy.noise_multiplier,
        record_rate=privacy.record_rate,
        delta=privacy.delta,
        validation=TASK.validation,
        unit=Unit.RECORD,
        owners=1,
    )


def test_an_older_copy_takes_what_both_servers_charged_and_no_more(log: Path) -> None:
    own = account(path=log)
    own.charge(1, 0)
    own.charge(2, 2)
    asked = ((2, 1, 1), (3, 1, 1), (2, 2, 1), (2, 1, 1, 1))
    assert [own.lacks(counts) for counts in asked] == [False, True, True, True]
    # A further release is of a version that is charged already, not of one that isn't.
    own.adopt((2, 2, 1), 4)
    assert (own.participations, own.charged(1, 1), own.charged(0)) == (2, True, False)
    own.adopt((3, 2, 1), 4)
    assert (own.participations, own.charged(0), own.charged(3)) == (3, True, False)
    assert account(path=log).epsilon() == pytest.approx(own.epsilon())


def test_a_limit_below_a_single_round_is_refused_with_what_one_costs(log: Path) -> None:
    said = r"a single round of this task costs ε = 0\.\d+"
    for limit in (1e-6, 0.9 * cost(0)):
        refused(said, account, limit)
    # So is an account's, that was enough for a round of another task.
    account(0.5 * cost(0), log, task_of(40.0)).charge(0)
    refused(said, account, path=log)


def test_an_unreadable_account_is_refused_rather_than_forgotten(log: Path) -> None:
    account(2.0, log).charge(0)
    limit, charge = log.read_bytes().splitlines(keepends=True)
    damaged = [
        b"\xff\xfe\n",
        f"{TASK.digest}\n".encode(),
        charge.replace(b" 0 0 ", b" 0 1 "),
    ]
    damaged += [limit.replace(b"2.0", b"3.0"), b"\n", charge[8:]]
    for content in damaged:
        log.write_bytes(limit + content + charge)
        refused(r"account.*can't be read at.*from a copy", account, path=log)


def test_an_account_that_a_newer_release_wrote_asks_for_that_one(log: Path) -> None:
    """Not for a copy from before the newest charges."""
    account(2.0, log).charge(0)
    charge = "charge9 of-a-later-release"
    checksum = hashlib.sha256(charge.encode()).hexdigest()[:8]
    log.write_text(f"{log.read_text()}{charge} {checksum}\n")
    refused(r"'charge9.*a newer precad wrote it", account, path=log)


def test_beyond_the_limit_only_what_is_charged_may_be_shared_again(log: Path) -> None:
    own = account(1.5, log)
    most = filled(own)
    assert (most > 1, own.allows(-1), own.epsilon() <= 1.5) == (True, False, True)
    own.charge(0)
    before = log.read_bytes()
    for version, re_releases in ((most, 0), (0, 50)):
        assert not own.allows(version, re_releases)
        with pytest.raises(BudgetExceeded):
            own.charge(version, re_releases)
    assert log.read_bytes() == before
    # Two wrote at once: the later line was over, and whoever wrote it sends nothing.
    beside = log.with_name("beside.log")
    account(path=beside).charge(1000)
    log.write_bytes(before + beside.read_bytes())
    again = account(1.5, log)
    assert (again.participations, again.charged(1000)) == (most, False)


def test_an_upgrade_needs_room_for_the_difference_alone() -> None:
    """Whoever cut a link chose it: it counts as a Gaussian step of all records."""
    task = tasks.task_with({"training.rounds": 10})  # short enough for a filter
    limit = account(3.0, task=task).limit
    assert isinstance(limit, RenyiLimit)
    sampled = charge_of(ME, 0, 0).event
    room = RenyiFilter(limit)
    room.charge(replace(sampled, rate=1.0))
    most = largest_count(lambda n: room.allows(sampled.times(n)), 1000)
    assert 0 < most < filled(account(3.0, task=task))
    for charged, allowed in ((most, True), (most + 1, False)):
        own = account(3.0, task=task)
        for version in range(charged):
            own.charge(version)
        assert own.allows(0, 1) == allowed
        assert not own.allows(most, 1)  # with a first release besides
    own = account(3.0, task=task)
    for version in range(most):
        own.charge(version)
    own.charge(0, 1)
    # What was counted is one step with σ/√2.
    assert own.epsilon() == pytest.approx(cost(1, *[0] * (most - 1)))


def test_the_limit_of_an_account_is_fixed_with_its_first_charge(log: Path) -> None:
    account(1.5, log)
    own = account(2.0, log)  # nothing was charged under the other one
    own.charge(0)
    for other in (1.5, 2.5):
        refused(r"limit is ε = 2, δ = 1e-05.*--raise-limit", account, other, log)
    assert account(path=log).limit == account(2.0, log).limit == own.limit
    for none in (0.0, -1.0, math.nan, math.inf):
        refused("epsilon_limit", account, none)


def test_a_limit_equal_to_the_tasks_epsilon_lasts_to_its_end(log: Path) -> None:
    own = account(TIGHT, log)
    assert own.whole_task()
    assert own.rounds_left(2 * ROUNDS) == ROUNDS
    # No room for what a cut link chose: a second release, before the first or after it.
    for _ in range(2):
        assert not own.allows(0, 1)
        with pytest.raises(BudgetExceeded):
            own.charge(0, 1)
        own.charge(0)
    assert own.epsilon() == cost(0)
    assert filled(own) == ROUNDS
    with pytest.raises(BudgetExceeded):
        own.charge(ROUNDS)
    again = account(path=log)
    assert (again.allows(-1), again.epsilon()) == (False, TIGHT)


@pytest.mark.parametrize(
    ("epsilon", "rounds"), [(1.5, 30), (1.0, 100), (3.0, 200), (0.75, 30)]
)
def test_a_limit_below_the_tasks_epsilon_covers_the_longest_exact_prefix(
    log: Path, epsilon: float, rounds: int
) -> None:
    """And no further release, nor a further task: those nobody fixed beforehand."""
    task = tasks.task_with({"training.rounds": rounds})
    own = account(epsilon, log, task)
    most = largest_count(lambda n: cost(*[0] * n) <= epsilon, rounds)
    by_filter = RenyiFilter(order_for(epsilon, 1e-5, charge_of(ME, 0, 0).event))
    step = charge_of(ME, 0, 0).event
    admitted = largest_count(lambda n: by_filter.allows(step.times(n)), rounds)
    assert admitted < most < rounds
    assert (own.whole_task(), own.rounds_left(rounds)) == (True, most)
    for version in range(most):
        assert not own.is_used_up()
        own.charge(2 * version)  # whichever rounds draw it
        assert not own.allows(2 * version, 1)
    assert own.epsilon() == cost(*[0] * most) <= epsilon
    with pytest.raises(BudgetExceeded):
        own.charge(1)
    again = account(path=log, task=task)
    assert (again.participations, again.is_used_up()) == (most, True)
    refused("all of it went to task", account, path=log, task=task_of(9.0))


def test_a_limit_of_1_5_covers_11_of_30_rounds_of_a_task_whose_epsilon_is_2() -> None:
    """It let 1 through."""
    changes = {"training.rounds": 30, "privacy.noise_multiplier": 1.053}
    task = tasks.task_with(changes | {"privacy.record_rate": 0.05})
    own = account(1.5, task=task)
    assert own.rounds_left(30) == filled(own) == 11
    assert own.epsilon() == pytest.approx(1.493, abs=5e-4)


def test_a_limit_over_tasks_keeps_its_filter_whatever_an_exact_prefix_would_admit(
    log: Path,
) -> None:
    """The second task was chosen with the first one's models in view."""
    short = tasks.task_with({"training.rounds": 5})
    first = account(2.0, log, short)
    assert not first.whole_task()
    for version in range(5):
        first.charge(version)
    assert not first.is_used_up()  # its rounds are over, not its limit
    second = account(2.0, log, task_of(2.1))
    assert isinstance(second.limit, RenyiLimit)
    filled(second)
    assert second.is_used_up()
    assert second.epsilon() <= 2.0


def test_a_limit_that_went_to_one_task_refuses_others_and_another_rate(
    log: Path,
) -> None:
    other = task_of(9.0)
    early = account(TIGHT, log, other)  # has seen an empty account
    account(TIGHT, log).charge(0)
    with pytest.raises(BudgetExceeded):
        early.charge(0)
    for of, rate in ((other, 0.2), (TASK, 0.1)):
        refused(
            r"all of it went to task .* of their own", OwnAccount, of, rate, None, log
        )
    # Nor does one go to a single task once others were charged.
    log.unlink()
    account(path=log, task=other).charge(0)
    assert not account(1.01 * TIGHT, log).whole_task()
    # The limit that leaves room for other tasks is the least one.
    ample = account(1.0).ample()
    enough, short = account(ample), account(ample - 0.01)
    assert (enough.whole_task(), short.whole_task()) == (False, True)
    assert enough.rounds_left(ROUNDS) == ROUNDS


def test_of_two_limits_at_once_the_stricter_one_is_kept(log: Path) -> None:
    """Both processes started before either had charged anything."""
    strict, loose = account(1.5, log), account(3.0, log)
    loose.charge(0)
    most = filled(strict)
    assert strict.epsilon() <= 1.5
    with pytest.raises(BudgetExceeded, match="has a higher limit by now"):
        strict.charge(most)
    assert loose.allows(most)
    log.unlink()
    strict, loose = account(1.5, log), account(3.0, log)
    strict.charge(0)
    assert 0 < filled(loose) < filled(account(3.0))
    assert loose.epsilon() <= 1.5


def test_an_owner_raises_its_accounts_limit_with_a_word_and_never_lowers_it(
    log: Path,
) -> None:
    """A limit just below the task's ε ends it early; raised, the task lasts to its
    end."""
    low = account(0.999 * TIGHT, log)
    most = filled(low)
    assert 0 < most < ROUNDS
    refused("raise it, never lower it, with precad join --rai", account, TIGHT, log)
    higher = account(TIGHT, log, raise_limit=True)
    assert (higher.whole_task(), higher.rounds_left(ROUNDS)) == (True, ROUNDS - most)
    assert higher.allows(most)  # before anything is charged under it
    assert not low.allows(most)  # nothing was charged under it: the old one stands
    for version in range(most, ROUNDS):
        higher.charge(version)
    assert not higher.allows(ROUNDS)
    # Afterwards it is the account's own, without the word; who started before keeps the
    # lower one.
    again = account(TIGHT, log)
    assert (again.limit, again.epsilon()) == (higher.limit, TIGHT)
    assert not low.allows(ROUNDS)
    assert log.read_text().count("raised-") == 1
    refused("never lower it", account, 0.999 * TIGHT, log, raise_limit=True)
    # Over tasks, at the order that the account opened with, though another would admit
    # more by now.
    log.unlink()
    early = filled(account(1.5, log))
    higher = account(4.0, log, raise_limit=True)
    assert not higher.whole_task()
    assert early < filled(higher) <= filled(account(4.0))
    assert higher.epsilon() <= 4.0
    assert account(path=log, task=task_of(90.0)).limit == higher.limit


def test_a_limit_below_what_was_spent_before_is_refused(log: Path) -> None:
    free = account(path=log)
    for version in range(20):
        free.charge(version)
    refused(r"have spent ε = 2\.\d+ at δ = 1e-05", account, 1.5, log)
    own = account(4.0, log)
    own.charge(20)
    assert own.epsilon() == pytest.approx(cost(*[0] * 21))


def test_repeats_of_a_round_of_all_records_count_beside_the_round(log: Path) -> None:
    """A question's second release cost what its first had cost, and the first nothing."""
    question = asking(changes={"noise_multiplier": 4.0, "delta": 1e-5})
    step = poisson_gaussian(rate=1.0, noise_multiplier=4.0)
    limit = order_for(2.0, 1e-5, step)
    room = RenyiFilter(limit)
    most = largest_count(lambda n: room.allows(step.times(n)), 1000)
    assert most > 2
    AccountFile(log).append(limit)
    own = OwnAccount(question, 1.0, None, log)
    own.charge(0, most - 1)
    assert own.epsilon() <= 2.0
    assert not own.allows(0, most)
    assert as_chosen([own._charge(0, 2)]) == {step: 3}
