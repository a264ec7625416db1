"""MNIST and Fashion-MNIST, read from files as they are published."""

import gzip
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from examples.demo.demo_options import DemoRequest
from examples.demo.demo_training import make_scenario
from numpy.typing import NDArray
from research.datasets import load

from precad.common.errors import Misconfiguration


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
