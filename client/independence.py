"""A cross-table's χ²: are both columns independent in the records' population?

The noise of the cells isn't sampling: the usual χ² of a noisy table rejects far too
often. So the statistic's law under independence is drawn: tables of the estimated
margins, sampled, and noised as the release was (Gaboardi, Lim, Rogers and Vadhan 2016).
The draws are the same for everybody.
"""

import numpy as np

from precad.common import Floats

_DRAWS = 1999
"""Tables drawn; no p-value is below 1 over one more."""
_LEAST = 1.0
"""Records: cells that expect fewer don't blow the statistic up."""


def independence(table: Floats, *, noise: float) -> float:
    """Return how often independence gives a χ² as large as this table's.

    Args:
        table: Released counts of listed levels, ``[rows, columns]``.
        noise: Standard deviation of each.
    """
    expected = _expected(table)
    chances = expected.ravel() / np.sum(expected)
    generator = np.random.default_rng(0)
    records = round(max(np.sum(table), _LEAST))
    cells = generator.multinomial(records, chances, _DRAWS)
    noisy = generator.normal(cells, noise).reshape(_DRAWS, *table.shape)
    larger = np.count_nonzero(_statistic(noisy) >= _statistic(table))
    return (1.0 + larger) / (1.0 + _DRAWS)


def _statistic(tables: Floats) -> Floats:
    """Return χ² of each table, ``[…, rows, columns]``, against its own margins."""
    expected = _expected(tables)
    return np.asarray(np.sum((tables - expected) ** 2 / expected, axis=(-2, -1)))


def _expected(tables: Floats) -> Floats:
    """Return what independence expects of each cell, by the margins."""
    rows = np.sum(tables, axis=-1, keepdims=True)
    columns = np.sum(tables, axis=-2, keepdims=True)
    total = np.maximum(np.sum(columns, axis=-1, keepdims=True), _LEAST)
    return np.asarray(np.maximum(rows * columns / total, _LEAST))
