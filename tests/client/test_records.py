"""A data owner's records in the forms that they come in."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration

X = np.arange(24, dtype=np.float64).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2], np.int32)
PICK = np.array([4, 1], np.int64)


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


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, Y[:-1]), "6 inputs, 5 targets"),
        ((X, np.array(["a"] * 6)), "targets"),
        ((np.float64(1.0), Y), "one row per record"),
        (Stream(), "give a Dataset with __len__"),
        (42, "give a Dataset with __len__"),
    ],
)
def test_unusable_data_is_refused_at_once(data: object, message: str) -> None:
    with pytest.raises(Misconfiguration, match=message):
        as_records(data)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(np.nan, np.float32), (np.inf, np.float64), (-np.inf, np.float32), (1e300, np.float64)],
)
@pytest.mark.parametrize("place", ["input", "target"])
def test_a_value_that_is_not_finite_in_float32_is_named(
    value: float, dtype: type, place: str
) -> None:
    x: NDArray[Any] = X.astype(dtype)
    y = x[:, 0].copy()
    if place == "input":
        x[4, 2] = value
    else:
        y[4] = value
    where = "input[2]" if place == "input" else "target"
    with pytest.raises(Misconfiguration) as refused:
        as_records((x, y))
    assert refused.value.field == f"data, {where} of record 4"
    assert np.array_equal(refused.value.value, value, equal_nan=True)  # type: ignore[arg-type]
    assert "mend this record" in refused.value.remedy


class Changing(Dataset[tuple[torch.Tensor, int]]):
    """Gives something else at each reading, and can't be read where it is told so."""

    def __init__(self, unreadable: int | None = None, odd: int | None = None) -> None:
        self.readings = 0
        self.unreadable = unreadable
        self.odd = odd

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.readings += 1
        if index == self.unreadable:
            raise OSError("truncated file")
        return torch.full((3 if index == self.odd else 2,), float(self.readings)), index


def test_a_dataset_is_read_once_and_its_later_changes_do_not_count() -> None:
    dataset = Changing()
    records = as_records(dataset)
    for _ in range(2):
        inputs, _ = records.take(np.arange(5))
        assert inputs[:, 0].tolist() == [1, 2, 3, 4, 5]
    assert dataset.readings == 5


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_later_changes_of_the_arrays_do_not_count(convert: Callable[[object], Any]) -> None:
    x, y = X.astype(np.float32), Y.astype(np.int64)
    records = as_records((convert(x), convert(y)))
    x[:] = np.nan
    y[:] = 99
    inputs, targets = records.take(np.arange(6))
    assert inputs.tolist() == X.tolist()
    assert targets.tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Changing(unreadable=3), "record 3.*OSError.*truncated file.*mend this record"),
        (Changing(odd=2), r"input of record 2.*\[3\].*record 0 has.*\[2\]"),
    ],
)
def test_an_item_that_cannot_be_used_is_named(dataset: object, message: str) -> None:
    with pytest.raises(Misconfiguration, match=message):
        as_records(dataset)


class Items(Dataset[tuple[object, int]]):
    def __init__(self, item: object) -> None:
        self.item = item

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[object, int]:
        return self.item, index


def test_items_that_are_not_tensors_ask_for_a_transform() -> None:
    with pytest.raises(Misconfiguration, match="transform"):
        as_records(Items(object()))
