"""Public data sets by name, and how records are dealt out to clients."""

import gzip
import math
import zlib
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.common import (
    Floats,
    Floats32,
    Integers,
    Misconfiguration,
    frozen_kw_only_dataclass,
)


def where_to_get(published: str) -> str:
    """Return the end of an error about missing files: who publishes them, and how."""
    return f"put the published files there ({published}): nothing is downloaded"


@frozen_kw_only_dataclass
class DataSet:
    """Arrays of one data set: training records, and held-out ones for accuracy.

    Raises Misconfiguration: types, lengths or labels are wrong.
    """

    name: str
    """The name that ``load`` and error messages use."""
    train_x: Floats32
    """Training records, ``[n, …]``; images are ``[n, channels, height, width]`` in
    0..1."""
    train_y: Integers
    """Labels of the training records, ``[n]`` in [0, classes)."""
    test_x: Floats32
    """Held-out records, in the form of ``train_x``."""
    test_y: Integers
    """Labels of the held-out records, in the form of ``train_y``."""
    classes: int
    """Number of different labels."""
    owners: Integers | None = None
    """The number of the person whom each training record belongs to, ``[n]``; None
    where the data don't say it."""

    def __post_init__(self) -> None:
        if self.owners is not None and self.owners.shape != self.train_y.shape:
            field = f"{self.name}, owners"
            remedy = "one for each training record"
            raise Misconfiguration(field, self.owners.shape, remedy)
        self._check_part("train", self.train_x, self.train_y)
        self._check_part("test", self.test_x, self.test_y)

    def _check_part(
        self,
        part: str,
        x: Floats32,
        y: Integers,
    ) -> None:
        """Check types, lengths and labels of the training part or the held-out part.

        Raises Misconfiguration: one of them is wrong.
        """
        field = f"{self.name}, {part}"
        if x.dtype != np.float32 or y.dtype != np.int64:
            types = f"{x.dtype}, {y.dtype}"
            raise Misconfiguration(field, types, "must be float32, int64")
        if y.ndim != 1 or len(x) != len(y) or not len(y):
            shapes = f"{x.shape}, {y.shape}"
            raise Misconfiguration(field, shapes, "one label for each record")
        lowest = int(y.min())
        highest = int(y.max())
        if lowest < 0 or highest >= self.classes:
            remedy = f"must lie in [0, {self.classes})"
            raise Misconfiguration(f"{field} labels", [lowest, highest], remedy)

    @property
    def features(self) -> int:
        """Return the number of values in one record."""
        return int(np.prod(self.train_x.shape[1:]))


SPLIT_SEED = 0
"""Seed of the split into training and held-out records: it is no secret."""
_TEST_PART = 0.2
"""Share of the records that is held out."""

# Of the 30 measurements of breast cancer: ten means, their ten standard errors, their
# ten worst values. The centres are typical magnitudes, the scales typical spreads.
# fmt: off
_CENTRES = (
    14, 20, 90, 650, 0.1, 0.1, 0.1, 0.05, 0.18, 0.06,
    0.4, 1.2, 3, 40, 0.007, 0.025, 0.03, 0.012, 0.02, 0.004,
    16, 25, 105, 850, 0.13, 0.25, 0.25, 0.11, 0.3, 0.08,
)
_SCALES = (
    4, 5, 25, 350, 0.015, 0.05, 0.08, 0.04, 0.03, 0.007,
    0.3, 0.5, 2, 40, 0.003, 0.018, 0.03, 0.006, 0.008, 0.0025,
    5, 6, 35, 550, 0.025, 0.15, 0.2, 0.07, 0.06, 0.02,
)
# fmt: on


def digits() -> DataSet:
    """Return handwritten digits: 1,797 images of 8×8, with 16 grey levels as 0..1.

    Raises ModuleNotFoundError: scikit-learn, which holds the file, isn't installed.
    """
    table = digits_table()
    return _split(
        "digits",
        x=table[:, :-1] / 16.0,
        y=table[:, -1],
        classes=10,
    )


