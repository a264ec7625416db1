"""Files of public data sets as they are published: whether they are there, and readable."""

from collections.abc import Callable
from pathlib import Path

from precad.common import Misconfiguration
from precad.simulation.datasets import DataSet

MOST_BYTES = 2**30
"""Bytes of one file that are read at most, unpacked."""


def where_to_get(published: str) -> str:
    """Return the end of an error about missing files: who publishes them, and how."""
    return f"put the published files there ({published}): nothing is downloaded"


def check_there(
    *,
    name: str,
    root: Path,
    place: str,
    missing: list[str],
    published: str,
) -> None:
    """Refuse a folder that lacks files, and say who publishes them.

    Args:
        name: the data set's.
        root: the folder that was named for it.
        place: where the files were looked for, in words.
        missing: names of the files that aren't there.
        published: who publishes them.

    Raises Misconfiguration: a file is missing.
    """
    if missing:
        lacks = f"{name} is read from {place}, which lacks {', '.join(missing)}"
        remedy = f"{lacks}; {where_to_get(published)}"
        raise Misconfiguration("data folder", root, remedy)


def unreadable(path: Path, file_format: str, why: str) -> Misconfiguration:
    """Return the error for a data set's file that is damaged."""
    remedy = f"can't be read as {file_format} ({why}); fetch it again"
    return Misconfiguration("data folder", path, remedy)


def from_folder(
    name: str, read: Callable[[Path], DataSet]
) -> Callable[[Path | None], DataSet]:
    """Return ``read`` with a check that a folder is given.

    What is returned raises Misconfiguration: none is given, or as ``read``.
    """

    def read_folder(folder: Path | None) -> DataSet:
        if folder is None:
            remedy = f"name the folder that holds {name}; nothing is downloaded"
            raise Misconfiguration("data folder", None, remedy)
        return read(folder)

    return read_folder
