"""A data owner's records in the forms that they come in."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from precad.client.train import as_records
from precad.common.errors import Misconfiguration

X = np.arange(24, dtype=np.float64).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2], np.int32)
PICK = np.array([4, 1], np.int64)


class Items(Dataset[tuple[object, int]]):
    def __init__(self, item: object) -> None:
        self.item = item

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[object, int]:
        return self.item, index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X, Y],
        (torch.from_numpy(X), torch.from_numpy(Y)),
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        as_records((X, Y)),
    ],
)
def test_all_forms_give_the_same_records(data: object) -> None:
    records = as_records(data)
    inputs, targets = records.take(PICK)
    assert len(records) == 6
    assert inputs.dtype == torch.float32
    assert targets.dtype == torch.int64
    assert inputs.tolist() == X[PICK].tolist()
    assert targets.tolist() == Y[PICK].tolist()


def test_real_valued_targets_stay_real() -> None:
    _, targets = as_records((X, X[:, 0])).take(PICK)
    assert targets.dtype == torch.float32


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, Y[:-1]), "6 inputs, 5 targets"),
        ((X, np.array(["a"] * 6)), "targets"),
        ((np.float64(1.0), Y), "one row per record"),
        (Stream(), "by index"),
        (42, "by index"),
    ],
)
def test_unusable_data_is_refused_at_once(data: object, message: str) -> None:
    with pytest.raises(Misconfiguration, match=message):
        as_records(data)


def test_items_that_are_not_tensors_ask_for_a_transform() -> None:
    with pytest.raises(Misconfiguration, match="transform"):
        as_records(Items(object())).take(np.array([0, 1]))
