"""A linear head on frozen features: one release of sums, then least squares by ridge.

A record adds the products of its features x, cut to a length r, those of two different
ones times √2, and x once more in its class's row: a norm of √(r⁴ + r²). The penalty λ
comes from the noise alone, never from test data: noise E of products is a symmetric
random matrix whose eigenvalues reach ±√(2d) of a product's own deviation (Wigner), and
λ of that size keeps what noise made of small eigenvalues from being divided by.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from precad.client.asked_records import cut, offsets
from precad.client.records import Columns, OwnerData, as_records, read_records
from precad.common import Block, Floats, Integers, Misconfiguration, RingVector, Task


@dataclass(frozen=True, slots=True)
class HeadRecords:
    """What an owner's records add to the block of a head.

    ``rows`` are features, ``[n, d] float64``, cut to the block's length; ``labels`` are
    their classes, and ``offsets`` what is added before a number is rounded down.
    """

    block: Block
    rows: Floats
    labels: Integers
    offsets: Floats

    def of_units(self, units: Integers) -> Self:
        """Return some of the records, ``[m]`` of their numbers."""
        return replace(
            self,
            rows=self.rows[units],
            labels=self.labels[units],
            offsets=self.offsets[units],
        )

    def add_to(self, total: RingVector) -> None:
        """Add the sum of all records to the release's vector."""
        start = self.block.start
        # Row by row of the upper triangle: all of it would be as large as the release,
        # for each record.
        for place in range(self.rows.shape[1]):
            scale = self.block.unit * self.rows[:, place : place + 1]
            products = scale * math.sqrt(2.0) * self.rows[:, place:]
            products[:, :1] = scale * self.rows[:, place : place + 1]
            start += self._add(total, start, products)
        own = self.block.unit * self.rows
        for label in range(self.block.query.classes or 0):
            start += self._add(total, start, own, self.labels == label)

    def _add(
        self,
        total: RingVector,
        start: int,
        numbers: Floats,
        of: Integers | slice = slice(None),
    ) -> int:
        """Add numbers' sum over records, rounded each; return how many there are."""
        rounded = np.floor(numbers[of] + self.offsets[of])
        width = rounded.shape[1]
        # Sums of whole numbers far below 2^53: exact.
        total[start : start + width] += rounded.sum(axis=0).astype(np.int64)
        return width


def head_records(
    block: Block, data: OwnerData, task: Task, columns: Columns
) -> HeadRecords:
    """Return an owner's records as a head's block takes them.

    Raises Misconfiguration: they aren't records of so many features and classes.
    """
    query = block.query
    records = as_records(read_records(data, task.data, columns))
    rows = records.inputs.double().numpy()
    labels = records.targets.numpy()
    shape = (query.features,)
    if rows.shape[1:] != shape or not 0 <= labels.min() <= labels.max() < query.classes:
        raise Misconfiguration(
            "data",
            f"features {list(rows.shape[1:])}, labels to {labels.max()}",
            f"query {query.name} asks of {query.features} features and labels below"
            f" {query.classes}",
        )
    return HeadRecords(block, cut(rows, block.length), labels, offsets(len(rows)))


def head_of(
    task: Task, block: Block, sums: Floats, noise: float
) -> Mapping[str, Floats]:
    """Return the head's weights by the names of torch's ``logistic``.

    The largest score wins: ``1.weight`` is ``[classes, d]``, ``1.bias`` zero.

    Args:
        task: the question's.
        block: the head's.
        sums: released numbers, in records.
        noise: standard deviation of each.
    """
    width, classes = block.query.features or 0, block.query.classes or 0
    first, second = np.triu_indices(width)
    gram = np.zeros((width, width))
    gram[first, second] = sums[: first.size] / np.where(
        first == second, 1.0, math.sqrt(2.0)
    )
    gram[second, first] = gram[first, second]
    by_class = sums[first.size : -1].reshape(classes, width)
    values, vectors = np.linalg.eigh(gram)
    held = np.maximum(values, 0.0) + math.sqrt(2.0 * width) * noise
    weights = (by_class @ vectors / held) @ vectors.T
    return {"1.weight": weights, "1.bias": np.zeros(classes)}