def digits_table() -> Floats:
    """Return the digits as scikit-learn's file has them, ``[1797, 65] float64``.

    A row is 64 grey levels from 0 to 16, and the label. Raises ModuleNotFoundError:
    scikit-learn isn't installed.
    """
    return np.loadtxt(_folder() / "digits.csv.gz", delimiter=",")


def breast_cancer() -> DataSet:
    """Return breast cancer Wisconsin (diagnostic): 569 patients, two diagnoses.

    Each patient has 30 measurements, of scales from 10^−3 to 10^3. They are centred and
    scaled by fixed round numbers that stand in this file, and cut at ±5. Statistics of
    the records at hand aren't used: they would be a release of their own that no noise
    covers. The numbers are typical magnitudes, set by hand for this public data set;
    whoever holds private measurements takes them from a textbook or a public study
    instead. Raises ModuleNotFoundError: scikit-learn isn't installed.
    """
    table = np.loadtxt(_folder() / "breast_cancer.csv", delimiter=",", skiprows=1)
    scaled = (table[:, :-1] - np.array(_CENTRES)) / np.array(_SCALES)
    return _split(
        "breast-cancer",
        x=np.clip(scaled, -5.0, 5.0),
        y=table[:, -1],
        classes=2,
    )


def _folder() -> Path:
    """Return the folder of scikit-learn's data files, without importing scikit-learn.

    Raises ModuleNotFoundError: it isn't installed.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    return Path(package.origin).with_name("datasets") / "data"


def _split(
    name: str,
    *,
    x: Floats,
    y: Floats,
    classes: int,
) -> DataSet:
    """Hold out 20 % of the records, the same ones everywhere: the split is no secret.

    ``x`` is ``[n, features]``, ``y`` ``[n]`` with whole numbers.
    """
    order = np.random.default_rng(SPLIT_SEED).permutation(len(x))
    test_count = round(_TEST_PART * len(x))
    test, train = np.split(order, [test_count])
    x32 = x.astype(np.float32)
    y64 = y.astype(np.int64)
    return DataSet(
        name=name,
        train_x=x32[train],
        train_y=y64[train],
        test_x=x32[test],
        test_y=y64[test],
        classes=classes,
    )


MOST_BYTES = 2**30
"""Bytes of one file that are read at most, unpacked."""
_IDX_FORMAT = "an IDX file"


def _read_idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes, which may be packed by gzip.

    The file is two zeros, the type (8 stands for bytes), the number of axes, their
    sizes as words of four bytes, and the values. Raises Misconfiguration: the file is
    damaged, or has another number of axes.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MOST_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, _IDX_FORMAT, str(error)) from None
    start = 4 + 4 * axes
    if len(data) < start or data[:4] != bytes((0, 0, 8, axes)):
        why = f"isn't an array of bytes with {axes} axes"
        raise unreadable(path, _IDX_FORMAT, why)
    shape = np.frombuffer(data[4:start], ">u4").tolist()
    values = len(data) - start
    if values != math.prod(shape):
        why = f"has {values} values, its head says {math.prod(shape)}"
        raise unreadable(path, _IDX_FORMAT, why)
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def unreadable(path: Path, file_format: str, why: str) -> Misconfiguration:
    """Return the error for a data set's file that is damaged."""
    remedy = f"can't be read as {file_format} ({why}); fetch it again"
    return Misconfiguration("data folder", path, remedy)


_IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_GREY = {
    "mnist": ("MNIST", "MNIST of LeCun, Cortes and Burges"),
    "fashion-mnist": ("FashionMNIST", "Fashion-MNIST of Zalando Research"),
}
"""Data sets of grey images: torchvision's name for each, and who publishes it."""


