"""A table's columns become numbers by the task's recipe, the same one at every owner.

The owner says only which of its columns is which. Nothing here is computed from the
records: neither a mean nor a list of levels. What a record becomes depends on that
record and on public constants alone, so reading the records costs no privacy.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from precad.client.records import (
    Cell,
    ColumnTable,
    exact,
    float_type,
    level_of,
    name_of,
    number_of,
    plain_float,
)
from precad.common import (
    Booleans,
    Column,
    DataSection,
    Floats,
    Floats32,
    Integers,
    Misconfiguration,
    level_text,
    refusal,
)

_LARGEST = float(np.finfo(np.float32).max)
"""Largest number that an input may be: the model takes float32."""
_SHOWN = 8
"""Most names or levels that an error lists."""
_EXAMPLES = 3
"""Most levels outside the task's list that an owner is shown."""
_MEND = "mend it or leave the record out"
"""Advice on a cell that can't be used."""
_WHOLE = re.compile(r"-?[0-9]{1,300}")
"""Levels that are whole numbers."""
_FAR = 30.0
"""Distance from the centre, in scales. Nothing that was measured lies so far out; a
sentinel or the number of a date does."""
_OFF = 5.0
"""So many scales from the centre a median lies where the unit is another."""
_NARROW = 0.05
"""Within less than so many scales 90 % of the values lie where the unit is another."""
_LEAST = 8
"""Values whose median or width says that."""


@dataclass(slots=True, kw_only=True)
class ColumnNotes:
    """Notes on a column's cells that count as something else than what stands in them.

    They are computed from records, so they are for their owner's eyes alone.
    """

    column: Column
    """The column in the task's recipe."""
    records: int = 0
    """How many cells there are."""
    filled: int = 0
    """Cells without a value, which count as the column's fill."""
    unlisted: Counter[str] = field(default_factory=Counter)
    """Cells with each level that the task doesn't list; all of them share one input."""
    farthest: float = 0.0
    """Numeric columns: the value farthest from the centre, before scaling."""
    median: float = math.nan
    """Numeric columns of 8 values or more: their median, before scaling."""
    spread: float = 0.0
    """Numeric columns of 8 values or more: the width of their middle 90 %."""

    @property
    def odd(self) -> list[str]:
        """Return which numbers may mean something else than the task thinks, in words.

        999 or a date lies far out; in another unit half of the column does, or it
        hardly varies. Nothing is odd in a column without a centre or scale of its own.
        """
        column = self.column
        if (column.centre, column.scale) == (0.0, 1.0):
            return []
        odd = [
            f"{which}{value:g} lies {scales:g} scales or more from the centre"
            f" {column.centre:g}"
            for which, value, scales in (
                ("", self.farthest, _FAR),
                ("perhaps another unit: the median ", self.median, _OFF),
            )
            if abs(value - column.centre) > scales * column.scale
        ]
        if 0.0 < self.spread < _NARROW * column.scale:
            odd.append(
                f"perhaps another unit: 90 % lie within {self.spread:g} of one another,"
                f" beside a scale of {column.scale:g}"
            )
        return odd

    @property
    def share(self) -> float:
        """Return the share of the records whose cell is filled or unlisted, 0 to 1."""
        return (self.filled + self.unlisted.total()) / max(1, self.records)

    def sentence(self) -> str:
        """Return what the owner is told; empty where every cell counts as it stands."""
        remarks = []
        if self.filled:
            remarks.append(f"{self.filled:,} of {self.records:,} cells are missing")
        if self.unlisted:
            frequent = self.unlisted.most_common(_EXAMPLES)
            examples = ", ".join(repr(level) for level, _ in frequent)
            remarks.append(
                f"{self.unlisted.total():,} of {self.records:,} have none of the task's"
                f" levels ({_listed(self.column.levels)}) but {examples}"
            )
        remarks += self.odd
        if not remarks:
            return ""
        return f"column {self.column.name}: {'; '.join(remarks)}"


