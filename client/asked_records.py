"""An owner's records as what each adds to a question's sum, in whole numbers.

They are read once, before enrolment. Where the task has a unit, such as a patient, each
answers by its first record in the table, and no other one counts. A record's vector
depends on that record, its place in the table, and the task. In a query's block it has
all of u in one cell, or of a mean's x and 1 − x² their u-folds: rounded up or down by
the record's place, so that many records of one value don't all err to one side, as the
nearest would. Where it adds a column of prefix sums' factor, records are counted by
cells first.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from precad.client.answers_of_rows import constant_of
from precad.client.records import (
    ColumnCells,
    ColumnNotes,
    Columns,
    ColumnTable,
    OwnerData,
    identifiers_of,
    inputs_of,
    require_known_units,
    table_of,
)
from precad.common import (
    BINARY,
    Block,
    Booleans,
    Column,
    Floats,
    Integers,
    Misconfiguration,
    RingVector,
    Task,
    frozen_kw_only_dataclass,
)

if TYPE_CHECKING:
    from torch import nn

    from precad.client.participation import TrainedModel

_GOLDEN = 0x9E3779B1
"""2^32 by the golden ratio: its multiples mod 2^32 are spread evenly, however many."""
_TOGETHER = 2**17
"""Numbers of rows that are multiplied at once: so many stay in a core's cache."""
_WITHIN = 1.0 - 2.0**-30
"""Of a row's length: float64 may round it up by far less."""
_DITHER_BITS = 20
"""Bits of a place's offset: so few that u + offset is exact in float64."""


@frozen_kw_only_dataclass
class AskedRecords:
    """What records add to the sum: of each, so much in some places of the vector.

    ``places`` and ``values`` are ``[n, k] int64``; ``blocks`` those of the task. In a
    block's runs a 1 stands for the column that begins there.
    """

    places: Integers
    values: Integers
    rows: tuple["AskedRows", ...]
    """What they add as rows with their products."""
    blocks: tuple[Block, ...]
    notes: list[ColumnNotes]
    """On each listed column, and each level that a query asks for and no record has;
    for the owner's eyes alone."""

    def __len__(self) -> int:
        """Return how many records there are."""
        return len(self.places)

    @property
    def unit_count(self) -> int:
        """Return |D_i|: each record is a unit."""
        return len(self)

    def of_units(self, units: Integers) -> Self:
        """Return some of the records, ``[m]`` of their numbers."""
        return replace(
            self,
            places=self.places[units],
            values=self.values[units],
            rows=tuple(rows.of_units(units) for rows in self.rows),
        )

    def draw(
        self, sampled: Integers, _most: int | None, _randomness: object
    ) -> tuple[Integers, None]:
        """Return the sampled records as they are: each is a unit."""
        return sampled, None

    def total(self) -> RingVector:
        """Return the sum of all records' vectors, X, ``[d] int64``."""
        total = np.zeros(sum(block.parameter.size for block in self.blocks), np.int64)
        np.add.at(total, self.places, self.values)
        for rows in self.rows:
            rows.add_to(total)
        for block in self.blocks:
            first = block.start
            for length in block.runs * len(block.groups):
                run = total[first : first + length]
                run[:] = np.convolve(run, block.column[:length])[:length]
                first += length
        return total


