"""The papers' data sets by name, beside those of `precad simulate`; one's own can be registered."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from precad.simulation import datasets
from precad.simulation.datasets import DataSet
from research.datasets.cifar10 import cifar10
from research.datasets.cifar_jpeg import cifar10_jpeg
from research.datasets.grey_images import grey_images
from research.datasets.published_files import from_folder
from research.datasets.sentences import movie_sentences, movie_words
from research.datasets.tweets import sentiment140, sentiment140_glove
from research.registry import Registry

__all__ = ["DATASETS", "DataSet", "load"]


def _without_folder(read: Callable[[], DataSet], _folder: Path | None) -> DataSet:
    return read()


DATASETS: Registry[Callable[[Path | None], DataSet]] = Registry("dataset")
"""Each from the folder that holds its files, which some don't need."""
for _name, _of in datasets.DATASETS.items():
    DATASETS.register(_name)(partial(_without_folder, _of))
_FROM_FILES: dict[str, Callable[[Path], DataSet]] = {
    "mnist": partial(grey_images, "mnist"),
    "fashion-mnist": partial(grey_images, "fashion-mnist"),
    "cifar10": cifar10,
    "cifar10-jpeg": cifar10_jpeg,
    "sentiment140": sentiment140,
    "sentiment140-glove": sentiment140_glove,
    "movie-sentences": movie_sentences,
    "movie-words": movie_words,
}
for _name, _read in _FROM_FILES.items():
    DATASETS.register(_name)(from_folder(_name, _read))


def load(name: str, folder: Path | None = None) -> DataSet:
    """Return the data set of this name.

    Raises:
        Misconfiguration: an unknown name, no folder given, or files missing: it says
            which.
    """
    return DATASETS[name](folder)
