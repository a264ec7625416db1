"""The task's privacy limit: the participation that would pass it is refused beforehand."""

import math
import threading
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from tests.rig.aggregators import aggregator, link_over
from tests.rig.tasks import task_with
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
from precad.common.errors import Misconfiguration, PeerViolation
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task

MODEL, VALID_SET = Digest(b"\1" * 32), Digest(b"\3" * 32)
OFTEN, SELDOM, NEW = (ClientId(name) for name in ("often", "seldom", "new"))
RATES = {OFTEN: 0.2, SELDOM: 0.02, NEW: 0.2}
LIMIT = 1.0


def limited(limit: float | None = LIMIT, rounds: int = 10) -> Task:
    return task_with({"privacy.epsilon_limit": limit, "training.rounds": rounds})


TASK = limited()


def epsilon(rate: float, participations: int) -> float:
    noise, delta = TASK.privacy.noise_multiplier, TASK.privacy.delta
    return record_epsilon(
        record_rate=rate, noise_multiplier=noise, participations=participations, delta=delta
    )


@pytest.fixture
def store() -> Iterator[Store]:
    store = open_store("sqlite://", TASK, Role.SERVER_A)
    yield store
    store.close()


def roster_of(rates: Mapping[ClientId, float]) -> Roster:
    return Roster({client: Enrolment(client, 100, rate) for client, rate in rates.items()})


def aggregator_of(store: Store, task: Task = TASK, **given: Any) -> Aggregator:
    parts: dict[str, Any] = {"roster": roster_of(RATES), "store": store}
    return aggregator(task, Role.SERVER_A, **parts | given)


def play(store: Store, number: int, *clients: ClientId, end: str = "done") -> None:
    if end == "learned":
        names = tuple(client.name for client in clients)
        lost = Fact(version=number, attempt=number, voided=False, clients=names)
        store.attempts.learn([lost])
        return
    store.attempts.begin(number, number, len(clients), MODEL)
    store.attempts.prepare(number, clients, VALID_SET, {}, bytes(64))
    if end == "done":
        store.attempts.finish(number, MODEL)
    else:
        store.attempts.write_off(number)


def test_a_limit_that_is_met_exactly_isnt_passed() -> None:
    exactly = epsilon(0.2, 4)
    assert PrivacyCap(limited(exactly)).most(0.2) == 4
    assert PrivacyCap(limited(exactly * (1 - 1e-12))).most(0.2) == 3
    # Without a limit everybody may, and under one of less than a round nobody.
    free, tight = (PrivacyCap(limited(limit)) for limit in (None, 1e-6))
    assert (free.most(0.2), free.admits(0.2, 10**6, {}, 0)) == (None, True)
    assert (tight.most(0.2), tight.admits(0.2, 0, {}, 0)) == (0, False)
    # Forfeited rounds are charged beside the task's own, up to twice as many and a few: by ε alone.
    cap, most = PrivacyCap(limited(50.0, rounds=3)), 2 * 3 + SPARE_CHARGES
    assert cap.most(0.2) == 3
    assert [cap.admits(0.2, n, {}, 0) for n in (3, most - 1, most)] == [True, True, False]
    tight = PrivacyCap(limited(exactly, rounds=3))
    assert [tight.admits(0.2, n, {}, 0) for n in (3, 4)] == [True, False]


@pytest.mark.parametrize("last", ["done", "written off", "learned"])
def test_a_client_is_refused_from_its_cap_on_and_not_before(store: Store, last: str) -> None:
    """A release that was lost counts too."""
    cap = PrivacyCap(TASK).most(0.2)
    assert cap is not None
    end, other = memory_pair()
    server, b = aggregator_of(store, end=end), link_over(other, TASK)
    for number in range(cap):
        assert server.within_budget(RATES, number) == (OFTEN, SELDOM, NEW), number
        if last == "done" or number < cap - 1:
            play(store, number, OFTEN, SELDOM)
        else:
            play(store, number, OFTEN, end=last)
    # Seldom-sampled records have spent less with as many participations; asking changes nothing.
    for _ in range(2):
        assert server.within_budget(RATES, cap) == (SELDOM, NEW)
    assert server.within_budget([OFTEN], cap) == ()
    # B would refuse the first too; A, for whom everybody is drawn, must not need it.
    b.send("cohort", Verdict(refusal="that is all").to_bytes())
    with pytest.raises(PeerViolation, match="that is all"):
        propose(server, cap, cap, list(RATES), MODEL)
    proposed = Cohort.from_bytes(b.receive("cohort")).clients
    assert Places(sorted(RATES)).clients(proposed) == (NEW, SELDOM)


