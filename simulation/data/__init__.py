"""Public data sets by name, as arrays. Nothing is downloaded."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from precad.common.errors import Misconfiguration
from precad.simulation.data.built_in import breast_cancer, digits
from precad.simulation.data.cifar_jpeg import cifar10_jpeg
from precad.simulation.data.dataset import DataSet
from precad.simulation.data.glove import sentiment140_glove
from precad.simulation.data.images import IMAGE_SETS, read_images
from precad.simulation.data.sentences import movie_sentences, movie_words
from precad.simulation.data.tweets import sentiment140
from precad.simulation.registry import Registry

__all__ = ["DATASETS", "NAMES", "DataSet", "load"]

DATASETS: Registry[Callable[[Path | None], DataSet]] = Registry("dataset")
"""Each from the folder that holds its files, which some don't need."""


def _built_in(read: Callable[[], DataSet], _folder: Path | None) -> DataSet:
    return read()


def _from_folder(name: str, read: Callable[[Path], DataSet], folder: Path | None) -> DataSet:
    if folder is None:
        raise Misconfiguration(
            "data folder", None, f"name the folder that holds {name}; nothing is downloaded"
        )
    return read(folder)


DATASETS.register("digits")(partial(_built_in, digits))
DATASETS.register("breast-cancer")(partial(_built_in, breast_cancer))
for _name in IMAGE_SETS:
    DATASETS.register(_name)(partial(_from_folder, _name, partial(read_images, _name)))
_FROM_FILES: dict[str, Callable[[Path], DataSet]] = {
    "cifar10-jpeg": cifar10_jpeg,
    "sentiment140": sentiment140,
    "sentiment140-glove": sentiment140_glove,
    "movie-sentences": movie_sentences,
    "movie-words": movie_words,
}
for _name, _read in _FROM_FILES.items():
    DATASETS.register(_name)(partial(_from_folder, _name, _read))
NAMES = tuple(DATASETS)


def load(name: str, folder: Path | None = None) -> DataSet:
    """The data set of this name; one of ``DATASETS``.

    Args:
        name: ``digits`` and ``breast-cancer`` come with scikit-learn.
        folder: where the files of the others lie.

    Raises:
        Misconfiguration: an unknown name, no folder given, or files missing: it says which.
    """
    return DATASETS[name](folder)
