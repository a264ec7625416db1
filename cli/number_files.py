"""Arrays of numbers from .npy and CSV files, whose first line may be a header.

In a file a line that is taken for a row, or a row for a header, changes a count of
points, models or runs, and with it a bound. So whatever isn't plainly one of them is
asked for or refused.
"""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np

from precad.cli import Header
from precad.common import Array, Misconfiguration, read_npy

_NAME = re.compile(r'\s*"?[^\W\d][^",]*"?\s*')
"""A column's name: it begins with a letter."""
_INDEX = re.compile(r'\s*"?(|index|unnamed: 0)"?\s*', re.IGNORECASE)
"""The name that pandas gives a column of row numbers, or that it gets when it is read
again."""
_ROWS = 3
"""From so many rows on, a first column of 0, 1, 2, … is an index, not a coincidence."""


def read_array(
    field: str,
    path: Path,
    header: Header,
    *,
    counted: bool = False,
    rows: int | None = None,
) -> Array:
    """Read a ``.npy`` file (never unpickled), or a CSV file as ``[rows, columns]``.

    ``field`` names the file's contents in errors. ``header`` says whether CSV begins
    with a header; None where that shows. ``counted``: a column that numbers its rows
    may belong to the array, and rising numbers may be its first row: whoever adds up or
    compares what was read finds such a header there. ``rows``: how many rows there must
    be, where that is known: with so many, the first one is no header.

    Raises Misconfiguration: the file isn't there or doesn't hold numbers, or it doesn't
    show whether it has a header or an index.
    """

    def refused(why: str) -> Misconfiguration:
        return Misconfiguration(field, path, why)

    if not path.is_file():
        raise refused("there is no such file")
    if path.suffix.lower() == ".npy":
        return read_npy(field, path)
    array = np.zeros((0, 0))
    try:
        # Spreadsheets begin a file with a byte-order mark.
        lines = path.read_text(encoding="utf-8-sig").rstrip().splitlines()
        header_lines = _header_lines(lines, header)
        data = lines[header_lines:]
        if data:
            array = np.loadtxt(data, delimiter=",", ndmin=2, comments=None)
    except ValueError as error:
        raise refused(f"give a .npy array of numbers, or CSV ({error})") from None
    if not array.size:
        raise refused("give a file with numbers: it is empty")
    # NumPy passes over empty lines.
    if len(array) != len(data):
        empty = next(i for i, line in enumerate(lines, 1) if not line.strip())
        raise refused(f"line {empty} is empty: mend or remove it")
    open_question = header is None and not header_lines and len(array) != rows
    if open_question and _may_be_header(array, counted=counted):
        first = lines[0]
        begin = first if len(first) <= 20 else first[:20] + "…"
        raise refused(
            f"begins with {begin}: a header, as pandas writes it, or numbers? Say which"
            " with --header yes or --header no"
        )
    if (
        not counted
        and array.shape[1] > 1
        and len(array) >= _ROWS
        and _counts_up(array[:, 0])
    ):
        remedy = "write it without an index (index=False), or give a .npy file"
        raise refused(f"its first column counts its rows: {remedy}")
    return array


def _header_lines(lines: list[str], header: Header) -> int:
    """Return 1 where the first line of a CSV file is a header, else 0.

    It is one where it has names alone, or where ``header`` says so. A row with a number
    in it is data, whatever else is wrong with it: dropped, it would shift all.

    Raises ValueError: the file has an index.
    """
    cells = lines[0].split(",") if lines else []
    others = cells[1:]
    are_names = [bool(_NAME.fullmatch(cell)) for cell in cells]
    if others and _INDEX.fullmatch(cells[0]):
        numbers = [str(i) for i in range(len(others))]
        if [cell.strip('" ') for cell in others] == numbers or all(are_names[1:]):
            raise ValueError("it has an index: write it without, by index=False")
    if header is None:
        return int(bool(cells) and all(are_names))
    return int(header == "yes")


def _may_be_header(array: Array, *, counted: bool) -> bool:
    """Return whether the first row may number columns: 0, 1, 2, …, or some of them.

    ``counted`` is that of ``read_array``.
    """
    first = array[0]
    others = array[1:]
    if not len(others) or (first % 1 != 0).any() or first[0] < 0:
        return False
    if len(first) == 1 and (others % 1 != 0).any():
        return True
    if counted or len(first) == 1:
        return _counts_up(first)
    return all(left < right for left, right in pairwise(first.tolist()))


def _counts_up(numbers: Array) -> bool:
    """Return whether a row or a column is 0, 1, 2, … in this order."""
    return bool((numbers == np.arange(len(numbers))).all())
