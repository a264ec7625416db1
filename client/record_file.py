"""A data owner's records in a file: what `precad join` reads."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.npy import read_npz


def write_client_data(
    folder: Path, client: ClientId, x: NDArray[np.float32], y: NDArray[np.int64]
) -> Path:
    """Writes one client's records to ``folder/<client>.npz`` and returns the path."""
    path = folder / f"{client}.npz"
    np.savez(path, x=x, y=y)
    return path


def read_client_data(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """What ``write_client_data`` wrote.

    Raises:
        Misconfiguration: the file can't be read, or isn't of this form.
    """
    x, y = read_npz("data", path, "x", "y")
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise Misconfiguration("data", str(path), "x and y must have one row per record")
    return x, y
