"""From what an owner has (a file, a frame, arrays, a Dataset) to arrays, once, before enrolment.

Whatever can't be used is found here, where refusing is still the owner's own affair: a
cell that isn't a number, a value that is missing, a level that nobody listed. Later
nothing is read again.
"""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precad.client.records.columns import ColumnNotes, Columns, inputs_of, targets_of
from precad.client.records.containers import ColumnTable, name_of
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.npy import read_npz, require_room
from precad.common.task_schema import DataSection

_FORMS = "give a .npz file with arrays x and y, a .csv or a .parquet file"


def read_records(
    data: Any,
    recipe: DataSection | None = None,
    columns: Columns | None = None,
    notes: list[ColumnNotes] | None = None,
) -> Any:
    """What ``as_records`` takes: a table's inputs and targets, or the data as they are.

    A table is a path of a .npz, .csv or .parquet file, a frame, or a mapping from names
    to columns; its arrays are ``([n, …], [n])``. ``recipe`` is the task's ``data``; to
    ``notes`` a table's columns add what became of their cells.

    Raises Misconfiguration: a file can't be read, a column isn't there, or a cell can't
    be used.
    """
    path = _file(data)
    mine = columns or Columns()
    if path is not None and path.suffix == ".npz":
        x, y = read_client_data(path)
        if recipe is not None and x.shape[1:] != (recipe.features,):
            raise Misconfiguration(
                "data",
                str(path),
                f"a record's input has the shape {list(x.shape[1:])}, and the task's"
                f" [data] makes {recipe.features} numbers: give the table itself, or"
                " arrays that are encoded alike",
            )
        return x, y
    table = _table(data, mine)
    if table is None:
        return data
    section = mine.section(recipe)
    inputs = inputs_of(
        table,
        section,
        mine.rename,
        mine.decimal,
        notes,
    )
    targets = targets_of(table, section, mine.rename, mine.decimal)
    if recipe is None and not np.any(targets % 1):
        # Labels, as far as anybody can tell.
        targets = targets.astype(np.int64)
    return inputs, targets


def read_inputs(
    data: Any, recipe: DataSection | None = None, columns: Columns | None = None
) -> NDArray[Any]:
    """Inputs alone, ``[n, …]``, of records whose targets nobody knows yet.

    Takes files and frames as ``read_records`` does; a .npz file needs no ``y``, a table
    no target.

    Raises Misconfiguration: as ``read_records``; ``data`` is none of these.
    """
    path = _file(data)
    if path is not None and path.suffix == ".npz":
        (x,) = read_npz("data", path, "x")
        if x.ndim == 0:
            raise Misconfiguration("data", str(path), "x must have one row per record")
        return x
    mine = columns or Columns()
    table = _table(data, mine)
    if table is None:
        return np.asarray(data)
    if recipe is None and mine.target is None:
        mine = mine.model_copy(update={"target": "(unknown)"})
    return inputs_of(table, mine.section(recipe), mine.rename, mine.decimal)


def _file(data: Any) -> Path | None:
    """None where ``data`` are no file.

    Raises Misconfiguration: none that can be read.
    """
    if not isinstance(data, str | Path):
        return None
    path = Path(data)
    if path.suffix not in {".npz", ".csv", ".parquet"}:
        raise Misconfiguration("data", str(path), _FORMS)
    if not path.is_file():
        raise Misconfiguration(
            "data", str(path), "there is no such file: mend the path"
        )
    return path


def _table(data: Any, columns: Columns) -> ColumnTable | None:
    path = _file(data)
    if path is None:
        return of_frame(data) if is_frame(data) else None
    return (
        of_csv(path, columns.separator) if path.suffix == ".csv" else of_parquet(path)
    )


def write_client_data(
    folder: Path,
    client: ClientId,
    x: NDArray[np.float32],
    y: NDArray[np.int64],
) -> Path:
    """Writes one client's records to ``folder/<client>.npz`` and returns the path."""
    path = folder / f"{client}.npz"
    np.savez(path, x=x, y=y)
    return path


