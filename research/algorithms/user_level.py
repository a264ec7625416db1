"""UserDP-FedAvg (Xie et al., Algorithm 1): many models at once, for certificates by their votes.

Users are drawn by Poisson sampling at the rate m/N, which the accountant takes for
granted; the paper draws exactly m. A user's step is on all its records, or on a batch
of them.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from precad.accounting.events import SampledGaussian, poisson_gaussian
from research.algorithms.learner import Learner
from research.algorithms.local_optimizer import MOMENTUM, WEIGHT_DECAY, LocalOptimizer
from research.checkpoint import Checkpoint
from research.defences import Defence
from research.poisoning import Attack, Scene
from research.registry import Registry

Clipping = Callable[
    [torch.Tensor, float, tuple[slice, ...]], tuple[torch.Tensor, float]
]
"""Updates ``[users, d]``, S and the layers in; the clipped ones and their sum's
sensitivity out."""
CLIPPINGS: Registry[Clipping] = Registry("clipping")
PAIRS_AT_ONCE = 2000
"""Users of all models that train in one batch."""
RECORDS_AT_ONCE = 4000
"""Theirs together, for the memory."""
PARTS_OF_A_ROUND = 1000
"""In which progress is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLevel:
    """Settings; symbols as in Xie et al., Table 2.

    Attributes:
        user_rate: q = m/N.
        rounds: T.
        noise_multiplier: σ over S.
        clip: S.
        clipping: name of one of ``CLIPPINGS``.
        local_steps: E, how often a user goes through its records.
        local_rate: η.
        batch_size: records a step, in a new order each time; what is left over is a
            step too. All at once by default.
    """

    user_rate: float
    rounds: int
    noise_multiplier: float
    clip: float
    clipping: str
    local_steps: int
    local_rate: float
    batch_size: int | None = None

    @property
    def mechanism(self) -> SampledGaussian:
        """What an accountant and a certifier take; of no clipping by medians, which leak."""
        return poisson_gaussian(
            rate=self.user_rate,
            noise_multiplier=self.noise_multiplier,
            count=self.rounds,
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
        cls,
        shares: list[tuple[NDArray[np.float32], NDArray[np.int64]]],
        device: str = "cpu",
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

    def records(self, user: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """One user's own."""
        own = self.weights[user] > 0
        return self.x[user, own].cpu().numpy(), self.y[user, own].cpu().numpy()


@dataclass(frozen=True, slots=True)
class Adversary:
    """Bad users, the last ones; their records are poisoned before.

    Attributes:
        attack: what they submit.
        users: k.
    """

    attack: Attack
    users: int


def train(
    learner: Learner,
    users: Users,
    start: torch.Tensor,
    settings: UserLevel,
    seeds: list[int],
    progress: Callable[[int, int], object] = lambda _done, _all: None,
    *,
    adversary: Adversary | None = None,
    defence: Defence | None = None,
    checkpoint: Checkpoint | None = None,
) -> torch.Tensor:
    """A model for each seed, ``[models, d]``; the same whichever others train beside it.

    To the last bits: sums of a batch may be ordered by its size.

    Args:
        learner: the model.
        users: their records.
        start: θ_0, ``[d]``.
        settings: those of the algorithm.
        seeds: of the models.
        progress: told how much is done and of how much, after each step of a batch.
        adversary: who submits what; none by default.
        defence: takes the mean's place, and nothing is clipped or noised: no user is
            protected.
        checkpoint: kept after each round, and taken up.
    """
    thetas = start.repeat(len(seeds), 1)
    drawn_by = [np.random.default_rng(seed) for seed in seeds]
    count, first = len(users.y), 0
    if checkpoint is not None:
        first, thetas, _ = checkpoint.found(thetas, drawn_by)

    def told(round_: int, steps: int, before: int, taken: int) -> None:
        part = (before + taken) * PARTS_OF_A_ROUND // steps
        progress(round_ * PARTS_OF_A_ROUND + part, settings.rounds * PARTS_OF_A_ROUND)

    for done in range(first, settings.rounds):
        cohorts = [
            np.flatnonzero(g.random(count) < settings.user_rate) for g in drawn_by
        ]
        owner = torch.from_numpy(
            np.repeat(np.arange(len(seeds)), [len(c) for c in cohorts])
        )
        who = torch.from_numpy(np.concatenate(cohorts))
        order = _order(users, cohorts, settings, drawn_by)
        batch = min(PAIRS_AT_ONCE, max(1, RECORDS_AT_ONCE // users.y.shape[1]))
        batches = torch.split(torch.arange(len(who)), batch)
        steps = len(batches) * settings.local_steps

        updates = torch.cat(
            [
                _local(
                    learner,
                    thetas[owner[part]],
                    users,
                    who[part],
                    settings,
                    None if order is None else order[part],
                    partial(told, done, steps, place * settings.local_steps),
                )
                for place, part in enumerate(batches)
            ]
        )
        following = thetas.clone()
        for model, generator in enumerate(drawn_by):
            own = updates[owner == model]
            bad = 0
            if adversary is not None:
                own, bad = _attacked(
                    own,
                    learner,
                    thetas[model],
                    users,
                    # Beside a defence nothing is clipped.
                    settings if defence is None else replace(settings, clip=math.inf),
                    adversary,
                    cohorts[model],
                    generator,
                )
            if defence is None:
                following[model] += _noisy_mean(
                    own, settings, learner, count, generator
                )
            elif len(own):
                found = defence(own.double().cpu().numpy(), bad)
                following[model] += torch.from_numpy(found).to(own)
        thetas = following
        if checkpoint is not None:
            checkpoint.keep(done + 1, thetas, drawn_by)
    return thetas


def _noisy_mean(
    own: torch.Tensor,
    settings: UserLevel,
    learner: Learner,
    count: int,
    generator: np.random.Generator,
) -> torch.Tensor:
    """The clipped updates' sum with noise, over the expected number of users."""
    clipped, sensitivity = CLIPPINGS[settings.clipping](
        own, settings.clip, learner.layers
    )
    deviation = settings.noise_multiplier * sensitivity
    noise = generator.normal(0, deviation, own.shape[1]).astype(np.float32)
    return (clipped.sum(dim=0) + torch.from_numpy(noise).to(own)) / (
        settings.user_rate * count
    )


def _attacked(
    own: torch.Tensor,
    learner: Learner,
    theta: torch.Tensor,
    users: Users,
    settings: UserLevel,
    adversary: Adversary,
    cohort: NDArray[np.int64],
    generator: np.random.Generator,
) -> tuple[torch.Tensor, int]:
    """A round's updates of one model with what its bad users submit, and how many those are."""
    first = len(users.y) - adversary.users
    numbers = tuple((cohort[cohort >= first] - first).tolist())
    if not numbers:
        return own, 0
    at, known = theta.double().cpu().numpy(), own.double().cpu().numpy()
    good = len(known) - len(numbers)
    scene = Scene(
        theta=at,
        others=known[:good],
        step=1 / (settings.user_rate * len(users.y)),
        bound=settings.clip,
        learn=lambda number, rate, steps: learner.descend(
            at, *users.records(first + number), rate, steps
        ),
        numbers=numbers,
        generator=generator,
    )
    submitted = torch.from_numpy(adversary.attack.submit(known[good:], scene)).to(own)
    return torch.cat([own[:good], submitted]), len(numbers)


def _order(
    users: Users,
    cohorts: list[NDArray[np.int64]],
    settings: UserLevel,
    drawn_by: list[np.random.Generator],
) -> torch.Tensor | None:
    """In which order each pair takes its records in each epoch, ``[pairs, E, most]``.

    What fills up comes last. None where all are taken at once.
    """
    if settings.batch_size is None:
        return None
    filling = (users.weights == 0).cpu().numpy()
    orders = []
    for cohort, generator in zip(cohorts, drawn_by, strict=True):
        keys = generator.random((len(cohort), settings.local_steps, filling.shape[1]))
        orders.append(np.argsort(keys + filling[cohort][:, None], axis=2))
    return torch.from_numpy(np.concatenate(orders)).to(users.y.device)


def _local(
    learner: Learner,
    thetas: torch.Tensor,
    users: Users,
    who: torch.Tensor,
    settings: UserLevel,
    order: torch.Tensor | None,
    told: Callable[[int], object],
) -> torch.Tensor:
    """Each user's change of its model."""
    x, y, weights = users.x[who], users.y[who], users.weights[who]
    at = thetas
    optimizer = LocalOptimizer("sgd", settings.local_rate, MOMENTUM, WEIGHT_DECAY)
    for epoch in range(settings.local_steps):
        if order is None or settings.batch_size is None:
            at = optimizer.step(at, learner.gradients(at, x, y, weights))
        else:
            for batch in _batches(
                (weights > 0).sum(dim=1), order[:, epoch], settings.batch_size
            ):
                mine = torch.arange(len(who), device=x.device)[batch.stepping][:, None]
                gradient = torch.zeros_like(at)
                gradient[batch.stepping] = learner.gradients(
                    at[batch.stepping],
                    x[mine, batch.records],
                    y[mine, batch.records],
                    batch.weights,
                )
                at = optimizer.step(at, gradient, batch.stepping)
        told(epoch + 1)
    return at - thetas


@dataclass(frozen=True, slots=True)
class _Batch:
    """One step of the pairs that have records left in this epoch.

    Attributes:
        stepping: ``[pairs] bool``.
        records: of each pair that steps, ``[stepping, at most the batch's size]``.
        weights: likewise, one over the number of its records; 0 for what fills up.
    """

    stepping: torch.Tensor
    records: torch.Tensor
    weights: torch.Tensor


def _batches(counts: torch.Tensor, order: torch.Tensor, size: int) -> Iterator[_Batch]:
    """An epoch, from each pair's number of records and their order."""
    for first in range(0, order.shape[1], size):
        stepping = counts > first
        if not stepping.any():
            return
        records = order[stepping, first : first + size]
        left = torch.clamp(counts[stepping] - first, max=size)[:, None]
        filled = torch.arange(records.shape[1], device=order.device) < left
        yield _Batch(stepping, records, filled / left)


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
    return (
        torch.cat([shortened(updates[:, each], bound) for each in layers], dim=1),
        clip,
    )


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