def _grey(name: str, root: Path) -> DataSet:
    """Read MNIST or Fashion-MNIST, ``[n, 1, 28, 28]``, from the folder ``root``.

    Raises Misconfiguration: files are missing, which are named, or one is damaged.
    """
    torchvision_name, published = _GREY[name]
    # Torchvision keeps the files in a folder inside its own; they may also lie in the
    # folder itself.
    raw = root / torchvision_name / "raw"
    paths: list[Path] = []
    missing: list[str] = []
    for file in _IDX_FILES:
        packed = f"{file}.gz"
        places = (root / file, root / packed, raw / file, raw / packed)
        path = next(filter(Path.is_file, places), None)
        if path is None:
            missing.append(file)
        else:
            paths.append(path)
    check_there(
        name=name,
        root=root,
        place=f"{root} or {raw}",
        missing=missing,
        published=(
            f"{published}, which torchvision.datasets.{torchvision_name} downloads"
        ),
    )
    train_images, train_labels, test_images, test_labels = paths
    return DataSet(
        name=name,
        train_x=_read_images(train_images),
        train_y=_read_idx(train_labels, axes=1).astype(np.int64),
        test_x=_read_images(test_images),
        test_y=_read_idx(test_labels, axes=1).astype(np.int64),
        classes=10,
    )


def _read_images(path: Path) -> Floats32:
    """Return the grey images of an IDX file, ``[n, 1, height, width]`` in 0..1."""
    images = _read_idx(path, axes=3)
    return images[:, None].astype(np.float32) / np.float32(255)


def check_there(
    *,
    name: str,
    root: Path,
    place: str,
    missing: list[str],
    published: str,
) -> None:
    """Refuse a folder that lacks files, and say who publishes them.

    Args:
        name: the data set's.
        root: the folder that was named for it.
        place: where the files were looked for, in words.
        missing: names of the files that aren't there.
        published: who publishes them.

    Raises Misconfiguration: a file is missing.
    """
    if missing:
        lacks = f"{name} is read from {place}, which lacks {', '.join(missing)}"
        remedy = f"{lacks}; {where_to_get(published)}"
        raise Misconfiguration("data folder", root, remedy)


def from_folder(
    name: str, read: Callable[[Path], DataSet]
) -> Callable[[Path | None], DataSet]:
    """Return ``read`` with a check that a folder is given.

    What is returned raises Misconfiguration: none is given, or as ``read``.
    """

    def read_folder(folder: Path | None) -> DataSet:
        if folder is None:
            remedy = f"name the folder that holds {name}; nothing is downloaded"
            raise Misconfiguration("data folder", None, remedy)
        return read(folder)

    return read_folder


DATASETS: dict[str, Callable[[Path | None], DataSet]] = {
    "digits": lambda _folder: digits(),
    "breast-cancer": lambda _folder: breast_cancer(),
    **{name: from_folder(name, partial(_grey, name)) for name in _GREY},
}
"""How each data set is read, by name, from the folder that holds its files; some need
no folder."""


def load(name: str, folder: Path | None = None) -> DataSet:
    """Return the data set of this name, from the folder that holds it.

    Raises Misconfiguration: there is none of this name, or its files are missing or
    damaged. Raises ModuleNotFoundError: scikit-learn holds it and isn't installed.
    """
    if name not in DATASETS:
        raise Misconfiguration("dataset", name, f"use one of {', '.join(DATASETS)}")
    return DATASETS[name](folder)


Partition = list[Integers]
"""For each client the ascending indices of its records; every record has one client."""


def shards(
    labels: Integers,
    *,
    clients: int,
    shards_per_client: int,
    seed: int,
) -> Partition:
    """Sort records by label, cut them into equal shards, and deal these to clients.

    Each client gets ``shards_per_client`` random shards, which differ by at most one
    record. PRECAD Sec. 6: with 100 clients and four shards each, most clients hold
    three or four of ten labels. ``labels`` is ``[n]``.

    Raises Misconfiguration: a number is below 1, or there are more shards than records.
    """
    if shards_per_client < 1:
        raise Misconfiguration(
            "shards_per_client", shards_per_client, "must be at least 1"
        )
    count = clients * shards_per_client
    if not 1 <= count <= len(labels):
        remedy = (
            f"must be from 1 to {len(labels) // shards_per_client}: {len(labels)}"
            f" records are cut into {shards_per_client} shards a client"
        )
        raise Misconfiguration("clients", clients, remedy)
    by_label = np.argsort(labels, kind="stable")
    pieces = np.array_split(by_label, count)
    dealt = np.random.default_rng(seed).permutation(count).reshape(clients, -1)
    partition: Partition = []
    for client_shards in dealt:
        records = np.concatenate([pieces[shard] for shard in client_shards])
        partition.append(np.sort(records))
    return partition
