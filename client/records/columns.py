"""Columns of a table become numbers by the task's recipe: the same at every owner, fixed before.

Which column is which is the owner's to say. Nothing here is computed from the records:
neither a mean nor a list of levels. What a record becomes depends on that record and on
public constants alone, so reading costs no privacy.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from precad.client.records.containers import (
    Cell,
    ColumnTable,
    exact,
    float_type,
    level_of,
    name_of,
)
from precad.common.checks import refusal
from precad.common.errors import Misconfiguration
from precad.common.task_schema import Column, DataSection, level_text

_LARGEST = float(np.finfo(np.float32).max)
_SHOWN = 8
_MEND = "mend it or leave the record out"
_WHOLE = re.compile(r"-?[0-9]{1,300}")
_TRUTH = {"true": 1.0, "false": 0.0}
_FAR = 30.0
"""Scales from the centre: nothing measured lies so far out, a sentinel or a date's
number does."""


@dataclass(slots=True, kw_only=True)
class ColumnNotes:
    """Which of a column's cells don't count as what stands in them; for its owner's eyes alone."""

    column: Column
    records: int = 0
    filled: int = 0
    """Cells without a value, which count as the column's fill."""
    unlisted: int = 0
    """Levels that the task doesn't list; they share one input."""
    examples: list[str] = field(default_factory=list)
    """Some of these levels, the most frequent first."""
    farthest: float = 0.0
    """Numeric: the value farthest from the centre, before scaling."""

    @property
    def far(self) -> bool:
        """Whether a number lies so far out that it may mean something else, like 999 or a date."""
        column = self.column
        own = (column.centre, column.scale) != (0.0, 1.0)
        return own and abs(self.farthest - column.centre) > _FAR * column.scale

    @property
    def share(self) -> float:
        """Of the records, how many are filled or unlisted."""
        return (self.filled + self.unlisted) / max(1, self.records)

    def sentence(self) -> str:
        """What its owner is told; empty where every cell is what it says."""
        found = []
        if self.filled:
            found.append(
                f"{self.filled:,} of {self.records:,} cells are missing and were filled"
            )
        if self.unlisted:
            some = ", ".join(map(repr, self.examples))
            found.append(
                f"{self.unlisted:,} of {self.records:,} have a level that the task"
                f" doesn't list ({some})"
            )
        if self.far:
            found.append(
                f"{self.farthest:g} lies {_FAR:g} scales or more from the centre "
                f"{self.column.centre:g}"
            )
        return f"column {self.column.name}: {'; '.join(found)}" if found else ""


def inputs_of(
    table: ColumnTable,
    section: DataSection,
    rename: dict[str, str],
    decimal: str = ".",
    notes: list[ColumnNotes] | None = None,
) -> NDArray[np.float32]:
    """All records' inputs, ``[n, section.features] float32``; one note a column is added.

    Raises Misconfiguration: a column isn't there, or a cell can't be used; names record
    and column.
    """
    rows = np.zeros((len(table), section.features), np.float32)
    start = 0
    for column in section.columns:
        cells = _Cells(
            table,
            column,
            section,
            rename,
            decimal,
        )
        if column.kind == "categorical":
            codes = cells.codes(unknown=len(column.levels))
            rows[np.arange(len(table)), start + codes] = 1
        else:
            rows[:, start] = cells.numbers()
        start += column.inputs
        if notes is not None:
            notes.append(cells.notes)
    return rows


def targets_of(
    table: ColumnTable,
    section: DataSection,
    rename: dict[str, str],
    decimal: str = ".",
) -> NDArray[np.int64] | NDArray[np.float32]:
    """All records' targets, ``[n]``: int64 classes of a categorical column, else float32.

    Raises Misconfiguration: as ``inputs_of``; a level that isn't listed is no class.
    """
    cells = _Cells(
        table,
        section.target,
        section,
        rename,
        decimal,
    )
    if section.target.kind == "categorical":
        return cells.codes(unknown=None)
    return cells.numbers().astype(np.float32)


