"""A cross-table's χ²: are rows and columns independent in the population?

The noise of the cells isn't sampling: the usual χ² of a noisy table rejects far too
often. So the statistic's law under independence is drawn: tables of the estimated
margins, sampled, and noised as the release was (Gaboardi, Lim, Rogers and Vadhan 2016).
"""

import numpy as np

from research.questions.block import Floats
from research.questions.scores import counts_of

LEAST_EXPECTED = 1.0
"""Records: cells that expect fewer don't blow the statistic up."""


def statistic(tables: Floats, records: int) -> Floats:
    """Return χ² of each table against its own margins, ``[draws]``.

    Args:
        tables: ``[draws, rows, columns]``, with noise.
        records: How many records there are.
    """
    expected = np.maximum(_expected(tables, records), LEAST_EXPECTED)
    found: Floats = ((tables - expected) ** 2 / expected).sum((1, 2))
    return found


def p_value(
    table: Floats,
    *,
    noise: float,
    records: int,
    draws: int,
    generator: np.random.Generator,
) -> float:
    """Return how often independence gives a χ² as large as this table's.

    Args:
        table: Released, ``[rows, columns]``, whose total is the public ``records``.
        noise: Standard deviation of a cell before the total was used.
        records: How many records there are.
        draws: Drawn tables; the result is at least 1 over one more.
        generator: Of them.
    """
    chances = _expected(table[None], records)[0] / records
    chances = np.maximum(chances, 0)
    cells = generator.multinomial(records, (chances / chances.sum()).ravel(), draws)
    drawn = cells + generator.normal(0.0, noise, cells.shape)
    drawn -= (drawn.sum(1, keepdims=True) - records) / cells.shape[1]
    tables = drawn.reshape(draws, *table.shape)
    larger = statistic(tables, records) >= statistic(table[None], records)
    return float((1 + larger.sum()) / (1 + draws))


def _expected(tables: Floats, records: int) -> Floats:
    """Return what independence expects of each cell, by margins of at least 0."""
    rows = counts_of(tables.sum(2), records)
    columns = counts_of(tables.sum(1), records)
    expected: Floats = rows[:, :, None] * columns[:, None, :] / records
    return expected
