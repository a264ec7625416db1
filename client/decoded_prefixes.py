"""Prefix sums of a released block's runs, and how its noise is in them."""

from functools import cache

import numpy as np

from precad.common.fixed_point import Floats


@cache
def prefix_rows(column: tuple[int, ...], runs: tuple[int, ...]) -> Floats:
    """Return what makes prefix sums of a group's cells, in records: ``[k, k]``.

    Of each run by itself that is A·C⁻¹ of the rounded C over u, which commute; C's
    first column is ``column`` in units. A prefix sum's noise is a lone cell's times its
    row's norm.
    """
    places = np.arange(len(column))
    lag = np.subtract.outer(places, places)
    sums = np.where(lag >= 0, 1.0, 0.0)
    factor = sums * np.array(column)[lag] / column[0]
    longest = np.linalg.solve(factor, sums)
    rows = np.zeros((sum(runs), sum(runs)))
    first = 0
    for length in runs:
        inside = slice(first, first + length)
        rows[inside, inside] = longest[:length, :length]
        first += length
    return rows


def rising(prefixes: Floats) -> Floats:
    """Return a run's prefix sums, ``[k]``, made to be at least 0 and to rise.

    Halfway between two envelopes: noise alone makes a prefix sum fall.
    """
    held = np.maximum(prefixes, 0.0)
    above = np.maximum.accumulate(held)
    below = np.minimum.accumulate(held[::-1])[::-1]
    middle: Floats = (above + below) / 2.0
    return middle
