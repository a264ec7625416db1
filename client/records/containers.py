"""One column of any container as cells that mean the same everywhere.

A cell is None where there is no value, a truth value, a whole number, a number or text.
Lists of NumPy, pandas, Polars, Arrow, Parquet and CSV become the same cells, or the
same refusal: what a table means doesn't depend on what it lies in.
"""

import datetime as dt
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.common.task_schema import level_text

Cell: TypeAlias = bool | int | float | Decimal | str | None
Cells: TypeAlias = Sequence[Cell] | NDArray[Any]
"""Or an array of floats, integers or truth values; NaN is a missing value."""


class Reading(NamedTuple):
    """How one kind of cell is read; the page on own data is made of these."""

    kind: str
    numeric: str
    categorical: str


READINGS = (
    Reading(
        "no value: `None`, NaN, `NA`, `NaT`, a null, a masked entry",
        "`fill`",
        "`fill_level`",
    ),
    Reading("text of `data.missing`, blanks aside", "`fill`", "`fill_level`"),
    Reading(
        "truth value; the text `true`, `True`, `FALSE` …", "1 or 0", "`true` or `false`"
    ),
    Reading("whole number; the text `2`", "itself", "`2`"),
    Reading("number that is whole: 2.0; the text `2.0`", "itself", "`2`"),
    Reading("other number; the text `1.50`", "itself", "`1.5`"),
    Reading(
        "number of 2^53 or more with a point (2^24 of 32 bits)",
        "itself",
        "itself; refused where it may be a listed level that was rounded",
    ),
    Reading("number of 32 or 16 bits", "the shortest decimal that it is", "the same"),
    Reading("category, dictionary entry", "its value", "its value"),
    Reading(
        "text", "refused", "itself in Unicode's form NFC, without blanks around it"
    ),
    Reading(
        "text with a leading zero, a separator of thousands",
        "as Python reads it",
        "itself",
    ),
    Reading("date, time, duration", "refused: give a number", "refused: give text"),
    Reading("bytes, list, record, complex number", "refused", "refused"),
)
"""As ``of_column`` and ``level_of`` read them, and ``columns.py`` goes on."""

_TIMES = (dt.date, dt.time, dt.timedelta, np.datetime64, np.timedelta64)


def of_column(column: Any, name: str) -> Cells:
    """The cells of a column; ``[n]`` numbers as an array where the container holds no others.

    Raises Misconfiguration: a cell is none that has a meaning here; names the record.
    """
    if isinstance(column, str | bytes | Mapping | AbstractSet) or not hasattr(
        column, "__len__"
    ):
        raise _refused(
            name=name,
            value=type(column).__name__,
            remedy="a column is an array or a list of cells",
        )
    if hasattr(column, "detach"):
        try:
            column = column.detach().cpu().numpy()
        except (TypeError, RuntimeError) as error:
            remedy = f"give a dense tensor ({error})"
            raise _refused(
                name=name,
                value=str(column.dtype),
                remedy=remedy,
            ) from None
    if hasattr(column, "toarray") or getattr(column, "ndim", 1) != 1:
        raise _refused(
            name=name,
            value=type(column).__name__,
            remedy="give one cell a record, not a matrix",
        )
    numbers = _numbers(column)
    if numbers is not None:
        return np.array(numbers)
    return [_cell(value, name, record) for record, value in enumerate(_values(column))]


def name_of(column: object) -> str:
    """A column's name as it is compared: the same letters, however they are composed."""
    return unicodedata.normalize("NFC", str(column)).strip()


def level_of(cell: Cell) -> str:
    """A level as text: whole numbers without a point, truth values as `true` and `false`."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, str):
        return level_text(cell)
    if isinstance(cell, float) and math.isfinite(cell):
        # Without an exponent, which text files write in many ways.
        cell = Decimal(repr(cell))
    if isinstance(cell, Decimal):
        text = format(cell, "f")
        return (
            level_text(text if "." in text else f"{text}.0")
            if cell.is_finite()
            else text
        )
    return str(cell)


def float_type(cells: Cells) -> np.dtype[Any]:
    """Of the column's floats."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "f":
        return cells.dtype
    return np.dtype(np.float64)


def exact(cells: NDArray[Any]) -> NDArray[Any]:
    """Floats as float64; those of fewer bits by their shortest decimals, as in text files."""
    if cells.dtype.kind != "f":
        return cells
    if cells.dtype.itemsize < np.dtype(np.float64).itemsize:
        return cells.astype(str).astype(np.float64)
    return cells.astype(np.float64)


def _refused(
    *,
    name: str,
    value: object,
    remedy: str,
    record: int | None = None,
) -> Misconfiguration:
    place = f"data, column {name}" + ("" if record is None else f", record {record}")
    return Misconfiguration(place, value, remedy)


