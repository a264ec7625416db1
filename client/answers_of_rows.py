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
from itertools import combinations

import numpy as np

from precad.client.answer_ratios import (
    TINY,
    Estimate,
    Group,
    Interval,
    distance,
    ratio,
    rooted,
)
from precad.common import Block, Floats

_STEEPEST = 100.0
"""The most that a coefficient may be, of numbers from −1 to 1: of few records it would
be anything."""


def constant_of(block: Block) -> float:
    """Return the first number of a head's row, by which levels may differ in size."""
    return block.length / math.sqrt(len(block.row))


def of_rows(group: Group) -> Iterator[Estimate]:
    """Yield what is known from rows' products; a head is a model and no answer."""
    query = group.block.query
    if query.kind == "head":
        return
    products = _Products(group)
    if query.column is None:
        yield from _of_pairs(products)
        return
    for of, found in _least_squares(products):
        yield of, "value", found


class _Products:
    """S, in the columns' own units, and ratios of its forms."""

    def __init__(self, group: Group) -> None:
        """Make S of a group's cells, as owners summed them."""
        row = group.block.row
        size = len(row) + 1
        self.group = group
        self._upper = np.triu_indices(size)
        first, second = self._upper
        # As owners sum them: products of two numbers are there √2 times.
        self._cells = np.where((first > 0) & (first < second), math.sqrt(0.5), 1.0)
        *own, missing, count, _ = group.numbers
        upper = np.zeros((size, size))
        upper[self._upper] = np.array([count - missing, *own]) * self._cells
        self.raw = upper + np.triu(upper, 1).T
        self.scale = np.diag([1.0, *(number.half for number in row)])
        self.scale[1:, 0] = [number.centre for number in row]
        self.sums = self.scale @ self.raw @ self.scale.T
        self.ones, *self.numbers = np.eye(size)
        self.every = np.outer(self.ones, self.ones)
        # Most that bad owners' vectors change S by, in Frobenius norm: by cells of rows,
        # linear ones twice, and by how many rows there are. z has the √2 for "twice".
        self.off = group.z * (group.deviations[0] + group.deviations[-2])
        self.means = self.sums[0] / max(self.sums[0, 0], TINY)

    def ratio(
        self,
        top: Floats,
        *,
        bottom: Floats,
        most: float,
        least: float = 0.0,
        values: tuple[float, float] | None = None,
    ) -> Interval:
        """Return Σ top·S over Σ bottom·S; both ``[m + 1, m + 1]``, as of ``ratio``."""
        return ratio(
            self.group,
            top=self._factors(top),
            bottom=self._factors(bottom),
            least=least,
            most=most,
            values=values,
        )

    def bounded_square(self, form: Floats, least: float) -> tuple[float, float, float]:
        """Return between what a form's least square is without bad owners' vectors.

        And the norm that it has at most. ``form`` makes uᵀ·S·u least, of all u with its
        last number, and ``least`` is the least eigenvalue of S in the others.
        """
        length = np.linalg.norm(self.scale.T @ form)
        if least <= self.off:
            return 0.0, math.inf, math.inf
        longest = length * (1.0 + self.off / (least - self.off))
        value = form @ self.sums @ form
        return (
            max(value - self.off * longest**2, 0.0),
            value + self.off * length**2,
            longest,
        )

    def _factors(self, form: Floats) -> Floats:
        """Return the group's numbers' factors, ``[k + 2]``, that sum to Σ form·S."""
        own = self.scale.T @ form @ self.scale
        both = own + own.T - np.diag(np.diag(own))
        of_count, *of_cells = both[self._upper] * self._cells
        return np.array([*of_cells, -of_count, of_count, 0.0])


