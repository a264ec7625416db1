"""Public data sets by name, and how records are dealt out to clients."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from precad.common import (
    Floats,
    Floats32,
    Integers,
    Misconfiguration,
    frozen_kw_only_dataclass,
)


@frozen_kw_only_dataclass
class DataSet:
    """Arrays of one data set: training records, and held-out ones for accuracy.

    Whoever takes them as an owner's records looks at types, lengths and labels.
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
    test, train = np.split(order, [round(_TEST_PART * len(x))])
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


DATASETS: dict[str, Callable[[], DataSet]] = {
    "digits": digits,
    "breast-cancer": breast_cancer,
}
"""How each data set is read, by name."""


def load(name: str) -> DataSet:
    """Return the data set of this name.

    Raises Misconfiguration: there is none of this name. Raises ModuleNotFoundError:
    scikit-learn holds it and isn't installed.
    """
    if name not in DATASETS:
        remedy = (
            f"use one of {', '.join(DATASETS)}, or give files of others (--data), such"
            " as a .npz of arrays x and y"
        )
        raise Misconfiguration("dataset", name, remedy)
    return DATASETS[name]()


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
    pieces = np.array_split(np.argsort(labels, kind="stable"), count)
    dealt = np.random.default_rng(seed).permutation(count).reshape(clients, -1)
    partition: Partition = []
    for client_shards in dealt:
        records = np.concatenate([pieces[shard] for shard in client_shards])
        partition.append(np.sort(records))
    return partition
