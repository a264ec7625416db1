"""A data owner's records in the forms that they come in."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration

X = np.arange(24, dtype=np.float64).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2], np.int32)
MASKED = np.ma.masked_array([1.0, 2.0], mask=[False, True])
PICK = np.array([4, 1], np.int64)


class Items(Dataset[Any]):
    """Five of them, each as ``item`` makes it of its index; a count of its readings goes along."""

    def __init__(self, item: Callable[[int], Any]) -> None:
        self.item, self.readings = item, 0

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        self.readings += 1
        return self.item(index), index


class Stream(IterableDataset[Any]):
    """It has ``has`` records, whatever it says, and may end with an error."""

    def __init__(self, says: int | None, has: int, error: Exception | None = None) -> None:
        self.says, self.has, self.error = says, has, error

    def __len__(self) -> int:
        if self.says is None:
            raise TypeError("no length")
        return self.says

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        yield from ((torch.full((2,), float(place)), place) for place in range(self.has))
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X, Y],
        (torch.from_numpy(X), torch.from_numpy(Y)),
        (pd.DataFrame(X), pd.Series(Y)),
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        as_records((X, Y)),
    ],
    ids=["arrays", "a list", "tensors", "frames", "a dataset", "records"],
)
def test_all_forms_give_the_same_records(data: object) -> None:
    records = as_records(data)
    inputs, targets = records.take(PICK)
    assert (len(records), inputs.dtype, targets.dtype) == (6, torch.float32, torch.int64)
    assert (inputs.tolist(), targets.tolist()) == (X[PICK].tolist(), Y[PICK].tolist())


def test_an_iterable_dataset_with_a_length_is_read_in_its_order() -> None:
    records = as_records(Stream(3, 3))
    assert records.targets.tolist() == records.inputs[:, 0].tolist() == [0, 1, 2]


def unreadable(index: int) -> torch.Tensor:
    if index == 3:
        raise OSError("truncated file")
    return torch.ones(2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, Y[:-1]), "6 inputs, 5 targets"),
        ((X, np.array(["a"] * 6)), "targets"),
        ((np.float64(1.0), Y), "one row per record"),
        ((pd.DataFrame({"a": ["x"] * 6}), Y), "which number each level gets"),
        (Stream(None, 3), "give a Dataset with __len__"),
        (42, "give a Dataset with __len__"),
        (Stream(3, 2), "3 records and ended after 2"),
        (Stream(3, 4), "3 records and has more"),
        (Stream(3, 2, OSError("a bad image")), r"record 2 = 'OSError': .*read \(a bad image\)"),
        (Items(unreadable), "record 3.*OSError.*truncated file.*mend this record"),
        (
            Items(lambda index: torch.ones(3 if index == 2 else 2)),
            r"input of record 2.*\[3\].*record 0 has.*\[2\]",
        ),
        (Items(lambda _: object()), "transform"),
        # Arrays that aren't whole, or say other than they do.
        (DataLoader(TensorDataset(torch.zeros(1))), "items are batches.*give its .dataset"),
        ((MASKED, [0, 1]), "input of record 1 = 'masked'"),
        (([1.0, 2.0], MASKED), "target of record 1 = 'masked'"),
        ((torch.eye(2).to_sparse(), [0, 1]), r"give \.to_dense\(\)"),
        ((sparse.eye(2).tocsr(), [0, 1]), "must be an array of numbers"),
        (([[1, 2], [3]], [0, 1]), "must be an array of numbers"),
    ],
)
def test_data_that_cannot_be_used_are_refused_at_once(data: object, message: str) -> None:
    with pytest.raises(Misconfiguration, match=message):
        as_records(data)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(np.nan, np.float32), (np.inf, np.float64), (-np.inf, np.float32), (1e300, np.float64)],
)
@pytest.mark.parametrize("place", ["input[2]", "target"])
def test_a_value_that_is_not_finite_in_float32_is_named(
    value: float, dtype: type, place: str
) -> None:
    x: Any = X.astype(dtype)
    y = x[:, 0].copy()
    (x[:, 2] if place == "input[2]" else y)[4] = value
    with pytest.raises(Misconfiguration) as refused:
        as_records((x, y))
    assert refused.value.field == f"data, {place} of record 4"
    assert np.array_equal(refused.value.value, value, equal_nan=True)  # type: ignore[arg-type]
    assert "mend this record" in refused.value.remedy


def test_a_dataset_is_read_once_and_its_later_changes_do_not_count() -> None:
    dataset = Items(lambda _: torch.full((2,), float(dataset.readings)))
    records = as_records(dataset)
    for _ in range(2):
        inputs, _ = records.take(np.arange(5))
        assert inputs[:, 0].tolist() == [1, 2, 3, 4, 5]
    assert dataset.readings == 5


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_later_changes_of_the_arrays_do_not_count(convert: Callable[[object], Any]) -> None:
    x, y = X.astype(np.float32), Y.astype(np.int64)
    records = as_records((convert(x), convert(y)))
    x[:], y[:] = np.nan, 99
    inputs, targets = records.take(np.arange(6))
    assert (inputs.tolist(), targets.tolist()) == (X.tolist(), Y.tolist())
