"""A training in one process and closed form, to try many settings on public data.

Algorithm 2 of PRECAD without its cryptography, for the two built-in models: their gradients are
outer products, so that a record's norm and the clipped sum need no gradient of a single record
(Goodfellow 2015). ``local_update`` does the same record by record; the two agree to the rounding
of single records (tests/unit/test_one_process.py). Sampling and noise are NumPy's with a seed:
this shows what a setting trains, and protects nobody.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precad.common.encode import decode, encode
from precad.common.encode.clip import RECORD_MARGIN, clip_update
from precad.common.errors import Misconfiguration
from precad.common.model import apply_update, initial_vector, tensors
from precad.common.ring import RingVector
from precad.common.task import Task

_LAYERS = {"logistic": 1, "mlp": 2}


@dataclass(frozen=True, slots=True)
class Owner:
    """One owner's records: ``x`` is ``[m, features] float32``, ``y`` ``[m] int64``."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training gave.

    Attributes:
        theta: θ_T, ``[d] float64``.
        agreement: norm of an owner's summed clipped gradients over |sample|·R, a mean over all
            participations; 1 if all gradients agreed.
        clipped: share of participations in which the client clip acted.
    """

    theta: NDArray[np.float64]
    agreement: float
    clipped: float


def train(task: Task, owners: list[Owner], seed: int) -> Trained:
    """θ_T of the task's training by these owners, all with the task's p.

    Raises:
        Misconfiguration: the architecture isn't a built-in one, or the model overflows.
    """
    if task.model.architecture not in _LAYERS:
        raise Misconfiguration(
            "model.architecture", task.model.architecture, f"use one of {', '.join(_LAYERS)}"
        )
    randomness = np.random.default_rng(seed)
    privacy, bits = task.privacy, task.fractional_bits
    expected = privacy.record_rate * sum(len(owner.y) for owner in owners)
    theta = initial_vector(task.model)
    agreements, clipped = [], []
    for _ in range(task.training.rounds):
        deviation = math.sqrt(2) * task.noise_units
        total = np.rint(randomness.normal(0, deviation, task.dimension)).astype(np.int64)
        for owner in owners:
            if randomness.random() >= privacy.client_rate:
                continue
            drawn = np.flatnonzero(randomness.random(len(owner.y)) < privacy.record_rate)
            summed = clipped_sum(theta, owner.x[drawn], owner.y[drawn], task)
            update = clip_update(summed, task.bound, bits)
            if len(drawn):
                norm = float(np.linalg.norm(decode(summed, bits)))
                agreements.append(norm / (len(drawn) * privacy.record_clip))
                clipped.append(update is not summed)
            total += update
        theta = apply_update(theta, total, task, privacy.client_rate * expected)
    return Trained(theta, _mean(agreements), _mean(clipped))


def clipped_sum(
    theta: NDArray[np.float64], x: NDArray[np.float32], y: NDArray[np.int64], task: Task
) -> RingVector:
    """−Σ of the records' gradients of cross entropy, each clipped to R; encoded once.

    Args:
        theta: θ, ``[d] float64``.
        x: ``[n, features] float32``.
        y: ``[n] int64``, labels.
        task: gives the model, R and f.

    Returns:
        ``[d] int64``. ``sum_encoded`` encodes each record, which differs by at most n units an
        element.
    """
    outputs, inputs, weights = _forward(theta, x, task)
    # From the last layer to the first: each gradient is an outer product of slopes and inputs.
    slopes = [_softmax(outputs[-1])]
    slopes[0][np.arange(len(y)), y] -= 1
    for weight, hidden in zip(weights[:0:-1], inputs[:0:-1], strict=True):
        slopes.insert(0, (slopes[0] @ weight) * (1 - hidden**2))
    squares = sum(
        (slope**2).sum(axis=1) * ((entry**2).sum(axis=1) + 1)
        for slope, entry in zip(slopes, inputs, strict=True)
    )
    norms = np.sqrt(np.asarray(squares, np.float64))
    bound = task.privacy.record_clip * RECORD_MARGIN
    factors = np.minimum(1, bound / np.maximum(norms, bound))[:, None].astype(np.float32)
    parts = []
    for slope, entry in zip(slopes, inputs, strict=True):
        scaled = factors * slope
        parts += [(scaled.T @ entry).ravel(), scaled.sum(axis=0)]
    return encode(-np.concatenate(parts).astype(np.float64), task.fractional_bits)


def accuracy(
    theta: NDArray[np.float64], x: NDArray[np.float32], y: NDArray[np.int64], task: Task
) -> float:
    """Share of ``[n]`` labels ``y`` that the model names."""
    outputs, _, _ = _forward(theta, x, task)
    return float((outputs[-1].argmax(axis=1) == y).mean())


def _forward(
    theta: NDArray[np.float64], x: NDArray[np.float32], task: Task
) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """Every layer's outputs before its activation, its inputs and its weights."""
    arrays = [a.astype(np.float32) for a in tensors(theta, task.model.parameters).values()]
    weights, biases = arrays[::2], arrays[1::2]
    outputs: list[NDArray[np.float32]] = []
    inputs = [x.reshape(len(x), -1)]
    for weight, bias in zip(weights, biases, strict=True):
        if outputs:
            inputs.append(np.tanh(outputs[-1]))
        outputs.append(inputs[-1] @ weight.T + bias)
    return outputs, inputs, weights


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: NDArray[np.float32] = raised / raised.sum(axis=1, keepdims=True)
    return shares


def _mean(values: list[float] | list[bool]) -> float:
    return float(np.mean(values)) if values else 0.0
