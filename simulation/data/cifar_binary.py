"""CIFAR-10 in its official binary form: records of a label and 3,072 pixels, without pickles."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration

BINARY = "cifar-10-batches-bin"
TRAIN_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST_FILE = "test_batch.bin"
CLASSES = 10
_SHAPE = (3, 32, 32)
_RECORD = 1 + 3 * 32 * 32
_MOST_BYTES = 2**28


def read_batches(
    place: Path, names: tuple[str, ...]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels ``[n, 3, 32, 32]`` and labels ``[n]`` of these files, one after the other.

    Raises:
        Misconfiguration: a file can't be read, or isn't a sequence of such records.
    """
    parts = [_read(place / name) for name in names]
    rows = np.concatenate(parts)
    return rows[:, 1:].reshape(-1, *_SHAPE), rows[:, 0].astype(np.int64)


def _read(path: Path) -> NDArray[np.uint8]:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES)
    except OSError as error:
        raise _refusal(path, str(error)) from None
    if not data or len(data) % _RECORD:
        raise _refusal(path, f"its {len(data)} bytes aren't records of {_RECORD}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, _RECORD)
    if rows[:, 0].max() >= CLASSES:
        raise _refusal(path, f"has a label of {rows[:, 0].max()}")
    return rows


def _refusal(path: Path, why: str) -> Misconfiguration:
    return Misconfiguration(
        "data folder", str(path), f"can't be read as CIFAR-10's binary file ({why}); fetch it again"
    )