def upgraded(rate: float, counts: dict[int, int]) -> float:
    """ε with the further releases' smaller noise, composed here step by step."""
    accountant = ExactAccountant()
    for m, count in counts.items():
        noise = TASK.privacy.noise_multiplier / math.sqrt(1 + m)
        for _ in range(count):
            accountant.compose(poisson_gaussian(rate=rate, noise_multiplier=noise))
    return accountant.epsilon(TASK.privacy.delta)


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
    rate: float, spent: int, re_releases: dict[int, int], charges: int, after: dict[int, int]
) -> None:
    """σ/√(1+m), and never m more steps: the same X under independent noise."""
    costs = upgraded(rate, after)
    for limit, allowed in ((costs * (1 + 1e-9), True), (costs * (1 - 1e-6), False)):
        cap = PrivacyCap(limited(limit), AT_ONCE)
        assert cap.admits(rate, spent, re_releases, charges) == allowed


def test_a_version_released_again_is_charged_before_the_release(store: Store) -> None:
    once, twice = upgraded(0.2, {0: 1}), upgraded(0.2, {1: 1})
    assert once < twice
    play(store, 0, OFTEN, end="written off")
    for limit, within in ((twice * 1.001, True), (twice * 0.999, False)):
        task = limited(limit)
        server = aggregator_of(store, task, cap=PrivacyCap(task, AT_ONCE))
        assert (OFTEN in server.within_budget(RATES, 0)) == within


AT_ONCE: Any = SimpleNamespace(start_thread=lambda _name, target: target())
"""A clock whose threads are over when they have started."""


def test_a_version_released_again_costs_a_round_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round asks; another thread computes; until it is known its client sits out."""
    cap, asked, go = PrivacyCap(limited(40.0)), [], threading.Event()

    def account(**_terms: Any) -> float:
        asked.append(threading.current_thread())
        assert go.wait(60)
        return 1.0

    monkeypatch.setattr(exact, "record_epsilon", account)
    for _ in range(2):
        assert not cap.admits(0.2, 1, {}, charges=1)
    go.set()
    until(lambda: cap.admits(0.2, 1, {}, charges=1), "the account")
    assert cap.admits(0.2, 5, {1: 1}, charges=0)
    assert threading.main_thread() not in asked
    assert len(set(asked)) == 1


@pytest.fixture
def accountant(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """By which each may twice; fails at the rate ``fails_at``."""

    def account(*, record_rate: float, counts: Mapping[int, int], **_: Any) -> float:
        if record_rate == found.fails_at:
            raise ZeroDivisionError("deep in a library")
        return LIMIT * sum(counts.values()) / 2

    found = Mock(side_effect=account)
    monkeypatch.setattr(exact, "record_epsilon", found)
    return found


def rates_of(accountant: Mock) -> set[float]:
    rates = {call.kwargs["record_rate"] for call in accountant.call_args_list}
    accountant.reset_mock()
    return rates


def test_a_round_asks_for_no_account(store: Store, accountant: Mock) -> None:
    """They are computed where clients enrol; a new rate took 9 to 16 s of everybody's round."""
    roster = roster_of({OFTEN: 0.2, SELDOM: 0.2 / 64, NEW: 0.1})
    register = Register(TASK, store)
    for claim in roster.values():
        register.enrol(claim)
    register.freeze(register.roster())
    # A server that starts again has its accounts before the next round.
    again = Register(TASK, store)
    assert rates_of(accountant) == {0.2, 0.2 / 64, 0.1}
    again.prepare_accounts()
    assert rates_of(accountant) == {0.2, 0.2 / 64, 0.1}
    assert again.cap.admits(0.1, 0, {}, 0)
    server = aggregator_of(store, roster=roster, cap=register.cap)
    for number in range(4):
        server.within_budget(roster, number)
        play(store, number, *roster)
    assert (server.within_budget(roster, 4), rates_of(accountant)) == ((), set())


def test_an_account_that_fails_costs_its_client_alone(
    store: Store, accountant: Mock, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it claims the rate, or on a roster from before the grid."""
    accountant.fails_at = 0.1
    register = Register(TASK, store)
    with pytest.raises(Misconfiguration, match=r"record_rate = 0\.1: .*claim a higher rate"):
        register.enrol(Enrolment(SELDOM, 100, 0.1))
    register.enrol(Enrolment(OFTEN, 100, 0.2))
    assert list(register.roster()) == [OFTEN]
    accountant.fails_at = 0.02
    server = aggregator_of(store)
    for number in range(2):
        play(store, number, OFTEN, SELDOM)
    assert server.within_budget(RATES, 2) == (NEW,)
    assert "no account for record rate 0.02" in caplog.text
