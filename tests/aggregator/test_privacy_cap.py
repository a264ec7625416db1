"""The task's privacy limit: the participation that would pass it is refused beforehand."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.conftest import TaskMaker
from tests.rig.aggregators import aggregator, link_over
from tests.rig.waiting import until

from precad.accounting import exact
from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import ExactAccountant, record_epsilon
from precad.aggregator.collect.matching import Places
from precad.aggregator.enrol.register import Register
from precad.aggregator.peer_link import memory_pair
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.privacy_cap import SPARE_CHARGES, PrivacyCap
from precad.aggregator.rounds.start_attempt import propose
from precad.aggregator.server_messages import Cohort, Fact, Verdict
from precad.aggregator.store import Store, open_store
from precad.common.clock import Clock
from precad.common.errors import Misconfiguration, PeerViolation
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task

MODEL, VALID_SET = Digest(b"\1" * 32), Digest(b"\3" * 32)
OFTEN, SELDOM, NEW = (ClientId(name) for name in ("often", "seldom", "new"))
RATES = {OFTEN: 0.2, SELDOM: 0.02, NEW: 0.2}
LIMIT = 1.0


def limited(make_task: TaskMaker, limit: float | None = LIMIT, rounds: int = 10) -> Task:
    return make_task(8, {"privacy.epsilon_limit": limit, "training.rounds": rounds})


def epsilon(task: Task, rate: float, participations: int) -> float:
    return record_epsilon(
        record_rate=rate,
        noise_multiplier=task.privacy.noise_multiplier,
        participations=participations,
        delta=task.privacy.delta,
    )


@pytest.fixture
def task(make_task: TaskMaker) -> Task:
    return limited(make_task)


@pytest.fixture
def store(task: Task) -> Iterator[Store]:
    store = open_store("sqlite://", task, Role.SERVER_A)
    yield store
    store.close()


def aggregator_of(task: Task, store: Store) -> Aggregator:
    roster = Roster({c: Enrolment(c, 100, rate) for c, rate in RATES.items()})
    return aggregator(task, Role.SERVER_A, roster=roster, store=store)


def play(store: Store, number: int, *clients: ClientId) -> None:
    store.attempts.begin(number, number, len(clients), MODEL)
    store.attempts.prepare(number, clients, VALID_SET, {}, bytes(64))
    store.attempts.finish(number, MODEL)


def test_a_limit_that_is_met_exactly_isnt_passed(make_task: TaskMaker) -> None:
    exactly = epsilon(limited(make_task), 0.2, 4)
    assert PrivacyCap(limited(make_task, exactly)).most(0.2) == 4
    below = exactly * (1 - 1e-12)
    assert PrivacyCap(limited(make_task, below)).most(0.2) == 3


def test_a_client_is_refused_from_its_cap_on_and_not_before(task: Task, store: Store) -> None:
    cap = PrivacyCap(task).most(0.2)
    assert cap is not None
    server = aggregator_of(task, store)
    for number in range(cap):
        assert server.within_budget(RATES, number) == (OFTEN, SELDOM, NEW), number
        play(store, number, OFTEN, SELDOM)
    # The seldom-sampled records have spent less with as many participations.
    assert server.within_budget(RATES, cap) == (SELDOM, NEW)
    assert server.within_budget([OFTEN], cap) == ()
    # Asking changes nothing.
    assert server.within_budget(RATES, cap) == (SELDOM, NEW)


def test_server_a_proposes_nobody_at_the_limit(task: Task, store: Store) -> None:
    """B refuses them too; A must not need it."""
    cap = PrivacyCap(task).most(0.2)
    assert cap is not None
    for number in range(cap):
        play(store, number, OFTEN)
    a, b = (link_over(end, task) for end in memory_pair())
    # Everybody is drawn; B's word only ends the attempt.
    b.send("cohort", Verdict(refusal="that is all").to_bytes())
    with pytest.raises(PeerViolation, match="that is all"):
        propose(replace(aggregator_of(task, store), link=a), cap, cap, list(RATES), MODEL)
    proposed = Cohort.from_bytes(b.receive("cohort")).clients
    assert Places(sorted(RATES)).clients(proposed) == (NEW, SELDOM)


@pytest.mark.parametrize("lost", ["written off", "learned"])
def test_a_release_that_was_lost_counts_against_the_limit(
    task: Task, store: Store, lost: str
) -> None:
    cap = PrivacyCap(task).most(0.2)
    assert cap is not None
    for number in range(cap - 1):
        play(store, number, OFTEN)
    assert OFTEN in aggregator_of(task, store).within_budget(RATES, cap)
    if lost == "written off":
        store.attempts.begin(cap - 1, cap - 1, 1, MODEL)
        store.attempts.prepare(cap - 1, [OFTEN], VALID_SET, {}, bytes(64))
        store.attempts.write_off(cap - 1)
    else:
        store.attempts.learn(
            [Fact(version=cap - 1, attempt=cap - 1, voided=False, clients=(OFTEN.name,))]
        )
    assert OFTEN not in aggregator_of(task, store).within_budget(RATES, cap)


# --- a version that is released again --------------------------------------------------------


def upgraded(task: Task, rate: float, counts: dict[int, int]) -> float:
    """ε with the further releases' smaller noise, composed here step by step."""
    accountant = ExactAccountant()
    for m, count in counts.items():
        noise = task.privacy.noise_multiplier / math.sqrt(1 + m)
        for _ in range(count):
            accountant.compose(poisson_gaussian(rate=rate, noise_multiplier=noise))
    return accountant.epsilon(task.privacy.delta)


