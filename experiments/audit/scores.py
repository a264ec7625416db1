"""An adversary's score of each canary: its best linear estimate of the coin from what it saw."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve
from torch import nn

from precad.client.train import RecordGradients, Records
from precad.client.train.objectives import Loss
from precad.common.encode import clip_record_norm, decode
from precad.common.errors import Misconfiguration
from precad.common.ring import RingVector
from precad.common.task import Task

Vector = NDArray[np.float64]
_ROWS = 512


@dataclass(frozen=True, slots=True)
class Seen:
    """What one view saw of a training.

    Attributes:
        models: θ_0 to θ_T, ``[d] float64`` each.
        own_noise: of each round, the noise that this view knows and takes off, ``[d] int64`` in
            units of the last place; empty where it knows none.
        noise: standard deviation of the noise that is left, over the record clip.
    """

    models: Sequence[Vector]
    own_noise: Sequence[RingVector]
    noise: float

    def __post_init__(self) -> None:
        rounds = len(self.models) - 1
        if self.own_noise and len(self.own_noise) != rounds:
            raise Misconfiguration(
                "own_noise", len(self.own_noise), f"must be one for each of the {rounds} rounds"
            )


def scores(
    seen: Seen,
    canaries: Records,
    known: Records | None,
    *,
    task: Task,
    model: nn.Module,
    loss: Loss,
    denominator: float,
    assumed: Sequence[float] = (1.0,),
) -> list[Vector]:
    """The best linear estimate of every coin, from all rounds and all canaries together.

    A round's noisy sum, less the mean that the known records have, is p·Σ coin·gradient of the
    canaries, and noise. The statistic of all rounds is s = p·K·coins + noise of covariance σ²·K,
    with K the gradients' products summed over the rounds; the estimate is ¼p·(¼p²K + σ²)⁻¹ (s −
    ½p·K·1), less a constant. A better adversary would raise the bounds; none makes them false.

    Args:
        seen: models, and noise that is known.
        canaries: m records.
        known: records that the adversary knows, all owners' in an audit; None for none.
        task: gives R, p, η, f.
        model: the task's.
        loss: a record's.
        denominator: what the servers divide by.
        assumed: shares of the noise that the adversary believes in, an estimate for each.

    Returns:
        ``[m] float64`` each; above zero where the canary is thought to be in.

    Raises:
        Misconfiguration: model and records don't go together.
    """
    privacy, training = task.privacy, task.training
    gradients = RecordGradients(model, loss, task.model.parameters)
    gradients.prepare(canaries)
    clip, rate = privacy.record_clip, privacy.record_rate
    variance = (seen.noise * clip) ** 2
    products = np.zeros((len(canaries), len(canaries)))
    statistic = np.zeros(len(canaries))
    for number, (theta, after) in enumerate(zip(seen.models[:-1], seen.models[1:], strict=True)):
        moved = (after - theta) * (denominator / training.learning_rate)
        if seen.own_noise:
            moved -= decode(seen.own_noise[number], task.fractional_bits)
        if known is not None:
            for rows in _clipped(gradients, known, theta, clip):
                moved += rate * rows.sum(axis=0)
        rows = np.concatenate(list(_clipped(gradients, canaries, theta, clip)))
        statistic -= rows @ moved
        products += rows @ rows.T
    surprise = statistic - rate / 2 * products.sum(axis=1)
    found = []
    for share in assumed:
        spread = rate**2 / 4 * products + variance * share**2 * np.eye(len(canaries))
        found.append(solve(spread, surprise, assume_a="pos"))
    return found


def _clipped(
    gradients: RecordGradients, records: Records, theta: Vector, clip: float
) -> Iterator[Vector]:
    """Clipped gradients of all records, ``[any, d] float64`` at a time."""
    named = gradients.loaded(theta)
    for start in range(0, len(records), _ROWS):
        inputs, targets = records.take(np.arange(start, min(start + _ROWS, len(records))))
        rows = gradients.shared(named, inputs, targets).double().cpu().numpy()
        yield clip_record_norm(rows, clip)
