"""Cells of one column, which mean the same whatever container they come from.

A cell is None where there is no value, else a truth value, a whole number, a number or
text. Columns of lists, NumPy, pandas, Polars, Arrow, Parquet and CSV become the same
cells, or are refused with the same words: what a table means doesn't depend on the
library that holds it.
"""

import datetime as dt
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from decimal import Decimal
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, SupportsFloat

import numpy as np

from precad.common import AnyNumbers, Misconfiguration, frozen_dataclass, level_text

_TRUTH = {"true": 1.0, "false": 0.0}
"""Numbers of truth values, by their text."""
Cell = bool | int | float | Decimal | str | None
"""One cell; None is a missing value."""
Cells = Sequence[Cell] | AnyNumbers
"""Column of n cells, as an array where it holds numbers alone."""
AnyColumn = Any
"""Column as its own library has it: a list, an array, a tensor, a series of pandas or
Polars, an array of Arrow. Most of these libraries have no types, and none of them has
to be installed."""


_TIMES = (
    dt.date,
    dt.time,
    dt.timedelta,
    np.datetime64,
    np.timedelta64,
)
"""Types of dates, times and durations, which have no single meaning as a number."""
_NO_VALUES = {"NAType", "NaTType"}
"""Names of the types of pandas' own missing values: pandas needn't be installed."""
_FLOATS = {
    "float",
    "halffloat",
    "double",
    "float16",
    "float32",
    "float64",
}
"""How Arrow and Polars call their types of floats."""
_SHOWN = 12
"""Most names of columns that an error lists."""


def of_column(column: AnyColumn, name: str) -> Cells:
    """Return a column's n cells, as an array where the container holds numbers alone.

    ``name`` is the column's, for errors.

    Raises Misconfiguration: it is no column, or a cell is of a kind that has no meaning
    here; then the error names the record.
    """
    without_order = isinstance(column, str | bytes | Mapping | AbstractSet)
    if without_order or not hasattr(column, "__len__"):
        raise Misconfiguration(
            f"data, column {name}",
            type(column).__name__,
            "a column is an array or a list of cells",
        )
    if hasattr(column, "detach"):
        # A tensor of torch, perhaps with gradients or on another device.
        try:
            column = column.detach().cpu().numpy()
        except (TypeError, RuntimeError) as error:
            raise Misconfiguration(
                f"data, column {name}",
                str(column.dtype),
                f"give a dense tensor ({error})",
            ) from None
    if hasattr(column, "toarray") or getattr(column, "ndim", 1) != 1:
        raise Misconfiguration(
            f"data, column {name}",
            type(column).__name__,
            "give one cell a record, not a matrix",
        )
    numbers = _numbers(column)
    if numbers is not None:
        return np.array(numbers)
    return [_cell(value, name, record) for record, value in enumerate(_values(column))]


def name_of(column: object) -> str:
    """Return a column's name in the form that is compared: composed, without blanks.

    Unicode writes some letters in several ways, and which one depends on the editor.
    """
    return unicodedata.normalize("NFC", str(column)).strip()


def number_of(cell: str | SupportsFloat, decimal: str) -> float:
    """Return a cell as a number: NaN for text that is none, ∞ for one too large.

    ``decimal`` is the sign before a number's fraction in text.
    """
    if not isinstance(cell, str):
        try:
            return float(cell)
        except OverflowError:
            return math.inf
    text = cell.strip()
    if text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    if decimal != ".":
        if "." in text:
            return math.nan
        text = text.replace(decimal, ".")
    try:
        return plain_float(text)
    except ValueError:
        return math.nan


def plain_float(text: str) -> float:
    """Return the number that a text is, as ``float`` does.

    Raises ValueError: it is none, or is written as Python alone does: 1_000.
    """
    if "_" in text:
        raise ValueError(text)
    return float(text)


def level_of(cell: Cell) -> str:
    """Return a cell as the text of a level.

    Whole numbers have no point, truth values are ``true`` and ``false``.
    """
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, str):
        return level_text(cell)
    if isinstance(cell, float) and math.isfinite(cell):
        # Without an exponent, which text files write in many ways.
        cell = Decimal(repr(cell))
    if not isinstance(cell, Decimal):
        return str(cell)
    digits = format(cell, "f")
    if not cell.is_finite():
        return digits
    return level_text(digits if "." in digits else f"{digits}.0")


def float_type(cells: Cells) -> type[np.floating]:
    """Return the type of a column's floats; float64 where no array says another."""
    if isinstance(cells, np.ndarray) and issubclass(cells.dtype.type, np.floating):
        return cells.dtype.type
    return np.float64


def exact(cells: AnyNumbers) -> AnyNumbers:
    """Return floats as float64, and an array of anything else as it is.

    Floats of fewer bits become the shortest decimals that they are, as a text file has
    them: the same table gives the same numbers from either.
    """
    if cells.dtype.kind != "f":
        return cells
    if cells.dtype.itemsize < np.dtype(np.float64).itemsize:
        return cells.astype(str).astype(np.float64)
    return cells.astype(np.float64)


