"""Public data sets by name, read from files as they are published."""

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.utils import Bunch
from tests.rig.documents import Document

from precad.common.errors import Misconfiguration
from precad.simulation.datasets import SPLIT_SEED, DataSet, load


@pytest.mark.parametrize(
    ("name", "read", "shape"),
    [
        ("digits", load_digits, (1438, 359, 64, 10)),
        ("breast-cancer", load_breast_cancer, (455, 114, 30, 2)),
    ],
)
def test_built_in_data_are_scikit_learns_split_once_and_scaled(
    name: str, read: Callable[[], Bunch], shape: tuple[int, ...]
) -> None:
    """However it names and packs its files; they are read without it."""
    data, theirs = load(name), read()
    assert (len(data.train_y), len(data.test_y), data.features, data.classes) == shape
    assert np.abs(data.train_x).max() <= 5
    values = np.concatenate([data.test_x, data.train_x])
    labels = np.concatenate([data.test_y, data.train_y])
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    assert (labels == theirs.target[order]).all()
    if name == "digits":
        assert (values * 16 == theirs.data[order]).all()
    else:
        # By fixed numbers that fit it, and clipped at 5.
        assert np.abs(data.train_x.mean(axis=0)).max() < 0.5
        assert (
            0.5 < data.train_x.std(axis=0).min() <= data.train_x.std(axis=0).max() < 1.5
        )
        columns = zip(values.T, theirs.data[order].T, strict=True)
        assert all(np.corrcoef(ours, given)[0, 1] > 0.9 for ours, given in columns)


def test_inconsistent_arrays_are_refused() -> None:
    x, y = np.zeros((2, 3), np.float32), np.array([0, 1])
    arrays: Document = {"train_x": x, "train_y": y, "test_x": x, "test_y": y}
    assert DataSet(name="d", **arrays, classes=2).features == 3
    for changed in (
        {"train_y": np.array([0, 2])},
        {"train_y": np.array([0])},
        {"train_x": np.zeros((2, 3))},
        {"test_y": np.array([0.0, 1.0])},
        {"owners": np.array([0])},
    ):
        with pytest.raises(Misconfiguration):
            DataSet(name="d", **arrays | changed, classes=2)
