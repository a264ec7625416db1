"""An owner's records as what each adds to a question's sum, in whole numbers.

They are read once, before enrolment. A record's vector depends on that record, its
place in the table, and the task. In a query's block it has all of u in one cell, or of
a mean's x and 1 − x² their u-folds: rounded up or down by the record's place, so that
many records of one value don't all err to one side, as the nearest would.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from precad.client.records.columns import ColumnCells, Columns
from precad.client.records.read_records import OwnerData, table_of
from precad.common import (
    Block,
    Booleans,
    Column,
    Floats,
    Integers,
    Misconfiguration,
    RingVector,
    Task,
)

_GOLDEN = 0x9E3779B1
"""2^32 by the golden ratio: its multiples mod 2^32 are spread evenly, however many."""
_DITHER_BITS = 20
"""Bits of a place's offset: so few that u + offset is exact in float64."""


@dataclass(frozen=True, slots=True)
class AskedRecords:
    """What records add to the sum: of each, so much in some places of the vector.

    ``places`` and ``values`` are ``[n, k] int64``; ``dimension`` is the vector's d.
    """

    places: Integers
    values: Integers
    dimension: int

    def __len__(self) -> int:
        """Return how many records there are."""
        return len(self.places)

    @property
    def unit_count(self) -> int:
        """Return |D_i|: each record is a unit."""
        return len(self)

    def of_units(self, units: Integers) -> Self:
        """Return some of the records, ``[m]`` of their numbers."""
        return replace(self, places=self.places[units], values=self.values[units])

    def draw(
        self, sampled: Integers, _most: int | None, _randomness: object
    ) -> tuple[Integers, None]:
        """Return the sampled records as they are: each is a unit."""
        return sampled, None

    def total(self) -> RingVector:
        """Return the sum of all records' vectors, X, ``[d] int64``."""
        total = np.zeros(self.dimension, np.int64)
        np.add.at(total, self.places, self.values)
        return total


def asked_records(
    data: OwnerData,
    task: Task,
    columns: Columns | None = None,
) -> AskedRecords:
    """Return an owner's records as the task with questions asks for them.

    ``data`` is a .csv or .parquet file, a frame, or a mapping from names to columns;
    ``columns`` has its columns' own names.

    Raises Misconfiguration: there is no table, a column isn't there, or a cell can't be
    used.
    """
    questions = task.questions
    assert questions is not None
    own = columns or Columns()
    table = table_of(data, own)
    if table is None:
        raise Misconfiguration(
            "data", type(data).__name__, "questions are asked of tables: give a table"
        )
    recipe = questions.recipe
    own.require_only_names(recipe)

    @cache
    def read(name: str, levels: tuple[str, ...]) -> _Cells:
        """Read one column: codes of ``levels``, or numbers without any."""
        column = Column(
            name=name,
            kind="categorical" if levels else "numeric",
            levels=levels,
        )
        cells = ColumnCells(table, column, recipe, own)
        if not levels:
            return cells.values()
        codes = cells.codes(len(levels), missing=len(levels) + 1)
        return codes, codes > len(levels)

    count = len(table)
    parts = []
    for block in task.blocks:
        query = block.query
        counts = np.ones(count, bool)
        for name, level in (query.where or {}).items():
            counts &= read(name, (level,))[0] == 0
        group = np.zeros(count, np.int64)
        if query.by is not None:
            group = read(query.by, block.groups)[0]
            counts &= group < len(block.groups)
        inside, values = _in_block(block, read)
        start = block.start + np.where(counts, group, 0) * len(block.cells)
        places = start[:, np.newaxis] + inside
        parts.append((places, values * counts[:, np.newaxis]))
    return AskedRecords(
        np.concatenate([places for places, _ in parts], axis=1),
        np.concatenate([values for _, values in parts], axis=1),
        task.dimension,
    )


_Cells = tuple[NDArray[Any], Booleans]
"""Codes, or numbers, of a column's cells, and where there is none; both ``[n]``."""
_Reader = Callable[[str, tuple[str, ...]], _Cells]


def _in_block(block: Block, read: _Reader) -> tuple[Integers, Integers]:
    """Return where in a group's cells each record adds what, both ``[n or 1, k]``."""
    query = block.query
    name = query.column or ""
    unit = np.full((1, 1), block.unit)
    match query.kind:
        case "count":
            return np.zeros((1, 1), np.int64), unit
        case "shares":
            codes, _ = read(name, block.cells[:-2])
            return codes[:, np.newaxis], unit
        case "histogram":
            values, missing = read(name, ())
            bins = np.searchsorted(query.edges, values, side="right")
            bins[missing] = len(block.cells) - 1
            return bins[:, np.newaxis], unit
        case "mean":
            values, missing = read(name, ())
            lower = query.lower or 0.0
            inside = np.clip(values, lower, query.upper)
            inside[missing] = lower
            share = (inside - lower) / ((query.upper or 0.0) - lower)
            x = np.clip(2.0 * share - 1.0, -1.0, 1.0)
            wanted = np.stack([x, 1.0 - x * x], axis=1) * block.unit
            rounded = np.floor(wanted + _offsets(len(x))).astype(np.int64)
            places = np.tile(np.arange(2), (len(x), 1))
            # Without a value all of u is in the cell of missing ones.
            rounded[missing] = (block.unit, 0)
            places[missing] = (len(block.cells) - 1, 1)
            return places, rounded


def _offsets(count: int) -> Floats:
    """Return what is added to each record's numbers before they are rounded down.

    ``[n, 1]``, from 0 to below 1, by the records' places alone.
    """
    places = np.arange(1, count + 1, dtype=np.uint64)
    spread = (places * np.uint64(_GOLDEN)) & np.uint64(2**32 - 1)
    kept = (spread >> np.uint64(32 - _DITHER_BITS)).astype(np.float64)
    return np.asarray(kept * 2.0**-_DITHER_BITS)[:, np.newaxis]


def require_unset(**given: object) -> None:
    """Refuse what an owner that answers a question has no use for.

    Raises Misconfiguration: names the first of ``given`` that isn't None.
    """
    for name, value in given.items():
        if value is not None:
            raise Misconfiguration(
                name, type(value).__name__, "leave it out: nothing is trained"
            )
