"""Whether an owner's classes are as frequent as its task takes them to be.

What is said is computed from records, so it is for their owner's eyes alone.
"""

import numpy as np
from numpy.typing import NDArray

from precad.client.check_before_enrolling import Findings
from precad.common.task import Task

_RARE = 0.3
"""Share of a class, times the number of classes, below which it is rare: 15 % of two."""
_MOST_OFF = 3.0
"""Factor between a class's share here and by the task's weights from which it is said."""
_FEW_RECORDS = 5
"""Records of a class that says nothing of its share."""


def look_at_classes(task: Task, targets: NDArray[np.generic]) -> Findings:
    """Return a note where the classes' shares don't fit the task's weights.

    ``targets`` are the labels, ``[n]``; other targets have no classes. The shares that
    the weights stand for are public: the task has them.
    """
    findings = Findings()
    of_classes = task.query is None and task.loss == "cross-entropy"
    if not of_classes or targets.ndim != 1 or targets.dtype.kind != "i":
        return findings
    weights = task.training.class_weights
    levels = task.target.levels
    classes = max(len(weights or levels), 2)
    counts = np.bincount(targets[targets >= 0], minlength=classes)
    names = levels or [str(label) for label in range(len(counts))]
    if not len(targets) or counts.max() == len(targets) or len(counts) > len(names):
        return findings
    shares = counts / len(targets)
    if weights is None:
        rare = int(np.where(counts, counts, len(targets)).argmin())
        if shares[rare] < _RARE / len(counts):
            findings.note(
                "data",
                f"class {names[rare]} is {shares[rare]:.2g} of these records, and the"
                " task weighs all alike: its model may find nobody of that class. precad"
                " task new --balance weighs classes by shares that are public or agreed"
                " on (docs/rare-classes.md)",
            )
        return findings
    if len(counts) > len(weights):
        return findings
    planned = 1 / np.array(weights)
    planned /= planned.sum()
    largest = np.maximum(shares, planned)
    off = largest / np.maximum(np.minimum(shares, planned), 1e-9)
    # Of a class that has a record or two by chance nothing is asked.
    off[largest * len(targets) < _FEW_RECORDS] = 1.0
    worst = int(off.argmax())
    if off[worst] > _MOST_OFF:
        findings.note(
            "data",
            f"class {names[worst]} is {shares[worst]:.2g} of these records, and"
            f" {planned[worst]:.2g} by the task's weights (--balance): is that meant, or"
            " are the shares swapped?",
        )
    return findings