@frozen_kw_only_dataclass
class AskedRows:
    """Records' rows of numbers in one block, whose products are made as they are summed.

    A head on features has a million of them a record.
    """

    block: Block
    numbers: Floats
    """``[n, m]``, cut; 0 where a record adds nothing."""
    starts: Integers
    """Where its group's cells begin, ``[n]``."""
    levels: Integers
    """At which level of a head's target its own numbers go, ``[n]``; else 0."""
    offsets: Floats
    """As of ``_offsets``, ``[n, 1]``."""

    def of_units(self, units: Integers) -> Self:
        """Return some of the records, ``[m]`` of their numbers."""
        return replace(
            self,
            numbers=self.numbers[units],
            starts=self.starts[units],
            levels=self.levels[units],
            offsets=self.offsets[units],
        )

    def add_to(self, total: RingVector) -> None:
        """Add all rows and their products to the sum, ``[d] int64``."""
        count, size = self.numbers.shape
        unit = self.block.unit
        products = len(self.block.cells) - 1 - size * (size + 1) // 2
        for part in np.array_split(np.arange(count), count * size // _TOGETHER + 1):
            rows = self.numbers[part]
            offsets = self.offsets[part]
            starts = self.starts[part]
            own = np.floor(rows * unit + offsets).astype(np.int64)
            places = starts + self.levels[part] * size
            np.add.at(total, places[:, np.newaxis] + np.arange(size), own)
            groups = [(start, starts == start) for start in np.unique(starts)]
            begin = products
            for place in range(size):
                # With each number from itself on; by others √2 times.
                of_one = rows[:, place, np.newaxis] * rows[:, place:]
                of_one[:, 1:] *= math.sqrt(2.0)
                whole = np.floor(of_one * unit + offsets)
                end = begin + size - place
                for start, is_here in groups:
                    # Whole numbers below 2^53.
                    sums = whole[is_here].sum(axis=0).astype(np.int64)
                    total[start + begin : start + end] += sums
                begin = end


def asked_records(
    data: OwnerData,
    task: Task,
    columns: Columns | None = None,
    *,
    evaluated: "TrainedModel | None" = None,
    module: "nn.Module | None" = None,
) -> AskedRecords:
    """Return an owner's records as the task with questions asks for them.

    ``data`` is a .csv or .parquet file, a frame, or a mapping from names to columns;
    ``columns`` has its columns' own names; ``evaluated`` is the model that is asked
    about, and ``module`` what it is the weights of, unless its task says it.

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
    models = evaluated.task.data if evaluated else None
    own.require_only_names(*filter(None, (recipe, models)))
    notes = []
    # Before anything is rounded: by a unit's place, and not by that of its record, which
    # others' further records would move.
    first = _first_records(table, task, own)

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
            values, missing = cells.values()
            return values[first], missing[first]
        codes = cells.codes(len(levels), missing=len(levels) + 1)
        # A single level is asked for: that others are there is no news.
        if len(levels) > 1 or codes.all():
            notes.append(cells.notes)
        codes = codes[first]
        return codes, codes > len(levels)

    scores = np.zeros((0, 0))
    evaluations = [block for block in task.blocks if block.query.kind == "evaluation"]
    if evaluations:
        from precad.client.model_scores import scores_of  # noqa: PLC0415 -- torch

        scores = scores_of(
            table, evaluated, asked_by=evaluations, module=module, own=own
        )[first]
    count = len(first)
    inputs: Floats = np.zeros((count, 0))
    if any(block.query.kind == "head" for block in task.blocks):
        inputs = inputs_of(table, recipe, own, notes)[first].astype(np.float64)
    parts = []
    rows = []
    for block in task.blocks:
        query = block.query
        counts = np.ones(count, bool)
        for name, level in (query.where or {}).items():
            counts &= read(name, (level,))[0] == 0
        group = np.zeros(count, np.int64)
        if query.by is not None:
            group = read(query.by, block.groups)[0]
            counts &= group < len(block.groups)
        start = block.start + np.where(counts, group, 0) * len(block.cells)
        if block.row:
            numbers, levels, silent = _row(block, read, inputs)
            rows.append(
                AskedRows(
                    block=block,
                    numbers=numbers * (counts & ~silent)[:, np.newaxis],
                    starts=start,
                    levels=levels,
                    offsets=_offsets(count),
                )
            )
            inside = np.full((1, 1), len(block.cells) - 1)
            values = block.unit * silent[:, np.newaxis]
        else:
            inside, values = _in_block(block, read, scores)
        places = start[:, np.newaxis] + inside
        parts.append((places, values * counts[:, np.newaxis]))
    return AskedRecords(
        places=np.concatenate([places for places, _ in parts], axis=1),
        values=np.concatenate([values for _, values in parts], axis=1),
        rows=tuple(rows),
        blocks=task.blocks,
        notes=notes,
    )


def _first_records(table: ColumnTable, task: Task, columns: Columns) -> Integers:
    """Return the place of each unit's first record, ``[units]``, by which it answers.

    Raises Misconfiguration: the task has a unit and nothing says whose records are
    which, or the other way round.
    """
    require_known_units(task, columns.unit, known=columns.unit is not None)
    if columns.unit is None:
        return np.arange(len(table))
    assert task.questions is not None
    section = task.questions.recipe
    identifiers = identifiers_of(
        table, columns.unit, section=section, decimal=columns.decimal
    )
    _, first = np.unique(identifiers, return_index=True)
    return np.sort(first)


_Cells = tuple[NDArray[Any], Booleans]
"""Codes, or numbers, of a column's cells, and where there is none; both ``[n]``."""
_Reader = Callable[[str, tuple[str, ...]], _Cells]


def _in_block(block: Block, read: _Reader, scores: Floats) -> tuple[Integers, Integers]:
    """Return where in a group's cells each record adds what, both ``[n or 1, k]``.

    ``scores`` are those of ``scores_of``; none where no query evaluates a model.
    """
    query = block.query
    name = query.column or ""
    # Columns come as the records are summed.
    unit = np.full((1, 1), 1 if block.runs else block.unit)
    match query.kind:
        case "count" | "shares" | "cross-table":
            codes = np.zeros(1, np.int64)
            for column, levels in block.levels.items():
                codes = codes * (len(levels) + 2) + read(column, levels)[0]
            return codes[:, np.newaxis], unit
        case "histogram" | "quantiles":
            values, missing = read(name, ())
            bins = np.searchsorted(
                query.edges or query.bounds[1:-1], values, side="right"
            )
            bins[missing] = len(block.cells) - 1
            return bins[:, np.newaxis], unit
        case "survival":
            times, missing = read(name, ())
            # 0 where the event ended it, 1 where not, 2 where that isn't known.
            codes = np.zeros(1, np.int64)
            for column, level in (query.event or {}).items():
                codes = np.maximum(codes, read(column, (level,))[0])
            bins = np.searchsorted(query.bounds[1:], times, side="right")
            events = block.runs[0]
            bins[(codes == 1) | (bins == events)] += events
            bins[missing | (times < 0.0) | (codes > 1)] = len(block.cells) - 1
            return bins[:, np.newaxis], unit
        case "mean":
            values, missing = read(name, ())
            x = _between(query.limited, values, missing)
            return _rounded(block, np.stack([x, 1.0 - x * x], axis=1), missing)
        case _:
            return _of_model(block, read, scores)


def _of_model(block: Block, read: _Reader, scores: Floats) -> tuple[Integers, Integers]:
    """Return where an evaluation's records add what, both ``[n or 1, k]``.

    ``scores`` are those of ``scores_of``.
    """
    query = block.query
    silent = np.isnan(scores).any(axis=1)
    if query.evaluates_number:
        values, missing = read(query.column or "", ())
        missing = missing | silent
        x = _between(query.limited, values, missing)
        lower, upper = query.limited
        half = (upper - lower) / 2.0
        error = np.where(missing, 0.0, scores[:, 0] - values) / half
        wanted = np.stack([x, 1.0 - x * x, np.clip(error, -1.0, 1.0) ** 2], axis=1)
        return _rounded(block, wanted, missing)
    ((column, levels),) = block.levels.items()
    codes, _ = read(column, levels)
    if len(levels) == BINARY:
        bins = len(query.score_edges) + 1
        chances = np.nan_to_num(scores[:, 1])
        cells = np.searchsorted(query.score_edges, chances, side="right")
    else:
        bins = len(levels)
        cells = np.nan_to_num(scores).argmax(axis=1)
    places = codes * bins + cells
    places[silent | (codes >= len(levels))] = len(block.cells) - 1
    return places[:, np.newaxis], np.full((1, 1), block.unit)


def _row(
    block: Block, read: _Reader, inputs: Floats
) -> tuple[Floats, Integers, Booleans]:
    """Return rows, cut, ``[n, m]``; at which level each is; and where there is none.

    ``inputs`` are a head's, ``[n, m − 1]``; of others ``[n, 0]``.
    """
    count = len(inputs)
    levels = np.zeros(count, np.int64)
    silent = np.zeros(count, bool)
    numbers: list[Floats] = []
    if block.query.kind == "head":
        ((column, listed),) = block.levels.items()
        levels, _ = read(column, listed)
        silent = levels >= len(listed)
        levels = np.where(silent, 0, levels)
        numbers = [np.full(count, constant_of(block)), *inputs.T]
    else:
        for number in block.row:
            values, missing = read(number.column, number.levels)
            if number.levels:
                # Of a level that isn't listed nothing is known.
                missing = values >= len(number.levels)
                numbers.append(1.0 * (values == number.level))
            else:
                numbers.append(_between(number.limits, values, missing))
            silent = silent | missing
    rows = np.stack(numbers, axis=1)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows *= _WITHIN * block.longest / np.maximum(lengths, block.length)
    return rows, levels, silent


def _between(
    limits: tuple[float, float], values: NDArray[Any], missing: Booleans
) -> Floats:
    """Return x of each value, ``[n]``: −1 at the lower limit, 1 at the upper one."""
    lower, upper = limits
    inside = np.clip(values, lower, upper)
    inside[missing] = lower
    share = (inside - lower) / (upper - lower)
    x: Floats = np.clip(2.0 * share - 1.0, -1.0, 1.0)
    return x


def _rounded(
    block: Block, wanted: Floats, missing: Booleans
) -> tuple[Integers, Integers]:
    """Return shares of u, ``[n, k]``, in the first k cells, in whole units.

    Without a value all of u is in the cell of missing ones.
    """
    count, cells = wanted.shape
    rounded = np.floor(wanted * block.unit + _offsets(count)).astype(np.int64)
    places = np.tile(np.arange(cells), (count, 1))
    rounded[missing] = 0
    rounded[missing, 0] = block.unit
    places[missing, 0] = len(block.cells) - 1
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
