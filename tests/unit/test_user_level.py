"""Stacked UserDP-FedAvg: each model is what it is alone, and clips bound what a user moves."""

from typing import Any

import numpy as np
import pytest
import torch

from precad.experiments.algorithms.learner import Learner
from precad.experiments.algorithms.user_level import CLIPPINGS, UserLevel, Users, train
from precad.experiments.data import load
from precad.experiments.models import MODELS

SETTINGS: dict[str, Any] = {
    "user_rate": 0.3,
    "rounds": 2,
    "noise_multiplier": 0.5,
    "clip": 0.7,
    "clipping": "flat",
    "local_steps": 3,
    "local_rate": 0.1,
}


def ensemble(seeds: list[int], **changed: Any) -> torch.Tensor:
    data = load("digits")
    learner = Learner(MODELS["logistic"](data))
    shares = [(data.train_x[n : n + 3 + n % 3], data.train_y[n : n + 3 + n % 3]) for n in range(20)]
    start = torch.zeros(learner.dimension)
    return train(learner, Users.of(shares), start, UserLevel(**{**SETTINGS, **changed}), seeds)


def test_a_model_is_the_same_alone_and_among_others() -> None:
    together, alone = ensemble([1, 2, 3]), ensemble([2])
    torch.testing.assert_close(together[1], alone[0], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(together[0], together[1], atol=1e-3)
    assert torch.equal(together, ensemble([1, 2, 3]))


def test_a_round_without_users_is_noise() -> None:
    quiet = ensemble([5], user_rate=1e-9, noise_multiplier=1e-12)
    assert float(quiet.abs().max()) < 1


@pytest.mark.parametrize("name", CLIPPINGS)
def test_no_user_moves_the_sum_by_more_than_the_sensitivity(name: str) -> None:
    rows = torch.from_numpy(np.random.default_rng(1).normal(0, 3, (9, 12))).float()
    clipped, sensitivity = CLIPPINGS[name](rows, 0.7, (slice(0, 8), slice(8, 12)))
    norms = torch.linalg.vector_norm(clipped, dim=1)
    assert float(norms.max()) <= sensitivity * (1 + 1e-6)
    assert float(norms.max()) > 0.6 * sensitivity
    if "median" not in name:
        assert sensitivity == 0.7
