"""Reads what an owner has into arrays: a file, a frame, arrays or a Dataset.

It is read once, before enrolment, and never again. Whatever can't be used is found
here, where refusing is still the owner's own affair: a cell that isn't a number, a
value that is missing, a level that nobody listed.
"""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from precad.client.records import (
    ColumnNotes,
    Columns,
    ColumnTable,
    identifiers_of,
    inputs_of,
    name_of,
    targets_of,
)
from precad.common import (
    Array,
    DataSection,
    Floats32,
    Integers,
    Misconfiguration,
    read_npz,
    require_room,
)

_FORMS = "give a .npz file with arrays x and y, a .csv or a .parquet file"
"""Advice on a file of another form."""
_SEPARATORS = ";\t|,"
"""Signs that may stand between the cells of a CSV file."""

OwnerData = Any
"""Records as an owner has them: a file's path, a frame of pandas, Polars or Arrow, a
mapping from names to columns, a pair of arrays or tensors, or a torch Dataset."""


def read_records(
    data: OwnerData,
    recipe: DataSection | None = None,
    columns: Columns | None = None,
    notes: list[ColumnNotes] | None = None,
    *,
    with_units: bool = False,
) -> OwnerData:
    """Return what ``as_records`` takes: inputs ``[n, …]`` and targets ``[n]``.

    A table is a .csv or .parquet file, a frame, or a mapping from names to columns.
    From a table and from a .npz file a pair of arrays is made; other data come back as
    they are.

    Args:
        data: the records.
        recipe: the task's ``[data]``, if it has one.
        columns: which of a table's columns is which.
        notes: gets one entry for each of a table's columns.
        with_units: whether identifiers of units come third, ``[n]``, from a table's
            column ``columns.unit`` or a .npz file's array ``units``.

    Raises Misconfiguration: a file can't be read, a column isn't there, or a cell can't
    be used.
    """
    path = _file(data)
    own_columns = columns or Columns()
    if path is not None and _ending(path) == ".npz":
        x, y = read_client_data(path)
        if recipe is not None and x.shape[1:] != (recipe.features,):
            raise Misconfiguration(
                "data",
                path,
                f"a record's input has the shape {list(x.shape[1:])}, and the task's"
                f" [data] makes {recipe.features} numbers: give the table itself, or"
                " arrays that are encoded alike",
            )
        if with_units:
            (units,) = read_npz("data", path, "units")
            return x, y, identifiers_beside(units)
        return x, y
    table = table_of(data, own_columns)
    if table is None:
        return data
    section = own_columns.section(recipe)
    inputs = inputs_of(table, section, own_columns, notes)
    targets = targets_of(table, section, own_columns, notes)
    all_whole = not np.any(targets % 1)
    if recipe is None and all_whole:
        # Nothing says that they are labels, but they look like labels.
        targets = targets.astype(np.int64)
    if with_units and own_columns.unit is not None:
        identifiers = identifiers_of(
            table,
            own_columns.unit,
            section=section,
            decimal=own_columns.decimal,
        )
        return inputs, targets, identifiers
    return inputs, targets


def identifiers_beside(units: OwnerData) -> list[str]:
    """Return identifiers ``[n]`` from an array, list or column of them.

    Raises Misconfiguration: as ``identifiers_of``.
    """
    table = of_frame({"units": units})
    section = Columns(inputs=("inputs",), target="units").section(None)
    return identifiers_of(table, "units", section=section)


def read_inputs(
    data: OwnerData,
    recipe: DataSection | None = None,
    columns: Columns | None = None,
    notes: list[ColumnNotes] | None = None,
) -> Array:
    """Return the inputs ``[n, …]`` of records whose targets nobody knows yet.

    The arguments are those of ``read_records``. A .npz file needs no ``y``, a table no
    target; other data are taken as an array of inputs.

    Raises Misconfiguration: as ``read_records``.
    """
    path = _file(data)
    if path is not None and _ending(path) == ".npz":
        return read_npz("data", path, "x")[0]
    own_columns = columns or Columns()
    table = table_of(data, own_columns)
    if table is None:
        return np.asarray(data)
    if recipe is None and own_columns.target is None:
        # A section has to name a target; this one is never read.
        own_columns = own_columns.model_copy(update={"target": "(unknown)"})
    return inputs_of(table, own_columns.section(recipe), own_columns, notes)


def read_column(
    data: OwnerData, name: str, columns: Columns | None = None
) -> Sequence[object]:
    """Return a table's column as it stands, ``[n]``; an identifier that goes along.

    Raises Misconfiguration: there is no table, or no such column in it.
    """
    table = table_of(data, columns or Columns())
    if table is None:
        raise Misconfiguration("--id", name, "names a table's column: give a table")
    return list(table.cells(name))


def _file(data: OwnerData) -> Path | None:
    """Return the path that ``data`` is, or None where it is no path.

    Raises Misconfiguration: there is no such file, or it has another form.
    """
    if not isinstance(data, str | Path):
        return None
    path = Path(data)
    if _ending(path) not in {".npz", ".csv", ".parquet"}:
        raise Misconfiguration("data", path, _FORMS)
    if path.is_dir():
        remedy = "is a folder: give one file, such as all its parts written into one"
    elif path.exists():
        remedy = "is a pipe or a device: write its contents to a file, and give that"
    else:
        remedy = "there is no such file: mend the path"
    if not path.is_file():
        raise Misconfiguration("data", path, remedy)
    return path


