"""An owner's update of one version: Algorithm 2, lines 2 to 8.

A Poisson sample of records is drawn, and their clipped gradients become the integer
vector that is shared.
"""

import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from precad.client.gradients.hostile_models import slow_models
from precad.client.gradients.objectives import Loss
from precad.client.gradients.record_gradients import RecordGradients, chunk_records
from precad.client.records.torch_records import as_records
from precad.common import fixed_point, ring
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Secret
from precad.common.model import ModelVector
from precad.common.roster import most_records
from precad.common.task import Task

WORK_ROOM = 3
"""How many times the slowest measured work ``deadlines.work`` should be."""
_CACHED = 2**15
"""Numbers that are clipped and encoded together: they stay in the processor's cache."""


def local_update(
    model: nn.Module,
    loss: Loss,
    data: object,
    indices: NDArray[np.int64],
    theta: ModelVector,
    task: Task,
    *,
    bound: int | None = None,
    chunk: int | None = None,
    most: int | None = None,
    on_failure: Callable[[int], object] = lambda _: None,
    randomness: Secret | None = None,
) -> ring.RingVector:
    """Return −Σ of clipped record gradients at θ, in fixed point, clipped to β_i.

    That is X, ``[d] int64``, with X·X ≤ β_i² over the integers.

    Each record is clipped in float64 and encoded by itself, and the sum is one of
    integers, so that one record moves it by at most R·2^f (docs/soundness.md, "Honest
    updates keep the bound"). A record without a usable gradient counts as zero; no
    record's values, and none of θ's, make this raise.

    Args:
        model: the owner's model; its own parameters' values don't matter and aren't
            changed.
        loss: the owner's loss.
        data: what ``as_records`` takes.
        indices: the sampled records, ``[n] int64``; none gives the zero vector.
        theta: θ_t, ``[d]``.
        task: gives R, β, f, the objective and the parameters' names and shapes.
        bound: β_i, which the owner's claim decides (``Mechanism.bound_of``); the
            task's β without it.
        chunk: records in a chunk; by default ``chunk_records``. Keep it for a whole
            task.
        most: M of ``most_records``: the work is that of M records, and a larger sample
            is replaced by the empty one. Without it the work shows n.
        on_failure: is told the index of each record that counts as zero.
        randomness: the key of the noise of records' copies; fresh unless given.

    Raises Misconfiguration: as ``RecordGradients`` and ``as_records``; an index is
    outside the data.
    """
    records = as_records(data)
    if indices.size and not (indices.min() >= 0 and indices.max() < len(records)):
        raise Misconfiguration(
            "indices",
            [int(indices.min()), int(indices.max())],
            f"there are {len(records)} records",
        )
    if most is not None and len(indices) > most:
        indices = indices[:0]
    if chunk is None:
        chunk = chunk_records(task.dimension, most=most)
    gradients = RecordGradients(
        model,
        loss,
        task.mechanism.parameters,
        chunk,
        task.objective,
    )
    chunks = gradients.chunks(
        records,
        indices,
        theta,
        most,
        on_failure,
        randomness,
    )
    # Denormal numbers are slow, so they would show in the time. A thread of its own,
    # because the processor's mode is a thread's: torch's workers have that of the
    # thread that starts them.
    with ThreadPoolExecutor(
        1, initializer=torch.set_flush_denormal, initargs=(True,)
    ) as thread:
        total = thread.submit(sum_encoded, chunks, task).result()
    if bound is None:
        bound = task.mechanism.bound
    return fixed_point.clip_update(total, bound, task.fractional_bits)


def sum_encoded(chunks: Iterable[NDArray[np.float64]], task: Task) -> ring.RingVector:
    """Return −Σ of gradients, each clipped to R and encoded toward zero, ``[d] int64``.

    Algorithm 2, lines 4 to 6. ``chunks`` are ``[any, d] float64``, one record's
    gradient in each row. One record more or less moves the sum by at most R·2^f in the
    L2 norm.

    A clipped gradient has encodings of at most R·2^f ≤ C·2^f < 2^25 + 1 units, so none
    overflows, nor does a sum of fewer than 2^37.

    Raises Misconfiguration: a gradient isn't finite.
    """
    total = np.zeros(task.dimension, np.int64)
    rows = max(1, _CACHED // task.dimension)
    for gradients in chunks:
        for start in range(0, len(gradients), rows):
            clipped = clip_record(gradients[start : start + rows], task)
            total -= fixed_point.encode(clipped, task.fractional_bits).sum(
                axis=0, dtype=np.int64
            )
    return total


def clip_record(gradients: NDArray[np.float64], task: Task) -> NDArray[np.float64]:
    """Return gradients with every row's norm at most R, by the task's rule.

    Algorithm 2, line 4. Gradients are ``[n, d] float64``, before and after.

    Raises Misconfiguration: a gradient isn't finite.
    """
    objective = task.objective
    clip = task.mechanism.unit_clip
    if objective is None or objective.clipping == "flat":
        return fixed_point.clip_record_norm(gradients, clip)
    return fixed_point.clip_record_adaptively(gradients, clip, objective.stabiliser)


def poisson_sample(
    count: int, rate: float, randomness: ring.Keystream
) -> NDArray[np.int64]:
    """Draw each of |D_i| = ``count`` records independently with p_i = ``rate``.

    Algorithm 2, line 2. Return the drawn records' indices in ascending order, ``[≤
    count] int64``; 8 bytes of ``randomness`` go for each record.

    A record is drawn when its uniform 64-bit word is below floor(rate·2^64). For rates
    of 2^−12 and more that is the rate itself; for smaller ones the probability is too
    low by less than 2^−64, and never too high, so the accounted amplification holds.

    Raises Misconfiguration: the rate lies outside (0, 1].
    """
    if not 0 < rate <= 1:
        raise Misconfiguration("record_rate", rate, "must lie in (0, 1]")
    threshold = int(Fraction(rate) * 2**64)
    if not (count and threshold):
        return np.empty(0, np.int64)
    words = randomness.words(count).view(np.uint64)
    # The threshold itself doesn't fit 64 bits at rate 1.
    return np.flatnonzero(words <= np.uint64(threshold - 1))


def padded_work_s(
    model: nn.Module,
    loss: Loss,
    data: object,
    *,
    count: int,
    rate: float,
    task: Task,
    repeats: int = 5,
) -> float:
    """Return the seconds that one update takes here, at the slowest of ``slow_models``.

    The update is ``local_update``'s, of |D_i| = ``count`` records at p_i = ``rate``. It
    is the median of ``repeats``, or estimated from one chunk where that is 0.
    ``deadlines.work`` should be ``WORK_ROOM`` times that.

    Raises Misconfiguration: as ``local_update``.
    """
    # An owner's records are read and checked once, before its first round.
    records = as_records(data)
    most = most_records(count, rate)
    chunk = chunk_records(task.dimension, most=most)

    def work_s(theta: ModelVector, most: int) -> float:
        # The work doesn't depend on which records are drawn.
        indices = np.arange(min(len(records), round(rate * count), most))
        began = time.perf_counter()
        local_update(
            model,
            loss,
            records,
            indices,
            theta,
            task,
            chunk=chunk,
            most=most,
        )
        return time.perf_counter() - began

    models = list(slow_models(task.mechanism.parameters))
    work_s(models[0], chunk)  # loads what is loaded once
    chunks_s = [work_s(theta, chunk) for theta in models]
    slowest = models[int(np.argmax(chunks_s))]
    if not repeats:
        return max(chunks_s) * math.ceil(most / chunk)
    return median(work_s(slowest, most) for _ in range(repeats))
