"""Canaries: coins by period, and what is expected of an audit beforehand."""

import numpy as np
import pytest
import torch

from precad.client.train import Records
from precad.common.errors import Misconfiguration
from precad.experiments.audit.builds import MODELS, ONE_SERVER, Build, less_noise
from precad.experiments.audit.canaries import coins_at, loud_canaries
from precad.experiments.audit.designed import designed
from precad.experiments.audit.power import plan
from precad.experiments.audit.simulated import statements, train, views
from precad.experiments.audit.trade_off import gaussian

LIKE = Records(torch.randn(20, 3), torch.zeros(20, dtype=torch.int64))


def test_a_row_of_coins_holds_for_one_of_equally_many_rounds() -> None:
    coins = np.array([[True, False], [False, True]])
    held = [coins_at(coins, version, 6).tolist() for version in range(6)]
    assert held == 3 * [[True, False]] + 3 * [[False, True]]


def test_a_sample_loses_the_canaries_that_are_out_of_its_round() -> None:
    canaries = loud_canaries(LIKE, 50, 3, seed=1, periods=4)
    drawn = np.arange(0, 50, 2)
    for version in range(4):
        kept = canaries.counting(drawn, version, 4)
        assert kept.tolist() == [i for i in drawn if canaries.coins[version, i]]


def test_a_coin_a_round_states_what_one_round_hides() -> None:
    task = designed(50, 4, 1).task
    assert [statement.rounds for statement in statements(task, 4)] == [1, 1]
    assert [statement.rounds for statement in statements(task, 1)] == [4, 4]


def test_scores_tell_a_rounds_coins_and_no_other_rounds() -> None:
    made = designed(400, 3, 1)
    trained = train(made.task, made.shares, made.canaries, seed=1)
    coins = made.canaries.coins
    for as_stated, _ in views(trained, made.shares, made.canaries).values():
        for period, scores in enumerate(as_stated):
            right = [((scores > 0) == row).mean() for row in coins]
            assert right[period] > 0.55
            assert all(share < 0.55 for other, share in enumerate(right) if other != period)


def test_noise_that_is_not_of_these_rounds_is_refused() -> None:
    made = designed(50, 2, 1)
    trained = train(made.task, made.shares, made.canaries, seed=1)
    trained.known_noise.pop()
    with pytest.raises(Misconfiguration, match="2 rounds"):
        views(trained, made.shares, made.canaries)


def test_power_is_none_of_what_is_sound_and_grows_with_the_fault() -> None:
    caught = [
        plan(
            2000, 1.0, 1.0, 1, delta=1e-5, significance=1e-4, stated=gaussian(1.0), less=less
        ).caught
        for less in (1.0, 2.0, 8.0)
    ]
    assert caught[0] == 0.0
    assert caught[1] <= caught[2] == 1.0


def test_a_fault_concerns_those_who_see_it() -> None:
    assert less_noise(Build.REDRAWN, MODELS) == 1.0
    assert less_noise(Build.REDRAWN, ONE_SERVER) > 2.0
    assert less_noise(Build.SOUND, ONE_SERVER) == 1.0
