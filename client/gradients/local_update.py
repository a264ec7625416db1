"""An owner's update of one version: Algorithm 2, lines 2 to 8.

A Poisson sample of units is drawn, and their clipped gradients become the integer
vector that is shared. A unit is a record, or what the task says, such as a patient:
then its gradient is the mean over those of its records that were drawn.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from statistics import median

import numpy as np
import torch
from torch import nn

from precad.client.gradients import (
    Loss,
    RecordGradients,
    chunk_records,
    slow_models,
    trained_changes,
)
from precad.client.records import as_records
from precad.common import (
    Floats,
    Integers,
    Keystream,
    LocalTraining,
    Misconfiguration,
    ModelVector,
    RingVector,
    Secret,
    Task,
    clip_record_adaptively,
    clip_record_norm,
    clip_update,
    fixed_point,
    most_records,
)

WORK_ROOM = 3
"""How many times the slowest measured work ``deadlines.work`` should be."""
_CACHED = 2**15
"""Numbers that are clipped and encoded together: they stay in the processor's cache."""


def local_update(
    model: nn.Module,
    loss: Loss,
    data: object,
    indices: Integers,
    theta: ModelVector,
    task: Task,
    *,
    sizes: Integers | None = None,
    bound: int | None = None,
    chunk: int | None = None,
    most: int | None = None,
    on_failure: Callable[[int], object] = lambda _: None,
    randomness: Secret | None = None,
) -> RingVector:
    """Return −Σ of units' clipped gradients at θ, in fixed point, clipped to β_i.

    That is X, ``[d] int64``, with X·X ≤ β_i² over the integers.

    Each unit is clipped in float64 and encoded by itself, and the sum is one of
    integers, so that one unit moves it by at most R·2^f (docs/soundness.md, "Honest
    updates keep the bound"). A record without a usable gradient counts as zero; no
    record's values, and none of θ's, make this raise.

    Args:
        model: the owner's model; its own parameters' values don't matter and aren't
            changed.
        loss: the owner's loss.
        data: what ``as_records`` takes.
        indices: the sampled records, ``[n] int64``; none gives the zero vector.
        theta: θ_t, ``[d]``.
        sizes: where the task has a unit of its own, how many of the records, which
            stand unit by unit, each sampled unit has, ``[k]``: 1 to L.
        task: gives R, β, f, the objective and the parameters' names and shapes.
        bound: β_i, which the owner's claim decides (``Mechanism.bound_of``); the
            task's β without it.
        chunk: records in a chunk; by default ``chunk_records``. Keep it for a whole
            task.
        most: M of ``most_records``: the work is that of M units, of L records each,
            and a larger sample is replaced by the empty one. Without it the work shows
            what was drawn.
        on_failure: is told the index of each record that counts as zero.
        randomness: the key of the noise of records' copies; fresh unless given.

    Raises Misconfiguration: as ``RecordGradients`` and ``as_records``; an index is
    outside the data; ``sizes`` are given, or aren't, and the task wants the contrary.
    """
    records = as_records(data)
    mechanism = task.mechanism
    if (sizes is None) != (mechanism.most_records_per_unit is None):
        # Else one unit would move the sum by more than R, as several records.
        remedy = f"go with a unit of the task's own, which is {mechanism.unit.one}"
        raise Misconfiguration("sizes", sizes, remedy)
    if indices.size and not (indices.min() >= 0 and indices.max() < len(records)):
        raise Misconfiguration(
            "indices",
            [int(indices.min()), int(indices.max())],
            f"there are {len(records)} records",
        )
    units = len(indices if sizes is None else sizes)
    if most is not None and units > most:
        indices = indices[:0]
        sizes = None if sizes is None else sizes[:0]
    slots = None if most is None else mechanism.padded_records(most)
    if chunk is None:
        chunk = chunk_records(task.dimension, most=slots)
    gradients = RecordGradients(
        model,
        loss,
        mechanism.parameters,
        chunk,
        task.objective,
        class_weights=task.training.class_weights,
    )
    if isinstance(mechanism.contribution, LocalTraining):
        chunks = trained_changes(
            gradients,
            records,
            indices,
            theta=theta,
            training=mechanism.contribution,
            on_failure=on_failure,
            randomness=randomness,
        )
    else:
        chunks = gradients.chunks(
            records,
            indices,
            theta,
            slots,
            on_failure,
            randomness,
        )
    if sizes is not None:
        chunks = unit_means(chunks, sizes, units if most is None else most)
    # Denormal numbers are slow, so they would show in the time. A thread of its own,
    # because the processor's mode is a thread's: torch's workers have that of the
    # thread that starts them.
    with ThreadPoolExecutor(
        1, initializer=torch.set_flush_denormal, initargs=(True,)
    ) as thread:
        total = thread.submit(sum_encoded, chunks, task).result()
    if bound is None:
        bound = mechanism.bound
    return clip_update(total, bound, task.fractional_bits)