def _ending(path: Path) -> str:
    """Return what a file's name ends with; some systems write it in capitals."""
    return path.suffix.lower()


def table_of(data: OwnerData, columns: Columns) -> ColumnTable | None:
    """Return the table that a frame or a file is; None where ``data`` is no table.

    Raises Misconfiguration: as ``of_csv``, ``of_parquet`` and ``of_frame``.
    """
    path = _file(data)
    if path is None:
        return of_frame(data) if is_frame(data) else None
    if _ending(path) == ".csv":
        return of_csv(path, columns.separator)
    return of_parquet(path) if _ending(path) == ".parquet" else None


def read_client_data(path: Path) -> tuple[Floats32, Integers]:
    """Return the inputs ``[n, …]`` and labels ``[n]`` of a client's .npz.

    Raises Misconfiguration: the file can't be read, or isn't of this form.
    """
    x, y = read_npz("data", path, "x", "y")
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise Misconfiguration(
            "data",
            path,
            "x and y must have one row per record",
        )
    return x, y


# --- tables
# ------------------------------------------------------------------------------------


def of_csv(path: Path, separator: str) -> ColumnTable:
    """Return the table of a CSV file in UTF-8 whose first line names the columns.

    Every cell is text. Empty lines are left out.

    Raises Misconfiguration: the file can't be read, has no records, names a column
    twice, or has a line with more or fewer cells than names.
    """
    rows = []
    lines = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=separator, strict=True)
            heading = next(reader, [])
            # A line by which Excel knows the separator.
            if "".join(heading).startswith("sep="):
                heading = next(reader, [])
            names = list(map(name_of, heading))
            _require_once(names, str(path))
            for other in _SEPARATORS.replace(separator, ""):
                # A table of one column, whose name holds another separator.
                if len(names) == 1 and other in names[0]:
                    raise Misconfiguration(
                        "columns.separator",
                        separator,
                        f"the first line of {path} has {other!r} between its names:"
                        f" save the file with {separator!r}, and . before a number's"
                        f" fraction; or write columns.separator = {other!r} (and"
                        " columns.decimal) into the owner's settings, of which precad"
                        " doctor, join, predict and evaluate read it, and setup,"
                        " simulate and task check don't",
                    )
            for row in reader:
                if not row:
                    continue
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
            "data",
            path,
            "isn't text in UTF-8; save it as such",
        ) from None
    except (OSError, csv.Error) as error:
        raise Misconfiguration(
            "data",
            path,
            f"can't be read as CSV: {error}",
        ) from None
    if not rows:
        raise Misconfiguration("data", path, "has no records below its first line")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return ColumnTable(str(path), columns, lines)


def _require_once(names: Sequence[str], source: str) -> None:
    """Refuse a name that two columns have. Raises Misconfiguration: names it."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise Misconfiguration("data", source, f"names a column twice: {min(twice)!r}")


def of_parquet(path: Path) -> ColumnTable:
    """Return the table of a Parquet file.

    Raises Misconfiguration: the file can't be read, is too large for this machine, or
    pyarrow isn't installed.
    """
    try:
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415 -- an extra
    except ImportError:
        raise Misconfiguration(
            "data",
            path,
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
            "data",
            path,
            f"can't be read as Parquet: {error}",
        ) from error
    return of_frame(frame, str(path))


def is_frame(data: OwnerData) -> bool:
    """Return whether data have columns by name: a mapping, or a frame of a library.

    That is what the frames of pandas, Polars and Arrow are.

    Raises Misconfiguration: it is a frame that isn't computed yet.
    """
    if isinstance(data, Mapping):
        return True
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):
        raise Misconfiguration(
            "data",
            type(data).__name__,
            "isn't computed yet: give .collect()",
        )
    return all(hasattr(data, name) for name in ("columns", "__getitem__", "shape"))


def of_frame(frame: OwnerData, source: str | None = None) -> ColumnTable:
    """Return the table of a frame of pandas, Polars or Arrow, or of a mapping.

    ``source`` is the file that the frame was read from, for errors; by default they say
    the frame's type.

    Raises Misconfiguration: a name stands there twice, columns have different lengths,
    or there are no records.
    """
    if source is None:
        source = type(frame).__name__
    # Arrow has names of its own: its ``columns`` are the columns themselves.
    arrow_names = getattr(frame, "column_names", None)
    names = list(frame if isinstance(frame, Mapping) else arrow_names or frame.columns)
    _require_once([name_of(name) for name in names], source)
    columns = {name_of(name): frame[name] for name in names}
    for name, column in columns.items():
        if not hasattr(column, "__len__"):
            raise Misconfiguration(
                f"data, column {name}",
                type(column).__name__,
                "must have a cell for each record",
            )
    if len({len(column) for column in columns.values()}) > 1:
        raise Misconfiguration("data", source, "has columns of different lengths")
    table = ColumnTable(source, columns)
    if len(table) == 0:
        raise Misconfiguration("data", source, "has no records")
    return table