class _Cells:
    def __init__(
        self,
        table: ColumnTable,
        column: Column,
        section: DataSection,
        rename: dict[str, str],
        decimal: str,
    ) -> None:
        self._table = table
        self._column = column
        self._is_target = column is section.target
        self._marks = frozenset(map(level_text, section.missing))
        self._decimal = decimal
        renamed = {name_of(ours): theirs for ours, theirs in rename.items()}
        self._cells = table.cells(renamed.get(name_of(column.name), column.name))
        self.notes = ColumnNotes(column=column, records=len(table))

    def numbers(self) -> NDArray[np.float64]:
        """(value − centre)/scale, ``[n] float64``, finite as float32 too."""
        column = self._column
        cells = self._cells
        if isinstance(cells, np.ndarray) and cells.dtype != np.bool_:
            values = exact(cells).astype(np.float64)
            empty = np.isnan(values)
        else:
            cells = cells.tolist() if isinstance(cells, np.ndarray) else cells
            empty = np.fromiter(map(self._missing, cells), np.bool_, len(cells))
            found = (
                math.nan if gone else self._number(cell)
                for cell, gone in zip(cells, empty, strict=True)
            )
            values = np.fromiter(found, np.float64, len(cells))
            self._refuse_first(
                np.isnan(values) & ~empty,
                "isn't a number: " + _MEND,
                "; text becomes numbers by a categorical column in the task's [data]",
            )
        # Those that mean that there is none, however a file writes them.
        for mark in self._marks:
            with suppress(ValueError):
                empty |= values == _plain_float(mark)
        if column.fill is not None:
            self.notes.filled = int(empty.sum())
            values[empty] = column.fill
        else:
            self._refuse_first(empty, "is missing: " + _MEND, self._filling("fill"))
        with np.errstate(over="ignore"):
            # No −0: text and numbers would differ in it.
            scaled: NDArray[np.float64] = (values - column.centre) / column.scale + 0.0
        self._refuse_first(
            ~(np.abs(scaled) <= _LARGEST), "must be finite, as float32 too: " + _MEND
        )
        if len(scaled):
            self.notes.farthest = float(values[int(np.argmax(np.abs(scaled)))])
        return scaled

    def codes(self, unknown: int | None) -> NDArray[np.int64]:
        """Each cell's place among the levels, ``[n] int64``; ``unknown`` for any other level.

        Without ``unknown`` another level is refused.
        """
        column = self._column
        places = {level_of(level): place for place, level in enumerate(column.levels)}
        cells = self._cells
        rounded = self._rounded(float_type(cells))
        if isinstance(cells, np.ndarray):
            cells = exact(cells).tolist()
        empty = np.fromiter(map(self._missing, cells), np.bool_, len(cells))
        doubtful = np.fromiter(
            (isinstance(c, float) and c in rounded for c in cells), np.bool_
        )
        self._refuse_first(
            doubtful & ~empty,
            "may be a level of the task that was rounded: keep such codes as whole"
            " numbers or text",
        )
        if column.fill_level is None:
            self._refuse_first(
                empty, "is missing: " + _MEND, self._filling("fill_level")
            )
        filling = level_of(str(column.fill_level))
        levels = [
            filling if gone else self._level(cell, places)
            for cell, gone in zip(cells, empty, strict=True)
        ]
        codes = np.fromiter(
            (places.get(level, -1) for level in levels), np.int64, len(cells)
        )
        if unknown is None:
            listed = _listed(column.levels)
            self._refuse_first(
                codes < 0, f"is none of the task's levels ({listed}): {_MEND}"
            )
        else:
            others = Counter(
                levels[place] for place in np.flatnonzero((codes < 0) & ~empty)
            )
            notes = self.notes
            notes.filled = int(empty.sum())
            notes.unlisted = others.total()
            notes.examples = [level for level, _ in others.most_common(3)]
            codes[codes < 0] = unknown
        return codes

    def _forms(self, cell: Cell) -> tuple[str, ...]:
        """A cell as a level; text with this file's decimal sign also as a number's."""
        level = level_of(cell)
        if self._decimal == "." or not isinstance(cell, str):
            return (level,)
        return level, level_text(cell.replace(self._decimal, "."))

    def _level(self, cell: Cell, places: Mapping[str, int]) -> str:
        forms = self._forms(cell)
        return next((form for form in forms if form in places), forms[0])

    def _rounded(self, kind: np.dtype[Any]) -> frozenset[float]:
        """What floats of this kind make of listed whole numbers that they can't all hold."""
        most = 2 ** (np.finfo(kind).nmant + 1)
        found = set()
        for level in map(level_text, self._column.levels):
            if _WHOLE.fullmatch(level) and abs(int(level)) >= most:
                with np.errstate(over="ignore"):
                    found.add(float(str(kind.type(float(int(level))))))
        return frozenset(found)

    def _missing(self, cell: Cell) -> bool:
        """Whether there is no value: None, NaN, or a text that means it."""
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return True
        return not self._marks.isdisjoint(self._forms(cell))

    def _number(self, cell: Any) -> float:
        """NaN where it is none."""
        if isinstance(cell, str):
            text = cell.strip()
            if text.lower() in _TRUTH:
                return _TRUTH[text.lower()]
            if self._decimal != ".":
                if "." in text:
                    return math.nan
                text = text.replace(self._decimal, ".")
            try:
                return _plain_float(text)
            except ValueError:
                return math.nan
        try:
            return float(cell)
        except OverflowError:
            return math.inf

    def _filling(self, field: str) -> str:
        return (
            ""
            if self._is_target
            else f", or give the column a {field} in the task's [data]"
        )

    def _refuse_first(
        self, wrong: NDArray[np.bool_], remedy: str, also: str = ""
    ) -> None:
        """Raises for the first wrong cell, and says how many more there are."""
        count = int(wrong.sum())
        if count:
            record = int(np.argmax(wrong))
            cell = self._cells[record]
            # A number of NumPy's says its type beside its value.
            cell = cell.item() if isinstance(cell, np.generic) else cell
            others = f" ({count - 1:,} more in this column)" if count > 1 else ""
            raise Misconfiguration(
                f"data, column {self._column.name}, {self._table.place(record)}",
                cell,
                remedy + also + others,
            )


