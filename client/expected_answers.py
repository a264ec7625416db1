"""How far noise will move each answer, before anybody is asked.

Records are supposed: they are spread evenly over what is listed and between limits;
half of survival's are left at its end; a model guesses, or explains five sixths of a
number. An error is as far as an answer's own interval reaches to one side.
"""

import numpy as np

from precad.client.answers import estimates_of, rank_error
from precad.client.asked_records import AskedRecords
from precad.common import MISSING, Block, Floats, Task
from precad.common.fixed_point import decode

_SQUARE = 1 / 3
"""Mean square of what lies evenly between −1 and 1."""
_MISTAKE = 1 / 18
"""Mean square of a model's errors there."""
_CUT = 3 / 4
"""Of rows that are cut to a length, about what their mean square is by its square."""
_LEAST = 1e-6
_LEFT_OUT = ("covariance", "median", "p-value", "hazard")
"""First words of answers whose errors say little beforehand."""
_TOGETHER = ("survival", "recall", "correlation", "rank")
"""First words of answers that have one error, the largest."""


def expected_errors(task: Task, records: int) -> dict[tuple[str, str], float]:
    """Return how far each answer's 95 % interval reaches, by query and what it is of.

    It is the largest of groups, of counts, shares and correlations. Quantiles have
    their rank's, in records. The first of a query is of what it is asked for.
    ``records`` is how many all owners have.
    """
    supposed = np.zeros(task.dimension, np.int64)
    for block in task.blocks:
        counted = records // len(block.groups) * (1 if block.runs else block.unit)
        own = np.tile(_shares(block) * counted, len(block.groups))
        supposed[block.start :][: len(own)] = own.round()
    total = AskedRecords(
        places=np.arange(len(supposed))[np.newaxis],
        values=supposed[np.newaxis],
        rows=(),
        blocks=task.blocks,
        notes=[],
    ).total()
    released = decode(total, task.fractional_bits)
    errors = dict[tuple[str, str], float]()
    for block, _, (of, measure, (value, low, high)) in estimates_of(
        task, released, records
    ):
        error = max(high - value, value - low)
        # Counts and shares are of levels, which may have any name.
        first = of.split()[0] if measure == "value" or block.runs else measure
        # Noise moves an R² of 0 no further down.
        if of == MISSING or first in _LEFT_OUT or (of == "R²" and error < _LEAST):
            continue
        if first == "quantile":
            first = "rank"
            error = rank_error(task, block)
        name = of if measure == "value" and first not in _TOGETHER else first
        key = block.query.name, name
        errors[key] = max(error, errors.get(key, 0.0))
    return errors


def _shares(block: Block) -> Floats:
    """Return what each cell of a group has, by the group's records."""
    cells = np.zeros(len(block.cells))
    last = max(len(cells) - 1, 1)
    if block.row:
        size = len(block.row)
        square = min(_SQUARE, _CUT * block.length**2 / size)
        first, second = np.triu_indices(size)
        cells[last - len(first) : last] = square * (first == second)
    elif block.query.has_numbers:
        cells[1] = 1.0 - _SQUARE
        cells[2:last] = _MISTAKE
    elif block.query.kind == "survival":
        bins = block.runs[0]
        cells[:bins] = 0.5 / bins
        cells[2 * bins] = 0.5
    else:
        cells[:last] = 1.0 / last
    return cells
