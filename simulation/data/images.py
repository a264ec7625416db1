"""Image data sets in their published file formats, from a folder that the user names."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.simulation.data.cifar_binary import BINARY, TEST_FILE, TRAIN_FILES, read_batches
from precad.simulation.data.dataset import DataSet, where_to_get
from precad.simulation.data.idx import find_idx, read_idx

_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_CIFAR = ("batches.meta", *(f"data_batch_{i}" for i in range(1, 6)), "test_batch")

_GREY = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}
"""Where torchvision keeps them inside a folder; they may lie in the folder itself as well."""
IMAGE_SETS = (*_GREY, "cifar10")

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# Declarations live as long as their library object.
_declared: list[Any] = []


def read_images(name: str, root: Path) -> DataSet:
    """MNIST or Fashion-MNIST, 28×28 grey, or CIFAR-10, 3×32×32: one of ``IMAGE_SETS``.

    Raises:
        Misconfiguration: files are missing or damaged; names those looked for.
    """
    return _grey(name, root) if name in _GREY else _cifar10(root)


def _grey(name: str, root: Path) -> DataSet:
    folders = (root, root / _GREY[name])
    found = {file: find_idx(folders, file) for file in _IDX}
    _check_there(name, root, f"{root} or {folders[1]}", [f for f in _IDX if found[f] is None])
    train_x, train_y, test_x, test_y = (
        read_idx(path, 1 if "labels" in path.name else 3) for path in found.values() if path
    )
    labels = (train_y.astype(np.int64), test_y.astype(np.int64))
    return DataSet(name, _images(train_x), labels[0], _images(test_x), labels[1], 10)


def _cifar10(root: Path) -> DataSet:
    binary = root / BINARY
    if binary.is_dir():
        files = (*TRAIN_FILES, TEST_FILE)
        _check_there("cifar10", root, str(binary), [f for f in files if not (binary / f).is_file()])
        train_x, train_y = read_batches(binary, TRAIN_FILES)
        test_x, test_y = read_batches(binary, (TEST_FILE,))
        pixels = [x.astype(np.float32) / np.float32(255) for x in (train_x, test_x)]
        return DataSet("cifar10", pixels[0], train_y, pixels[1], test_y, 10)
    place = root / "cifar-10-batches-py"
    _check_there(
        "cifar10", root, f"{binary} or {place}", [f for f in _CIFAR if not (place / f).is_file()]
    )
    # Python pickles by their publishers. torchvision checks their published MD5 sums before it
    # opens them, so that only the files as published are read.
    reader = torchvision_datasets().CIFAR10
    try:
        train = reader(root, train=True, download=False)
        test = reader(root, train=False, download=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise Misconfiguration(
            "data folder", str(root), f"cifar10 in {place} can't be read: {error}"
        ) from None
    images = (_images(train.data), _images(test.data))
    return DataSet("cifar10", images[0], _labels(train), images[1], _labels(test), 10)


def _check_there(name: str, root: Path, place: str, missing: list[str]) -> None:
    if missing:
        raise Misconfiguration(
            "data folder",
            str(root),
            f"{name} is read from {place}, which lacks {', '.join(missing)}; {where_to_get(name)}",
        )


def torchvision_datasets() -> ModuleType:
    """The module ``torchvision.datasets``; this is the one place that imports torchvision.

    Beside a CPU-only torch, torchvision can't load its compiled operators, and its import then
    fails because it registers Python parts of two operators that nobody declared. Its data sets
    and transforms need neither. So where they are missing, their schemas are declared first.
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
    """``[n, h, w]`` or ``[n, h, w, channels]`` bytes to ``[n, channels, h, w]`` in 0..1."""
    pixels = np.asarray(data, dtype=np.float32) / np.float32(255)
    grey = pixels.ndim == 3  # noqa: PLR2004
    return pixels[:, None] if grey else np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def _labels(dataset: Any) -> NDArray[np.int64]:
    return np.asarray(dataset.targets, dtype=np.int64)
