"""Image data sets in their published file formats, from a folder that the user names."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.experiments.data.dataset import DataSet

_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_CIFAR = ("batches.meta", *(f"data_batch_{i}" for i in range(1, 6)), "test_batch")

_SETS = {
    "mnist": ("MNIST", "MNIST/raw", _IDX),
    "fashion-mnist": ("FashionMNIST", "FashionMNIST/raw", _IDX),
    # Python pickles by their publishers. torchvision checks their published MD5 sums before it
    # opens them, so that only the files as published are read.
    "cifar10": ("CIFAR10", "cifar-10-batches-py", _CIFAR),
}
"""torchvision's reader of each data set, and where in its folder which files lie."""
IMAGE_SETS = tuple(_SETS)

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# Declarations live as long as their library object.
_declared: list[Any] = []


def read_images(name: str, root: Path) -> DataSet:
    """MNIST or Fashion-MNIST, 28×28 grey, or CIFAR-10, 3×32×32: one of ``IMAGE_SETS``.

    Raises:
        Misconfiguration: files are missing or damaged; names those looked for.
    """
    reader, inside, files = _SETS[name]
    place = root / inside
    missing = [file for file in files if not (place / file).is_file()]
    if missing:
        raise Misconfiguration(
            "data folder",
            str(root),
            f"{name} is read from {place}, which lacks {', '.join(missing)}; "
            "put the published files there unpacked, nothing is downloaded",
        )
    dataset = getattr(torchvision_datasets(), reader)
    try:
        train = dataset(root, train=True, download=False)
        test = dataset(root, train=False, download=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise Misconfiguration(
            "data folder", str(root), f"{name} in {place} can't be read: {error}"
        ) from None
    return DataSet(name, _images(train.data), _labels(train), _images(test.data), _labels(test), 10)


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
