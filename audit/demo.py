"""The demo's task with one owner more, whose records are all canaries."""

import math

from precad.audit.canaries import loud_canaries
from precad.audit.designed import Designed
from precad.client.train import as_records
from precad.common.task import Task
from precad.simulation.data import load
from precad.simulation.defaults import demo_task
from precad.simulation.partition import shards

_OWNERS, _SHARDS = 10, 4
_ROOM = 1.3
"""Above the mean of what the canaries' owner samples, and above the length of its update."""


def demo_audit(dataset: str, canaries: int, seed: int) -> Designed:
    """What ``precad demo`` trains with ten owners, and an eleventh.

    Its caps have room for the canaries; p, σ, T, R and so every stated ε are the demo's.

    Args:
        dataset: digits or breast-cancer.
        canaries: m.
        seed: of partition, canaries and coins.

    Raises:
        Misconfiguration: no such data set, or more canaries than a client's clip can hold.
    """
    data = load(dataset)
    values = demo_task(data, "logistic", _OWNERS + 1)
    sampled = values["privacy"]["record_rate"] * canaries
    values["enrolment"]["max_expected_records"] = max(
        values["enrolment"]["max_expected_records"], _ROOM * sampled
    )
    clip = max(values["privacy"]["client_clip"], _ROOM * math.sqrt(sampled))
    values["privacy"]["client_clip"] = clip
    parts = shards(data.train_y, _OWNERS, _SHARDS, seed % 2**31)
    shares = {
        f"owner-{number:02d}": (data.train_x[part], data.train_y[part])
        for number, part in enumerate(parts, 1)
    }
    like = as_records((data.train_x, data.train_y))
    return Designed(Task.parse(values), shares, loud_canaries(like, canaries, data.classes, seed))
