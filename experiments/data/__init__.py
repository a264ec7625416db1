"""Public data sets by name, as arrays. Nothing is downloaded."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from precad.common.errors import Misconfiguration
from precad.experiments.data.built_in import breast_cancer, digits
from precad.experiments.data.dataset import DataSet
from precad.experiments.data.images import IMAGE_SETS, read_images
from precad.experiments.data.tweets import sentiment140

__all__ = ["NAMES", "DataSet", "load"]

_BUILT_IN = {"digits": digits, "breast-cancer": breast_cancer}
_FROM_FOLDER: dict[str, Callable[[Path], DataSet]] = {
    **{name: partial(read_images, name) for name in IMAGE_SETS},
    "sentiment140": sentiment140,
}
NAMES = (*_BUILT_IN, *_FROM_FOLDER)


def load(name: str, folder: Path | None = None) -> DataSet:
    """The data set of this name; one of ``NAMES``.

    Args:
        name: ``digits`` and ``breast-cancer`` come with scikit-learn.
        folder: where the files of the others lie.

    Raises:
        Misconfiguration: an unknown name, no folder given, or files missing: it says which.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    if name not in _FROM_FOLDER:
        raise Misconfiguration("dataset", name, f"use one of {', '.join(NAMES)}")
    if folder is None:
        raise Misconfiguration(
            "data folder", None, f"name the folder that holds {name}; nothing is downloaded"
        )
    return _FROM_FOLDER[name](folder)
