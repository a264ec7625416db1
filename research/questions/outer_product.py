"""Covariance and least squares: the sum of rows' outer products.

A row v of inputs and the answer, centred and scaled by public numbers, is cut to a
stated length r. Its block is (α·v, entries of v·vᵀ), those off the diagonal times √2, of
norm √(α²·r² + r⁴): every entry's noise is the same matrix noise, whatever the axes. The
sum of ones is the public number of records. Rows with a missing value are zero but for
their own coordinate, and a cut row's length is what bias comes from: a longer r has
less bias and more noise.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from research.questions.block import Floats, Integers
from research.questions.interval import Interval

LINEAR = 1.0
"""α: √2 would make means as exact as products. Slopes of centred inputs need less."""
LEAST_EIGENVALUE = 1.0
"""Of the inputs' matrix, in the largest singular value that noise alone would have."""


@dataclass(frozen=True, kw_only=True)
class OuterProduct:
    """Rows of so many numbers, the last of which least squares explains.

    Attributes:
        width: Numbers in a row.
        length: r: a longer row is scaled to it.
        linear: α.
    """

    width: int
    length: float
    linear: float = LINEAR

    @property
    def dimension(self) -> int:
        """Linear entries, products from the diagonal up, missing rows."""
        return self.width + self.width * (self.width + 1) // 2 + 1

    @property
    def norm(self) -> float:
        """Of a row of length r, or of a missing one."""
        row = math.sqrt(self.linear**2 * self.length**2 + self.length**4)
        return max(1.0, row)

    @property
    def rounded(self) -> int:
        """All may be off."""
        return self.dimension

    @cached_property
    def upper(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Rows and columns of the products."""
        return np.triu_indices(self.width)

    @cached_property
    def scale(self) -> Floats:
        """What each coordinate is of its plain entry, ``[dimension]``."""
        first, second = self.upper
        products = np.where(first == second, 1.0, math.sqrt(2))
        scale: Floats = np.concatenate(
            [np.full(self.width, self.linear), products, [1.0]]
        )
        return scale

    def cut(self, rows: Floats) -> Floats:
        """Return rows of length r at most, ``[n, width]``; missing ones are NaN still."""
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):
            cut: Floats = rows * np.minimum(
                1.0, self.length / np.maximum(length, 1e-300)
            )
        return cut

    def vectors(self, rows: Floats) -> Floats:
        """Return records' vectors, ``[n, dimension] float64``."""
        missing = np.asarray(np.isnan(rows).any(1))
        held = self.cut(np.where(missing[:, None], 0.0, rows))
        first, second = self.upper
        plain = np.column_stack([held, held[:, first] * held[:, second], missing])
        vectors: Floats = plain * self.scale
        return vectors

    def total(self, rows: Floats, unit: int) -> Integers:
        """Return the integer sum over records, ``[dimension] int64``."""
        rounded = np.rint(self.vectors(rows) * unit).astype(np.int64)
        total: Integers = rounded.sum(0)
        return total

    def matrices(self, sums: Floats, records: int) -> Floats:
        """Return sums of (1, v)·(1, v)ᵀ, ``[draws, width + 1, width + 1]``."""
        plain = sums / self.scale
        size = self.width + 1
        found = np.zeros((sums.shape[0], size, size))
        found[:, 0, 0] = records - plain[:, -1]
        found[:, 0, 1:] = found[:, 1:, 0] = plain[:, : self.width]
        first, second = self.upper
        found[:, first + 1, second + 1] = plain[:, self.width : -1]
        found[:, second + 1, first + 1] = plain[:, self.width : -1]
        return found

    def covariances(
        self, sums: Floats, *, noise: float, records: int, z: float
    ) -> Interval:
        """Return the covariance matrix, ``[draws, width, width]``.

        The deviation is the delta method's. Arguments as of ``least_squares``.
        """
        found = self.matrices(sums, records)
        there = np.maximum(found[:, 0, 0], 1.0)[:, None, None]
        means = found[:, 0, 1:] / there[:, 0]
        products = means[:, :, None] * means[:, None, :]
        covariance = found[:, 1:, 1:] / there - products
        unit = self.matrices(np.eye(self.dimension), 0)
        by_mean = np.einsum("di,kj->dkij", means, unit[:, 0, 1:])
        by_count = np.einsum("k,dij->dkij", unit[:, 0, 0], covariance - products)
        moved = unit[None, :, 1:, 1:] - by_mean - np.swapaxes(by_mean, 2, 3) - by_count
        deviation = noise * np.sqrt((moved**2).sum(1)) / there
        return Interval(
            estimate=covariance,
            low=covariance - z * deviation,
            high=covariance + z * deviation,
        )

    def least_squares(
        self,
        sums: Floats,
        *,
        noise: float,
        records: int,
        z: float,
        population: bool = False,
    ) -> Interval:
        """Return the constant and the slopes, ``[draws, width]``.

        The interval is of the noise: b − A⁻¹·(noise of A·b) to first order, which is
        Gaussian with a known covariance. Eigenvalues of A that noise alone would have
        are held up to that, so that no slope is a ratio to noise.

        Args:
            sums: Released, ``[draws, dimension]``.
            noise: Standard deviation of each.
            records: How many records there are, which is public.
            z: How many deviations.
            population: Of the records' population: the usual variance, s²·A⁻¹ for
                errors of equal variance, is added to the noise's.
        """
        matrices = self.matrices(sums, records)
        values, vectors = np.linalg.eigh(matrices[:, :-1, :-1])
        floor = LEAST_EIGENVALUE * noise * math.sqrt(self.width)
        held = np.maximum(values, floor)
        inverse = (vectors / held[:, None, :]) @ np.swapaxes(vectors, 1, 2)
        slopes = (inverse @ matrices[:, :-1, -1:])[..., 0]
        variance = (noise * self._deviations(inverse, slopes)) ** 2
        if population:
            explained = (slopes * matrices[:, :-1, -1]).sum(1)
            left = np.maximum(matrices[:, -1, -1] - explained, 0)
            freedom = np.maximum(matrices[:, 0, 0] - self.width, 1)
            diagonal = np.einsum("dii->di", inverse)
            variance = variance + (left / freedom)[:, None] * diagonal
        deviation = np.sqrt(variance)
        return Interval(
            estimate=slopes, low=slopes - z * deviation, high=slopes + z * deviation
        )

    def _deviations(self, inverse: Floats, slopes: Floats) -> Floats:
        """Return each coefficient's deviation at unit noise, ``[draws, width]``."""
        draws = slopes.shape[0]
        # What unit noise of each coordinate does to A's last column less A's others·b.
        unit = self.matrices(np.eye(self.dimension), 0)
        weights = np.concatenate([-slopes, np.ones((draws, 1))], 1)
        moved = np.einsum("kij,dj->dik", unit[:, :-1, :], weights, optimize=True)
        effect = inverse @ moved
        deviations: Floats = np.sqrt((effect**2).sum(2))
        return deviations
