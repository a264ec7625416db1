"""Public data sets by name, read from files as they are published."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.utils import Bunch
from tests.rig.documents import Document
from tests.rig.tasks import logistic, task_with

from precad.common.errors import Misconfiguration
from precad.simulation import simulate
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


def test_arrays_that_make_no_records_are_refused_as_an_owners_are() -> None:
    task = task_with(
        {
            **logistic(3),
            "training": {"learning_rate": 1.0, "rounds": 1},
            "enrolment.clients": 4,
        }
    )
    x, y = np.zeros((40, 3), np.float32), np.arange(40) % 2
    arrays: Document = {"train_x": x, "train_y": y, "test_x": x + 1, "test_y": y}
    data = DataSet(name="d", **arrays, classes=2)
    assert data.features == 3
    assert simulate(task, data, seed=1).accuracy is not None
    wrong: tuple[dict[str, Any], ...] = (
        {"train_y": y + 1},
        {"train_y": y[:3]},
        {"train_y": y * 1.0},
        {"test_y": y[:3]},
        {"test_y": y + 5},
    )
    for changed in wrong:
        with pytest.raises(Misconfiguration):
            simulate(task, replace(data, **changed), seed=1)