def _numbers(column: AnyColumn) -> AnyNumbers | None:
    """Return a column that holds numbers alone as an array, any other as None.

    A missing value among floats is NaN.
    """
    library = type(column).__module__
    numbers: AnyNumbers | None
    if isinstance(column, np.ma.MaskedArray):
        return None
    if isinstance(column, np.ndarray):
        numbers = column
    elif library.startswith("pandas"):
        numbers = _of_pandas(column)
    elif library.startswith(("polars", "pyarrow")):
        numbers = _of_nullable(_decoded(column))
    else:
        return None
    if numbers is None or numbers.dtype.kind not in "biuf":
        return None
    return numbers


def _of_pandas(column: AnyColumn) -> AnyNumbers | None:
    """Return a series of pandas as an array; None where its cells are read singly."""
    dtype = column.dtype
    if isinstance(dtype, np.dtype):
        return np.asarray(column.to_numpy())
    categories = getattr(dtype, "categories", None)
    if isinstance(getattr(categories, "dtype", None), np.dtype):
        # Whole numbers beside a missing value would become floats.
        return np.asarray(column) if dtype.categories.dtype.kind == "f" else None
    # Extension types say NumPy's kind and size; floats of 32 bits keep their digits.
    sparse = "Sparse" in type(dtype).__name__
    if getattr(dtype, "kind", "") == "f" and not sparse:
        size = np.dtype(f"f{dtype.itemsize}")
        return np.asarray(column.to_numpy(dtype=size, na_value=np.nan))
    return None


def _decoded(column: AnyColumn) -> AnyColumn:
    """Return an Arrow dictionary's values in place of its entries' numbers."""
    if hasattr(getattr(column, "type", None), "index_type"):
        return column.cast(column.type.value_type)
    return column


def _of_nullable(column: AnyColumn) -> AnyNumbers | None:
    """Return a column of Polars or Arrow as an array of numbers.

    None where it has other types, or gaps among whole numbers, which an array of
    integers can't hold.
    """
    of_polars = hasattr(column, "dtype")
    kind = str(column.dtype if of_polars else column.type).lower()
    gaps = column.null_count() if callable(column.null_count) else column.null_count
    if kind not in _FLOATS:
        whole = re.fullmatch(r"u?int\d+", kind) is not None
        if gaps or not whole:
            return None
    if of_polars or hasattr(column, "chunks"):
        return np.asarray(column.to_numpy())
    # Arrow copies such an array only where it is told that it may; a chunked one needs
    # no word.
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _values(column: AnyColumn) -> list[object]:
    """Return a column's values as its library gives them; None where one is masked."""
    if isinstance(column, np.ma.MaskedArray):
        pairs = zip(np.asarray(column.data), np.ma.getmaskarray(column), strict=True)
        return [None if gone else value for value, gone in pairs]
    if isinstance(column, np.ndarray):
        return list(column)
    column = _decoded(column)
    for method in ("to_pylist", "to_list"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def _cell(value: object, name: str, record: int) -> Cell:
    """Return one value of a column as a cell, for ``of_column``.

    Raises Misconfiguration: the value is of a kind that has no meaning here.
    """
    if value is None or type(value).__name__ in _NO_VALUES:
        return None
    if isinstance(value, np.datetime64 | np.timedelta64) and np.isnat(value):
        return None
    # Before whole numbers: to Python, NumPy's durations are such.
    if isinstance(value, _TIMES):
        raise Misconfiguration(
            f"data, column {name}, record {record}",
            type(value).__name__,
            "is a date, time or duration: give a number, like days since a day, or text",
        )
    if isinstance(value, str):
        return str(value)
    # Before whole numbers: to Python, a truth value is one.
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | Integral):
        return int(value)
    if isinstance(value, Real | Decimal):
        return _of_number(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return _cell(value.item(), name, record)
    raise Misconfiguration(
        f"data, column {name}, record {record}",
        type(value).__name__,
        "must be a number, a truth value or text",
    )


def _of_number(value: SupportsFloat) -> Cell:
    """Return a number as a float or a Decimal; None for NaN."""
    if isinstance(value, Decimal):
        return None if value.is_nan() else value
    if value != value:  # noqa: PLR0124 -- NaN, of any kind of number
        return None
    if isinstance(value, np.float32 | np.float16):
        # The shortest decimal that it is, as in ``exact``.
        return float(str(value))
    return float(value)


@frozen_dataclass
class ColumnTable:
    """Table of columns by name, all of one length."""

    source: str
    """The table's file, or the type of the frame; for errors."""
    columns: Mapping[str, AnyColumn] = field(repr=False)
    """Each column as its library has it, by ``name_of`` its name."""
    lines: Sequence[int] | None = field(default=None, repr=False)
    """The line of the text file in which each record ends; None for other tables."""

    def __len__(self) -> int:
        """Return how many records there are."""
        return len(next(iter(self.columns.values()), ()))

    def cells(self, name: str) -> Cells:
        """Return the cells of one column.

        Raises Misconfiguration: there is no such column, or a cell has no meaning.
        """
        compared_name = name_of(name)
        if compared_name not in self.columns:
            alike = get_close_matches(compared_name, self.columns, _SHOWN, 0)
            raise Misconfiguration(
                f"data, column {name}",
                self.source,
                f"has no such column; it has {', '.join(alike)}: give one of these, or"
                " add it; columns.rename in the owner's settings says how a column of"
                " the task's is called here",
            )
        return of_column(self.columns[compared_name], name)

    def place(self, record: int) -> str:
        """Return where a record stands, in words: its number and its line of a file."""
        line = f" (line {self.lines[record]} of {self.source})" if self.lines else ""
        return f"record {record}{line}"
