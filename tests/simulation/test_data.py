"""Public data sets by name, read from files as they are published."""

import gzip
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from examples.demo.demo_options import DemoRequest
from examples.demo.demo_training import make_scenario
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.utils import Bunch
from tests.rig.documents import Document

from precad.common.errors import Misconfiguration
from precad.simulation.datasets import SPLIT_SEED, DataSet, load


def idx(values: NDArray[np.uint8]) -> bytes:
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return head + values.tobytes()


FILES = {
    "train-images-idx3-ubyte": (
        np.random.default_rng(0).integers(0, 256, (6, 28, 28), np.uint8)
    ),
    "train-labels-idx1-ubyte": np.array([3, 0, 9, 1, 2, 5], np.uint8),
    "t10k-images-idx3-ubyte": (
        np.random.default_rng(1).integers(0, 256, (2, 28, 28), np.uint8)
    ),
    "t10k-labels-idx1-ubyte": np.array([7, 8], np.uint8),
}


def write_idx(place: Path, *, packed: bool = False) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, values in FILES.items():
        data = gzip.compress(idx(values)) if packed else idx(values)
        (place / f"{name}{'.gz' * packed}").write_bytes(data)


@pytest.mark.parametrize(
    ("name", "folder"),
    # As they are unpacked, and as they are published.
    [("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw"), ("mnist", "")],
)
def test_grey_images_are_read_from_idx_files(
    tmp_path: Path, name: str, folder: str
) -> None:
    published = {"mnist": "LeCun", "fashion-mnist": "Zalando Research"}[name]
    with pytest.raises(
        Misconfiguration, match=f"lacks train-images-idx3-ubyte.*{published}"
    ):
        load(name, tmp_path)
    write_idx(tmp_path / folder, packed=not folder)
    data = load(name, tmp_path)
    assert (data.train_x.shape, data.features) == ((6, 1, 28, 28), 784)
    pixels = np.rint(data.train_x[:, 0] * 255)
    np.testing.assert_array_equal(pixels, FILES["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(data.test_y, [7, 8])
    assert 0 <= data.train_x.min() < data.train_x.max() <= 1
    # A damaged one is refused.
    (tmp_path / folder / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03\0\0")
    with pytest.raises(Misconfiguration, match="can't be read"):
        load(name, tmp_path)


def test_the_demo_takes_a_named_set_from_its_folder(tmp_path: Path) -> None:
    write_idx(tmp_path)
    request = DemoRequest(dataset="mnist", clients=1, rounds=3, data=tmp_path)
    scenario = make_scenario(request)
    ((x, _),) = scenario.data.values()
    assert (scenario.task.training.rounds, x.shape) == (3, (6, 1, 28, 28))
    with pytest.raises(Misconfiguration, match="nothing is downloaded"):
        make_scenario(replace(request, data=None))


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
