"""A ratio of two sums of released numbers, and what of it the noise leaves open.

An interval holds the values that its own test doesn't reject (Fieller 1954).
"""

import math

import numpy as np

from precad.common import AnyNumbers, Block, Floats, frozen_kw_only_dataclass

TINY = 1e-9
"""Stands for a denominator that noise made zero or less."""
Interval = tuple[float, float, float]
"""Value, low and high."""
UNKNOWN: Interval = (math.nan, -math.inf, math.inf)
"""Where nothing says how far bad owners' vectors may move it."""
Estimate = tuple[str, str, Interval]
"""What it is of, the measure, and these."""


@frozen_kw_only_dataclass
class Group:
    """One group's released cells in records, then how many it has, then 1."""

    block: Block
    name: str
    numbers: Floats
    """``[k + 2]``."""
    deviations: Floats
    """Standard deviations of the noise in them."""
    first: Floats
    """The first group's released cells in records, ``[k]``."""
    z: float
    """How many deviations a test allows, on either side."""
    adversarial: bool
    """Whether the deviations stand for what bad owners may add, in place of noise."""

    def row(self, factors: dict[int, float]) -> Floats:
        """Return ``[k + 2]`` factors, 0 but at these places."""
        row = np.zeros(len(self.numbers))
        row[list(factors)] = list(factors.values())
        return row

    def of_cells(self, factors: AnyNumbers) -> Floats:
        """Return ``[k + 2]``: factors of the first cells, in their order, then 0."""
        row = np.zeros(len(self.numbers))
        row[: factors.size] = factors.ravel()
        return row


def rooted(squares: Interval, scale: float = 1.0) -> Interval:
    """Return the roots of squares, times a scale; 0 of what is below."""
    value, low, high = (scale * math.sqrt(max(0.0, square)) for square in squares)
    return value, low, high


def ratio(
    group: Group,
    *,
    top: Floats,
    bottom: Floats,
    least: float = 0.0,
    most: float = math.inf,
    values: tuple[float, float] | None = None,
) -> Interval:
    """Return a ratio of sums of numbers, and the ends of what its test accepts.

    ``top`` and ``bottom`` are factors of the numbers; the truth is in [least, most]. p
    is accepted where (a − p·b)² ≤ z²·Var(a − p·b), z being the group's. Of products of
    numbers, a and b are ``values``, and factors are what they move by. A value that has
    no ``most``, a count, is as released; others are moved into [least, most]. Of what
    bad owners may add, the ends are of values as they would be printed: a count may be
    below 0, and nothing is known of a ratio whose b may be so.
    """
    a, b = values or (float(each @ group.numbers) for each in (top, bottom))
    above, below = (each * group.z * group.deviations for each in (top, bottom))
    second = b * b - below @ below
    first = a * b - above @ below
    rest = a * a - above @ above
    if group.adversarial and most == math.inf:
        least = -math.inf
    hidden = group.adversarial and b <= np.linalg.norm(below)
    value = a / max(b, TINY)
    inside = min(max(value, least), most)
    accepted = [inside] + [
        p
        for p in (least, most)
        if abs(p) < math.inf
        and (hidden or (second * p - 2.0 * first) * p + rest <= 0.0)
    ]
    square = first * first - second * rest
    if square >= 0.0 and second:
        ends = (first + math.sqrt(square) * np.array([-1.0, 1.0])) / second
        accepted += [float(p) for p in ends if least <= p <= most]
    if most < math.inf:
        value = inside
    return value, min(accepted), max(accepted)


def distance(group: Group, mean: Interval, limits: tuple[float, float]) -> float:
    """Return how far from a mean, which is kept in its limits, the true one may be.

    In the mean's own unit, as its limits.
    Of what bad owners may add: as far as that may have moved it. Nothing says how far
    beyond its limits noise would have put it.
    """
    value, low, high = mean
    if group.adversarial and (low in limits or high in limits):
        return math.inf
    return max(value - low, high - value)


def moments(group: Group) -> tuple[Interval, float, Floats, Floats]:
    """Return a number's mean, its distance, and factors of n and of squares around it.

    Its cells begin with sums of x and of 1 − x². n is how many records have the number.
    Squares around a mean are n − Σ(1 − x²) − n·m²: along the tangent in m that is
    linear, and above by n·(m − m̂)².
    """
    present = group.row({-2: 1.0, len(group.block.cells) - 1: -1.0})
    mean = ratio(group, top=group.row({0: 1.0}), bottom=present, least=-1.0, most=1.0)
    m, *_ = mean
    around = (1.0 + m * m) * present - group.row({0: 2.0 * m, 1: 1.0})
    return mean, distance(group, mean, (-1.0, 1.0)), present, around
