"""A table as columns of cells: from CSV, from Parquet, from a frame of any library."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration

Cells: TypeAlias = Sequence[Any] | NDArray[Any]
"""Text, numbers, truth values, and whatever a library has for a missing one; or a NumPy array."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns by name, all of one length.

    Attributes:
        source: the file, or what the frame is, for errors.
        columns: cells by column.
        lines: of a text file: the line in which each record ends.
    """

    source: str
    columns: Mapping[str, Cells] = field(repr=False)
    lines: Sequence[int] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        """How many records."""
        return len(next(iter(self.columns.values()), ()))

    def cells(self, name: str) -> Cells:
        """One column. Raises Misconfiguration: there is none of this name."""
        if name not in self.columns:
            raise Misconfiguration(
                f"data, column {name}",
                self.source,
                f"has no such column; it has {', '.join(map(str, list(self.columns)[:12]))}",
            )
        return self.columns[name]

    def place(self, record: int) -> str:
        """Where a record stands, in words."""
        return f"record {record}" + (f" (line {self.lines[record]})" if self.lines else "")


def of_csv(path: Path, separator: str) -> Table:
    """A CSV file in UTF-8 whose first line names the columns.

    Raises Misconfiguration: it can't be read, has no records, a name twice, or a line with more or
    fewer cells than names.
    """
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=separator, strict=True)
            names = [name.strip() for name in next(reader, [])]
            _check_names(path, names, separator)
            for row in reader:
                if not row:
                    continue  # an empty line
                if len(row) != len(names):
                    raise Misconfiguration(
                        f"data, line {reader.line_num}",
                        f"{len(row)} cells",
                        f"the first line of {path} names {len(names)} columns: mend this line, or "
                        "the separator in columns",
                    )
                rows.append(row)
                lines.append(reader.line_num)
    except UnicodeDecodeError:
        raise Misconfiguration("data", str(path), "isn't text in UTF-8; save it as such") from None
    except (OSError, csv.Error) as error:
        raise Misconfiguration("data", str(path), f"can't be read as CSV: {error}") from None
    if not rows:
        raise Misconfiguration("data", str(path), "has no records below its first line")
    return Table(str(path), dict(zip(names, zip(*rows, strict=True), strict=True)), lines)


def _check_names(path: Path, names: list[str], separator: str) -> None:
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise Misconfiguration("data", str(path), f"names a column twice: {min(twice)!r}")
    if len(names) == 1:
        other = next((each for each in ";\t|," if each != separator and each in names[0]), None)
        if other is not None:
            raise Misconfiguration(
                "columns.separator",
                separator,
                f"the first line of {path} has {other!r} between its names: give that",
            )


def of_parquet(path: Path) -> Table:
    """A Parquet file. Raises Misconfiguration: it can't be read, or pyarrow isn't installed."""
    try:
        from pyarrow.parquet import read_table  # noqa: PLC0415 -- an extra
    except ImportError:
        raise Misconfiguration(
            "data", str(path), "Parquet needs pyarrow: pip install 'precad[parquet]', or give CSV"
        ) from None
    try:
        frame = read_table(path)
    except Exception as error:  # whatever a file's decoder raises
        raise Misconfiguration("data", str(path), f"can't be read as Parquet: {error}") from error
    return of_frame(frame, str(path))


def is_frame(data: Any) -> bool:
    """Whether ``data`` has columns by name, as the frames of pandas, Polars and Arrow do."""
    if isinstance(data, Mapping):
        return True
    return hasattr(data, "columns") and hasattr(data, "__getitem__") and hasattr(data, "shape")


def of_frame(frame: Any, source: str | None = None) -> Table:
    """A frame of pandas, Polars or Arrow, or a mapping from names to columns; copied.

    Raises Misconfiguration: a name twice, columns of different lengths, or no records.
    """
    names = list(frame) if isinstance(frame, Mapping) else _names(frame)
    source = type(frame).__name__ if source is None else source
    if len({str(name) for name in names}) != len(names):
        raise Misconfiguration("data", source, "names a column twice")
    columns = {str(name): _cells(frame[name]) for name in names}
    if len({len(cells) for cells in columns.values()}) > 1:
        raise Misconfiguration("data", source, "has columns of different lengths")
    table = Table(source, columns)
    if len(table) == 0:
        raise Misconfiguration("data", source, "has no records")
    return table


def _names(frame: Any) -> list[Any]:
    # Arrow's columns are the columns themselves.
    return list(frame.column_names if hasattr(frame, "column_names") else frame.columns)


def _cells(column: Any) -> Cells:
    """As an array of numbers where it is one, else as Python's own values."""
    if isinstance(column, np.ndarray) or getattr(column, "dtype", None) in _NUMPY_NUMBERS:
        found = np.array(column)
        return found if found.dtype.kind in "biuf" else found.tolist()
    for name in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, name):
            return list(getattr(column, name)())
    return list(column)


_NUMPY_NUMBERS = tuple(np.dtype(kind) for kind in "?bhilqBHILQefd")
