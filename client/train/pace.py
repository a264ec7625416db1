"""How long a data owner's work of one attempt takes, padded as it always is."""

import time
from statistics import median
from typing import Any

import numpy as np
from torch import nn

from precad.client.train.objectives import Loss
from precad.client.train.records import as_records
from precad.client.train.sample import most_records
from precad.client.train.update import local_update
from precad.common.task import Task

REPEATS = 5


def padded_work_s(
    model: nn.Module,
    loss: Loss,
    data: Any,
    count: int,
    rate: float,
    task: Task,
    repeats: int = REPEATS,
) -> float:
    """Seconds of one update on this machine, the median; ``deadlines.work`` must be above it.

    Args:
        model: the task's.
        loss: per-record loss.
        data: as ``local_update`` takes it.
        count: |D_i|.
        rate: p_i.
        task: gives d and the clips.
        repeats: how often it is measured; the first may load what is loaded once.
    """
    # The work doesn't depend on what is drawn, nor on θ.
    drawn = np.arange(min(count, round(rate * count)))
    theta, most = np.zeros(task.dimension), most_records(count, rate)
    # An owner's are read and checked once, before its first round.
    records = as_records(data)
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        local_update(model, loss, records, drawn, theta, task, most=most)
        took.append(time.perf_counter() - began)
    return median(took)
