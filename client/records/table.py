"""A table as columns of cells: from CSV, from Parquet, from a frame of any library."""

import csv
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precad.client.records.containers import Cells, of_column
from precad.common.errors import Misconfiguration
from precad.common.npy import require_room

_BYTES_PER_CELL = 8


@dataclass(frozen=True, slots=True)
class Table:
    """Columns by name, all of one length.

    Attributes:
        source: the file, or what the frame is, for errors.
        columns: by name, in the form NFC and without blanks around it; as their library has them.
        lines: of a text file: the line in which each record ends.
    """

    source: str
    columns: Mapping[str, Any] = field(repr=False)
    lines: Sequence[int] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        """How many records."""
        return len(next(iter(self.columns.values()), ()))

    def cells(self, name: str) -> Cells:
        """One column, read. Raises Misconfiguration: there is none, or a cell means nothing."""
        found = name_of(name)
        if found not in self.columns:
            raise Misconfiguration(
                f"data, column {name}",
                self.source,
                f"has no such column; it has {', '.join(map(str, list(self.columns)[:12]))}",
            )
        return of_column(self.columns[found], name)

    def place(self, record: int) -> str:
        """Where a record stands, in words."""
        return f"record {record}" + (f" (line {self.lines[record]})" if self.lines else "")


def name_of(column: object) -> str:
    """A column's name as it is compared: the same letters, however they are composed."""
    return unicodedata.normalize("NFC", str(column)).strip()


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
            names = [name_of(name) for name in next(reader, [])]
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
    _require_once(names, str(path))
    if len(names) == 1:
        other = next((each for each in ";\t|," if each != separator and each in names[0]), None)
        if other is not None:
            raise Misconfiguration(
                "columns.separator",
                separator,
                f"the first line of {path} has {other!r} between its names: give that",
            )


def _length(name: str, column: Any) -> int:
    try:
        return len(column)
    except TypeError:
        raise Misconfiguration(
            f"data, column {name}", type(column).__name__, "must have a cell for each record"
        ) from None


def _require_once(names: Sequence[str], source: str) -> None:
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise Misconfiguration("data", source, f"names a column twice: {min(twice)!r}")


def of_parquet(path: Path) -> Table:
    """A Parquet file. Raises Misconfiguration: it can't be read, or pyarrow isn't installed."""
    try:
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415 -- an extra
    except ImportError:
        raise Misconfiguration(
            "data", str(path), "Parquet needs pyarrow: pip install 'precad[parquet]', or give CSV"
        ) from None
    try:
        with ParquetFile(path) as file:
            # A few bytes may stand for a column of one value.
            cells = file.metadata.num_rows * file.metadata.num_columns
            require_room("data", path, _BYTES_PER_CELL * cells)
            frame = file.read()
    except Misconfiguration:
        raise
    except Exception as error:  # whatever a file's decoder raises
        raise Misconfiguration("data", str(path), f"can't be read as Parquet: {error}") from error
    return of_frame(frame, str(path))


def is_frame(data: Any) -> bool:
    """Whether ``data`` has columns by name, as the frames of pandas, Polars and Arrow do.

    Raises Misconfiguration: it is one that isn't computed yet.
    """
    if isinstance(data, Mapping):
        return True
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):
        raise Misconfiguration("data", type(data).__name__, "isn't computed yet: give .collect()")
    return hasattr(data, "columns") and hasattr(data, "__getitem__") and hasattr(data, "shape")


def of_frame(frame: Any, source: str | None = None) -> Table:
    """A frame of pandas, Polars or Arrow, or a mapping from names to columns.

    Raises Misconfiguration: a name twice, columns of different lengths, or no records.
    """
    # Arrow's columns are the columns themselves.
    names = getattr(frame, "column_names", None)
    names = list(frame if isinstance(frame, Mapping) else names or frame.columns)
    source = type(frame).__name__ if source is None else source
    _require_once([name_of(name) for name in names], source)
    columns = {name_of(name): frame[name] for name in names}
    lengths = {_length(name, column) for name, column in columns.items()}
    if len(lengths) > 1:
        raise Misconfiguration("data", source, "has columns of different lengths")
    table = Table(source, columns)
    if len(table) == 0:
        raise Misconfiguration("data", source, "has no records")
    return table
