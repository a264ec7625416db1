"""Covariance, correlation and least squares, from the sums of rows' products.

A group's cells are S, the sums of (1, x)·(1, x)ᵀ, where x are a row's numbers; the sum
of ones is how many records have all of them. Every answer is a ratio of two *forms*
uᵀ·S·w. Of a coefficient b_j they are uᵀ·S·w over wᵀ·S·w: w is what the other inputs
leave of input j, and u what they leave of the target. To first order the ratio isn't
moved by u and w, so its test is Fieller's, of the noise in S alone (Frisch and Waugh
1933; Fieller 1954).
"""

import math
from collections.abc import Iterator
from itertools import combinations_with_replacement

import numpy as np

from precad.client.answer_ratios import TINY, UNKNOWN, Estimate, Group, Interval, ratio
from precad.common import Floats

_STEEPEST = 100.0
"""The most that a coefficient may be, of numbers from −1 to 1: of few records it would be
anything."""


def of_rows(group: Group, z: float) -> Iterator[Estimate]:
    """Yield what is known from rows' products, at so many deviations ``z``."""
    products = _Products(group, z)
    if group.block.query.column is None:
        yield from _of_pairs(products)
    else:
        yield from _least_squares(products)


class _Products:
    """S, in the columns' own units, and ratios of its forms."""

    def __init__(self, group: Group, z: float) -> None:
        self.row = group.block.row
        self.group = group
        self.z = z
        self.adversarial = group.adversarial
        size = len(self.row) + 1
        self._upper = np.triu_indices(size)
        first, second = self._upper
        # As owners sum them: products of two numbers are there √2 times.
        self._cells = np.where((first > 0) & (first < second), math.sqrt(0.5), 1.0)
        *own, missing, count, _ = group.numbers
        raw = np.zeros((size, size))
        raw[self._upper] = np.array([count - missing, *own]) * self._cells
        self.raw = raw + np.triu(raw, 1).T
        self.scale = np.diag([1.0, *(number.half for number in self.row)])
        self.scale[1:, 0] = [number.centre for number in self.row]
        self.sums = self.scale @ self.raw @ self.scale.T
        self.ones = np.eye(size)
        self.every = np.outer(self.ones[0], self.ones[0])

    def ratio(
        self,
        top: Floats,
        bottom: Floats,
        *,
        most: float,
        least: float = 0.0,
        values: tuple[float, float] | None = None,
    ) -> Interval:
        """Return Σ top·S over Σ bottom·S; both ``[m + 1, m + 1]``, as of ``ratio``."""
        return ratio(
            self.group,
            top=self._factors(top),
            bottom=self._factors(bottom),
            z=self.z,
            least=least,
            most=most,
            values=values,
        )

    def _factors(self, form: Floats) -> Floats:
        """Return the group's numbers' factors, ``[k + 2]``, that sum to Σ form·S."""
        own = self.scale.T @ form @ self.scale
        both = own + own.T - np.diag(np.diag(own))
        of_count, *of_cells = both[self._upper] * self._cells
        factors = self.group.of_cells(np.array(of_cells))
        factors[[-3, -2]] = -of_count, of_count
        return factors


def _least_squares(products: _Products) -> Iterator[Estimate]:
    """Yield each coefficient, R² and the residuals' standard deviation."""
    *inputs, target = products.row
    back = np.linalg.inv(products.scale[:-1, :-1])
    # No eigenvalue is less than what noise alone would make.
    values, vectors = np.linalg.eigh(products.raw[:-1, :-1])
    least = products.group.deviations[0] * math.sqrt(len(products.row))
    vectors = back.T @ vectors
    radius = _moved(products, least=least, smallest=values[0])
    inverse = (vectors / np.maximum(values, max(least, TINY))) @ vectors.T
    slopes = inverse @ products.sums[:-1, -1]
    left = np.append(-slopes, 1.0)
    names = ["constant", *(f"slope of {number.name}" for number in inputs)]
    for place, name in enumerate(names):
        bottom = 1.0 / inverse[place, place]
        slope = slopes[place]
        w = np.append(inverse[place] * bottom, 0.0)
        u = left + slope * w
        most = _STEEPEST * target.half * abs(back[:, place]).sum()
        found = products.ratio(
            np.outer(u, w),
            np.outer(w, w),
            least=-most,
            most=most,
            values=(slope * bottom, bottom),
        )
        if products.adversarial:
            off = target.half * np.linalg.norm(back[:, place]) * radius
            found = (slope, slope - off, slope + off)
        yield name, "value", found
    residuals = np.outer(left, left)
    mean = products.sums[0, -1] / max(products.sums[0, 0], TINY)
    around = products.ones[-1] - mean * products.ones[0]
    value, low, high = products.ratio(residuals, np.outer(around, around), most=1.0)
    of_r2 = (1.0 - value, 1.0 - high, 1.0 - low)
    widest = 4.0 * target.half**2
    squares = products.ratio(residuals, products.every, most=widest)
    value, low, high = map(math.sqrt, squares)
    off = (value, low, high)
    for of, known in (("R²", of_r2), ("residual standard deviation", off)):
        yield of, "value", UNKNOWN if products.adversarial else known


def _moved(products: _Products, *, least: float, smallest: float) -> float:
    """Return how far b may move, of numbers from −1 to 1, if S moves by E.

    From A·(b' − b) = −E·(b', −1): |b' − b| ≤ |E|·|(b, −1)|/(λ − |E|), where λ is the
    ``smallest`` eigenvalue of A, if it is over ``least``, where b solves A·b = s.
    """
    off = products.z * (products.group.deviations[0] + products.group.deviations[-2])
    if smallest <= max(off, least):
        return math.inf
    slopes = np.linalg.solve(products.raw[:-1, :-1], products.raw[:-1, -1])
    return off * math.hypot(1.0, *slopes) / (smallest - off)


def _of_pairs(products: _Products) -> Iterator[Estimate]:
    """Yield means, standard deviations, covariances and correlations."""
    ones = products.ones
    around = []
    for number, of_one in zip(products.row, ones[1:], strict=True):
        low, high = number.limits
        mean = products.ratio(
            np.outer(ones[0], of_one), products.every, least=low, most=high
        )
        yield f"mean of {number.name}", "value", mean
        off = max(mean[0] - mean[1], mean[2] - mean[0])
        around.append((number, of_one - mean[0] * ones[0], off))
    for (one, u, off), (other, w, by) in combinations_with_replacement(around, 2):
        form = np.outer(u, w)
        most = one.half * other.half
        if one == other:
            # Around another mean the squares are less.
            value, low, high = products.ratio(form, products.every, most=most)
            low = max(0.0, low - off * by)
            value, low, high = map(math.sqrt, (value, low, high))
            of = f"standard deviation of {one.name}"
            yield of, "value", (value, low, high)
            continue
        names = f"{one.name} and {other.name}"
        value, low, high = products.ratio(
            form, products.every, least=-most, most=most
        )
        covariance = (value, low - off * by, high + off * by)
        yield f"covariance of {names}", "value", covariance
        first, second = (max(v @ products.sums @ v, TINY) for v in (u, w))
        bottom = math.sqrt(first * second)
        # What moves the root of the product of both variances.
        moves = np.outer(u, u) * second + np.outer(w, w) * first
        correlation = products.ratio(
            form,
            moves / (2.0 * bottom),
            least=-1.0,
            most=1.0,
            values=(float(u @ products.sums @ w), bottom),
        )
        found = UNKNOWN if products.adversarial else correlation
        yield f"correlation of {names}", "value", found
