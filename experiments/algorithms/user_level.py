"""UserDP-FedAvg (Xie et al., Algorithm 1): many models at once, for certificates by their votes.

Users are drawn by Poisson sampling at the rate m/N, which the accountant takes for granted; the
paper draws exactly m. A user's steps are on all its records at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from precad.common.account.events import SampledGaussian, poisson_gaussian
from precad.experiments.algorithms.learner import Learner
from precad.experiments.registry import Registry

Clipping = Callable[[torch.Tensor, float, tuple[slice, ...]], tuple[torch.Tensor, float]]
"""Updates ``[users, d]``, S and the layers in; the clipped ones and their sum's sensitivity out."""
CLIPPINGS: Registry[Clipping] = Registry("clipping")
PAIRS_AT_ONCE = 2000
"""Users of all models that train in one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLevel:
    """Settings; symbols as in Xie et al., Table 2.

    Attributes:
        user_rate: q = m/N.
        rounds: T.
        noise_multiplier: σ over S.
        clip: S.
        clipping: name of one of ``CLIPPINGS``.
        local_steps: E.
        local_rate: η.
    """

    user_rate: float
    rounds: int
    noise_multiplier: float
    clip: float
    clipping: str
    local_steps: int
    local_rate: float

    @property
    def mechanism(self) -> SampledGaussian:
        """What an accountant and a certifier take; of no clipping by medians, which leak."""
        return poisson_gaussian(
            rate=self.user_rate, noise_multiplier=self.noise_multiplier, count=self.rounds
        )


@dataclass(frozen=True, slots=True)
class Users:
    """All users' records, filled up to the longest.

    Attributes:
        x: ``[users, most, …] float32``.
        y: ``[users, most] int64``.
        weights: ``[users, most]``, one over the number of records, 0 for what fills up.
    """

    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    weights: torch.Tensor = field(repr=False)

    @classmethod
    def of(
        cls, shares: list[tuple[NDArray[np.float32], NDArray[np.int64]]], device: str = "cpu"
    ) -> "Users":
        """From each user's records."""
        most = max(len(y) for _, y in shares)
        x = torch.zeros(len(shares), most, *shares[0][0].shape[1:])
        y = torch.zeros(len(shares), most, dtype=torch.int64)
        weights = torch.zeros(len(shares), most)
        for user, (inputs, targets) in enumerate(shares):
            x[user, : len(targets)] = torch.from_numpy(inputs)
            y[user, : len(targets)] = torch.from_numpy(targets)
            weights[user, : len(targets)] = 1 / max(1, len(targets))
        return cls(x.to(device), y.to(device), weights.to(device))


_MOMENTUM = 0.9
_DECAY = 0.0005


def train(
    learner: Learner,
    users: Users,
    start: torch.Tensor,
    settings: UserLevel,
    seeds: list[int],
    progress: Callable[[int, int], object] = lambda _done, _all: None,
) -> torch.Tensor:
    """A model for each seed, ``[models, d]``; the same whichever others train beside it.

    To the last bits: sums of a batch may be ordered by its size.
    """
    thetas = start.repeat(len(seeds), 1)
    drawn_by = [np.random.default_rng(seed) for seed in seeds]
    clipping = CLIPPINGS[settings.clipping]
    count = len(users.y)
    for done in range(settings.rounds):
        cohorts = [np.flatnonzero(g.random(count) < settings.user_rate) for g in drawn_by]
        owner = torch.from_numpy(np.repeat(np.arange(len(seeds)), [len(c) for c in cohorts]))
        who = torch.from_numpy(np.concatenate(cohorts))
        updates = torch.cat(
            [
                _local(learner, thetas[owner[part]], users, who[part], settings)
                for part in torch.split(torch.arange(len(who)), PAIRS_AT_ONCE)
            ]
        )
        following = thetas.clone()
        for model, generator in enumerate(drawn_by):
            own = updates[owner == model]
            clipped, sensitivity = clipping(own, settings.clip, learner.layers)
            noise = generator.normal(
                0, settings.noise_multiplier * sensitivity, thetas.shape[1]
            ).astype(np.float32)
            total = clipped.sum(dim=0) + torch.from_numpy(noise)
            following[model] += total / (settings.user_rate * count)
        thetas = following
        progress(done + 1, settings.rounds)
    return thetas


def _local(
    learner: Learner, thetas: torch.Tensor, users: Users, who: torch.Tensor, settings: UserLevel
) -> torch.Tensor:
    """Each user's change of its model."""
    x, y, weights = users.x[who], users.y[who], users.weights[who]
    at, velocity = thetas, torch.zeros_like(thetas)
    for _ in range(settings.local_steps):
        slope = learner.gradients(at, x, y, weights) + _DECAY * at
        velocity = _MOMENTUM * velocity + slope
        at = at - settings.local_rate * velocity
    return at - thetas


def shortened(rows: torch.Tensor, bound: float) -> torch.Tensor:
    """Rows of norm at most ``bound``."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows * torch.clamp(bound / torch.clamp(norms, min=1e-30), max=1.0)


def _median(rows: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(rows, dim=1).median()) if len(rows) else 0.0


@CLIPPINGS.register("flat")
def flat(
    updates: torch.Tensor, clip: float, _layers: tuple[slice, ...]
) -> tuple[torch.Tensor, float]:
    """The whole update to S."""
    return shortened(updates, clip), clip


@CLIPPINGS.register("per-layer")
def per_layer(
    updates: torch.Tensor, clip: float, layers: tuple[slice, ...]
) -> tuple[torch.Tensor, float]:
    """Each of L tensors to S/√L (McMahan et al. 2018).

    The paper clips each to S and adds noise for S: then a user moves the sum by √L·S.
    """
    bound = clip / len(layers) ** 0.5
    return torch.cat([shortened(updates[:, each], bound) for each in layers], dim=1), clip


@CLIPPINGS.register("flat-median")
def flat_median(
    updates: torch.Tensor, _clip: float, _layers: tuple[slice, ...]
) -> tuple[torch.Tensor, float]:
    """The whole update to the median of the round's norms, which itself isn't protected."""
    bound = _median(updates)
    return shortened(updates, bound), bound


@CLIPPINGS.register("per-layer-median")
def per_layer_median(
    updates: torch.Tensor, _clip: float, layers: tuple[slice, ...]
) -> tuple[torch.Tensor, float]:
    """Each tensor to the median of its norms, which aren't protected."""
    bounds = [_median(updates[:, each]) for each in layers]
    parts = [shortened(updates[:, e], b) for e, b in zip(layers, bounds, strict=True)]
    return torch.cat(parts, dim=1), float(np.sqrt(np.square(bounds).sum()))
