"""Stacked models are what each is alone; clips bound what a user or a record moves.

Each record has a gradient of its own, in every model of the papers.
"""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from research.algorithms import ALGORITHMS, Problem, instance_level, user_level
from research.algorithms.ins_dp_fedsgd import PRINTED
from research.algorithms.instance_level import InstanceLevel, exact_epsilon
from research.algorithms.learner import Learner
from research.algorithms.user_level import CLIPPINGS, Adversary, UserLevel, Users
from research.checkpoint import Checkpoint
from research.datasets.partition import iid
from research.defences import DEFENCES
from research.models import MODELS
from research.poisoning import ATTACKS
from research.study import Settings
from tests.rig.tasks import task_with
from torch import nn
from torch.nn import functional

from precad.client.gradients.local_update import local_update
from precad.client.gradients.torch_models import load_vector, model_section
from precad.common.model import initial_vector
from precad.common.task_schema import ModelSection
from precad.simulation.datasets import DataSet, load

DIGITS = load("digits")
USER: Settings = {
    "user_rate": 0.3,
    "rounds": 2,
    "noise_multiplier": 0.5,
    "clip": 0.7,
    "clipping": "flat",
    "local_steps": 3,
    "local_rate": 0.1,
}
RECORD: Settings = {
    "users_per_round": 4,
    "rounds": 3,
    "noise_multiplier": 1.0,
    "clip": 0.7,
    "batch_rate": 0.2,
    "local_rate": 0.5,
}
USERS = 8
PROBLEM = Problem(data=DIGITS, shares=iid(200, USERS, seed=0), model="logistic", seed=1)
Ensemble = Callable[..., torch.Tensor]


def some_users(*parts: slice | NDArray[np.int64]) -> Users:
    return Users.of([(DIGITS.train_x[part], DIGITS.train_y[part]) for part in parts])


def by_user(
    seeds: list[int],
    others: Settings | None = None,
    users: Users | None = None,
    **more: float | str,
) -> torch.Tensor:
    learner = Learner(MODELS["logistic"](DIGITS))
    users = users or some_users(*(slice(n, n + 3 + n % 3) for n in range(20)))
    given = (
        learner,
        users,
        torch.zeros(learner.dimension),
        UserLevel(**{**USER, **more}),
        seeds,
    )
    return user_level.train(*given, **(others or {}))


def by_record(
    seeds: list[int],
    others: Settings | None = None,
    users: Users | None = None,
    **more: float | str,
) -> torch.Tensor:
    learner = Learner(MODELS["logistic"](DIGITS))
    users = users or some_users(*PROBLEM.shares)
    chosen = InstanceLevel(**{**RECORD, "local_steps": 3, **more})
    given = learner, users, torch.zeros(learner.dimension), chosen, seeds
    return instance_level.train(*given, **(others or {}))[0]