@pytest.mark.parametrize("rate", [0.2, 0.05])
@pytest.mark.parametrize(
    ("spent", "re_releases", "charges", "after"),
    [
        # T_i, versions by m, this version's charges so far; and what one more release makes of it.
        (3, {}, 1, {0: 2, 1: 1}),
        (3, {1: 1}, 0, {0: 3, 1: 1}),
        (3, {1: 1}, 1, {0: 1, 1: 2}),
        (3, {1: 1}, 2, {0: 2, 2: 1}),
        (4, {1: 2, 2: 1}, 3, {0: 1, 1: 2, 3: 1}),
        (1, {}, 1, {1: 1}),
    ],
)
def test_one_more_release_of_a_version_turns_its_step_into_a_noisier_one_s_square_root(
    make_task: TaskMaker,
    rate: float,
    spent: int,
    re_releases: dict[int, int],
    charges: int,
    after: dict[int, int],
) -> None:
    """σ/√(1+m), and never m more steps: the same X under independent noise."""
    costs = upgraded(limited(make_task), rate, after)
    for limit, allowed in ((costs * (1 + 1e-9), True), (costs * (1 - 1e-6), False)):
        cap = PrivacyCap(limited(make_task, limit), AtOnce())
        assert cap.admits(rate, spent, re_releases, charges) == allowed


def test_a_version_released_again_is_charged_before_the_release(make_task: TaskMaker) -> None:
    base = limited(make_task)
    once, twice = upgraded(base, 0.2, {0: 1}), upgraded(base, 0.2, {1: 1})
    assert once < twice
    for limit, within in ((twice * 1.001, True), (twice * 0.999, False)):
        task = limited(make_task, limit)
        store = open_store("sqlite://", task, Role.SERVER_A)
        store.attempts.begin(0, 0, 1, MODEL)
        store.attempts.prepare(0, [OFTEN], VALID_SET, {}, bytes(64))
        store.attempts.write_off(0)
        server = replace(aggregator_of(task, store), cap=PrivacyCap(task, AtOnce()))
        assert (OFTEN in server.within_budget(RATES, 0)) == within
        store.close()


class AtOnce(Clock):
    """Threads that are over when they have started."""

    def start_thread(self, name: str, target: Callable[[], None]) -> None:
        threading.Thread(target=target, name=name).run()


