"""Numbers from a file that `precad certify` is given: a ``.npy`` array, or CSV.

A line that is taken for a row, or a row for a header, changes a count of points, models or runs,
and with it a bound. So whatever isn't plainly one of them is asked for, or refused by its line.
"""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np

from precad.cli.certify import Header
from precad.common.errors import Misconfiguration
from precad.common.npy import Array, read_npy

_NAME = re.compile(r'\s*"?[^\W\d][^",]*"?\s*')
"""A column's name: it begins with a letter."""
_INDEX = re.compile(r'\s*"?(|index|unnamed: 0)"?\s*', re.IGNORECASE)
"""The name that pandas gives a column of row numbers, or that it gets when it is read again."""
_ROWS = 3
"""From so many rows on, a first column of 0, 1, 2, … is an index and no coincidence."""


def read_array(
    field: str, path: Path, header: Header | None, *, counted: bool = False, rows: int | None = None
) -> Array:
    """The array in a ``.npy`` file (never unpickled) or a CSV file, ``[rows, columns]``.

    Args:
        header: of CSV; None where it shows.
        counted: whether a column that numbers its rows may belong to it, and rising numbers be its
            first row: whoever adds up or compares what was read finds such a header there.
        rows: how many there must be, where that is known: so many are no header.

    Raises:
        Misconfiguration: it isn't numbers, or what is a header or an index doesn't show.
    """

    def refused(why: str) -> Misconfiguration:
        return Misconfiguration(field, str(path), why)

    if not path.is_file():
        raise refused("there is no such file")
    if path.suffix == ".npy":
        return read_npy(field, path)
    try:
        # Spreadsheets begin a file with a byte-order mark.
        lines = path.read_text(encoding="utf-8-sig").rstrip().splitlines()
        below, array = _below(lines, header), np.zeros((0, 0))
        if lines[below:]:
            array = np.loadtxt(lines[below:], delimiter=",", ndmin=2, comments=None)
    except ValueError as error:
        raise refused(f"give a .npy array of numbers, or CSV ({error})") from None
    if not array.size:
        raise refused("give a file with numbers: it is empty")
    if len(array) != len(lines) - below:
        gap = lines.index(next(each for each in lines if not each.strip())) + 1
        raise refused(f"line {gap} is empty: mend or remove it")
    open_question = header is None and not below and len(array) != rows
    if open_question and _may_be_names(array, counted=counted):
        begin = lines[0] if len(lines[0]) <= 20 else lines[0][:20] + "…"
        raise refused(
            f"begins with {begin}: a header, as pandas writes it, or numbers? Say which "
            "with --header yes or --header no"
        )
    if not counted and array.shape[1] > 1 and len(array) >= _ROWS and _counts(array[:, 0]):
        raise refused(
            "its first column counts its rows: write it without an index (index=False), or give "
            "a .npy file"
        )
    return array


def _below(lines: list[str], header: Header | None) -> int:
    """1 where the first line is a header: names alone, or what is said to be one; else 0.

    A row with a number in it is data, whatever else is wrong with it: dropped, it would shift all.
    """
    cells = lines[0].split(",") if lines else []
    others = cells[1:]
    names = [bool(_NAME.fullmatch(cell)) for cell in cells]
    if others and _INDEX.fullmatch(cells[0]):
        numbered = [cell.strip('" ') for cell in others] == [str(i) for i in range(len(others))]
        if all(names[1:]) or numbered:
            raise ValueError("it has an index: write it without, by index=False")
    return int(header == "yes" or (header is None and bool(cells) and all(names)))


def _may_be_names(array: Array, *, counted: bool) -> bool:
    """Whether the first row may be columns' numbers: 0, 1, 2, …, or some of them."""
    first, others = array[0], array[1:]
    if not len(others) or (first % 1 != 0).any() or first[0] < 0:
        return False
    if counted or len(first) == 1:
        return _counts(first) or bool(len(first) == 1 and (others % 1 != 0).any())
    return all(one < other for one, other in pairwise(first.tolist()))


def _counts(column: Array) -> bool:
    return bool((column == np.arange(len(column))).all())
