"""What is audited: this system, or one with a fault that an audit must find."""

import math
from collections.abc import Callable
from enum import StrEnum
from types import ModuleType

import numpy as np
from examples.demo.demo_task import demo_task

from precad.client.records.torch_records import as_records
from precad.common.identifiers import Role
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.simulation.datasets import load, shards
from precad.simulation.rounds import Draws
from research.audits import canary_training
from research.audits.canary_training import Audited, Designed, loud_canaries
from research.audits.verdict import MODELS, ONE_SERVER

PRESENCE = "presence"
"""The statement of an owner's presence, beside those of a record: ``MODELS``,
``ONE_SERVER``."""
RELEASES = 16
"""How often a curious server has a round released that draws noise anew."""
LOOSE = 8.0
"""How many times as long as stated an update may be where nobody stops it."""


class Build(StrEnum):
    """What runs."""

    SOUND = "sound"
    HALF_NOISE = "half-noise"
    """Both servers draw noise of half the standard deviation."""
    OTHER_SILENT = "other-silent"
    """Server A adds no noise: server B takes its own off and sees the sum."""
    REDRAWN = "redrawn"
    """Server A draws its noise anew when a round's release is tried again, which B
    brings about."""
    UNCLIPPED = "unclipped"
    """Records are clipped to eight times the clip that the task states."""
    UNCHECKED = "unchecked"
    """Nobody checks norms: owners submit eight times what the client clip allows."""


_NONE = 1e6
_LESS = {
    Build.HALF_NOISE: {MODELS: 2.0, ONE_SERVER: 2.0, PRESENCE: 2.0},
    Build.OTHER_SILENT: {
        MODELS: math.sqrt(2.0),
        ONE_SERVER: _NONE,
        PRESENCE: math.sqrt(2.0),
    },
    Build.REDRAWN: {ONE_SERVER: math.sqrt(RELEASES)},
    Build.UNCLIPPED: {MODELS: LOOSE, ONE_SERVER: LOOSE},
    Build.UNCHECKED: {PRESENCE: LOOSE},
}
OF_RECORDS = tuple(build for build in Build if build is not Build.UNCHECKED)
OF_PRESENCE = (Build.SOUND, Build.HALF_NOISE, Build.UNCHECKED)
"""What audits of records, and of owners' presence, can play."""


def less_noise(build: Build) -> dict[str, float]:
    """Return how many times less noise than stated hides a canary, by view, for its length."""
    return _LESS.get(build, {})


def replace(module: ModuleType, original: Callable[..., object], by: object) -> None:
    """From now on the module calls ``by`` where it called the function.

    Raises:
        LookupError: the module doesn't call it by that name. An audit whose fault or
            whose coins are nowhere would find nothing.
    """
    name = original.__name__
    if name not in vars(module):
        raise LookupError(f"{module.__name__} has no {name}")
    vars(module)[name] = by


def train(made: Designed, build: Build, seed: int) -> Audited:
    """Simulate the training of this build, with the canaries' owner among the others."""
    values = made.task.model_dump(mode="json")
    if build is Build.HALF_NOISE:
        values["privacy"]["noise_multiplier"] /= 2
    if build is Build.UNCLIPPED:
        values["privacy"]["record_clip"] *= LOOSE
        values["privacy"]["noise_multiplier"] /= LOOSE
    releases = RELEASES if build is Build.REDRAWN else 1

    def server_a_noise(
        draws: Draws, version: int, dimension: int
    ) -> tuple[RingVector, RingVector]:
        first = version * releases
        each = [
            draws.noise(Role.SERVER_A, first + again, dimension)
            for again in range(releases)
        ]
        learnt = each[-1] - np.rint(np.mean(each, axis=0)).astype(np.int64)
        return (
            np.zeros_like(each[-1]) if build is Build.OTHER_SILENT else each[-1]
        ), learnt

    return canary_training.train(
        made, ran=Task.parse(values), server_a_noise=server_a_noise, seed=seed
    )


_DEMO_OWNERS, _SHARDS = 10, 4
_DEMO_ROOM = 1.3
"""Above the mean of what the canaries' owner samples, and above the length of its
update."""


def demo_audit(dataset: str, canaries: int, seed: int) -> Designed:
    """What the demo trains with ten owners, and an eleventh.

    Its caps have room for the canaries; p, σ, T, R and so every stated ε are the demo's.

    Args:
        dataset: digits or breast-cancer.
        canaries: m.
        seed: of partition, canaries and coins.

    Raises:
        Misconfiguration: no such data set, or more canaries than a client's clip can
            hold.
    """
    data = load(dataset)
    values = demo_task(data, "logistic", _DEMO_OWNERS + 1)
    sampled = values["privacy"]["record_rate"] * canaries
    values["enrolment"]["max_expected_records"] = max(
        values["enrolment"]["max_expected_records"], _DEMO_ROOM * sampled
    )
    clip = max(values["privacy"]["client_clip"], _DEMO_ROOM * math.sqrt(sampled))
    values["privacy"]["client_clip"] = clip
    parts = shards(
        data.train_y, clients=_DEMO_OWNERS, shards_per_client=_SHARDS, seed=seed % 2**31
    )
    shares = {
        f"owner-{number:02d}": (data.train_x[part], data.train_y[part])
        for number, part in enumerate(parts, 1)
    }
    like = as_records((data.train_x, data.train_y))
    return Designed(
        task=Task.parse(values),
        shares=shares,
        canaries=loud_canaries(like, count=canaries, classes=data.classes, seed=seed),
    )