def read_client_data(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """What ``write_client_data`` wrote.

    Raises Misconfiguration: the file can't be read, or isn't of this form.
    """
    x, y = read_npz("data", path, "x", "y")
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise Misconfiguration(
            "data", str(path), "x and y must have one row per record"
        )
    return x, y


# --- tables
# ------------------------------------------------------------------------------------


def of_csv(path: Path, separator: str) -> ColumnTable:
    """A CSV file in UTF-8 whose first line names the columns.

    Raises Misconfiguration: it can't be read, has no records, a name twice, or a line
    with more or fewer cells than names.
    """
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=separator, strict=True)
            names = [name_of(name) for name in next(reader, [])]
            _require_once(names, str(path))
            if len(names) == 1:
                others = (
                    each for each in ";\t|," if each != separator and each in names[0]
                )
                other = next(others, None)
                if other is not None:
                    remedy = (
                        f"the first line of {path} has {other!r} between its names:"
                        " give that"
                    )
                    raise Misconfiguration("columns.separator", separator, remedy)
            for row in reader:
                if not row:
                    continue  # an empty line
                if len(row) != len(names):
                    raise Misconfiguration(
                        f"data, line {reader.line_num}",
                        f"{len(row)} cells",
                        f"the first line of {path} names {len(names)} columns: mend"
                        " this line, or the separator in columns",
                    )
                rows.append(row)
                lines.append(reader.line_num)
    except UnicodeDecodeError:
        raise Misconfiguration(
            "data", str(path), "isn't text in UTF-8; save it as such"
        ) from None
    except (OSError, csv.Error) as error:
        raise Misconfiguration(
            "data", str(path), f"can't be read as CSV: {error}"
        ) from None
    if not rows:
        raise Misconfiguration("data", str(path), "has no records below its first line")
    return ColumnTable(
        str(path), dict(zip(names, zip(*rows, strict=True), strict=True)), lines
    )


def _require_once(names: Sequence[str], source: str) -> None:
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise Misconfiguration("data", source, f"names a column twice: {min(twice)!r}")


def of_parquet(path: Path) -> ColumnTable:
    """A Parquet file.

    Raises Misconfiguration: it can't be read, or pyarrow isn't installed.
    """
    try:
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415 -- an extra
    except ImportError:
        raise Misconfiguration(
            "data",
            str(path),
            "Parquet needs pyarrow: pip install 'precad[parquet]', or give CSV",
        ) from None
    try:
        with ParquetFile(path) as file:
            # A few bytes may stand for a column of one value, whose cells take 8 each.
            cells = file.metadata.num_rows * file.metadata.num_columns
            require_room("data", path, 8 * cells)
            frame = file.read()
    except Misconfiguration:
        raise
    except Exception as error:  # whatever a file's decoder raises
        raise Misconfiguration(
            "data", str(path), f"can't be read as Parquet: {error}"
        ) from error
    return of_frame(frame, str(path))


def is_frame(data: Any) -> bool:
    """Whether ``data`` has columns by name, as the frames of pandas, Polars and Arrow do.

    Raises Misconfiguration: it is one that isn't computed yet.
    """
    if isinstance(data, Mapping):
        return True
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):
        raise Misconfiguration(
            "data", type(data).__name__, "isn't computed yet: give .collect()"
        )
    return (
        hasattr(data, "columns")
        and hasattr(data, "__getitem__")
        and hasattr(data, "shape")
    )


def of_frame(frame: Any, source: str | None = None) -> ColumnTable:
    """A frame of pandas, Polars or Arrow, or a mapping from names to columns.

    Raises Misconfiguration: a name twice, columns of different lengths, or no records.
    """
    # Arrow's columns are the columns themselves.
    names = getattr(frame, "column_names", None)
    names = list(frame if isinstance(frame, Mapping) else names or frame.columns)
    source = type(frame).__name__ if source is None else source
    _require_once([name_of(name) for name in names], source)
    columns = {name_of(name): frame[name] for name in names}
    for name, column in columns.items():
        if not hasattr(column, "__len__"):
            remedy = "must have a cell for each record"
            raise Misconfiguration(
                f"data, column {name}", type(column).__name__, remedy
            )
    if len({len(column) for column in columns.values()}) > 1:
        raise Misconfiguration("data", source, "has columns of different lengths")
    table = ColumnTable(source, columns)
    if len(table) == 0:
        raise Misconfiguration("data", source, "has no records")
    return table
