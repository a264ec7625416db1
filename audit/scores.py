"""An adversary's score of each canary: its best linear estimate of the coin from what it saw."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve
from torch import nn

from precad.audit.canaries import Canaries
from precad.client.train import RecordGradients, Records
from precad.client.train.objectives import Loss
from precad.common.encode import clip_record_norm, decode
from precad.common.errors import Misconfiguration
from precad.common.ring import RingVector
from precad.common.task import Task

Vector = NDArray[np.float64]
_ROWS = 512


@dataclass(frozen=True, slots=True)
class Sight:
    """What one view knows of a training's noise.

    Attributes:
        own_noise: of each round, the noise that this view takes off, ``[d] int64`` in units of the
            last place; empty where it knows none.
        noise: standard deviation of the noise that is left, over the record clip.
    """

    own_noise: Sequence[RingVector]
    noise: float


def scores(
    models: Sequence[Vector],
    sights: Sequence[Sight],
    canaries: Canaries,
    known: Records | None,
    *,
    task: Task,
    model: nn.Module,
    loss: Loss,
    denominator: float,
    assumed: Sequence[float] = (1.0,),
) -> list[list[Vector]]:
    """The best linear estimate of every coin, from all rounds that it holds for and all canaries.

    A round's noisy sum, less the mean that the known records have, is p·Σ coin·gradient of the
    canaries, and noise. The statistic of all rounds is s = p·K·coins + noise of covariance σ²·K,
    with K the gradients' products summed over the rounds; the estimate is ¼p·(¼p²K + σ²)⁻¹ (s −
    ½p·K·1), less a constant. A better adversary would raise the bounds; none makes them false.

    Args:
        models: θ_0 to θ_T, ``[d] float64`` each, which every view sees.
        sights: of the views.
        canaries: m records; the coins tell how many periods they have, and nothing else.
        known: records that the adversary knows, all owners' in an audit; None for none.
        task: gives R, p, η, f.
        model: the task's.
        loss: a record's.
        denominator: what the servers divide by.
        assumed: shares of the noise that the adversary believes in, an estimate for each.

    Returns:
        By view and share ``[periods, m] float64``; above zero where the canary is thought to be in.

    Raises:
        Misconfiguration: model and records don't go together, or a view's noise isn't of the rounds
            of these models.
    """
    privacy, rounds = task.privacy, len(models) - 1
    for sight in sights:
        if len(sight.own_noise) not in (0, rounds):
            raise Misconfiguration(
                "own_noise", len(sight.own_noise), f"must be one for each of the {rounds} rounds"
            )
    gradients = RecordGradients(model, loss, task.model.parameters)
    gradients.prepare(canaries.records)
    clip, rate = privacy.record_clip, privacy.record_rate
    known_noise = [
        [decode(noise, task.fractional_bits) for noise in sight.own_noise] for sight in sights
    ]
    found: list[list[list[Vector]]] = [[[] for _ in assumed] for _ in sights]
    for period in np.split(np.arange(rounds), len(canaries.coins)):
        products = np.zeros((len(canaries), len(canaries)))
        statistics = np.zeros((len(sights), len(canaries)))
        for number in period:
            theta = models[number]
            moved = (models[number + 1] - theta) * (denominator / task.training.learning_rate)
            if known is not None:
                for rows in _clipped(gradients, known, theta, clip):
                    moved += rate * rows.sum(axis=0)
            rows = np.concatenate(list(_clipped(gradients, canaries.records, theta, clip)))
            products += rows @ rows.T
            for view, noise in enumerate(known_noise):
                statistics[view] -= rows @ (moved - noise[number] if noise else moved)
        surprises = statistics - rate / 2 * products.sum(axis=1)
        for sight, surprise, estimates in zip(sights, surprises, found, strict=True):
            variance = (sight.noise * clip) ** 2
            for share, estimate in zip(assumed, estimates, strict=True):
                spread = rate**2 / 4 * products + variance * share**2 * np.eye(len(canaries))
                estimate.append(solve(spread, surprise, assume_a="pos"))
    return [[np.array(estimate) for estimate in estimates] for estimates in found]


def _clipped(
    gradients: RecordGradients, records: Records, theta: Vector, clip: float
) -> Iterator[Vector]:
    """Clipped gradients of all records, ``[any, d] float64`` at a time."""
    named = gradients.loaded(theta)
    for start in range(0, len(records), _ROWS):
        inputs, targets = records.take(np.arange(start, min(start + _ROWS, len(records))))
        rows = gradients.shared(named, inputs, targets).double().cpu().numpy()
        yield clip_record_norm(rows, clip)
