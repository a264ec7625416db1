"""Stacked UserDP-FedAvg: each model is what it is alone, and clips bound what a user moves."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from research.algorithms.learner import Learner
from research.algorithms.user_level import (
    CLIPPINGS,
    PARTS_OF_A_ROUND,
    Adversary,
    UserLevel,
    Users,
    train,
)
from research.checkpoint import Checkpoint
from research.defences import DEFENCES
from research.models import MODELS
from research.poisoning import ATTACKS

from precad.simulation.datasets import load

SETTINGS: dict[str, Any] = {
    "user_rate": 0.3,
    "rounds": 2,
    "noise_multiplier": 0.5,
    "clip": 0.7,
    "clipping": "flat",
    "local_steps": 3,
    "local_rate": 0.1,
}


def ensemble(
    seeds: list[int], others: dict[str, Any] | None = None, **changed: Any
) -> torch.Tensor:
    data = load("digits")
    learner = Learner(MODELS["logistic"](data))
    shares = [(data.train_x[n : n + 3 + n % 3], data.train_y[n : n + 3 + n % 3]) for n in range(20)]
    start = torch.zeros(learner.dimension)
    chosen = UserLevel(**{**SETTINGS, **changed})
    return train(learner, Users.of(shares), start, chosen, seeds, **(others or {}))


@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_model_is_the_same_alone_and_among_others(batch_size: int | None) -> None:
    together, alone = (ensemble(seeds, batch_size=batch_size) for seeds in ([1, 2, 3], [2]))
    torch.testing.assert_close(together[1], alone[0], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(together[0], together[1], atol=1e-3)
    assert torch.equal(together, ensemble([1, 2, 3], batch_size=batch_size))


@pytest.mark.parametrize("name", CLIPPINGS)
def test_no_user_moves_the_sum_by_more_than_the_sensitivity(name: str) -> None:
    rows = torch.from_numpy(np.random.default_rng(1).normal(0, 3, (9, 12))).float()
    clipped, sensitivity = CLIPPINGS[name](rows, 0.7, (slice(0, 8), slice(8, 12)))
    norms = torch.linalg.vector_norm(clipped, dim=1)
    assert float(norms.max()) <= sensitivity * (1 + 1e-6)
    assert float(norms.max()) > 0.6 * sensitivity
    if "median" not in name:
        assert sensitivity == 0.7


def test_a_users_steps_are_torchs_with_the_papers_momentum_and_decay() -> None:
    # Xie et al. Sec. 6.1.2. One user, who always takes part; no clip and no noise that counts.
    data = load("digits")
    learner = Learner(MODELS["logistic"](data))
    users = Users.of([(data.train_x[:25], data.train_y[:25])])
    quiet = {"user_rate": 1.0, "noise_multiplier": 1e-12, "clip": 1e5}
    chosen = UserLevel(**{**SETTINGS, **quiet, "local_steps": 4})
    found = train(learner, users, torch.zeros(learner.dimension), chosen, [1])

    expected = torch.zeros(1, learner.dimension)
    for _ in range(SETTINGS["rounds"]):
        optimizer = torch.optim.SGD(
            [expected], lr=SETTINGS["local_rate"], momentum=0.9, weight_decay=0.0005
        )
        for _ in range(4):
            expected.grad = learner.gradients(expected, users.x, users.y, users.weights)
            optimizer.step()
    torch.testing.assert_close(found, expected.detach(), atol=1e-6, rtol=1e-5)


QUIET: dict[str, Any] = {"user_rate": 1.0, "noise_multiplier": 1e-9}


class Watched(Learner):
    """Remembers what each user's steps are on: of each record its place and its weight."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self.steps: list[list[dict[int, float]]] = []

    def gradients(
        self, thetas: torch.Tensor, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        self.steps.append(
            [
                {int(r[0]): float(w) for r, w in zip(mine, own, strict=True) if w}
                for mine, own in zip(x, weights, strict=True)
            ]
        )
        return super().gradients(thetas, x, y, weights)


def test_an_epoch_in_batches_takes_each_record_once_in_an_order_of_its_own() -> None:
    # Xie et al. Algorithm 1, "for batch b in local dataset"; Table 2's batch sizes.
    counts, epochs, at_once = [7, 2, 3], 4, 3
    shares = [
        (np.arange(n, dtype=np.float32)[:, None] * np.ones((1, 64), np.float32), np.zeros(n, int))
        for n in counts
    ]
    learner = Watched(MODELS["logistic"](load("digits")))
    chosen = UserLevel(
        **{**SETTINGS, **QUIET, "rounds": 1, "local_steps": epochs, "batch_size": at_once}
    )
    train(learner, Users.of(shares), torch.zeros(learner.dimension), chosen, [1])

    of_user: dict[int, list[dict[int, float]]] = {0: [], 1: [], 2: []}
    for step, users in enumerate(learner.steps):
        # Who has had its whole epoch rests: only the first user has more than one batch.
        assert len(users) == (3 if step % 3 == 0 else 1)
        for user, seen in enumerate(users):
            of_user[user].append(seen)
    orders = []
    for user, count in enumerate(counts):
        each = math.ceil(count / at_once)
        assert len(of_user[user]) == each * epochs
        for epoch in range(epochs):
            batches = of_user[user][epoch * each : (epoch + 1) * each]
            assert sorted(record for batch in batches for record in batch) == list(range(count))
            assert [len(batch) for batch in batches] == {7: [3, 3, 1], 2: [2], 3: [3]}[count]
            for batch in batches:
                assert set(batch.values()) == {np.float32(1 / len(batch))}
            if user == 0:
                orders.append([sorted(batch) for batch in batches])
    assert any(order != orders[0] for order in orders)


def test_bad_users_move_a_model_by_no_more_than_their_clips() -> None:
    honest = ensemble([4], **QUIET, rounds=1)
    bad = {"adversary": Adversary(ATTACKS["scaled-label-flipping"](gamma=1e6), 3)}
    attacked = ensemble([4], bad, **QUIET, rounds=1)
    moved = float((attacked - honest).norm())
    assert 0 < moved <= 3 * 2 * SETTINGS["clip"] / 20 + 1e-4
    # Without a clip they take it where they want; a robust aggregation in the mean's place holds.
    for name, moved_far in (("mean", True), ("krum", False)):
        free = ensemble([4], {**bad, "defence": DEFENCES[name]}, **QUIET, rounds=1)
        assert (float((free - honest).norm()) > 1000) is moved_far


def test_a_broken_off_ensemble_goes_on_to_the_same_models(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "cell.npz")
    whole = ensemble([1, 2], rounds=4)
    played: list[int] = []

    def stop(done: int, of: int) -> None:
        assert of == 4 * PARTS_OF_A_ROUND
        played.append(done)
        if done > 2.5 * PARTS_OF_A_ROUND:
            raise KeyboardInterrupt

    def told(done: int, _all: int) -> None:
        played.append(done)

    with pytest.raises(KeyboardInterrupt):
        ensemble([1, 2], {"checkpoint": checkpoint, "progress": stop}, rounds=4)
    played.clear()
    resumed = ensemble([1, 2], {"checkpoint": checkpoint, "progress": told}, rounds=4)
    assert 2 * PARTS_OF_A_ROUND < played[0] < 2.5 * PARTS_OF_A_ROUND
    assert played[-1] == 4 * PARTS_OF_A_ROUND
    assert torch.equal(whole, resumed)
    # Another cell's file, and a damaged one, are played anew.
    assert torch.equal(ensemble([1], rounds=1), ensemble([1], {"checkpoint": checkpoint}, rounds=1))
    checkpoint.path.write_bytes(b"PK\x03\x04 cut short")
    assert torch.equal(whole, ensemble([1, 2], {"checkpoint": checkpoint}, rounds=4))
