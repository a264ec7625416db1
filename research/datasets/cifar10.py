"""CIFAR-10 as it is published: the binary archive, or the Python one by torchvision."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.simulation.datasets import DataSet
from research.datasets.published_files import MOST_BYTES, check_there, unreadable

_PUBLISHED = "CIFAR-10 of Krizhevsky, the University of Toronto's binary version"
BINARY = "cifar-10-batches-bin"
TRAIN_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST_FILE = "test_batch.bin"
CLASSES = 10
_SHAPE = (3, 32, 32)
_RECORD = 1 + 3 * 32 * 32


def _batches(
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
            data = file.read(MOST_BYTES)
    except OSError as error:
        raise unreadable(path, "CIFAR-10's binary file", str(error)) from None
    if not data or len(data) % _RECORD:
        raise unreadable(
            path,
            "CIFAR-10's binary file",
            f"its {len(data)} bytes aren't records of {_RECORD}",
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, _RECORD)
    if rows[:, 0].max() >= CLASSES:
        raise unreadable(
            path, "CIFAR-10's binary file", f"has a label of {rows[:, 0].max()}"
        )
    return rows


_CIFAR = ("batches.meta", *(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# Declarations live as long as their library object.
_declared: list[Any] = []


def cifar10(root: Path) -> DataSet:
    """Images ``[n, 3, 32, 32]`` in 0..1, from the binary archive or, checked, from the Python one.

    Raises:
        Misconfiguration: files are missing or damaged; names those looked for.
    """
    binary = root / BINARY
    if binary.is_dir():
        files = (*TRAIN_FILES, TEST_FILE)
        missing = [file for file in files if not (binary / file).is_file()]
        check_there(
            name="cifar10",
            root=root,
            place=str(binary),
            missing=missing,
            published=_PUBLISHED,
        )
        train_x, train_y = _batches(binary, TRAIN_FILES)
        test_x, test_y = _batches(binary, (TEST_FILE,))
        pixels = [x.astype(np.float32) / np.float32(255) for x in (train_x, test_x)]
        return DataSet(
            name="cifar10",
            train_x=pixels[0],
            train_y=train_y,
            test_x=pixels[1],
            test_y=test_y,
            classes=10,
        )
    place = root / "cifar-10-batches-py"
    missing = [file for file in _CIFAR if not (place / file).is_file()]
    check_there(
        name="cifar10",
        root=root,
        place=f"{binary} or {place}",
        missing=missing,
        published=_PUBLISHED,
    )
    # Python pickles by their publishers. torchvision checks their published MD5 sums
    # before it opens them, so that only the files as published are read.
    reader = torchvision_datasets().CIFAR10
    try:
        train = reader(root, train=True, download=False)
        test = reader(root, train=False, download=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise Misconfiguration(
            "data folder", str(root), f"cifar10 in {place} can't be read: {error}"
        ) from None
    images = (_images(train.data), _images(test.data))
    return DataSet(
        name="cifar10",
        train_x=images[0],
        train_y=_labels(train),
        test_x=images[1],
        test_y=_labels(test),
        classes=10,
    )


def torchvision_datasets() -> ModuleType:
    """The module ``torchvision.datasets``; this is the one place that imports torchvision.

    Beside a CPU-only torch, torchvision can't load its compiled operators, and its
    import then fails because it registers Python parts of two operators that nobody
    declared. Its data sets and transforms need neither. So where they are missing,
    their schemas are declared first.
    """
    try:
        from torchvision import datasets  # noqa: PLC0415
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                library.define(name + _SCHEMA)  # type: ignore[no-untyped-call]
        _declared.append(library)
        from torchvision import datasets  # noqa: PLC0415
    module: ModuleType = datasets
    return module


def _images(data: Any) -> NDArray[np.float32]:
    """``[n, h, w, channels]`` bytes to ``[n, channels, h, w]`` in 0..1."""
    pixels = np.asarray(data, dtype=np.float32) / np.float32(255)
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def _labels(dataset: Any) -> NDArray[np.int64]:
    return np.asarray(dataset.targets, dtype=np.int64)
