"""MNIST and Fashion-MNIST, read from the four IDX files that each is published as."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.common import Floats32
from precad.simulation.datasets import DataSet
from research.datasets.published_files import MOST_BYTES, check_there, unreadable

_IDX_FORMAT = "an IDX file"


def _read_idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes, which may be packed by gzip.

    The file is two zeros, the type (8 stands for bytes), the number of axes, their
    sizes as words of four bytes, and the values. Raises Misconfiguration: the file is
    damaged, or has another number of axes.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MOST_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, _IDX_FORMAT, str(error)) from None
    start = 4 + 4 * axes
    if len(data) < start or data[:4] != bytes((0, 0, 8, axes)):
        why = f"isn't an array of bytes with {axes} axes"
        raise unreadable(path, _IDX_FORMAT, why)
    shape = np.frombuffer(data[4:start], ">u4").tolist()
    values = len(data) - start
    if values != math.prod(shape):
        why = f"has {values} values, its head says {math.prod(shape)}"
        raise unreadable(path, _IDX_FORMAT, why)
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


_IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_GREY = {
    "mnist": ("MNIST", "MNIST of LeCun, Cortes and Burges"),
    "fashion-mnist": ("FashionMNIST", "Fashion-MNIST of Zalando Research"),
}
"""Data sets of grey images: torchvision's name for each, and who publishes it."""


def grey_images(name: str, root: Path) -> DataSet:
    """Read MNIST or Fashion-MNIST, ``[n, 1, 28, 28]``, from the folder ``root``.

    Raises Misconfiguration: files are missing, which are named, or one is damaged.
    """
    torchvision_name, published = _GREY[name]
    # Torchvision keeps the files in a folder inside its own; they may also lie in the
    # folder itself.
    raw = root / torchvision_name / "raw"
    paths: list[Path] = []
    missing: list[str] = []
    for file in _IDX_FILES:
        packed = f"{file}.gz"
        places = (root / file, root / packed, raw / file, raw / packed)
        path = next(filter(Path.is_file, places), None)
        if path is None:
            missing.append(file)
        else:
            paths.append(path)
    check_there(
        name=name,
        root=root,
        place=f"{root} or {raw}",
        missing=missing,
        published=(
            f"{published}, which torchvision.datasets.{torchvision_name} downloads"
        ),
    )
    train_images, train_labels, test_images, test_labels = paths
    return DataSet(
        name=name,
        train_x=_read_images(train_images),
        train_y=_read_idx(train_labels, axes=1).astype(np.int64),
        test_x=_read_images(test_images),
        test_y=_read_idx(test_labels, axes=1).astype(np.int64),
        classes=10,
    )


def _read_images(path: Path) -> Floats32:
    """Return the grey images of an IDX file, ``[n, 1, height, width]`` in 0..1."""
    images = _read_idx(path, axes=3)
    return images[:, None].astype(np.float32) / np.float32(255)