def _plain_float(text: str) -> float:
    """As ``float``, but Python's 1_000 is no number. Raises ValueError."""
    if "_" in text:
        raise ValueError(text)
    return float(text)


_RECIPE = (
    "the task's [data] names the columns and what their values become; leave it out,"
    " and give the columns' own names in rename where they differ"
)


class Columns(BaseModel):
    """An owner's columns; `[columns]` in the settings file.

    Where the task has a `[data]` section, that decides, and only names and form are the
    owner's.

    Raises Misconfiguration: an unknown key, or a value of another type.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: Annotated[tuple[str, ...], Field(strict=False, max_length=10_000)] = ()
    """Without `[data]`: the inputs' columns in the model's order; numbers, none
    missing."""
    target: str | None = None
    """Without `[data]`: the column that is learned; labels as whole numbers, or
    numbers."""
    rename: dict[str, str] = {}
    """With `[data]`: a column's name in the task, and its name in this table."""
    separator: Annotated[str, Field(min_length=1, max_length=1)] = ","
    """CSV: between cells."""
    decimal: Annotated[str, Field(min_length=1, max_length=1)] = "."
    """CSV: before the fraction of a number."""

    def __init__(self, **values: object) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise refusal(
                error, {"extra_forbidden": "unknown key; remove it"}
            ) from None

    def section(self, recipe: DataSection | None) -> DataSection:
        """How these columns become numbers: the task's recipe, or numbers as they are.

        Raises Misconfiguration: neither says which columns there are, or both do.
        """
        if recipe is not None:
            for field, value in (("inputs", self.inputs), ("target", self.target)):
                if value:
                    raise Misconfiguration(f"columns.{field}", value, _RECIPE)
            known = {
                name_of(column.name) for column in (*recipe.columns, recipe.target)
            }
            for name in self.rename:
                if name_of(name) not in known:
                    raise Misconfiguration(
                        "columns.rename",
                        name,
                        f"the task has no such column: {_listed(sorted(known))}",
                    )
            return recipe
        if self.rename:
            remedy = (
                "the task has no [data] whose names could differ; give inputs and"
                " target"
            )
            raise Misconfiguration("columns.rename", dict(self.rename), remedy)
        if not self.inputs or self.target is None:
            missing = "inputs" if not self.inputs else "target"
            raise Misconfiguration(
                f"columns.{missing}",
                None,
                "a table needs to say what is what: give columns.inputs and"
                " columns.target in the settings (numbers alone), or a [data] section"
                " in the task",
            )
        return DataSection(
            target=Column(name=self.target),
            columns=tuple(Column(name=name) for name in self.inputs),
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
