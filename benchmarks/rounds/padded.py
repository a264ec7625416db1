"""The padded work of one data owner, beside the wait that hides how long it took.

Uploads start ``deadlines.work`` after an attempt was announced. That must be longer
than the work, which is padded to the most records that a sample may have: else an owner
is late, visibly.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from precad.client.gradients.local_update import padded_work_s
from precad.client.gradients.torch_models import build, logistic, model_section
from precad.common.roster import most_records
from precad.common.task import Task
from precad.common.task_schema import DeadlineSection

RATE = 0.2
REPEATS = 5
SIZES = ((64, 10, 150), (784, 10, 600), (784, 10, 6000))
"""Features, classes and records: the digits of the demo by ten owners, MNIST's by 100
and by 10."""


def padded_work(sizes: Sequence[tuple[int, int, int]] = SIZES) -> list[dict[str, Any]]:
    """Seconds of a logistic regression's padded work, and what the default wait leaves.

    Returns:
        For each size: dimension, records, rate, the number of records that the work is
            padded to,
        the median of its wall time, the default ``deadlines.work``, and their ratio.
    """
    # Loads what is loaded once.
    _measure(2, 2, 10, repeats=1)
    return [_measure(*size, repeats=REPEATS) for size in sizes]


def _measure(
    features: int, classes: int, records: int, *, repeats: int
) -> dict[str, Any]:
    from torch.nn import functional  # noqa: PLC0415 -- seconds to import

    section = model_section(logistic(features, classes), architecture="logistic")
    task = Task.parse(
        {
            "name": "padded",
            "model": section,
            "privacy": {
                "record_clip": 1.0,
                "client_clip": 20.0,
                "noise_multiplier": 2.0,
                "record_rate": RATE,
                "client_rate": 1.0,
            },
            "training": {"learning_rate": 0.5, "rounds": 1},
            "enrolment": {"clients": 1, "max_expected_records": float(records)},
        }
    )
    random = np.random.default_rng(1)
    data = (
        random.normal(size=(records, features)).astype(np.float32),
        random.integers(0, classes, records),
    )
    work_s = padded_work_s(
        build(task.model),
        functional.cross_entropy,
        data,
        count=records,
        rate=RATE,
        task=task,
        repeats=repeats,
    )
    wait_s = DeadlineSection().work
    return {
        "dimension": task.dimension,
        "records": records,
        "record_rate": RATE,
        "padded_to": most_records(records, RATE),
        "work_s": round(work_s, 6),
        "wait_s": wait_s,
        "work_over_wait": round(work_s / wait_s, 4),
    }
