"""A linear head on frozen features: one release of sums, then least squares by ridge.

A record's vector is the outer product of its features x, cut to length r, and x once
more in its class's row: norm √(r⁴ + β²·r²). The features' centre is public. The penalty
λ comes from the noise alone, never from test data: products' noise E is a symmetric
random matrix, whose eigenvalues reach about ±√2·s·√d at s a product's own deviation, and
λ of that order keeps what noise made of small eigenvalues from being divided by.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from research.questions.block import Floats, Integers

PENALTY = 1.0
"""λ in the largest eigenvalue that noise alone would have."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """Sums for a linear classifier.

    Attributes:
        width: d: how many features.
        classes: How many classes.
        length: r: longer features are scaled to it.
        by_class: β: the weight of a class's sum of features.
    """

    width: int
    classes: int
    length: float = 1.0
    by_class: float = 1.0

    @property
    def dimension(self) -> int:
        """Products from the diagonal up, then features by class."""
        return self.width * (self.width + 1) // 2 + self.width * self.classes

    @property
    def norm(self) -> float:
        """Of features of length r."""
        return self.length * math.hypot(self.length, self.by_class)

    @property
    def rounded(self) -> int:
        """Products, and one class's features."""
        return self.dimension - self.width * (self.classes - 1)

    @cached_property
    def upper(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Rows and columns of the products."""
        return np.triu_indices(self.width)

    @cached_property
    def _weights(self) -> Floats:
        first, second = self.upper
        return np.where(first == second, 1.0, math.sqrt(2))

    def cut(self, features: Floats) -> Floats:
        """Return features of length r at most, ``[n, width]``."""
        length = np.linalg.norm(features, axis=1, keepdims=True)
        cut: Floats = features * np.minimum(
            1.0, self.length / np.maximum(length, 1e-300)
        )
        return cut

    def total(self, features: Floats, classes: Integers, unit: int) -> Integers:
        """Return the integer sum over records, ``[dimension] int64``.

        Args:
            features: ``[n, width]``, their centre taken off.
            classes: ``[n]``, from 0.
            unit: u.
        """
        held = self.cut(features)
        first, second = self.upper
        total = np.zeros(self.dimension, np.int64)
        products = first.size
        by_class = total[products:].reshape(self.classes, self.width)
        for row, place in zip(held, classes, strict=True):
            entries = row[first] * row[second] * self._weights
            total[:products] += np.rint(entries * unit).astype(np.int64)
            own = np.rint(self.by_class * row * unit).astype(np.int64)
            by_class[place] += own
        return total

    def solve(self, sums: Floats, *, noise: float) -> Floats:
        """Return the head's weights, ``[width, classes]``: the largest score wins.

        Each class is explained by itself, 1 or 0. Centred features have no constant:
        where classes are unequal, one of the features is to be one.

        Args:
            sums: One release, ``[dimension]``.
            noise: Standard deviation of each sum.
        """
        first, second = self.upper
        products = first.size
        gram = np.zeros((self.width, self.width))
        gram[first, second] = sums[:products] / self._weights
        gram[second, first] = gram[first, second]
        right = sums[products:].reshape(self.classes, self.width).T / self.by_class
        penalty = PENALTY * math.sqrt(2 * self.width) * noise
        values, vectors = np.linalg.eigh(gram)
        held = np.maximum(values, 0.0) + penalty
        weights: Floats = (vectors / held) @ (vectors.T @ right)
        return weights