_RECIPE = (
    "the task's [data] names the columns and what their values become; leave it out,"
    " and give the columns' own names in rename where they differ"
)
"""Advice to an owner that lists columns although the task's recipe does."""


class Columns(BaseModel, frozen=True, extra="forbid"):
    """An owner's columns; the section ``[columns]`` of its settings file.

    Where the task has a ``[data]`` section, that one decides which columns there are
    and what their values become: only names and the file's form are the owner's.

    Raises Misconfiguration: an unknown key, or a value of another type.
    """

    inputs: Annotated[tuple[str, ...], Field(strict=False, max_length=10_000)] = ()
    """Without `[data]`: the inputs' columns in the model's order; numbers, none
    missing."""
    target: str | None = None
    """Without `[data]`: the column that is learned; labels as whole numbers, or
    numbers."""
    rename: dict[str, str] = {}
    """With `[data]`: names of columns in this table, by their names in the task."""
    unit: str | None = None
    """Where the task has `privacy.unit`: this table's column with its identifier."""
    separator: Annotated[str, Field(min_length=1, max_length=1)] = ","
    """In CSV: the sign between cells."""
    decimal: Annotated[str, Field(min_length=1, max_length=1)] = "."
    """In CSV: the sign before the fraction of a number."""

    def __init__(self, **values: object) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise refusal(
                error, {"extra_forbidden": "unknown key; remove it"}
            ) from None

    def section(self, recipe: DataSection | None) -> DataSection:
        """Return how these columns become numbers.

        That is ``recipe``, the task's ``[data]``, if there is one; else ``inputs`` and
        ``target`` are numbers as they stand. Raises Misconfiguration: neither or both
        say which columns there are, or as ``require_only_names``.
        """
        if recipe is not None:
            self.require_only_names(recipe)
            return recipe
        if self.rename:
            raise Misconfiguration(
                "columns.rename",
                dict(self.rename),
                "the task has no [data] whose names could differ; give inputs and"
                " target",
            )
        if not self.inputs or self.target is None:
            raise Misconfiguration(
                f"columns.{'target' if self.inputs else 'inputs'}",
                None,
                "a table needs to say what is what: give columns.inputs and"
                " columns.target in the settings (numbers alone), or a [data] section"
                " in the task",
            )
        section = DataSection(
            target=Column(name=self.target),
            columns=tuple(Column(name=name) for name in self.inputs),
        )
        self._require_apart(section)
        return section

    def require_only_names(self, *recipes: DataSection) -> None:
        """Refuse settings that say more than other names of the recipes' columns.

        Raises Misconfiguration: names the key; or two columns that are one here.
        """
        for key, value in (("inputs", self.inputs), ("target", self.target)):
            if value:
                raise Misconfiguration(f"columns.{key}", value, _RECIPE)
        known = {
            name_of(column.name)
            for recipe in recipes
            for column in (*recipe.columns, recipe.target)
            if column.name
        }
        for name in self.rename:
            if name_of(name) not in known:
                raise Misconfiguration(
                    "columns.rename",
                    name,
                    f"the task has no such column: {_listed(sorted(known))}",
                )
        for recipe in recipes:
            self._require_apart(recipe)

    @cached_property
    def table_names(self) -> dict[str, str]:
        """This table's names, by those of the task where they differ."""
        return {name_of(of_task): own for of_task, own in self.rename.items()}

    def _require_apart(self, section: DataSection) -> None:
        """Refuse one column for two. Raises Misconfiguration: names both."""
        meant = {self.unit: "columns.unit"}
        for column in (*section.columns, section.target):
            own = self.table_names.get(name_of(column.name), column.name)
            other = meant.setdefault(name_of(own), column.name)
            if other != column.name:
                raise Misconfiguration(
                    "columns.rename",
                    own,
                    f"is both {other} and {column.name}: give each its own column",
                )


