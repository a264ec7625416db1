"""Owners with a share of the data do their worst in simulated rounds: the bound holds."""

import pytest
from benchmarks.worst_set import SIZES, attacked, task_by_size, worst_set

SHARE = 0.1
ROUNDS = 250


@pytest.mark.parametrize("client_rate", [1.0, 0.4])
def test_owners_with_the_share_move_the_loss_by_no_more_than_certified(
    client_rate: float,
) -> None:
    task = task_by_size(SIZES, client_rate, ROUNDS)
    chosen = worst_set(task, SIZES, SHARE)
    assert sum(SIZES[owner] for owner in chosen) <= SHARE * sum(SIZES)
    found = attacked(task, SIZES, SHARE, chosen, seed=1)
    assert not found.refuted
    # The attack is a strong one: it reaches half of what is certified, or more.
    assert found.reached - found.clean > (found.most - found.clean) / 2


def test_owners_with_twice_the_share_move_it_further() -> None:
    task = task_by_size(SIZES, 1.0, ROUNDS)
    chosen = worst_set(task, SIZES, 2 * SHARE)
    assert attacked(task, SIZES, SHARE, chosen, seed=1).refuted
