"""ε spent and left by adversary, as metrics show it."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import TaskMaker

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.events import AccountantName
from precad.accounting.guarantees import guarantees
from precad.aggregator.rounds.privacy_cap import PrivacyCap, epsilon_spent
from precad.aggregator.rpc.server_metrics import Epsilons
from precad.common.identifiers import ClientId
from precad.common.task import Task

OFTEN, SELDOM = ClientId("often"), ClientId("seldom")
ROUNDS = 10


@pytest.fixture
def make(make_task: TaskMaker) -> Callable[..., Task]:
    def made(**privacy: Any) -> Task:
        changes = {f"privacy.{name}": value for name, value in privacy.items()}
        return make_task(8, changes | {"training.rounds": ROUNDS})

    return made


def epsilons_of(task: Task) -> Epsilons:
    return Epsilons(task, PrivacyCap(task))


def stated(task: Task, rounds: int, counts: dict[int, int]) -> dict[Adversary, float]:
    run = Run.of(task, rounds=rounds, counts=counts)
    found = guarantees(run, task.privacy.delta, accountants=(AccountantName.EXACT,))
    return {each.adversary: each.epsilon for each in found}


def test_it_is_what_the_guarantees_state_of_the_owner_with_most(make: Any) -> None:
    task = make(client_rate=0.5)
    found = epsilons_of(task).by_adversary(6, {OFTEN: 4, SELDOM: 1}, {})
    assert {who: each.spent for who, each in found.items()} == stated(task, 6, {0: 4})
    # As the limit is kept: by the same number.
    by_limit = epsilon_spent(task, task.privacy.record_rate, 4, {})
    assert found[Adversary.ONE_SERVER].spent == by_limit
    assert found[Adversary.ONE_SERVER].spent > found[Adversary.CLIENTS_ONLY].spent > 0


def test_what_is_left_and_what_is_spent_are_the_end_s(make: Any) -> None:
    task = make()
    end = stated(task, ROUNDS, {0: 8})
    for who, each in epsilons_of(task).by_adversary(6, {OFTEN: 4, SELDOM: 1}, {}).items():
        assert each.left is not None
        assert each.spent + each.left == pytest.approx(end[who])


def test_the_limit_leaves_less(make: Any) -> None:
    task = make(epsilon_limit=1.0)
    cap = PrivacyCap(task).most(task.privacy.record_rate)
    assert cap is not None
    assert 1 < cap < ROUNDS
    found = epsilons_of(task).by_adversary(1, {OFTEN: 1}, {})
    one, models = found[Adversary.ONE_SERVER], found[Adversary.CLIENTS_ONLY]
    assert one.left is not None
    assert one.spent + one.left == pytest.approx(
        stated(task, ROUNDS, {0: cap})[Adversary.ONE_SERVER]
    )
    assert one.spent + one.left <= 1.0
    assert models.spent < one.spent
    at_the_cap = epsilons_of(task).by_adversary(cap, {OFTEN: cap}, {})
    assert at_the_cap[Adversary.ONE_SERVER].left == 0.0
    # Rounds go on without it, and say less and less whether it is there.
    assert at_the_cap[Adversary.CLIENTS_ONLY].left == 0.0


def test_a_version_that_was_released_again_costs_more_than_one_more_round(make: Any) -> None:
    task = make()
    epsilons = epsilons_of(task)
    once = epsilons.by_adversary(4, {OFTEN: 4, SELDOM: 4}, {})
    again = epsilons.by_adversary(4, {OFTEN: 4, SELDOM: 4}, {SELDOM: {1: 1}})
    for who in Adversary:
        assert again[who].spent == stated(task, 4, {0: 3, 1: 1})[who] > once[who].spent


def test_a_look_computes_nothing_that_the_last_one_knew(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many owners had other releases again: fifty here."""
    computed: list[object] = []
    found = dict.fromkeys(Adversary, 1.0)

    def compute(*asked: object) -> Any:
        computed.append(asked)
        return found

    monkeypatch.setattr(Epsilons, "_now", compute)
    epsilons = epsilons_of(make())
    clients = [ClientId(f"ward-{number}") for number in range(50)]
    taken = dict.fromkeys(clients, 60)
    again = {client: {1: number + 1} for number, client in enumerate(clients)}
    epsilons.by_adversary(60, taken, again)
    first = len(computed)
    assert first >= 2 * len(clients)
    epsilons.by_adversary(60, taken, again)
    assert len(computed) == first


def test_a_charge_whose_release_is_under_way_counts(make: Any) -> None:
    task = make()
    found = epsilons_of(task).by_adversary(2, {OFTEN: 3}, {})
    assert found[Adversary.ONE_SERVER].spent == stated(task, 3, {0: 3})[Adversary.ONE_SERVER]
    last = epsilons_of(task).by_adversary(ROUNDS - 1, {OFTEN: ROUNDS}, {})
    assert last[Adversary.ONE_SERVER].left == 0.0


def test_what_has_no_bound_is_infinite_and_nothing_is_said_to_be_left(make: Any) -> None:
    # A step with so little noise that the accountant claims nothing.
    found = epsilons_of(make(noise_multiplier=0.005)).by_adversary(1, {OFTEN: 1}, {})
    one = found[Adversary.ONE_SERVER]
    assert (math.isinf(one.spent), one.left) == (True, None)
