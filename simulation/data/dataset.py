"""A classification data set, split and ready to train on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration

_PUBLISHED = {
    "mnist": "MNIST of LeCun, Cortes and Burges, which torchvision.datasets.MNIST downloads",
    "fashion-mnist": "Fashion-MNIST of Zalando Research, which torchvision.datasets.FashionMNIST "
    "downloads",
    "cifar10": "CIFAR-10 of Krizhevsky, the University of Toronto's binary version",
    "cifar10-jpeg": "CIFAR-10 of Krizhevsky, each image saved as JPEG",
    "sentiment140": "Sentiment140 of Go, Bhayani and Huang, trainingandtestdata.zip",
    "sentiment140-glove": "Sentiment140 of Go, Bhayani and Huang, trainingandtestdata.zip, and "
    "GloVe of Stanford NLP, glove.6B.zip",
    "movie-sentences": "the sentence polarity data 1.0 of Pang and Lee, rt-polaritydata.tar.gz",
}


def where_to_get(name: str) -> str:
    """What an error about missing files ends with: who publishes the data, under which name."""
    return f"put the published files there ({_PUBLISHED[name]}): nothing is downloaded"


@dataclass(frozen=True, slots=True)
class DataSet:
    """Arrays of one data set.

    Args:
        name: as ``load`` takes it.
        train_x: ``[n, …] float32``; images are ``[n, channels, height, width]`` in 0..1.
        train_y: ``[n] int64`` in [0, classes).
        test_x: ``[m, …] float32``.
        test_y: ``[m] int64``.
        classes: number of labels.
        owners: ``[n] int64``, whose each training record is, where the data say so.

    Raises:
        Misconfiguration: arrays of other types or lengths, or a label out of range.
    """

    name: str
    train_x: NDArray[np.float32]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.float32]
    test_y: NDArray[np.int64]
    classes: int
    owners: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.owners is not None and self.owners.shape != self.train_y.shape:
            raise Misconfiguration(
                f"{self.name}, owners", self.owners.shape, "one for each training record"
            )
        for part, x, y in (
            ("train", self.train_x, self.train_y),
            ("test", self.test_x, self.test_y),
        ):
            if x.dtype != np.float32 or y.dtype != np.int64:
                raise Misconfiguration(
                    f"{self.name}, {part}", f"{x.dtype}, {y.dtype}", "must be float32, int64"
                )
            if y.ndim != 1 or len(x) != len(y) or not len(y):
                raise Misconfiguration(
                    f"{self.name}, {part}", f"{x.shape}, {y.shape}", "one label for each record"
                )
            if y.min() < 0 or y.max() >= self.classes:
                raise Misconfiguration(
                    f"{self.name}, {part} labels",
                    [int(y.min()), int(y.max())],
                    f"must lie in [0, {self.classes})",
                )

    @property
    def features(self) -> int:
        """Number of values in one record."""
        return int(np.prod(self.train_x.shape[1:]))