def _numbers(column: Any) -> NDArray[Any] | None:
    """The column as an array of numbers, where it is nothing else; gaps of floats are NaN."""
    if isinstance(column, np.ma.MaskedArray):
        return None
    found: NDArray[Any] | None
    if isinstance(column, np.ndarray):
        found = column
    elif type(column).__module__.startswith("pandas"):
        found = _of_pandas(column)
    elif type(column).__module__.startswith(("polars", "pyarrow")):
        found = _of_nullable(_decoded(column))
    else:
        return None
    return found if found is not None and found.dtype.kind in "biuf" else None


def _of_pandas(column: Any) -> NDArray[Any] | None:
    dtype = column.dtype
    if isinstance(dtype, np.dtype):
        return np.asarray(column.to_numpy())
    if isinstance(getattr(getattr(dtype, "categories", None), "dtype", None), np.dtype):
        # Whole numbers beside a gap would become floats.
        values = np.asarray(column)
        return values if dtype.categories.dtype.kind == "f" else None
    # Extension types say NumPy's kind and size; single floats keep their own digits.
    if getattr(dtype, "kind", "") == "f" and "Sparse" not in type(dtype).__name__:
        size = np.dtype(f"f{dtype.itemsize}")
        return np.asarray(column.to_numpy(dtype=size, na_value=np.nan))
    return None


def _decoded(column: Any) -> Any:
    """Arrow's dictionaries as their values."""
    kind: Any = getattr(column, "type", None)
    return column.cast(kind.value_type) if hasattr(kind, "index_type") else column


def _of_nullable(column: Any) -> NDArray[Any] | None:
    kind = str(column.dtype if hasattr(column, "dtype") else column.type).lower()
    count = column.null_count() if callable(column.null_count) else column.null_count
    floats = kind in {"float", "halffloat", "double", "float16", "float32", "float64"}
    whole = re.fullmatch(r"u?int\d+", kind) is not None
    if not floats and (count or not whole):
        return None
    if not hasattr(column, "dtype"):
        # Arrow's arrays say that a copy may be needed; chunked ones need not be told.
        chunked = hasattr(column, "chunks")
        return np.asarray(
            column.to_numpy() if chunked else column.to_numpy(zero_copy_only=False)
        )
    return np.asarray(column.to_numpy())


def _values(column: Any) -> list[Any]:
    if isinstance(column, np.ma.MaskedArray):
        gaps = np.ma.getmaskarray(column)
        both = zip(np.asarray(column.data), gaps, strict=True)
        return [None if gone else value for value, gone in both]
    if isinstance(column, np.ndarray):
        return list(column)
    column = _decoded(column)
    for method in ("to_pylist", "to_list"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def _cell(value: Any, name: str, record: int) -> Cell:
    # Two of pandas' own, without pandas.
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return None
    if isinstance(value, np.datetime64 | np.timedelta64) and np.isnat(value):
        return None
    # First: NumPy's durations are whole numbers to Python.
    if isinstance(value, _TIMES):
        remedy = (
            "is a date, time or duration: give a number, like days since a day, or text"
        )
        raise _refused(
            name=name,
            value=type(value).__name__,
            remedy=remedy,
            record=record,
        )
    for kinds, read in _READERS:
        if isinstance(value, kinds):
            return read(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return _cell(value.item(), name, record)
    remedy = "must be a number, a truth value or text"
    raise _refused(
        name=name,
        value=type(value).__name__,
        remedy=remedy,
        record=record,
    )


def _of_number(value: Any) -> Cell:
    if isinstance(value, Decimal):
        return None if value.is_nan() else value
    if value != value:  # noqa: PLR0124 -- NaN, of any kind of number
        return None
    return (
        float(str(value))
        if isinstance(value, np.float32 | np.float16)
        else float(value)
    )


_READERS: tuple[tuple[Any, Callable[[Any], Cell]], ...] = (
    ((str, np.str_), str),
    ((bool, np.bool_), bool),
    ((int, Integral), int),
    ((Real, Decimal), _of_number),
)
"""In this order: a truth value is a whole number to Python."""


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """Columns by name, all of one length; ``source`` is the file, or what the frame is."""

    source: str
    columns: Mapping[str, Any] = field(repr=False)
    """By ``name_of``; as their library has them."""
    lines: Sequence[int] | None = field(default=None, repr=False)
    """Of a text file: the line in which each record ends."""

    def __len__(self) -> int:
        """How many records."""
        return len(next(iter(self.columns.values()), ()))

    def cells(self, name: str) -> Cells:
        """One column, read.

        Raises Misconfiguration: there is none, or a cell means nothing.
        """
        found = name_of(name)
        if found not in self.columns:
            remedy = (
                "has no such column; it has"
                f" {', '.join(map(str, list(self.columns)[:12]))}"
            )
            raise Misconfiguration(f"data, column {name}", self.source, remedy)
        return of_column(self.columns[found], name)

    def place(self, record: int) -> str:
        """Where a record stands, in words."""
        return f"record {record}" + (
            f" (line {self.lines[record]})" if self.lines else ""
        )
