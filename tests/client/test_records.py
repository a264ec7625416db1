"""A data owner's records in the forms that they come in: arrays, datasets, and tables
that become numbers by the task's recipe. What can't be used is named with its place.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from tests.conftest import TaskMaker
from tests.rig.documents import Document
from tests.rig.refusals import refused
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from precad.client.records.columns import Columns
from precad.client.records.read_records import read_inputs, read_records
from precad.client.records.torch_records import as_records
from precad.common.task_schema import DataSection

X = np.arange(24, dtype=np.float64).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2], np.int32)
MASKED = np.ma.masked_array([1.0, 2.0], mask=[False, True])


class Items(Dataset[object]):
    """Five of them, each as ``item`` makes it of its index; a count of its readings
    goes along."""

    def __init__(self, item: Callable[[int], object]) -> None:
        self.item, self.readings = item, 0

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[object, int]:
        self.readings += 1
        return self.item(index), index


class Stream(IterableDataset[object]):
    """It has ``has`` records, whatever it says, and may end with an error."""

    def __init__(
        self, says: int | None, has: int, error: Exception | None = None
    ) -> None:
        self.says, self.has, self.error = says, has, error

    def __len__(self) -> int:
        if self.says is None:
            raise TypeError("no length")
        return self.says

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        yield from (
            (torch.full((2,), float(place)), place) for place in range(self.has)
        )
        if self.error is not None:
            raise self.error


def test_all_forms_give_the_same_records() -> None:
    tensors = torch.from_numpy(X), torch.from_numpy(Y)
    frames = pd.DataFrame(X), pd.Series(Y)
    for data in (
        (X, Y),
        [X, Y],
        tensors,
        frames,
        TensorDataset(*tensors),
        as_records((X, Y)),
    ):
        records = as_records(data)
        inputs, targets = records.take(np.array([4, 1]))
        assert (len(records), inputs.dtype, targets.dtype) == (
            6,
            torch.float32,
            torch.int64,
        )
        assert (inputs.tolist(), targets.tolist()) == (
            X[[4, 1]].tolist(),
            Y[[4, 1]].tolist(),
        )


def test_data_that_cannot_be_used_are_refused_at_once() -> None:
    unreadable = Mock(side_effect=[*torch.ones(3, 2), OSError("truncated file")])
    for data, message in (
        ((X, Y[:-1]), "6 inputs, 5 targets"),
        ((X, np.array(["a"] * 6)), "targets"),
        ((np.float64(1.0), Y), "one row per record"),
        ((pd.DataFrame({"a": ["x"] * 6}), Y), "which number each level gets"),
        (Stream(None, 3), "give a Dataset with __len__"),
        (42, "give a Dataset with __len__"),
        (Stream(3, 2), "3 records and ended after 2"),
        (Stream(3, 4), "3 records and has more"),
        (
            Stream(3, 2, OSError("a bad image")),
            r"record 2 = 'OSError': .*read \(a bad image\)",
        ),
        (Items(unreadable), "record 3.*OSError.*truncated file.*mend this record"),
        (
            Items(lambda index: torch.ones(3 if index == 2 else 2)),
            r"input of record 2.*\[3\].*record 0 has.*\[2\]",
        ),
        (Items(lambda _: object()), "transform"),
        # Arrays that aren't whole, or say other than they do.
        (
            DataLoader(TensorDataset(torch.zeros(1))),
            "items are batches.*give its .dataset",
        ),
        ((MASKED, [0, 1]), "input of record 1 = 'masked'"),
        (([1.0, 2.0], MASKED), "target of record 1 = 'masked'"),
        ((torch.eye(2).to_sparse(), [0, 1]), r"give \.to_dense\(\)"),
        ((sparse.eye(2).tocsr(), [0, 1]), "must be an array of numbers"),
        (([[1, 2], [3]], [0, 1]), "must be an array of numbers"),
    ):
        refused(message, as_records, data)


def test_a_gap_in_an_arrow_array_is_named_and_never_a_value() -> None:
    arrow = pytest.importorskip("pyarrow")
    x = np.zeros((3, 2), np.float32)
    gaps = arrow.array([0, None, 1])
    whole = arrow.array([0, 1, 1])
    for gap in (
        gaps,
        gaps.dictionary_encode(),
        arrow.chunked_array([gaps.dictionary_encode()]),
    ):
        refused("target of record 1 = 'null'.*has no value", as_records, (x, gap))
    for full in (
        whole,
        whole.dictionary_encode(),
        arrow.chunked_array([whole[:1], whole[1:]]),
        arrow.chunked_array([whole.dictionary_encode()]),
    ):
        assert as_records((x, full)).targets.tolist() == [0, 1, 1]


@pytest.mark.filterwarnings("ignore:torch.quantize:UserWarning")
def test_arrays_read_backwards_and_quantized_tensors_have_words_of_ours() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)[::-1]
    assert as_records((x, np.array([0, 1, 1])[::-1])).inputs.tolist() == x.tolist()
    quantized = torch.quantize_per_tensor(torch.zeros(3, 2), 0.1, 0, torch.qint8)
    refused("quantized tensor.*dequantize", as_records, (quantized, [0, 1, 1]))


def test_a_file_s_ending_may_be_in_capitals_and_no_folder_is_missing(
    tmp_path: Path,
) -> None:
    table = tmp_path / "WARD.CSV"
    table.write_text("age,target\n1,0\n2,1\n")
    x, y = read_records(table, columns=Columns(inputs=("age",), target="target"))
    assert (len(x), len(y)) == (2, 2)
    (tmp_path / "ward.parquet").mkdir()
    refused("ward.parquet.*is a folder", read_records, tmp_path / "ward.parquet")
    os.mkfifo(tmp_path / "pipe.csv")
    refused("pipe.csv.*is a pipe", read_records, tmp_path / "pipe.csv")
    german = tmp_path / "german.csv"
    german.write_text("age;target\n1,5;yes\n")
    refused("columns.separator = ';' .* into", read_records, german)
    # precad setup makes those settings itself: what can be done there comes first.
    refused("between its names: save the file with ','", read_records, german)


@pytest.mark.parametrize("mark", ["n/a", "NULL", "N/A", "-", "missing"])
def test_a_mark_that_no_task_lists_is_named_with_where_to_list_it(
    mark: str, tmp_path: Path
) -> None:
    """It was to become "numbers by a categorical column"."""
    column = {"name": "age", "fill": 60.0}
    values = {"target": {"name": "y"}, "columns": [column]}
    table = tmp_path / "ward.csv"
    table.write_text(f"age,y\n50,1\n{mark},2\n", encoding="utf-8")
    said = f"record 1 .line 3 of .*ward.csv. = '{mark}': isn't a.*data.missing where it means"
    refused(said, read_records, table, DataSection.model_validate(values))
    listed = DataSection.model_validate(values | {"missing": ["", mark]})
    assert read_records(table, listed)[0].tolist() == [[50.0], [60.0]]


@pytest.mark.parametrize(
    ("cell", "own", "named"),
    [
        ("30,9", ".", ","),
        ("30.9", ",", "."),
        ("1.230,9", ",", "."),
        ("1,230.9", ".", ","),
        ("old", ".", ""),
        ("n.a.", ",", ""),
    ],
)
def test_the_sign_before_a_fraction_or_thousands_is_named_where_it_reads_the_cell(
    cell: str, own: str, named: str, tmp_path: Path
) -> None:
    table = tmp_path / "ward.csv"
    table.write_text(f"age;y\n50;1\n{cell};2\n", encoding="utf-8")
    columns = Columns(inputs=("age",), target="y", separator=";", decimal=own)
    found = refused("isn't a number", read_records, table, None, columns)
    assert (f'columns.decimal = "{named}"' in str(found)) is bool(named)
    assert ("parts thousands, leave it out" in str(found)) is bool(named)
    assert ("data.missing" in str(found)) is not bool(named)
    if named and len(cell) < 5:
        mended = columns.model_copy(update={"decimal": named})
        x, _ = read_records(table, None, mended)
        assert x[1].tolist() == [np.float32(30.9)]


@pytest.mark.parametrize(("mark", "separator"), [("sep=;", ";"), ("sep=,", ",")])
def test_the_line_that_excel_writes_before_the_names_is_no_names(
    mark: str, separator: str, tmp_path: Path
) -> None:
    """It was taken for a separator that was left out of the settings."""
    table = tmp_path / "ward.csv"
    table.write_text(f"{mark}\nage,y\n50,1\n60,old\n".replace(",", separator))
    columns = Columns(inputs=("age",), target="y", separator=separator)
    refused(
        r"column y, record 1 \(line 4 of .*ward.csv\)",
        read_records,
        table,
        None,
        columns,
    )
    refused("separator", read_records, table, None, Columns(separator="|"))


def test_a_level_in_other_case_or_spaces_is_said_to_be_one() -> None:
    ages, wards = [60.0], ["A"]
    for cell, hinted in (("No", True), ("n o", True), ("nope", False)):
        table = {"age": ages, "ward": wards, "died": [cell]}
        found = refused("none of the task's levels", read_records, table, RECIPE)
        assert ("it is 'no' but for case or spaces" in str(found)) is hinted


def test_no_column_of_a_table_is_two_of_the_tasks() -> None:
    for changes, named in (
        ({"rename": {"age": "old", "ward": "old "}}, ("age", "ward")),
        # One is renamed to what another is called in the task already.
        ({"rename": {"age": "ward"}}, ("age", "ward")),
        ({"rename": {"died": "age"}}, ("died", "age")),
        ({"unit": "age"}, ("age", "columns.unit")),
    ):
        found = refused(
            "column", read_records, ROWS | {"old": [1] * 4}, RECIPE, Columns(**changes)
        )
        assert all(name in str(found) for name in named), found
    swapped = ROWS | {"age": ROWS["ward"], "ward": ROWS["age"]}
    rename = {"age": "ward", "ward": "age"}
    assert read_records(swapped, RECIPE, Columns(rename=rename))[0].tolist() == READ
    for inputs in (("age", "age"), ("age", "died")):
        columns = Columns(inputs=inputs, target="died")
        refused("stands there twice", read_records, ROWS, None, columns)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("place", ["input[2]", "target"])
def test_a_value_not_finite_in_float32_is_named(value: float, place: str) -> None:
    x = X.copy()
    y = x[:, 0].copy()
    (x[:, 2] if place == "input[2]" else y)[4] = value
    for dtype in (np.float64,) if value == 1e300 else (np.float32, np.float64):
        found = refused(
            "mend this record", as_records, (x.astype(dtype), y.astype(dtype))
        )
        assert found.field == f"data, {place} of record 4"
        assert repr(float(found.value)) == repr(value)  # type: ignore[arg-type]


def test_data_are_read_once_and_later_changes_do_not_count() -> None:
    dataset = Items(lambda _: torch.full((2,), float(dataset.readings)))
    records = as_records(dataset)
    for _ in range(2):
        inputs, _ = records.take(np.arange(5))
        assert inputs[:, 0].tolist() == [1, 2, 3, 4, 5]
    assert dataset.readings == 5
    # One without an index in its own order.
    records = as_records(Stream(3, 3))
    assert records.targets.tolist() == records.inputs[:, 0].tolist() == [0, 1, 2]
    # Arrays and tensors.
    for convert in (np.asarray, torch.from_numpy):
        x, y = X.astype(np.float32), Y.astype(np.int64)
        records = as_records((convert(x), convert(y)))
        x[:], y[:] = np.nan, 99
        assert (records.inputs.tolist(), records.targets.tolist()) == (
            X.tolist(),
            Y.tolist(),
        )


AGE = {"name": "age", "centre": 60.0, "scale": 20.0, "fill": 50.0}
WARD = {
    "name": "ward",
    "kind": "categorical",
    "levels": ["A", "B"],
    "fill_level": "none",
}
DIED = {"name": "died", "kind": "categorical", "levels": ["no", "yes"]}
RECIPE = DataSection.model_validate({"target": DIED, "columns": [AGE, WARD]})
CSV = 'age,ward,died\n80,A,no\n, B ,yes\n40,"Z\nz",no\n60,,yes\n'
ROWS = {
    "age": [80, None, Decimal(40), 60.0],
    "ward": ["A", "B", "Zz", None],
    "died": ["no", "yes", "no", "yes"],
}
READ = [[1, 1, 0, 0], [-0.5, 0, 1, 0], [-1, 0, 0, 1], [0, 0, 0, 1]]
DEAD = [0, 1, 0, 1]
TWO = Columns(inputs=("age",), target="y")


def write(folder: Path, text: str) -> Path:
    path = folder / "ward.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_becomes_the_recipes_numbers_by_its_owners_names(
    tmp_path: Path,
) -> None:
    """As in every other container: test_containers.py."""
    data = write(tmp_path, CSV)
    x, y = read_records(data, RECIPE)
    assert (x.dtype, y.dtype, x.tolist(), y.tolist()) == (
        np.float32,
        np.int64,
        READ,
        DEAD,
    )
    assert (
        read_inputs(data, RECIPE).tolist() == read_inputs(ROWS, RECIPE).tolist() == READ
    )
    renamed = write(tmp_path, CSV.replace("age", "Alter"))
    assert (
        read_records(renamed, RECIPE, Columns(rename={"age": "Alter"}))[0].tolist()
        == READ
    )
    # Without a recipe a table of numbers is taken as it is.
    path = write(tmp_path, "a;b;y\n1,5;2;0\n3;4;1\n")
    columns = Columns(inputs=("b", "a"), target="y", separator=";", decimal=",")
    x, y = read_records(path, None, columns)
    assert (x.tolist(), y.dtype, y.tolist()) == ([[2, 1.5], [4, 3]], np.int64, [0, 1])
    assert (
        read_records({"age": [1.0, 2.0], "y": [0.5, 1]}, None, TWO)[1].dtype
        == np.float32
    )


def without(column: Document, key: str) -> DataSection:
    bare = {name: value for name, value in column.items() if name != key}
    others = [each for each in (AGE, WARD) if each["name"] != column["name"]]
    return DataSection.model_validate({"target": DIED, "columns": [bare, *others]})


def test_a_bad_cell_is_named(tmp_path: Path) -> None:
    for text, recipe, said in (
        (
            CSV.replace("80", "old"),
            RECIPE,
            r"column age, record 0 \(line 2 of .*\) = 'old': isn't a num",
        ),
        (
            CSV.replace("60,", "1_0,"),
            RECIPE,
            r"record 3 \(line 6 of .*\) = '1_0': isn't a number",
        ),
        (CSV.replace("80", "1e42"), RECIPE, "must be finite"),
        (CSV.replace("80", "inf"), RECIPE, "must be finite"),
        (
            CSV.replace("no\n60", "perhaps\n60"),
            RECIPE,
            r"record 2 .*none of the task's levels",
        ),
        (
            CSV.replace("B ,yes", "B ,"),
            RECIPE,
            r"column died, record 1 .* is missing: mend it or",
        ),
        (
            CSV,
            without(AGE, "fill"),
            r"column age, record 1 .*give the column a fill in the task",
        ),
        (CSV, without(WARD, "fill_level"), "give the column a fill_level"),
        (CSV.replace("ward", "Ward"), RECIPE, "no such column; it has Ward, age, died"),
        (CSV.replace("age,ward", "ward,ward"), RECIPE, "names a column twice"),
        (CSV + "1,2\n", RECIPE, r"line 7 = '2 cells': .*names 3 columns"),
        ("age;ward;died\n", RECIPE, "separator.*';'"),
        ("age,ward,died\n", RECIPE, "no records"),
        ("", RECIPE, "no such column|no records"),
        ('age,ward,died\n"1,2,3\n', RECIPE, "can't be read as CSV"),
    ):
        refused(said, read_records, write(tmp_path, text), recipe)


def test_saying_too_little_or_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[tuple[object, DataSection | None, Document | None, str]] = [
        ("ward.xlsx", None, None, "give a .npz file"),
        ("nowhere.csv", None, None, "no such file: mend"),
        ("nowhere.npz", None, None, "no such file: mend"),
        (ROWS, None, None, "columns.inputs"),
        (ROWS, None, {"inputs": ("age",)}, "columns.target"),
        (
            ROWS,
            None,
            {"inputs": ("ward",), "target": "died"},
            "a number.*categorical column",
        ),
        (ROWS, None, {"rename": {"age": "old"}}, r"no \[data\]"),
        ({"age": [1], "y": [1, 2]}, None, TWO.model_dump(), "different lengths"),
        ({"age": [], "y": []}, None, TWO.model_dump(), "no records"),
        # What the task says an owner doesn't.
        (ROWS, RECIPE, {"inputs": ("age",)}, r"the task's \[data\] names the columns"),
        (ROWS, RECIPE, {"target": "died"}, r"the task's \[data\] names the columns"),
        (ROWS, RECIPE, {"rename": {"Age": "x"}}, "no such column: age, died, ward"),
        (ROWS, RECIPE, {"input": ("age",)}, "unknown key"),
    ]
    for data, recipe, columns, said in rows:
        refused(
            said,
            lambda d, r, c: read_records(d, r, c and Columns(**c)),
            data,
            recipe,
            columns,
        )
    # Arrays and Parquet beside a recipe.
    np.savez(
        tmp_path / "a.npz", x=np.zeros((2, 3), np.float32), y=np.zeros(2, np.int64)
    )
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").touch()
    for name, said in (
        ("a.npz", "makes 4 numbers"),
        ("a.parquet", r"precad\[parquet\]"),
    ):
        refused(said, read_records, tmp_path / name, RECIPE)


def test_a_recipe_that_means_nothing_is_refused() -> None:
    for columns, target, said in (
        ([AGE, AGE], DIED, "stands there twice"),
        ([AGE], DIED | {"name": "age"}, "stands there twice"),
        ([AGE | {"levels": ["a"]}], DIED, "isn't for a numeric column"),
        ([WARD | {"centre": 1.0}], DIED, "isn't for a categorical column"),
        ([WARD | {"levels": []}], DIED, "at least one"),
        ([WARD | {"levels": ["A", "A"]}], DIED, "each level once"),
        ([WARD | {"levels": ["A", "NA"]}], DIED, "means a missing value"),
        ([AGE], DIED | {"fill_level": "no"}, "teaches nothing"),
    ):
        refused(
            said, DataSection.model_validate, {"target": target, "columns": columns}
        )


def test_a_recipe_is_in_the_digest_and_without_one_it_is_as_before(
    make_task: TaskMaker,
) -> None:
    plain = make_task(4)
    recipe = RECIPE.model_dump(mode="json")
    with_one = make_task(4, {"data": recipe})
    recipe["columns"][0]["fill"] = 51.0
    with_another = make_task(4, {"data": recipe})
    assert len({each.digest for each in (plain, with_one, with_another)}) == 3
    assert b"data" not in plain.canonical
    assert type(plain).parse(json.loads(with_one.canonical)) == with_one
