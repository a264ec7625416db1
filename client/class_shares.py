"""Whether an owner's classes are as frequent as its task takes them to be.

What is said is computed from records, so it is for their owner's eyes alone.
"""

import numpy as np

from precad.common import AnyNumbers, Task

_MOST_OFF = 0.3
"""Ratio of a class's records to those that the task's weights stand for, or of those to
these, below which it is said: without weights 15 % of two classes."""
_MOST_CLASSES = 100_000
"""A larger label is none: counting up to it would only take memory."""


def unlike_weights(task: Task, targets: AnyNumbers) -> str | None:
    """Return which class is far rarer or more frequent than the task's weights say.

    ``targets`` are the labels, ``[n]``. None where the shares fit, where the task has no
    classes, or where labels aren't its own. Without weights all classes weigh alike, as
    if they were equally frequent.
    """
    if task.query is not None or task.loss != "cross-entropy" or targets.ndim != 1:
        return None
    labels = targets.astype(np.int64).clip(0)
    # What is no label is named elsewhere.
    if targets.dtype.kind not in "iu" or labels.max(initial=0) > _MOST_CLASSES:
        return None
    levels = task.target.levels
    counts = np.bincount(labels, minlength=max(2, len(levels)))
    weights = task.training.class_weights or (1.0,) * len(counts)
    if len(weights) != len(counts):
        return None
    planned = 1 / np.array(weights)
    planned /= planned.sum()
    # One more of each: of a few records the shares say little.
    ratios = (counts + 1) / (len(targets) * planned + 1)
    off = np.minimum(ratios, 1 / ratios)
    worst = int(off.argmin())
    if off[worst] >= _MOST_OFF:
        return None
    share = counts[worst] / len(targets)
    return (
        f"class {(levels or range(len(counts)))[worst]} is {share:.2g} of these records,"
        f" and {planned[worst]:.2g} by the task's class weights (all alike without any)."
        " Are they missing or swapped? precad task new --balance takes each class's"
        " share, public or agreed on: of a rare one a model may find nobody"
        " (docs/rare-classes.md)"
    )
