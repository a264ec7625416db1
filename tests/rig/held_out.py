"""Held-out records of three kinds, by chance, and how often intervals cover the truth."""

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, softmax
from tests.rig import tasks
from tests.rig.tasks import task_with

from precad.client.measures import results_of
from precad.client.results import Measure, Results
from precad.common.task import Task

Numbers = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], tuple[Numbers, Numbers, Numbers]]
"""Of so many records: outputs, targets, and what a target is on average."""
CENTRE, SCALE = 12.0, 6.0
INPUT = {"name": "age", "kind": "numeric"}
LARGE = 400_000


def task_for(outputs: int, **target: object) -> Task:
    recipe = {"columns": [INPUT], "target": target}
    return task_with(tasks.logistic(1, outputs) | {"data": recipe})


STAYS = task_for(1, name="stay", centre=CENTRE, scale=SCALE)
READMITTED = task_for(2, name="readmitted", kind="categorical", levels=["no", "yes"])
WARDS = task_for(3, name="ward", kind="categorical", levels=["a", "b", "c"])


def measured(task: Task, outputs: object, targets: object) -> Results:
    values = np.asarray(targets)
    if values.dtype.kind == "f" and task is not STAYS:
        values = values.astype(np.int64)
    return results_of(task, np.asarray(outputs, np.float32), torch.as_tensor(values))


def by_name(rows: Iterable[Measure]) -> dict[tuple[str, str], Measure]:
    """The measures without those of calibration, which are of what was predicted."""
    return {(row.name, row.of): row for row in rows if row.predicted is None}


def two_classes(
    rng: np.random.Generator, count: int
) -> tuple[Numbers, Numbers, Numbers]:
    """A model that is too sure of itself."""
    signal = rng.normal(size=count)
    share = expit(1.5 * signal - 0.5)
    labels = (rng.random(count) < share).astype(np.float64)
    return np.stack([0 * signal, 2 * signal], axis=1), labels, share


def three_classes(
    rng: np.random.Generator, count: int
) -> tuple[Numbers, Numbers, Numbers]:
    outputs = 1.5 * rng.normal(size=(count, 3))
    chosen = outputs + rng.gumbel(size=(count, 3))
    labels = chosen.argmax(axis=1).astype(np.float64)
    return outputs, labels, softmax(outputs, axis=1)[:, 1]


def numbers(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers, Numbers]:
    """As the task scales them."""
    signal = rng.normal(size=count)
    targets = signal + 0.6 * rng.normal(size=count)
    return (0.8 * signal + 0.1)[:, None], targets, SCALE * signal + CENTRE


KINDS: dict[str, tuple[Task, Draw]] = {
    "two classes": (READMITTED, two_classes),
    "three classes": (WARDS, three_classes),
    "numbers": (STAYS, numbers),
}


def coverage(kind: str, draws: int, records: int) -> dict[tuple[str, str], float]:
    """Which share of so many draws each measure's interval covers what it is of."""
    task, draw = KINDS[kind]
    rng = np.random.default_rng(4)
    outputs, targets, _ = draw(rng, LARGE)
    truth = by_name(measured(task, outputs, targets).measures)
    covered, tried = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for _ in range(draws):
        outputs, targets, means = draw(rng, records)
        rows = measured(task, outputs, targets).measures
        expected = [(row, truth[key].value) for key, row in by_name(rows).items()]
        parts = [row for row in rows if row.predicted is not None]
        if parts:
            order = np.argsort(outputs[:, -1], kind="stable")
            for row, part in zip(parts, np.array_split(order, len(parts)), strict=True):
                expected.append((row, means[part].mean()))
        for row, value in expected:
            key = row.name, row.of if row.predicted is None else ""
            tried[key] += 1
            covered[key] += row.low <= value <= row.high
    assert tried.keys() >= truth.keys()
    return {key: covered[key] / count for key, count in tried.items()}