def inputs_of(
    table: ColumnTable,
    section: DataSection,
    own: Columns,
    notes: list[ColumnNotes] | None = None,
) -> Floats32:
    """Return the inputs of all n records, ``[n, section.features] float32``.

    A numeric column becomes one input. A categorical column becomes an input for each
    of its levels, 1 at the record's own and 0 elsewhere, and a last one for all levels
    that the task doesn't list.

    Args:
        table: the owner's table.
        section: the task's recipe.
        own: how this table names its columns, and writes numbers.
        notes: gets one entry for each column.

    Raises Misconfiguration: a column isn't there, or a cell can't be used; the error
    names the record and the column.
    """
    inputs = np.zeros((len(table), section.features), np.float32)
    first_input = 0
    for column in section.columns:
        cells = ColumnCells(table, column, section, own)
        if column.kind == "categorical":
            codes = cells.codes(unknown=len(column.levels))
            inputs[np.arange(len(table)), first_input + codes] = 1
        else:
            inputs[:, first_input] = cells.numbers()
        first_input += column.inputs
        if notes is not None:
            notes.append(cells.notes)
    return inputs


def targets_of(
    table: ColumnTable,
    section: DataSection,
    own: Columns,
    notes: list[ColumnNotes] | None = None,
) -> Integers | Floats32:
    """Return the targets of all n records, ``[n]``.

    They are int64 classes where the target's column is categorical, else float32. The
    arguments are those of ``inputs_of``; ``notes`` gets an entry where numbers are far.

    Raises Misconfiguration: as ``inputs_of``, and for a level that the task doesn't
    list, which is no class.
    """
    cells = ColumnCells(table, section.target, section, own)
    if section.target.kind == "categorical":
        return cells.codes(unknown=None)
    numbers = cells.numbers()
    if notes is not None and cells.notes.odd:
        notes.append(cells.notes)
    return numbers.astype(np.float32)


def identifiers_of(
    table: ColumnTable,
    name: str,
    *,
    section: DataSection,
    decimal: str = ".",
) -> list[str]:
    """Return what says which unit each record belongs to, ``[n]``.

    They are compared as levels are. ``name`` is the column's in this table, ``decimal``
    the sign before a number's fraction in text.

    Raises Misconfiguration: there is no such column, an identifier is missing, or is a
    number that may have been rounded.
    """
    column = Column(name=name)
    # As a target, which is never filled.
    as_target = section.model_copy(update={"target": column})
    return ColumnCells(table, column, as_target, Columns(decimal=decimal)).identifiers()


