"""ε spent and left by adversary, as metrics show it."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from unittest.mock import Mock

import pytest
from tests.rig.tasks import task_with

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.events import AccountantName, ReleaseCounts
from precad.accounting.guarantees import guarantees
from precad.aggregator.rounds.privacy_cap import PrivacyCap, epsilon_spent
from precad.aggregator.rpc.server_metrics import Epsilon, Epsilons
from precad.common.identifiers import ClientId
from precad.common.task import Task

OFTEN, SELDOM = ClientId("often"), ClientId("seldom")
ONE, MODELS = Adversary.ONE_SERVER, Adversary.CLIENTS_ONLY
ROUNDS = 10


def made(**privacy: float) -> Task:
    return task_with({f"privacy.{name}": value for name, value in privacy.items()})


def found(
    task: Task,
    rounds: int,
    taken: dict[ClientId, int],
    again: Mapping[ClientId, ReleaseCounts] = MappingProxyType({}),
) -> Mapping[Adversary, Epsilon]:
    return Epsilons(task, PrivacyCap(task)).by_adversary(rounds, taken, again)


def whole(one: Epsilon) -> float:
    assert one.left is not None
    return one.spent + one.left


def stated(task: Task, rounds: int, counts: dict[int, int]) -> dict[Adversary, float]:
    run = Run.of(task, rounds=rounds, counts=counts)
    each = guarantees(run, task.privacy.delta, accountants=(AccountantName.EXACT,))
    return {one.adversary: one.epsilon for one in each}


def test_it_is_what_the_guarantees_state_of_the_owner_with_most() -> None:
    task = made(client_rate=0.5)
    spent = {
        who: one.spent for who, one in found(task, 6, {OFTEN: 4, SELDOM: 1}).items()
    }
    assert spent == stated(task, 6, {0: 4})
    # As the limit is kept: by the same number.
    assert spent[ONE] == epsilon_spent(task, task.privacy.record_rate, 4, {})
    assert spent[ONE] > spent[MODELS] > 0
    # With what is left it is the end's.
    always = found(made(), 6, {OFTEN: 4, SELDOM: 1})
    in_all = {who: whole(each) for who, each in always.items()}
    assert in_all == pytest.approx(stated(made(), ROUNDS, {0: 8}))

    # A version that was released again costs more than one more round.
    task, taken = made(), {OFTEN: 4, SELDOM: 4}
    once, again = (found(task, 4, taken, more) for more in ({}, {SELDOM: {1: 1}}))
    for who in Adversary:
        assert again[who].spent == stated(task, 4, {0: 3, 1: 1})[who] > once[who].spent
    # A charge whose release is under way counts.
    assert found(task, 2, {OFTEN: 3})[ONE].spent == stated(task, 3, {0: 3})[ONE]
    assert found(task, ROUNDS - 1, {OFTEN: ROUNDS})[ONE].left == 0.0
    # With so little noise that the accountant claims nothing, nothing is said to be
    # left.
    one = found(made(noise_multiplier=0.005), 1, {OFTEN: 1})[ONE]
    assert (math.isinf(one.spent), one.left) == (True, None)


def test_the_limit_leaves_less() -> None:
    task = made(epsilon_limit=1.0)
    cap = PrivacyCap(task).most(task.privacy.record_rate)
    assert cap is not None
    assert 1 < cap < ROUNDS
    first = found(task, 1, {OFTEN: 1})
    in_all = whole(first[ONE])
    assert pytest.approx(in_all) == stated(task, ROUNDS, {0: cap})[ONE] <= 1.0
    assert first[MODELS].spent < first[ONE].spent
    # Rounds go on without it at the cap, and say less and less whether it is there.
    assert [found(task, cap, {OFTEN: cap})[who].left for who in (ONE, MODELS)] == [
        0.0,
        0.0,
    ]


def test_a_look_computes_nothing_that_the_last_one_knew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compute = Mock(return_value=dict.fromkeys(Adversary, 1.0))
    monkeypatch.setattr(Epsilons, "_now", compute)
    epsilons = Epsilons(made(), PrivacyCap(made()))
    clients = [ClientId(f"ward-{number}") for number in range(50)]
    again = {client: {1: number + 1} for number, client in enumerate(clients)}
    epsilons.by_adversary(60, dict.fromkeys(clients, 60), again)
    assert (first := compute.call_count) >= 2 * len(clients)
    epsilons.by_adversary(60, dict.fromkeys(clients, 60), again)
    assert compute.call_count == first
