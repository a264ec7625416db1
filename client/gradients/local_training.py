"""An owner's own training of one version, whose outcome is all that it adds.

The owner starts at θ_t and goes E times through its records by plain gradient descent.
What that changed is one unit's part, clipped to C as a whole, so that all that an
owner's records may say lies within C (``LocalTraining``). How many steps there are, and
of how many records, depends on |D_i| and the task alone: both are public.
"""

from collections.abc import Callable, Iterator

import numpy as np

from precad.client.gradients import RecordGradients
from precad.client.records import Records
from precad.common import (
    Floats,
    Integers,
    Keystream,
    LocalTraining,
    ModelVector,
    Secret,
)


def trained_changes(
    gradients: RecordGradients,
    records: Records,
    indices: Integers,
    *,
    theta: ModelVector,
    training: LocalTraining,
    on_failure: Callable[[int], object],
    randomness: Secret | None,
) -> Iterator[Floats]:
    """Yield θ_t − θ_E once, ``[1, d] float64``: what is descended, as a gradient is.

    A step is along the mean of a batch's gradients, where records without a usable one
    count as zero (``RecordGradients.chunks``). The outcome is zero where nothing of the
    records is to be added, and where the training left the finite numbers. No record's
    values, and none of θ's, make this raise.

    Args:
        gradients: of the owner's model and loss.
        records: all records of the owner.
        indices: those that are trained on, ``[n] int64``: all, or none for a training
            on all whose outcome is zero.
        theta: θ_t, ``[d]``.
        training: E, the step and the size of a batch.
        on_failure: is told the index of each record that counted as zero in a step, or
            of all where the outcome does.
        randomness: the key of the order of batches; fresh unless given.

    Raises Misconfiguration: as ``RecordGradients.chunks``.
    """
    start = theta.astype(np.float64)
    trained = start
    trained_on = indices if indices.size else np.arange(len(records))
    failed: set[int] = set()
    with np.errstate(all="ignore"):  # θ may hold any numbers
        for batch in batches(trained_on, training, randomness or Secret.random()):
            chunks = gradients.chunks(records, batch, trained, on_failure=failed.add)
            total = sum(chunk.sum(axis=0) for chunk in chunks)
            trained = trained - training.learning_rate / len(batch) * total
        change = start - trained
    if not np.isfinite(change).all():
        failed.update(trained_on.tolist())
        change = np.zeros_like(start)
    for record in sorted(failed):
        on_failure(record)
    yield change[None] if indices.size else np.zeros_like(change)[None]


def batches(
    indices: Integers,
    training: LocalTraining,
    randomness: Secret,
) -> Iterator[Integers]:
    """Yield the records of each step: all at once, or batches in a fresh order.

    ``randomness`` is the key of the order, which each epoch has of its own.
    """
    count = len(indices)
    size = training.batch_size or count
    for epoch in range(training.epochs):
        order = indices
        if size < count:
            words = Keystream(randomness, "batch-order", epoch).words(count)
            order = indices[np.argsort(words, kind="stable")]
        for first in range(0, count, size):
            yield order[first : first + size]
