"""Whatever holds the records: the same records give the same tensors, or one sentence.

Each kind of table by name: tests/client/test_containers.py.
"""

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.client.test_containers import (
    _CANNOT_HOLD,
    CONTAINERS,
    USES,
    contained,
    recipe,
)
from torch.utils.data import TensorDataset

from precad.client.records.read_records import read_records
from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration

a_hundred = settings(
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)
Outcome = tuple[object, ...]


def refused(error: Misconfiguration, *where: object) -> Outcome:
    """One sentence, which isn't the same for every container."""
    sentence = str(error)
    assert sentence == " ".join(sentence.split())
    return ("refused", *where)


# --- tables

words = st.sampled_from(
    [
        "A",
        "B",
        " A",
        "NA",
        "NULL",
        "null",
        "",
        "1",
        "1.0",
        "01",
        "2.50",
        "true",
        "False",
        "1,000",
        "1_0",
        "inf",
        "café",
        "a b",
        "-0",
    ]
)
cells = st.one_of(
    st.lists(st.one_of(words, st.none()), min_size=2, max_size=5),
    st.lists(
        st.one_of(st.integers(-(2**53), 2**53), st.none()), min_size=2, max_size=5
    ),
    st.lists(st.integers(0, 2**62), min_size=2, max_size=5),
    st.lists(
        st.one_of(st.integers(-(10**7), 10**7).map(lambda n: n / 100), st.none()),
        min_size=2,
        max_size=5,
    ),
    st.lists(st.one_of(st.booleans(), st.none()), min_size=2, max_size=5),
)
"""Columns of one kind each, some with gaps."""


def of_table(data: object, use: str) -> Outcome:
    try:
        x, y = read_records(data, recipe(use))
    except Misconfiguration as error:
        return refused(error, "column v" in error.field)
    return x.dtype.name, x.tolist(), y.dtype.name, y.tolist()


@a_hundred
@given(
    values=cells,
    use=st.sampled_from(sorted(USES)),
    containers=st.permutations(CONTAINERS),
)
def test_a_frame_a_file_and_lists_of_the_same_cells_give_the_same_tensors(
    values: list[Any], use: str, containers: list[str]
) -> None:
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("lists", *containers):
            if len(outcomes) == 6:
                break
            try:
                data = contained(name, values, Path(folder))
            except _CANNOT_HOLD:
                continue
            outcomes[name] = of_table(data, use)
    assert len(outcomes) >= 3
    assert len(set(map(repr, outcomes.values()))) == 1, (values, use, outcomes)


# --- arrays

Pair = tuple[NDArray[Any], NDArray[Any]]


def backwards(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array[::-1])[::-1]


def by_columns(array: NDArray[Any]) -> NDArray[Any]:
    return np.asfortranarray(array)


def spread(array: NDArray[Any]) -> NDArray[Any]:
    return np.repeat(array, 2, axis=0)[::2]


def swapped(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(array.dtype.newbyteorder(">"))


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    copied = array.copy()
    copied.flags.writeable = False
    return copied


def tensors(x: NDArray[Any], y: NDArray[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(x.copy()), torch.from_numpy(y.copy())


def in_a_file(x: NDArray[Any], y: NDArray[Any]) -> object:
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "t.npz", x=x, y=y)
        return read_records(Path(folder) / "t.npz")


def on_arrow(x: NDArray[Any], y: NDArray[Any]) -> object:
    return x, pa.chunked_array([y[:1], y[1:]])


def each(layout: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[..., object]:
    return lambda x, y: (layout(x), layout(y))


HOLDERS: dict[str, Callable[[NDArray[Any], NDArray[Any]], object]] = {
    "arrays": lambda x, y: (x, y),
    "backwards": each(backwards),
    "by columns": each(by_columns),
    "spread": each(spread),
    "swapped": each(swapped),
    "read only": each(read_only),
    "tensors": tensors,
    "dataset": lambda x, y: TensorDataset(*tensors(x, y)),
    "arrow": on_arrow,
    "dictionary": lambda x, y: (x, pa.array(y).dictionary_encode()),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "file": in_a_file,
}
"""Lists have no type of their own: they are compared by value, where they are taken."""


def of_pair(x: NDArray[Any], y: NDArray[Any], name: str) -> Outcome:
    try:
        records = as_records(HOLDERS[name](x, y))
    except Misconfiguration as error:
        return refused(error)
    inputs, targets = records.take(np.arange(len(records)))
    return (
        str(inputs.dtype),
        inputs.tolist(),
        str(targets.dtype),
        targets.tolist(),
    )


def numbers(dtype: str, *, finite: bool) -> st.SearchStrategy[float]:
    if dtype.startswith("float"):
        some = st.integers(-200, 200).map(lambda n: n / 4)
        odd = st.sampled_from([np.nan, np.inf])
        return some if finite else st.one_of(some, odd)
    return st.integers(0, 100)


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    kinds = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")
    of_x, of_y = draw(st.sampled_from(kinds)), draw(st.sampled_from(kinds))
    count = draw(st.integers(2, 5))
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    finite = draw(st.booleans())

    def filled(dtype: str, *extents: int) -> NDArray[Any]:
        size = int(np.prod(extents))
        drawn = st.lists(numbers(dtype, finite=finite), min_size=size, max_size=size)
        return np.array(draw(drawn)).astype(dtype).reshape(extents)

    return filled(of_x, count, *shape), filled(of_y, count)


@a_hundred
@given(pair=pairs())
def test_arrays_tensors_and_files_of_the_same_numbers_give_the_same_tensors(
    pair: Pair,
) -> None:
    outcomes = {name: of_pair(*pair, name) for name in HOLDERS if name != "lists"}
    assert len(set(map(repr, outcomes.values()))) == 1, (pair, outcomes)
    found, from_lists = outcomes["arrays"], of_pair(*pair, "lists")
    if found != ("refused",) and from_lists != ("refused",):
        assert flat(from_lists[1]) == flat(found[1])


def flat(nested: object) -> list[float]:
    if isinstance(nested, Iterable):
        return [number for part in nested for number in flat(part)]
    assert isinstance(nested, int | float)
    return [float(nested)]