def unit_means(
    chunks: Iterable[Floats],
    sizes: Integers,
    most: int,
) -> Iterator[Floats]:
    """Yield the mean gradients of units, ``[1, d] float64`` each, zeros after the last.

    There are ``most`` of them, M, whatever was drawn. ``chunks`` are ``[any, d]``, the
    units' records one after the other, ``sizes[i]`` of unit i, and then zeros. Rows are
    added one by one, so that a mean doesn't depend on where chunks end.
    """
    nothing = np.zeros(1)
    total = nothing
    added = 0
    units = 0
    for row in itertools.chain.from_iterable(chunks):
        total = total + row
        added += 1
        if units < len(sizes) and added == sizes[units]:
            yield total[None] / added
            total = nothing
            added = 0
            units += 1
    for _ in range(units, most):
        yield total[None] / 1


def sum_encoded(chunks: Iterable[Floats], task: Task) -> RingVector:
    """Return −Σ of gradients, each clipped to R and encoded toward zero, ``[d] int64``.

    Algorithm 2, lines 4 to 6. ``chunks`` are ``[any, d] float64``, one unit's gradient
    in each row. One unit more or less moves the sum by at most R·2^f in the L2 norm.

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


def clip_record(gradients: Floats, task: Task) -> Floats:
    """Return gradients with every row's norm at most R, by the task's rule.

    Algorithm 2, line 4. Gradients are ``[n, d] float64``, before and after.

    Raises Misconfiguration: a gradient isn't finite.
    """
    objective = task.objective
    clip = task.mechanism.unit_clip
    if objective is None or objective.clipping == "flat":
        return clip_record_norm(gradients, clip)
    return clip_record_adaptively(gradients, clip, objective.stabiliser)


def poisson_sample(count: int, rate: float, randomness: Keystream) -> Integers:
    """Draw each of |D_i| = ``count`` units independently with p_i = ``rate``.

    Algorithm 2, line 2. Return the drawn units' indices in ascending order, ``[≤
    count] int64``; 8 bytes of ``randomness`` go for each unit.

    A unit is drawn when its uniform 64-bit word is below floor(rate·2^64). For rates
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

    The update is ``local_update``'s, of |D_i| = ``count`` units at p_i = ``rate``. It
    is the median of ``repeats``, or estimated from one chunk where that is 0.
    ``deadlines.work`` should be ``WORK_ROOM`` times that.

    Raises Misconfiguration: as ``local_update``.
    """
    # An owner's records are read and checked once, before its first round.
    records = as_records(data)
    most = most_records(count, rate)
    mechanism = task.mechanism
    chunk = chunk_records(task.dimension, most=mechanism.padded_records(most))
    units_a_chunk = math.ceil(chunk / mechanism.padded_records(1))

    def work_s(theta: ModelVector, most: int) -> float:
        # The work doesn't depend on which records are drawn.
        indices = np.resize(np.arange(len(records)), min(round(rate * count), most))
        sizes = None
        if mechanism.most_records_per_unit is not None:
            sizes = np.ones_like(indices)
        began = time.perf_counter()
        local_update(
            model,
            loss,
            records,
            indices,
            theta,
            task,
            sizes=sizes,
            chunk=chunk,
            most=most,
        )
        return time.perf_counter() - began

    models = list(slow_models(mechanism.parameters))
    work_s(models[0], units_a_chunk)  # loads what is loaded once
    chunks_s = [work_s(theta, units_a_chunk) for theta in models]
    slowest = models[int(np.argmax(chunks_s))]
    if not repeats:
        return max(chunks_s) * math.ceil(most / units_a_chunk)
    return median(work_s(slowest, most) for _ in range(repeats))
