"""From what an owner has (a file, a frame, arrays, a Dataset) to arrays, once, before enrolment.

Whatever can't be used is found here, where refusing is still the owner's own affair: a cell that
isn't a number, a value that is missing, a level that nobody listed. Later nothing is read again.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precad.client.records.columns import ColumnNotes, Columns, inputs_of, targets_of
from precad.client.records.table import Table, is_frame, of_csv, of_frame, of_parquet
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.npy import read_npz
from precad.common.task_schema import DataSection

_FORMS = "give a .npz file with arrays x and y, a .csv or a .parquet file"


def read_records(
    data: Any,
    recipe: DataSection | None = None,
    columns: Columns | None = None,
    notes: list[ColumnNotes] | None = None,
) -> Any:
    """What ``as_records`` takes: a table's inputs and targets, or the data as they are.

    Args:
        data: a path of a .npz, .csv or .parquet file; a frame, or a mapping from names to columns;
            anything else is given back.
        recipe: the task's ``data``.
        columns: what the owner says of the columns.
        notes: a table's columns add what became of their cells.

    Returns:
        ``([n, …], [n])`` arrays; for anything else ``data`` itself.

    Raises:
        Misconfiguration: a file can't be read, a column isn't there, or a cell can't be used.
    """
    path = _file(data)
    if path is not None and path.suffix == ".npz":
        return _of_arrays(path, recipe)
    table = _table(data, columns or Columns())
    if table is None:
        return data
    mine = columns or Columns()
    section = mine.section(recipe)
    inputs = inputs_of(table, section, mine.rename, mine.decimal, notes)
    targets = targets_of(table, section, mine.rename, mine.decimal)
    if recipe is None and not np.any(targets % 1):
        # Labels, as far as anybody can tell.
        targets = targets.astype(np.int64)
    return inputs, targets


def read_inputs(
    data: Any, recipe: DataSection | None = None, columns: Columns | None = None
) -> NDArray[Any]:
    """Inputs alone, ``[n, …]``, of records whose targets nobody knows yet.

    Takes files and frames as ``read_records`` does; a .npz file needs no ``y``, a table no target.

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

    Raises Misconfiguration: it isn't there, or of a form that isn't read.
    """
    if not isinstance(data, str | Path):
        return None
    path = Path(data)
    if path.suffix not in {".npz", ".csv", ".parquet"}:
        raise Misconfiguration("data", str(path), _FORMS)
    if not path.is_file():
        raise Misconfiguration("data", str(path), "there is no such file: mend the path")
    return path


def _table(data: Any, columns: Columns) -> Table | None:
    """None where ``data`` are no table."""
    path = _file(data)
    if path is None:
        return of_frame(data) if is_frame(data) else None
    return of_csv(path, columns.separator) if path.suffix == ".csv" else of_parquet(path)


def _of_arrays(path: Path, recipe: DataSection | None) -> tuple[NDArray[Any], NDArray[Any]]:
    x, y = read_client_data(path)
    if recipe is not None and x.shape[1:] != (recipe.features,):
        raise Misconfiguration(
            "data",
            str(path),
            f"a record's input has the shape {list(x.shape[1:])}, and the task's [data] makes "
            f"{recipe.features} numbers: give the table itself, or arrays that are encoded alike",
        )
    return x, y


def write_client_data(
    folder: Path, client: ClientId, x: NDArray[np.float32], y: NDArray[np.int64]
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
        raise Misconfiguration("data", str(path), "x and y must have one row per record")
    return x, y
