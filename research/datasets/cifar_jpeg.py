"""CIFAR-10 recompressed as JPEG, a folder a class: not the published bytes, which figures say."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.simulation.datasets import DataSet
from research.datasets.published_files import where_to_get

FOLDER = "cifar10-jpeg"
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_SIDE = 32


def cifar10_jpeg(
    root: Path, only: tuple[int, ...] = tuple(range(len(CLASSES)))
) -> DataSet:
    """Images as ``[n, 3, 32, 32]`` in 0..1, by class and then by name.

    Args:
        root: holds ``cifar10-jpeg/train/CLASS/*.jpg`` and
            ``cifar10-jpeg/test/CLASS/*.jpg``.
        only: labels to read, ascending; their numbers stay.

    Raises:
        Misconfiguration: a folder or all its images are missing, or an image isn't one
            of 32×32.
    """
    place = root / FOLDER
    found = {
        part: {
            label: sorted((place / part / CLASSES[label]).glob("*.jpg"))
            for label in only
        }
        for part in ("train", "test")
    }
    missing = [
        f"{part}/{CLASSES[label]}"
        for part, classes in found.items()
        for label, files in classes.items()
        if not files
    ]
    if missing:
        raise Misconfiguration(
            "data folder",
            str(root),
            f"cifar10-jpeg is read from {place}, which lacks images in"
            f" {', '.join(missing)};"
            f" {where_to_get('CIFAR-10 of Krizhevsky, each image saved as JPEG')}",
        )
    train_x, train_y = _read(found["train"])
    test_x, test_y = _read(found["test"])
    return DataSet(
        name="cifar10-jpeg",
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        classes=len(CLASSES),
    )


def _read(
    classes: dict[int, list[Path]],
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    labels = np.repeat(list(classes), [len(files) for files in classes.values()])
    images = np.empty((len(labels), 3, _SIDE, _SIDE), np.float32)
    for row, path in enumerate(path for files in classes.values() for path in files):
        images[row] = _image(path).transpose(2, 0, 1)
    images /= 255
    return images, labels


def _image(path: Path) -> NDArray[np.uint8]:
    # torchvision brings it; other data sets don't need it.
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415

    try:
        with Image.open(path, formats=["JPEG"]) as file:
            pixels = (
                np.asarray(file.convert("RGB")) if file.size == (_SIDE, _SIDE) else None
            )
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
        pixels = None
    if pixels is None:
        raise Misconfiguration(
            "data folder", str(path), "must be a JPEG of 32×32 pixels"
        )
    return pixels
