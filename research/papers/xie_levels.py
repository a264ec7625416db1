"""Xie et al.'s two levels, users and records of a user: ensembles with either, bad ones or none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.accounting.events import SampledGaussian
from precad.client.gradients.torch_models import model_section
from precad.common.model import unrounded_start
from precad.common.task_schema import ModelSection
from precad.simulation.datasets import Partition
from research.algorithms.instance_level import InstanceLevel
from research.algorithms.instance_level import train as train_records
from research.algorithms.learner import Learner
from research.algorithms.local_optimizer import MOMENTUM, WEIGHT_DECAY
from research.algorithms.user_level import Adversary, UserLevel, Users
from research.algorithms.user_level import train as train_users
from research.datasets import DataSet, load
from research.datasets.cifar_jpeg import cifar10_jpeg
from research.datasets.partition import by_owner, dirichlet, iid
from research.defences import DEFENCES
from research.models import MODELS
from research.poisoning import ATTACKS, Attack, poisoned
from research.study import Scale, Settings, Surroundings

BINARY = 2
_PAIRS = {"cifar10": (0, 2), "cifar10-jpeg": (0, 2)}
"""Airplanes and birds; of other sets the first two labels."""
_USER_LEVEL = (
    *("user_rate", "rounds", "noise_multiplier", "clip", "clipping"),
    *("local_steps", "local_rate"),
)


def two_labels(data: DataSet) -> DataSet:
    """The two labels that the paper's main part has, as 0 and 1."""
    labels = np.array(_PAIRS.get(data.name, (0, 1)))
    train_part, test_part = np.isin(data.train_y, labels), np.isin(data.test_y, labels)
    return DataSet(
        name=data.name,
        train_x=data.train_x[train_part],
        train_y=np.searchsorted(labels, data.train_y[train_part]),
        test_x=data.test_x[test_part],
        test_y=np.searchsorted(labels, data.test_y[test_part]),
        classes=BINARY,
        owners=None if data.owners is None else data.owners[train_part],
    )


@lru_cache(maxsize=1)
def _loaded(name: str, folder: Path | None) -> DataSet:
    """Cells of an experiment have the same records, which take seconds to read."""
    if name == "cifar10-jpeg" and folder is not None:
        # Each process decodes the images: two classes of ten are a fifth of the work.
        return two_labels(cifar10_jpeg(folder, _PAIRS[name]))
    return two_labels(load(name, folder))


def _parts(data: DataSet, settings: Settings) -> Partition:
    if data.owners is not None:
        return by_owner(data.owners, settings["users"])
    if "alpha" in settings and settings["alpha"] is not None:
        return dirichlet(data.train_y, settings["users"], settings["alpha"], seed=0)
    return iid(len(data.train_y), settings["users"], seed=0)


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Models of a cell, and what they are tested on.

    Attributes:
        thetas: ``[models, d]``.
        learner: the model.
        data: the records.
        attack: whose goal counts; honest where there is none.
    """

    thetas: torch.Tensor
    learner: Learner
    data: DataSet
    attack: Attack

    def right(self) -> NDArray[np.bool_]:
        """Whether each model names each held-out record right, ``[models, n]``."""
        votes = self.learner.votes(self.thetas, self.data.test_x)
        return np.asarray(votes == self.data.test_y)

    def losses(self, bound: float) -> NDArray[np.float64]:
        """Attack inefficacy of each model, ``[models]``: mean loss at the goal, at most ``bound``.

        Raises:
            ValueError: the attack aims at no record.
        """
        goal = self.attack.goal(self.data.test_x, self.data.test_y, self.data.classes)
        if goal is None:
            raise ValueError("the attack has no goal")
        x, y = goal
        named = self.learner.probabilities(self.thetas, x)[:, np.arange(len(y)), y]
        return np.asarray(
            np.minimum(-np.log(np.maximum(named, 1e-300)).mean(axis=1), bound)
        )


def _train(settings: Settings, around: Surroundings, *, by_user: bool) -> Ensemble:
    data = _loaded(settings["data"], around.data)
    attack = ATTACKS[settings.get("attack", "none")](
        **settings.get("attack_options", {})
    )
    module = MODELS[settings["model"]](data)
    learner = Learner(module, around.device)
    initial = "zeros" if settings["model"].endswith("logistic") else "uniform"
    section = model_section(
        module, architecture=settings["model"], initial=initial, initial_seed=0
    )
    start = torch.tensor(
        unrounded_start(ModelSection.model_validate(section)),
        dtype=torch.float32,
        device=around.device,
    )
    parts = _parts(data, settings)
    shares = [(data.train_x[mine], data.train_y[mine]) for mine in parts]
    bad = settings.get("bad", 0)
    if by_user:
        part = settings.get("bad_share", 1.0)
        for user in range(len(shares) - bad, len(shares)):
            x, y = shares[user]
            number, count = user - (len(shares) - bad), round(part * len(y))
            shares[user] = poisoned(attack, x, y, count, number, BINARY)
    elif bad:
        shares[0] = poisoned(attack, *shares[0], bad, 0, BINARY)
    users = Users.of(shares, around.device)
    count = settings["models"]
    seeds = [settings["seed"] * count + model for model in range(count)]
    if by_user:
        defence = settings.get("defence")
        thetas = train_users(
            learner,
            users,
            start,
            user_level(settings),
            seeds,
            around.progress,
            adversary=Adversary(attack, bad) if bad else None,
            defence=DEFENCES[defence] if defence else None,
            checkpoint=around.checkpoint,
        )
    else:
        thetas, _ = train_records(
            learner,
            users,
            start,
            InstanceLevel.of(settings),
            seeds,
            checkpoint=around.checkpoint,
            on_step=around.progress,
        )
    return Ensemble(thetas, learner, data, attack)


def user_level(settings: Settings) -> UserLevel:
    """Those of the settings that belong to UserDP-FedAvg."""
    named = {name: settings[name] for name in _USER_LEVEL}
    return UserLevel(**named, batch_size=settings.get("batch_size"))


@dataclass(frozen=True, slots=True)
class Level:
    """Whom a training protects, and who is bad.

    Attributes:
        delta: δ at which the paper states ε.
        bad: what k counts.
        train: a cell's models.
        mechanism: what one user or record is hidden by, from a cell's settings.
    """

    delta: float
    bad: str
    train: Callable[[Settings, Surroundings], Ensemble]
    mechanism: Callable[[Settings], SampledGaussian]


def _by_user(settings: Settings, around: Surroundings) -> Ensemble:
    return _train(settings, around, by_user=True)


def _by_record(settings: Settings, around: Surroundings) -> Ensemble:
    return _train(settings, around, by_user=False)


def _of_record(settings: Settings) -> SampledGaussian:
    """A record's user is drawn in every round."""
    return InstanceLevel.of(settings).local(settings["rounds"])


