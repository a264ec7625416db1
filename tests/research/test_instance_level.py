"""InsDP-FedSGD, InsDP-FedAvg and Dopamine: what they train, and what an ε of theirs stands for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from research.algorithms import ALGORITHMS, Problem, instance_level
from research.algorithms.ins_dp_fedsgd import PRINTED
from research.algorithms.instance_level import InstanceLevel, exact_epsilon, train
from research.algorithms.learner import Learner
from research.algorithms.user_level import Users
from research.checkpoint import Checkpoint
from research.datasets.partition import iid
from research.models import MODELS

from precad.common.errors import Misconfiguration
from precad.simulation.datasets import load

SETTINGS: dict[str, Any] = {
    "users_per_round": 4,
    "rounds": 3,
    "noise_multiplier": 1.0,
    "clip": 0.7,
    "batch_rate": 0.2,
    "local_rate": 0.5,
}
USERS = 8


def problem(seed: int = 1) -> Problem:
    data = load("digits")
    return Problem(data=data, shares=iid(200, USERS, seed=0), model="logistic", seed=seed)


def ensemble(seeds: list[int], **changed: Any) -> torch.Tensor:
    data = load("digits")
    users = Users.of([(data.train_x[part], data.train_y[part]) for part in problem().shares])
    learner = Learner(MODELS["logistic"](data))
    chosen = InstanceLevel(**{**SETTINGS, "local_steps": 3, **changed})
    return train(learner, users, torch.zeros(learner.dimension), chosen, seeds)[0]


def test_the_accounts_are_ordered_as_the_credit_that_they_take() -> None:
    # FedAvg's users have no noise but their own, Dopamine the sum's; FedSGD counts draws too.
    found = {
        name: ALGORITHMS[name](problem(), SETTINGS).epsilon
        for name in ("ins-dp-fedavg", "dopamine", "ins-dp-fedsgd")
    }
    one = {name: epsilon["record"] for name, epsilon in found.items()}
    assert one["ins-dp-fedavg"] > one["dopamine"] > one["ins-dp-fedsgd"]
    assert found["ins-dp-fedsgd"][PRINTED] < one["ins-dp-fedsgd"]


def test_at_the_papers_setting_the_accounts_are_those_of_the_accounting_page() -> None:
    paper = {"noise_multiplier": 3.0, "batch_rate": 0.4, "users_per_round": 10, "rounds": 200}
    chosen = InstanceLevel.of({**SETTINGS, **paper})
    assert exact_epsilon(chosen.summed(1 / 3), 1e-5) == pytest.approx(1.36, abs=0.01)
    assert exact_epsilon(chosen.summed(), 1e-5) == pytest.approx(2.45, abs=0.01)


def test_a_model_is_the_same_alone_and_among_others() -> None:
    together, alone = ensemble([1, 2, 3]), ensemble([2])
    torch.testing.assert_close(together[1], alone[0], atol=1e-5, rtol=1e-4)
    assert torch.equal(together, ensemble([1, 2, 3]))


def test_no_record_moves_a_step_by_more_than_its_clip() -> None:
    # One step of all users at p = 1, noise off: the mean of the records' clipped gradients.
    settings = {"noise_multiplier": 1e-12, "batch_rate": 1.0, "rounds": 1, "local_steps": 1}
    moved = ensemble([1], users_per_round=USERS, **settings, clip=1e-3)
    assert 0 < float(moved.norm()) <= SETTINGS["local_rate"] * 1e-3 * (1 + 1e-5)


def test_noise_is_each_users_own() -> None:
    quiet = {"clip": 1e-6, "batch_rate": 0.5, "rounds": 1, "local_steps": 1}
    models = ensemble(list(range(8)), users_per_round=4, noise_multiplier=1e6, **quiet)
    # σ·S = 1 over L = p·25 records, averaged over four users.
    expected = SETTINGS["local_rate"] / (0.5 * 25) / np.sqrt(4)
    assert float(models.std()) == pytest.approx(expected, rel=0.05)


def test_adams_first_step_moves_every_weight_by_the_rate_and_a_round_begins_anew() -> None:
    one = {"optimizer": "adam", "local_rate": 0.01, "users_per_round": 1, "local_steps": 1}
    # A step that forgets all before it moves each weight by η, up or down.
    for rounds in (1, 2):
        moved = ensemble([1], **one, rounds=rounds).numpy()
        steps = np.round(moved / 0.01)
        np.testing.assert_allclose(moved, steps * 0.01, atol=1e-6)
        assert set(np.unique(steps % 2)) == {rounds % 2}


def test_momentum_and_decay_are_torchs_and_a_round_begins_without_any() -> None:
    # One user, all of its records, no clip and no noise that counts: SGD on their mean gradient.
    quiet = {"clip": 1e6, "noise_multiplier": 1e-12, "batch_rate": 1.0, "users_per_round": 1}
    data = load("digits")
    part = slice(0, 25)
    users = Users.of([(data.train_x[part], data.train_y[part])])
    learner = Learner(MODELS["logistic"](data))
    sgd: dict[str, Any] = {"momentum": 0.8, "weight_decay": 0.01}
    chosen = InstanceLevel(**{**SETTINGS, **quiet, **sgd, "rounds": 2, "local_steps": 4})
    found, _ = train(learner, users, torch.zeros(learner.dimension), chosen, [1])

    expected = torch.zeros(1, learner.dimension)
    for _ in range(2):
        optimizer = torch.optim.SGD([expected], lr=SETTINGS["local_rate"], **sgd)
        for _ in range(4):
            expected.grad = learner.gradients(expected, users.x, users.y, users.weights)
            optimizer.step()
    torch.testing.assert_close(found, expected.detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"users_per_round": 9}, "at most 8"),
        ({"batch_rate": 1.5}, "batch_rate"),
        ({"optimizer": "rmsprop"}, "must be one of sgd, adam"),
        ({"momentum": 1.0}, "momentum"),
        ({"momentum": -0.1}, "momentum"),
        ({"weight_decay": 1.5}, "weight_decay"),
        ({"optimizer": "adam", "momentum": 0.9}, "only sgd has it"),
    ],
)
def test_impossible_settings_are_refused(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(Misconfiguration, match=field):
        ensemble([1], **changed)


@pytest.mark.parametrize(
    "optimizer",
    [{"optimizer": "sgd"}, {"momentum": 0.9, "weight_decay": 0.1}, {"optimizer": "adam"}],
)
@pytest.mark.parametrize("stops", [1, 4, 5])
def test_a_broken_off_ensemble_goes_on_to_the_same_models(
    tmp_path: Path, stops: int, optimizer: dict[str, Any]
) -> None:
    data = load("digits")
    users = Users.of([(data.train_x[part], data.train_y[part]) for part in problem().shares])
    learner = Learner(MODELS["logistic"](data))
    chosen = InstanceLevel(**{**SETTINGS, "local_steps": 2, **optimizer})
    start, checkpoint = torch.zeros(learner.dimension), Checkpoint(tmp_path / "cell.npz")
    told: list[int] = []

    def stop(done: int, _all: int) -> None:
        if done == stops:
            raise KeyboardInterrupt

    def on_step(done: int, of: int) -> None:
        assert of == 6
        told.append(done)

    whole, drawn = train(learner, users, start, chosen, [3, 4])
    with pytest.raises(KeyboardInterrupt):
        train(learner, users, start, chosen, [3, 4], checkpoint=checkpoint, on_step=stop)
    resumed, drawn_again = train(
        learner, users, start, chosen, [3, 4], checkpoint=checkpoint, on_step=on_step
    )
    # Also within a round, with the users that were drawn for it.
    assert told == list(range(stops, 7))
    assert torch.equal(whole, resumed)
    assert (drawn == drawn_again).all()


def test_a_long_model_takes_the_same_steps_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = ensemble([1, 2, 3])
    monkeypatch.setattr(instance_level, "LONG", 0)
    alone = ensemble([1, 2, 3])
    torch.testing.assert_close(alone, gathered, atol=1e-6, rtol=1e-4)
    assert not torch.allclose(alone[0], alone[1])
