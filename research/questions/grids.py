"""Grids: where a numeric column's bins end; outer bins are open, and missing is last."""

import numpy as np

from research.questions.block import Floats, Integers


def even_edges(low: float, high: float, bins: int) -> Floats:
    """Return the inner edges of equal bins on [low, high], ``[bins − 1]``.

    What is below or above counts to the outer bins, as if it were clipped.
    """
    edges: Floats = np.linspace(low, high, bins + 1)[1:-1]
    return edges


def logarithmic_edges(
    least: float = 1e-6, most: float = 1e9, a_sign: int = 255
) -> Floats:
    """Return inner edges of both signs and 0, ``[2·a_sign + 1]``: for unknown scales.

    Neighbours differ by the same factor, 15 % by default.
    """
    edges = np.geomspace(least, most, a_sign)
    both: Floats = np.concatenate([-edges[::-1], [0.0], edges])
    return both


def codes_of_numbers(values: Floats, edges: Floats) -> Integers:
    """Return each value's bin, ``[n] int64``; what isn't a number is the last one.

    A bin holds values from its lower edge up to below its upper edge. Infinite values
    are in the outer bins.
    """
    missing = np.isnan(values)
    codes = np.searchsorted(edges, np.where(missing, 0.0, values), side="right")
    return np.where(missing, edges.size + 1, codes).astype(np.int64)
