"""Prefix sums of a released block's runs, and how its noise is in them."""

from functools import cache

import numpy as np
from scipy.linalg import block_diag, inv, toeplitz
from scipy.optimize import isotonic_regression

from precad.common import Floats


@cache
def prefix_rows(column: tuple[int, ...], runs: tuple[int, ...]) -> Floats:
    """Return what makes prefix sums of a group's cells, in records: ``[k, k]``.

    Of each run by itself that is A·C⁻¹ of the rounded C over u, whose first column is
    ``column`` in units. A prefix sum's noise is a lone cell's times its row's norm.
    """
    factor = toeplitz(column, np.zeros(len(column))) / column[0]
    rows = np.cumsum(inv(factor), axis=0)
    whole: Floats = block_diag(*(rows[:length, :length] for length in runs))
    return whole


def rising(prefixes: Floats) -> Floats:
    """Return the nearest to a run's prefix sums, ``[k]``, that rise from 0 at least.

    Noise alone makes a prefix sum fall.
    """
    return np.asarray(np.maximum(isotonic_regression(prefixes).x, 0.0))