def test_a_version_that_is_released_again_costs_a_round_no_account(
    make_task: TaskMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round asks; another thread computes; until it is known its client sits out."""
    cap, asked, go = PrivacyCap(limited(make_task, 40.0)), [], threading.Event()

    def account(**_terms: Any) -> float:
        asked.append(threading.current_thread())
        assert go.wait(60)
        return 1.0

    monkeypatch.setattr(exact, "record_epsilon", account)
    assert not cap.admits(0.2, 1, {}, charges=1)
    assert not cap.admits(0.2, 1, {}, charges=1)
    go.set()
    until(lambda: cap.admits(0.2, 1, {}, charges=1), "the account")
    assert cap.admits(0.2, 5, {1: 1}, charges=0)
    assert threading.main_thread() not in asked
    assert len(set(asked)) == 1


def test_without_a_limit_everybody_may_and_under_one_of_less_than_a_round_nobody(
    make_task: TaskMaker,
) -> None:
    free, tight = (PrivacyCap(limited(make_task, limit)) for limit in (None, 1e-6))
    assert (free.most(0.2), free.admits(0.2, 10**6, {}, 0)) == (None, True)
    assert (tight.most(0.2), tight.admits(0.2, 0, {}, 0)) == (0, False)


def test_more_charges_than_rounds_are_judged_by_epsilon_alone(make_task: TaskMaker) -> None:
    """Forfeited rounds are charged beside the task's own, up to twice as many and a few."""
    task = limited(make_task, 50.0, rounds=3)
    assert PrivacyCap(task).most(0.2) == 3
    assert PrivacyCap(task).admits(0.2, 3, {}, 0)
    assert PrivacyCap(task).admits(0.2, 2 * 3 + SPARE_CHARGES - 1, {}, 0)
    assert not PrivacyCap(task).admits(0.2, 2 * 3 + SPARE_CHARGES, {}, 0)
    tight = limited(make_task, epsilon(task, 0.2, 4), rounds=3)
    assert PrivacyCap(tight).admits(0.2, 3, {}, 0)
    assert not PrivacyCap(tight).admits(0.2, 4, {}, 0)


class Accounts:
    """Stands for the accountant: says which rates it was asked for."""

    def __init__(self) -> None:
        self.asked: set[float] = set()
        self.fails_at = -1.0
        self.times = 0

    def __call__(self, *, record_rate: float, counts: Mapping[int, int], **_: Any) -> float:
        self.asked.add(record_rate)
        self.times += 1
        if record_rate == self.fails_at:
            raise ZeroDivisionError("deep in a library")
        return LIMIT * sum(counts.values()) / 2


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> Accounts:
    """Each allows two participations."""
    accounts = Accounts()
    monkeypatch.setattr(exact, "record_epsilon", accounts)
    return accounts


def test_a_round_asks_for_no_account(task: Task, store: Store, accounts: Accounts) -> None:
    """They are computed where clients enrol; a new rate took 9 to 16 s of everybody's round."""
    register = Register(task, store)
    rates = {OFTEN: 0.2, SELDOM: 0.2 / 64, NEW: 0.1}
    roster = Roster({client: Enrolment(client, 100, rate) for client, rate in rates.items()})
    for claim in roster.values():
        register.enrol(claim)
    register.freeze(register.roster())
    assert accounts.asked == set(rates.values())
    before = accounts.times
    server = replace(aggregator_of(task, store), roster=roster, cap=register.cap)
    for number in range(4):
        server.within_budget(roster, number)
        play(store, number, *roster)
    assert server.within_budget(roster, 4) == ()
    assert accounts.times == before


def test_a_server_that_starts_again_has_its_accounts_before_the_next_round(
    task: Task, store: Store, accounts: Accounts
) -> None:
    store.enrolment.claim(Enrolment(SELDOM, 100, 0.1))
    register = Register(task, store)
    register.prepare_accounts()
    assert accounts.asked == {0.2, 0.1}
    before = accounts.times
    assert register.cap.admits(0.1, 0, {}, 0)
    assert accounts.times == before


def test_a_rate_without_an_account_is_refused_where_it_is_claimed(
    task: Task, store: Store, accounts: Accounts
) -> None:
    accounts.fails_at = 0.1
    register = Register(task, store)
    with pytest.raises(Misconfiguration, match=r"record_rate = 0\.1: .*claim a higher rate"):
        register.enrol(Enrolment(SELDOM, 100, 0.1))
    register.enrol(Enrolment(OFTEN, 100, 0.2))
    assert list(register.roster()) == [OFTEN]


def test_an_account_that_fails_costs_its_client_alone(
    task: Task, store: Store, accounts: Accounts, caplog: pytest.LogCaptureFixture
) -> None:
    """A roster from before the grid, whose rate the accountant can't take."""
    accounts.fails_at = 0.02
    server = aggregator_of(task, store)
    for number in range(2):
        play(store, number, OFTEN, SELDOM)
    assert server.within_budget(RATES, 2) == (NEW,)
    assert "no account for record rate 0.02" in caplog.text