@pytest.mark.parametrize(
    ("ensemble", "batches"),
    [(by_user, {}), (by_user, {"batch_size": 2}), (by_record, {})],
    ids=["users", "users in batches", "records"],
)
def test_a_model_is_the_same_among_others(
    ensemble: Ensemble, batches: dict[str, int]
) -> None:
    together, alone = (ensemble(seeds, **batches) for seeds in ([1, 2, 3], [2]))
    torch.testing.assert_close(together[1], alone[0], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(together[0], together[1], atol=1e-3)
    assert torch.equal(together, ensemble([1, 2, 3], **batches))


@pytest.mark.parametrize(
    ("ensemble", "quiet", "sgd"),
    [
        # Xie et al. Sec. 6.1.2.
        (
            by_user,
            {"user_rate": 1.0, "clip": 1e5},
            {"momentum": 0.9, "weight_decay": 0.0005},
        ),
        (
            by_record,
            {"clip": 1e6, "batch_rate": 1.0, "users_per_round": 1, "local_rate": 0.1},
            {"momentum": 0.8, "weight_decay": 0.01},
        ),
    ],
    ids=["users", "records"],
)
def test_momentum_and_decay_are_torchs_and_a_round_begins_without_any(
    ensemble: Ensemble, quiet: Settings, sgd: Settings
) -> None:
    """One user, who always takes part with all records; no clip and no noise that
    counts."""
    users, learner = some_users(slice(0, 25)), Learner(MODELS["logistic"](DIGITS))
    own = sgd if ensemble is by_record else {}
    quiet = {**quiet, **own, "noise_multiplier": 1e-12, "rounds": 2, "local_steps": 4}
    found = ensemble([1], users=users, **quiet)
    expected = torch.zeros(1, learner.dimension)
    for _ in range(2):
        optimizer = torch.optim.SGD([expected], lr=0.1, **sgd)
        for _ in range(4):
            expected.grad = learner.gradients(expected, users.x, users.y, users.weights)
            optimizer.step()
    torch.testing.assert_close(found, expected.detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", CLIPPINGS)
def test_no_user_moves_the_sum_by_more_than_the_sensitivity(name: str) -> None:
    rows = torch.from_numpy(np.random.default_rng(1).normal(0, 3, (9, 12))).float()
    clipped, sensitivity = CLIPPINGS[name](rows, 0.7, (slice(0, 8), slice(8, 12)))
    longest = float(torch.linalg.vector_norm(clipped, dim=1).max())
    assert 0.6 * sensitivity < longest <= sensitivity * (1 + 1e-6)
    assert sensitivity == 0.7 or "median" in name


QUIET: Settings = {"user_rate": 1.0, "noise_multiplier": 1e-9, "rounds": 1}


def test_an_epoch_in_batches_takes_each_record_once_in_an_order_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Xie et al. Algorithm 1, "for batch b in local dataset"; Table 2's batch sizes.
    counts, epochs, at_once = [7, 2, 3], 4, 3
    shares = [
        (
            np.arange(n, dtype=np.float32)[:, None] * np.ones((1, 64), np.float32),
            np.zeros(n, int),
        )
        for n in counts
    ]
    learner = Learner(MODELS["logistic"](DIGITS))
    watched = Mock(wraps=learner.gradients)
    monkeypatch.setattr(learner, "gradients", watched)
    chosen = UserLevel(
        **{**USER, **QUIET, "local_steps": epochs, "batch_size": at_once}
    )
    user_level.train(
        learner, Users.of(shares), torch.zeros(learner.dimension), chosen, [1]
    )

    of_user: list[list[list[int]]] = [[], [], []]
    for (_, x, _, weights), _ in watched.call_args_list:
        # Who has had its whole epoch rests: only the first user has more than one
        # batch.
        for seen, records, own in zip(of_user, x, weights, strict=False):
            seen.append([int(each) for each in records[own > 0, 0]])
            assert {*own[own > 0].tolist()} == {np.float32(1 / len(seen[-1]))}
    for count, mine, sizes in zip(counts, of_user, ([3, 3, 1], [2], [3]), strict=True):
        assert [len(batch) for batch in mine] == sizes * epochs
        orders = np.concatenate(mine).reshape(epochs, count)
        assert (np.sort(orders) == np.arange(count)).all()
        assert count < 7 or (orders != orders[0]).any()


def test_bad_users_move_a_model_by_no_more_than_their_clips() -> None:
    honest = by_user([4], **QUIET)
    bad = {"adversary": Adversary(ATTACKS["scaled-label-flipping"](gamma=1e6), 3)}
    moved = float((by_user([4], bad, **QUIET) - honest).norm())
    assert 0 < moved <= 3 * 2 * USER["clip"] / 20 + 1e-4
    # Without a clip they take it where they want; a robust aggregation in the mean's
    # place holds.
    for name, moved_far in (("mean", True), ("krum", False)):
        free = by_user([4], {**bad, "defence": DEFENCES[name]}, **QUIET)
        assert (float((free - honest).norm()) > 1000) is moved_far


@pytest.mark.parametrize(
    ("ensemble", "told", "sgd"),
    [
        (by_user, "progress", {}),
        (by_record, "on_step", {"momentum": 0.9, "weight_decay": 0.1}),
        (by_record, "on_step", {"optimizer": "adam"}),
    ],
)
def test_a_broken_off_ensemble_goes_on_to_the_same_models(
    tmp_path: Path, ensemble: Ensemble, told: str, sgd: Settings
) -> None:
    """Within a round, with the users that were drawn for it."""
    kept, stop = Checkpoint(tmp_path / "cell.npz"), Mock(side_effect=[None] * 4)
    every, rest = Mock(), Mock()
    whole = ensemble([1, 2], {told: every}, **sgd)
    with pytest.raises(StopIteration):
        ensemble([1, 2], {"checkpoint": kept, told: stop}, **sgd)
    assert torch.equal(whole, ensemble([1, 2], {"checkpoint": kept, told: rest}, **sgd))
    assert rest.call_args_list == every.call_args_list[-len(rest.call_args_list) :]
    assert 0 < rest.call_count < every.call_count - 2


def test_the_accounts_are_ordered_as_the_credit_that_they_take() -> None:
    # FedAvg's users have no noise but their own, Dopamine the sum's; FedSGD counts
    # draws too.
    names = ("ins-dp-fedavg", "dopamine", "ins-dp-fedsgd")
    found = [ALGORITHMS[name](PROBLEM, RECORD).epsilon for name in names]
    assert (
        found[0]["record"] > found[1]["record"] > found[2]["record"] > found[2][PRINTED]
    )
    # At the paper's setting they are those of the accounting page.
    paper = {
        "noise_multiplier": 3.0,
        "batch_rate": 0.4,
        "users_per_round": 10,
        "rounds": 200,
    }
    chosen = InstanceLevel.of({**RECORD, **paper})
    epsilons = [
        exact_epsilon(each, 1e-5) for each in (chosen.summed(1 / 3), chosen.summed())
    ]
    assert epsilons == pytest.approx([1.36, 2.45], abs=0.01)


def test_no_record_moves_a_step_by_more_than_its_clip_and_noise_is_each_users_own() -> (
    None
):
    # One step of all users at p = 1, noise off: the mean of the records' clipped
    # gradients.
    one: Settings = {"rounds": 1, "local_steps": 1}
    settings: Settings = {
        **one,
        "noise_multiplier": 1e-12,
        "batch_rate": 1.0,
        "clip": 1e-3,
    }
    moved = by_record([1], users_per_round=USERS, **settings)
    assert 0 < float(moved.norm()) <= RECORD["local_rate"] * 1e-3 * (1 + 1e-5)
    loud: Settings = {
        **one,
        "clip": 1e-6,
        "batch_rate": 0.5,
        "noise_multiplier": 1e6,
    }
    models = by_record(list(range(8)), users_per_round=4, **loud)
    # σ·S = 1 over L = p·25 records, averaged over four users.
    expected = RECORD["local_rate"] / (0.5 * 25) / np.sqrt(4)
    assert float(models.std()) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("rounds", [1, 2])
def test_adams_first_step_moves_every_weight_by_the_rate(rounds: int) -> None:
    """A step that forgets all before it moves each weight by η, up or down."""
    one: Settings = {
        "optimizer": "adam",
        "local_rate": 0.01,
        "users_per_round": 1,
    }
    moved = by_record([1], **one, local_steps=1, rounds=rounds).numpy()
    steps = np.round(moved / 0.01)
    np.testing.assert_allclose(moved, steps * 0.01, atol=1e-6)
    assert {*np.unique(steps % 2)} == {rounds % 2}


def test_a_long_model_takes_the_same_steps_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gathered = by_record([1, 2, 3])
    monkeypatch.setattr(instance_level, "LONG", 0)
    torch.testing.assert_close(by_record([1, 2, 3]), gathered, atol=1e-6, rtol=1e-4)


def some(*shape: int, classes: int = 2, words: int = 0) -> DataSet:
    drawn = np.random.default_rng(0).random((3, *shape))
    y = np.array([0, 1, classes - 1])
    x = (np.floor(drawn * words) if words else drawn).astype(np.float32)
    return DataSet(
        name="some", train_x=x, train_y=y, test_x=x, test_y=y, classes=classes
    )


COLOUR = some(3, 32, 32, classes=10)
CASES = {
    "resnet18": (COLOUR, 11_173_962),
    "opacus-cifar-cnn": (COLOUR, 896 + 18_496 + 36_928 + 73_856 + 1_290),
    "pooled-logistic": (COLOUR, 192 * 10 + 10),
    "lstm": (
        some(4, 300),
        (4 * 256 * 301 + 4 * 256 * 256) + (4 * 256 * 257 + 4 * 256 * 256) + 514,
    ),
    "small-lstm": (
        some(5, words=1024),
        1024 * 16 + (128 * 17 + 128 * 32) + (128 * 33 + 128 * 32) + 66,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_model_has_its_size_and_per_record_gradients(name: str) -> None:
    data, dimension = CASES[name]
    torch.set_num_threads(1)
    module = MODELS[name](data)
    learner = Learner(module)
    assert learner.dimension == dimension
    section = ModelSection.model_validate(
        model_section(module, architecture=name, initial="uniform", initial_seed=1)
    )
    theta = initial_vector(section)
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    thetas = torch.tensor(theta, dtype=torch.float32).expand(2, -1)
    stacked = learner.gradients(thetas, x[:2, None], y[:2, None], torch.ones(2, 1))
    load_vector(module, theta)
    for record, found in enumerate(stacked):
        # Alone: no other record takes part.
        one = slice(record, record + 1)
        loss = nn.functional.cross_entropy(module(x[one]), y[one])
        alone = [
            each.ravel()
            for each in torch.autograd.grad(loss, list(module.parameters()))
        ]
        torch.testing.assert_close(found, torch.cat(alone), atol=1e-5, rtol=1e-3)
    assert not torch.allclose(stacked[0], stacked[1])
    assert module(x).shape == (3, data.classes)


def test_the_lstm_is_torchs() -> None:
    torch.manual_seed(0)
    own = MODELS["lstm"](some(6, 300))
    theirs = nn.LSTM(300, 256, num_layers=2, batch_first=True)
    with torch.no_grad():
        for number, layer in enumerate(("first", "second")):
            found = getattr(own, layer)
            getattr(theirs, f"weight_ih_l{number}").copy_(found.from_input.weight)
            getattr(theirs, f"bias_ih_l{number}").copy_(found.from_input.bias)
            getattr(theirs, f"weight_hh_l{number}").copy_(found.from_state.weight)
            getattr(theirs, f"bias_hh_l{number}").zero_()
        x = torch.randn(3, 6, 300)
        hidden, _ = theirs(x)
        assert isinstance(own.last, nn.Linear)
        torch.testing.assert_close(
            own(x), own.last(hidden[:, -1]), atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("batch_size", [None, 60])
def test_a_users_plain_steps_are_those_of_the_client(
    monkeypatch: pytest.MonkeyPatch, batch_size: int | None
) -> None:
    """Stacked models have momentum, as the paper's users; without it they learn what
    an owner's own code does, to float32's last bits."""
    monkeypatch.setattr(user_level, "MOMENTUM", 0.0)
    monkeypatch.setattr(user_level, "WEIGHT_DECAY", 0.0)
    parts = [slice(40 * n, 40 * n + 30 + n) for n in range(4)]
    stacked = by_user(
        [1],
        users=some_users(*parts),
        user_rate=1.0,
        rounds=1,
        noise_multiplier=0.0,
    )
    module = MODELS["logistic"](DIGITS)
    task = task_with(
        {
            "model": model_section(module, architecture="logistic"),
            "local": {
                "epochs": USER["local_steps"],
                "learning_rate": USER["local_rate"],
                "batch_size": batch_size,
            },
            "privacy.client_clip": USER["clip"],
            "privacy.record_clip": USER["clip"],
            "privacy.record_rate": 1.0,
            "privacy.client_rate": 1.0,
        }
    )
    total = sum(
        local_update(
            module,
            functional.cross_entropy,
            (DIGITS.train_x[part], DIGITS.train_y[part]),
            np.arange(part.stop - part.start),
            np.zeros(task.dimension),
            task,
        )
        for part in parts
    )
    mean = total * 2.0**-task.fractional_bits / len(parts)
    assert np.abs(mean).max() > 1e-3
    np.testing.assert_allclose(stacked[0].numpy(), mean, atol=3e-6)