def _least_squares(products: _Products) -> Iterator[tuple[str, Interval]]:
    """Yield each coefficient, R² and the residuals' standard deviation.

    What bad owners add turns S by a matrix of norm ``products.off`` at most. So A⁻¹·c
    moves by A⁻¹ times that times the residuals' form without it, which is longer by
    1/(1 − off/λ) at most, λ being A's least eigenvalue (Neumann's series).
    """
    *inputs, target = products.group.block.row
    adversarial = products.group.adversarial
    back = np.linalg.inv(products.scale[:-1, :-1])
    # No eigenvalue is less than what noise alone would make.
    values, vectors = np.linalg.eigh(products.raw[:-1, :-1])
    floor = max(products.group.deviations[0] * math.sqrt(len(values)), TINY)
    held = np.maximum(values, floor)
    vectors = back.T @ vectors
    inverse = (vectors / held) @ vectors.T
    slopes = inverse @ products.sums[:-1, -1]
    left = np.append(-slopes, 1.0)
    length = float(np.linalg.norm(products.scale.T @ left))
    unheld = values[0] if values[0] - products.off > floor else 0.0
    least, largest, longest = products.bounded_square(left, unheld)
    names = ["constant", *(f"slope of {number.name}" for number in inputs)]
    for place, name in enumerate(names):
        bottom = 1.0 / inverse[place, place]
        slope = slopes[place]
        w = np.append(inverse[place] * bottom, 0.0)
        most = _STEEPEST * target.half * abs(back[:, place]).sum()
        found = products.ratio(
            np.outer(left + slope * w, w),
            bottom=np.outer(w, w),
            most=most,
            least=-most,
            values=(slope * bottom, bottom),
        )
        if adversarial:
            moved = products.off * longest * np.linalg.norm(vectors[place] / held)
            low, high = np.clip([slope - moved, slope + moved], -most, most)
            found = slope, low, high
        yield name, found
    residuals = np.outer(left, left)
    around = products.numbers[-1] - products.means[-1] * products.ones
    value, low, high = products.ratio(
        residuals, bottom=np.outer(around, around), most=1.0
    )
    # Coefficients fit the noise of products, half of a cell's in variance, as well: by
    # about so much too little is left.
    noise = products.group.deviations[0]
    fitted = 0.5 * noise**2 * np.sum(1.0 / held)
    count = products.sums[0, 0]
    widest = 4.0 * target.half**2
    squares = products.ratio(
        residuals,
        bottom=products.every,
        most=widest,
        values=(float(left @ products.sums @ left + fitted * length**2), count),
    )
    if adversarial:
        least_spread, most_spread, _ = products.bounded_square(around, count)
        shares = least / max(most_spread, TINY), largest / max(least_spread, TINY)
        low, high = np.clip(shares, 0.0, 1.0)
        if unheld:
            largest += (
                0.5 * (noise * longest) ** 2 * np.sum(1.0 / (values - products.off))
            )
        ends = (
            least / (count + products.off),
            largest / max(count - products.off, TINY),
        )
        squares = squares[0], *np.minimum(ends, widest)
    yield "R²", (1.0 - value, 1.0 - high, 1.0 - low)
    yield "residual standard deviation", rooted(squares)


def _of_pairs(products: _Products) -> Iterator[Estimate]:
    """Yield means, standard deviations, covariances and correlations."""
    around = []
    for number, of_one in zip(products.group.block.row, products.numbers, strict=True):
        least, most = number.limits
        form = np.outer(products.ones, of_one)
        mean = products.ratio(form, bottom=products.every, most=most, least=least)
        yield f"mean of {number.name}", "value", mean
        # In halves of what lies between its limits, as all forms here.
        u = (of_one - mean[0] * products.ones) / number.half
        off = distance(products.group, mean, number.limits) / number.half
        value, low, high = _covariance(products, u, u)
        # Around another mean, which is as far off as its interval says, it is less.
        deviation = rooted((value, low - off * off, high))
        value, low, high = number.half * np.minimum(deviation, 1.0)
        yield f"standard deviation of {number.name}", "value", (value, low, high)
        around.append((number, u, off, deviation))
    for one, other in combinations(around, 2):
        number, u, off, deviation = one
        second, w, by, other_deviation = other
        names = f"{number.name} and {second.name}"
        value, low, high = _covariance(products, u, w)
        ends = low - off * by, high + off * by
        scale = number.half * second.half
        least, most = scale * np.clip(ends, -1.0, 1.0)
        yield f"covariance of {names}", "value", (scale * value, least, most)
        value, low, high = _correlation(products, u, w)
        if products.group.adversarial:
            roots = np.maximum(np.multiply(deviation[1:], other_deviation[1:]), TINY)
            corners = np.clip(np.divide.outer(ends, roots), -1.0, 1.0)
            low = float(corners.min())
            high = float(corners.max())
        yield f"correlation of {names}", "value", (value, low, high)


def _covariance(products: _Products, u: Floats, w: Floats) -> Interval:
    """Return two forms' covariance; of what bad owners may add beyond 1 as well."""
    most = _STEEPEST if products.group.adversarial else 1.0
    return products.ratio(np.outer(u, w), bottom=products.every, most=most, least=-most)


def _correlation(products: _Products, u: Floats, w: Floats) -> Interval:
    """Return two forms' correlation."""
    first, second = (max(float(v @ products.sums @ v), TINY) for v in (u, w))
    root = math.sqrt(first * second)
    # What moves that root, to first order.
    moves = np.outer(u, u) * second + np.outer(w, w) * first
    return products.ratio(
        np.outer(u, w),
        bottom=moves / (2.0 * root),
        most=1.0,
        least=-1.0,
        values=(float(u @ products.sums @ w), root),
    )