USERS = Level(
    0.0029, "bad users", _by_user, lambda settings: user_level(settings).mechanism
)
TWEETERS = Level(
    1e-6, "bad users", _by_user, lambda settings: user_level(settings).mechanism
)
RECORDS = Level(1e-5, "bad records of one user", _by_record, _of_record)

Data = tuple[Mapping[str, Any], Mapping[str, Any]]
"""What the small scale trains on, and the paper's."""
ZEROS_AND_ONES: Data = (
    {"data": "digits", "model": "logistic"},
    {"data": "mnist", "model": "opacus-cnn"},
)
AIRPLANES_AND_BIRDS: Data = (
    {"data": "cifar10-jpeg", "model": "pooled-logistic"},
    {"data": "cifar10", "model": "opacus-cifar-cnn"},
)
SENTENCES: Data = (
    {"data": "movie-sentences", "model": "logistic", "users": 400, "user_rate": 0.1},
    {
        "data": "sentiment140-glove",
        "model": "lstm",
        "users": 805,
        "user_rate": 10 / 805,
        "batch_size": 10,
    },
)
BothScales = Mapping[Scale, Settings]
"""Settings of each scale."""
_ALL_OF_TEN = {"users": 10, "users_per_round": 10}
# UserDP-FedAvg's users have the same, as fixed (Xie et al. Sec. 6.1.2).
_SGD = {"momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY}


def _both(data: Data, **settings: Any) -> BothScales:
    """Settings of both scales; a pair is the small one's and the paper's."""
    return {
        scale: {
            **{
                name: value[place] if isinstance(value, tuple) else value
                for name, value in settings.items()
            },
            **data[place],
        }
        for place, scale in enumerate((Scale.SMALL, Scale.PAPER))
    }


USER_SETTINGS = _both(
    ZEROS_AND_ONES,
    users=200,
    clipping="flat",
    models=(200, 50),
    user_rate=0.1,
    rounds=3,
    clip=0.7,
    local_steps=10,
    local_rate=0.02,
)
"""UserDP-FedAvg on zeros and ones (Xie et al. Table 2); ``models`` are those of one
cell."""
RECORD_SETTINGS = _both(
    ZEROS_AND_ONES,
    **_ALL_OF_TEN,
    **_SGD,
    models=(200, 50),
    # A batch of 50 of a user's 1,266 zeros and ones.
    batch_rate=(0.05, 50 / 1266),
    rounds=3,
    clip=0.7,
    local_steps=25,
    local_rate=0.02,
)
"""InsDP-FedAvg on zeros and ones (Xie et al. Table 2)."""
CIFAR_USER_SETTINGS = _both(
    AIRPLANES_AND_BIRDS,
    users=200,
    clipping="flat",
    models=(200, 20),
    user_rate=0.2,
    rounds=1,
    clip=1.0,
    local_steps=5,
    local_rate=0.05,
)
"""UserDP-FedAvg on airplanes and birds."""
CIFAR_RECORD_SETTINGS = _both(
    AIRPLANES_AND_BIRDS,
    **_ALL_OF_TEN,
    **_SGD,
    models=(100, 20),
    # A batch of 50 of a user's 1,000 airplanes and birds.
    batch_rate=0.05,
    rounds=1,
    clip=1.0,
    local_steps=100,
    local_rate=0.05,
)
"""InsDP-FedAvg on airplanes and birds."""
TEXT_USER_SETTINGS = _both(
    SENTENCES,
    clipping="flat",
    models=(200, 5),
    rounds=3,
    clip=0.5,
    local_steps=(10, 1),
    local_rate=(3.0, 0.3),
)
"""UserDP-FedAvg on positive and negative sentences."""