class ColumnCells:
    """Cells of one column of the task, which become numbers or codes of levels.

    The arguments are those of ``inputs_of``; ``column`` is one of ``section``.

    Raises Misconfiguration: the table has no such column, or a cell in it has no
    meaning.
    """

    def __init__(
        self,
        table: ColumnTable,
        column: Column,
        section: DataSection,
        own: Columns,
    ) -> None:
        self._table = table
        self._column = column
        self._is_target = column is section.target
        # A question without [data] has a target of no name.
        self._key = "data.missing" if section.target.name else "missing"
        self._missing_marks = frozenset(map(level_text, section.missing))
        self._decimal = own.decimal
        table_name = own.table_names.get(name_of(column.name), column.name)
        self._cells = table.cells(table_name)
        self.notes = ColumnNotes(column=column, records=len(table))

    def numbers(self) -> Floats:
        """Return (value − centre)/scale, ``[n] float64``, each finite as float32 too.

        Raises Misconfiguration: a cell is no number, is too large, or is missing in a
        column without a fill.
        """
        column = self._column
        values, empty = self.values()
        if column.fill is not None:
            self.notes.filled = int(empty.sum())
            values[empty] = column.fill
        else:
            self._refuse_first(empty, "is missing: " + _MEND, also=self._advice("fill"))
        with np.errstate(over="ignore"):
            # + 0.0 makes 0 of −0, in which text and numbers would differ.
            scaled = (values - column.centre) / column.scale + 0.0
        # Written so that NaN, too, is too large.
        too_large = ~(np.abs(scaled) <= _LARGEST)
        self._refuse_first(too_large, "must be finite, as float32 too: " + _MEND)
        if len(scaled):
            self.notes.farthest = float(values[np.argmax(np.abs(scaled))])
        known = values[~empty]
        if len(known) >= _LEAST:
            low, self.notes.median, high = np.quantile(known, [0.05, 0.5, 0.95])
            self.notes.spread = high - low
        return scaled

    def values(self) -> tuple[Floats, Booleans]:
        """Return the cells as float64, and where a value is missing, both ``[n]``.

        What stands where one is missing means nothing. Raises Misconfiguration: a cell
        is no number.
        """
        values, empty = self._parsed()
        # A number may mean that there is no value, however a file writes that number.
        for mark in self._missing_marks:
            with suppress(ValueError):
                empty |= values == plain_float(mark)
        return values, empty

    def _parsed(self) -> tuple[Floats, Booleans]:
        """Return the cells as float64, and where a value is missing, both ``[n]``.

        Where one is missing the number is NaN. A column of numbers may hold missing
        values that only ``numbers`` finds, by the task's marks.

        Raises Misconfiguration: a cell is no number.
        """
        column = self._cells
        if isinstance(column, np.ndarray) and column.dtype != np.bool_:
            values = exact(column).astype(np.float64)
            return values, np.isnan(values)
        cells, empty = self._one_by_one()
        numbers = (
            math.nan if cell is None or gone else number_of(cell, self._decimal)
            for cell, gone in zip(cells, empty, strict=True)
        )
        values = np.fromiter(numbers, np.float64, len(cells))
        self._refuse_first(
            np.isnan(values) & ~empty,
            "isn't a number: " + _MEND,
            also=f"; list it in the task's {self._key} where it means that there is no"
            " value; other text becomes numbers by a categorical column in its [data]",
        )
        return values, empty

    def _one_by_one(self) -> tuple[Sequence[Cell], Booleans]:
        """Return the cells as Python's values, and which are missing, both ``[n]``."""
        cells = self._cells
        if isinstance(cells, np.ndarray):
            cells = exact(cells).tolist()
        return cells, np.fromiter(map(self._missing, cells), np.bool_, len(cells))

    def codes(self, unknown: int | None, missing: int | None = None) -> Integers:
        """Return each cell's place among the column's levels, ``[n] int64``.

        ``unknown`` is the code of every level that isn't listed; None refuses them.
        ``missing`` is that of missing values; None fills them by the column's fill.

        Raises Misconfiguration: a level isn't listed and has no code, may be a listed
        one that was rounded, or is missing in a column without a fill.
        """
        column = self._column
        places = {level_of(level): place for place, level in enumerate(column.levels)}
        rounded = self._rounded(float_type(self._cells))
        cells, empty = self._one_by_one()
        doubtful = np.fromiter(
            (isinstance(cell, float) and cell in rounded for cell in cells), np.bool_
        )
        self._refuse_first(
            doubtful & ~empty,
            "may be a level of the task that was rounded: keep such codes as whole"
            " numbers or text",
        )
        if column.fill_level is None and missing is None:
            self._refuse_first(
                empty, "is missing: " + _MEND, also=self._advice("fill_level")
            )
        filling = level_of(str(column.fill_level))
        levels = []
        for cell, gone in zip(cells, empty, strict=True):
            forms = (filling,) if gone else self._forms(cell)
            # The first form that is listed, else the cell as it is.
            levels.append(next((form for form in forms if form in places), forms[0]))
        codes = np.fromiter(
            (places.get(level, -1) for level in levels), np.int64, len(cells)
        )
        if missing is not None:
            codes[empty] = missing
        unlisted = codes < 0
        if unknown is None:
            self._refuse_first(
                unlisted,
                f"is none of the task's levels ({_listed(column.levels)}): {_MEND}",
            )
            return codes
        self.notes.filled = int(empty.sum())
        self.notes.unlisted = Counter(
            levels[record] for record in np.flatnonzero(unlisted & ~empty)
        )
        codes[unlisted] = unknown
        return codes

    def identifiers(self) -> list[str]:
        """Return each cell as an identifier, ``[n]``.

        Raises Misconfiguration: one is missing, or is a float so large that it may
        stand for several.
        """
        largest = 2 ** (np.finfo(float_type(self._cells)).nmant + 1)
        cells, missing = self._one_by_one()
        self._refuse_first(
            missing, "is missing, and it says whose record it is: " + _MEND
        )
        rounded = [isinstance(cell, float) and abs(cell) >= largest for cell in cells]
        self._refuse_first(
            np.array(rounded),
            "may have been rounded: keep such identifiers as whole numbers or text",
            hidden=True,
        )
        return [self._forms(cell)[-1] for cell in cells]

    def _forms(self, cell: Cell) -> tuple[str, ...]:
        """Return the levels that a cell may be.

        Text is one as it stands and, where the file has a decimal sign of its own, one
        with a point in that sign's place, as for a number.
        """
        level = level_of(cell)
        if self._decimal == "." or not isinstance(cell, str):
            return (level,)
        return level, level_text(cell.replace(self._decimal, "."))

    def _rounded(self, kind: type[np.floating]) -> frozenset[float]:
        """Return what this type of floats makes of whole numbers that are levels.

        Only of those from the size on where floats can't tell neighbours apart: a float
        of this value may have been any of them.
        """
        smallest = 2 ** (np.finfo(kind).nmant + 1)
        rounded = set()
        for level in map(level_text, self._column.levels):
            if _WHOLE.fullmatch(level) and abs(int(level)) >= smallest:
                with np.errstate(over="ignore"):
                    nearest = kind(float(int(level)))
                # By its shortest decimal, as ``exact`` reads floats of fewer bits.
                rounded.add(float(str(nearest)))
        return frozenset(rounded)

    def _missing(self, cell: Cell) -> bool:
        """Return whether a cell has no value: None, NaN, or a text that means it."""
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return True
        return not self._missing_marks.isdisjoint(self._forms(cell))

    def _advice(self, fill: str) -> str:
        """Return the other way out of a missing value: the column's key ``fill``.

        Empty for the target, which has none.
        """
        if self._is_target:
            return ""
        return f", or give the column a {fill} in the task's [data]"

    def _hint(self, cell: object) -> str:
        """Return as what text that can't be used could be meant; empty if as nothing."""
        text = cell if isinstance(cell, str) else ""
        for level in self._column.levels:
            if _folded(level) == _folded(text):
                return f"; it is {level!r} but for case or spaces"
        other = "," if self._decimal == "." else "."
        digits = text.replace(other, "")
        if digits != text and not math.isnan(number_of(digits, self._decimal)):
            return (
                f"; where {other} stands before a number's fraction, write"
                f' columns.decimal = "{other}" into the owner\'s settings; where it'
                " parts thousands, leave it out"
            )
        return ""

    def _refuse_first(
        self,
        wrong: Booleans,
        remedy: str,
        *,
        also: str = "",
        hidden: bool = False,
    ) -> None:
        """Refuse the first record in ``wrong``, ``[n]``, if there is one.

        Raises Misconfiguration: names the record, shows its cell unless it is to be
        ``hidden``, and says how many more there are after ``remedy`` and a hint, or else
        ``also``.
        """
        count = int(wrong.sum())
        if not count:
            return
        record = int(np.argmax(wrong))
        cell = "…" if hidden else self._cells[record]
        if isinstance(cell, np.generic):
            # NumPy's numbers show their type beside their value.
            cell = cell.item()
        others = f" ({count - 1:,} more in this column)" if count > 1 else ""
        raise Misconfiguration(
            f"data, column {self._column.name}, {self._table.place(record)}",
            cell,
            remedy + (self._hint(cell) or also) + others,
        )


def _folded(text: str) -> str:
    """Return text without its spaces and capitals."""
    return "".join(text.split()).casefold()


def _listed(names: Sequence[str]) -> str:
    """Return names as an error lists them: the first few, then … if there are more."""
    listed = ", ".join(names[:_SHOWN])
    return listed + ", …" if len(names) > _SHOWN else listed
