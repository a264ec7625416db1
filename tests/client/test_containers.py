"""One table in every container gives the same arrays, or the same refusal."""

import datetime as dt
import io
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from pyarrow import csv as arrow_csv
from pyarrow import parquet
from scipy import sparse

from precad.client.check_before_enrolling import Kind, look_at_columns
from precad.client.records.columns import ColumnNotes, Columns
from precad.client.records.containers import level_of, of_column
from precad.client.records.read_records import of_frame, read_records
from precad.client.records.torch_records import as_records
from precad.common import npy
from precad.common.errors import Misconfiguration
from precad.common.task_schema import DataSection

Values = Sequence[Any]
E_ACUTE = "e\N{COMBINING ACUTE ACCENT}"
DAY = dt.date(2024, 3, 1)
NOON = dt.datetime(2024, 3, 1, 12, 0, 0)  # noqa: DTZ001 -- as tables have them

KINDS: dict[str, Values] = {
    "whole numbers": [1, 2, 3, 2],
    "whole numbers with a gap": [1, None, 3, 2],
    "negative whole numbers": [-1, 0, -3, 2],
    "small unsigned": list(np.array([1, 2, 255, 0], np.uint8)),
    "beyond 2^53": [2**53 + 1, 2, 2**62, 1],
    "beyond 2^53 with a gap": [2**53 + 1, None, 2**62, 1],
    "numbers": [1.5, -2.25, 1e-3, 1e30],
    "numbers with a gap": [1.5, None, 2.0, 0.1],
    "whole numbers as floats": [1.0, 2.0, 3.0, 2.0],
    "whole numbers as floats with a gap": [1.0, None, 3.0, 2.0],
    "minus zero": [-0.0, 0.0, 1.0, 2.0],
    "not finite": [1.0, float("inf"), 2.0, 3.0],
    "too large for single precision": [1.0, 1e39, 2.0, 3.0],
    "single precision": list(np.array([0.1, 0.2, 1.0, 3.3], np.float32)),
    "single precision with a gap": [np.float32(0.1), None, np.float32(2.0), np.float32(3.0)],
    "truth values": [True, False, True, True],
    "truth values with a gap": [True, None, False, True],
    "truth values as text": ["True", "false", "TRUE", "true"],
    "text": ["A", "B", "Z", "A"],
    "text with a gap": ["A", None, "Z", "B"],
    "text with blanks around": [" A", "B ", "A\t", "Z"],
    "text in decomposed letters": [f"caf{E_ACUTE}", "A", "B", "caf\u00e9"],
    "text that means a gap": ["A", "NA", "nan", ""],
    "numbers as text": ["1", "2.0", "3", " 2"],
    "codes with zeros before": ["01", "02", "003", "2"],
    "numbers as only Python writes them": ["1_0", "2", "3", "1"],
    "thousands": ["1,000", "2", "3", "1"],
    "text and numbers": ["A", "2", "B", "3.0"],
    "other cases": ["a", "b", "A", "B"],
    "nothing": [None, None, None, None],
    "decimals": [Decimal("1.50"), Decimal(2), Decimal("3.00"), Decimal("0.1")],
    "decimals with a gap": [Decimal("1.50"), None, Decimal("3.00"), Decimal("0.1")],
    "days": [DAY, DAY, None, DAY],
    "instants": [NOON, NOON, None, NOON],
    "durations": [NOON - NOON, dt.timedelta(days=1), None, dt.timedelta(0)],
    "times": [NOON.time(), NOON.time(), None, NOON.time()],
    "bytes": [b"A", b"B", b"A", b"Z"],
    "lists": [[1, 2], [3], [1], [2, 3]],
}
NO_TEXT = {"days", "instants", "durations", "times", "bytes", "lists"}
"""What a text file can't say: there it is text like any other."""
LEVELS = ["1", "2", "3", "true", "false", "A", "B", "caf\u00e9", "1.5", "0.1", str(2**53 + 1)]
USES: dict[str, tuple[str, dict[str, Any]]] = {
    "number, filled": ("columns", {"fill": 7.0, "centre": 1.0, "scale": 3.0}),
    "number": ("columns", {"centre": 0.5, "scale": 2.0}),
    "level, filled": ("columns", {"kind": "categorical", "levels": LEVELS, "fill_level": "A"}),
    "level": ("columns", {"kind": "categorical", "levels": LEVELS}),
    "class": ("target", {"kind": "categorical", "levels": LEVELS}),
    "target": ("target", {}),
}


@cache
def recipe(use: str) -> DataSection:
    where, column = USES[use]
    other = {"name": "o"}
    named = {"name": "v", **column}
    target, columns = (named, [other]) if where == "target" else (other, [named])
    return DataSection.model_validate({"target": target, "columns": columns})


def numbers(count: int) -> list[float]:
    return [float(each) for each in range(count)]


# --- containers: each gives the values a form, or None where it can't hold them ------------------


def lists(values: Values, _: Path) -> Any:
    return {"v": list(values), "o": numbers(len(values))}


def numpy_arrays(values: Values, _: Path) -> Any:
    if None in values or any(isinstance(each, list) for each in values):
        return None
    return {"v": np.array(values), "o": np.arange(len(values), dtype=np.float64)}


def masked_arrays(values: Values, _: Path) -> Any:
    gaps = [each is None for each in values]
    some = next((each for each in values if each is not None), None)
    if some is None or any(isinstance(each, list) for each in values):
        return None
    filled = np.array([some if each is None else each for each in values])
    return {"v": np.ma.masked_array(filled, mask=gaps), "o": numbers(len(values))}


def pandas_plain(values: Values, _: Path) -> Any:
    return pd.DataFrame({"v": list(values), "o": numbers(len(values))})


def pandas_nullable(values: Values, folder: Path) -> Any:
    del folder
    frame = pd.DataFrame({"v": pd.Series(list(values), dtype=object), "o": numbers(len(values))})
    return frame.convert_dtypes()


def pandas_categories(values: Values, _: Path) -> Any:
    if any(isinstance(each, list | np.generic) for each in values):
        return None
    column = pd.Series(list(values), dtype=object).astype("category")
    return pd.DataFrame({"v": column, "o": numbers(len(values))})


def pandas_arrow(values: Values, folder: Path) -> Any:
    table = arrow(values, folder)
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def polars(values: Values, _: Path) -> Any:
    if any(isinstance(each, np.generic) for each in values):
        column = pl.Series("v", arrow(values, Path()).column("v"))
        return pl.DataFrame({"v": column, "o": numbers(len(values))})
    return pl.DataFrame({"v": list(values), "o": numbers(len(values))})


def arrow(values: Values, _: Path) -> Any:
    kinds = {type(each) for each in values if isinstance(each, np.generic)}
    kind = pa.from_numpy_dtype(np.dtype(kinds.pop())) if kinds else None
    plain = [each.item() if isinstance(each, np.generic) else each for each in values]
    column = (
        pa.chunked_array([pa.array(plain[:2], kind), pa.array(plain[2:], kind)])
        if (kind is not None)
        else pa.chunked_array([pa.array(plain)])
    )
    return pa.table({"v": column, "o": numbers(len(values))})


def arrow_dictionary(values: Values, folder: Path) -> Any:
    if any(isinstance(each, list) for each in values) or values[0] is None:
        return None
    table = arrow(values, folder)
    return table.set_column(0, "v", table.column("v").dictionary_encode())


def parquet_of_pandas(values: Values, folder: Path) -> Any:
    pandas_plain(values, folder).to_parquet(folder / "t.parquet")
    return folder / "t.parquet"


def parquet_of_categories(values: Values, folder: Path) -> Any:
    frame = pandas_categories(values, folder)
    if frame is None:
        return None
    frame.to_parquet(folder / "t.parquet")
    return folder / "t.parquet"


def parquet_of_polars(values: Values, folder: Path) -> Any:
    polars(values, folder).write_parquet(folder / "t.parquet")
    return folder / "t.parquet"


def parquet_of_arrow(values: Values, folder: Path) -> Any:
    parquet.write_table(arrow(values, folder), folder / "t.parquet")
    return folder / "t.parquet"


def csv_of_pandas(values: Values, folder: Path) -> Any:
    frame = pd.DataFrame({"v": pd.Series(list(values), dtype=object), "o": numbers(len(values))})
    frame.to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


def csv_of_polars(values: Values, folder: Path) -> Any:
    polars(values, folder).write_csv(folder / "t.csv")
    return folder / "t.csv"


def csv_of_arrow(values: Values, folder: Path) -> Any:
    out = io.BytesIO()
    arrow_csv.write_csv(arrow(values, folder), out)
    (folder / "t.csv").write_bytes(out.getvalue())
    return folder / "t.csv"


CONTAINERS: tuple[Callable[[Values, Path], Any], ...] = (
    *(lists, numpy_arrays, masked_arrays),
    *(pandas_plain, pandas_nullable, pandas_categories, pandas_arrow),
    *(polars, arrow, arrow_dictionary),
    *(parquet_of_pandas, parquet_of_categories, parquet_of_polars, parquet_of_arrow),
    *(csv_of_pandas, csv_of_polars, csv_of_arrow),
)
WIDENED = {
    "beyond 2^53 with a gap": {"pandas_plain", "parquet_of_pandas", "pandas_nullable"},
    # Parquet keeps a category's whole numbers and forgets that they were durations; and which
    # digits a float had is gone where a container keeps doubles alone.
    "durations": {"parquet_of_categories"},
    "single precision with a gap": {"pandas_plain", "parquet_of_pandas", "pandas_nullable"},
}
"""Containers that hold other values than they were given, before anybody reads them."""


_CANNOT_HOLD = (
    *(TypeError, ValueError, NotImplementedError, OverflowError),
    *(pa.ArrowException, pl.exceptions.PolarsError),
)
"""What the libraries say where a container has no place for such values."""


def made(kind: str, container: Callable[[Values, Path], Any], folder: Path) -> Any:
    """The table, or None where this container can't hold it."""
    if container.__name__ in WIDENED.get(kind, ()):
        return None
    if kind in NO_TEXT and container.__name__.startswith("csv"):
        return None
    folder.mkdir()
    try:
        return container(KINDS[kind], folder)
    except _CANNOT_HOLD:
        return None


def outcome(data: Any, use: str) -> tuple[Any, ...]:
    """Both arrays, or that the column was refused."""
    try:
        x, y = read_records(data, recipe(use))
    except Misconfiguration as refused:
        return ("refused", "at its column" if "column v" in refused.field else refused.field)
    return x.dtype.name, x.tolist(), y.dtype.name, y.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_means_the_same_in_every_container(kind: str, tmp_path: Path) -> None:
    held = {
        container.__name__: table
        for container in CONTAINERS
        if (table := made(kind, container, tmp_path / container.__name__)) is not None
    }
    assert len(held) >= 4, held.keys()
    for use in USES:
        outcomes = {name: outcome(table, use) for name, table in held.items()}
        assert len(set(map(repr, outcomes.values()))) == 1, (use, outcomes)


@pytest.mark.parametrize("use", ["level, filled", "level", "class"])
@pytest.mark.parametrize("container", [pandas_plain, parquet_of_pandas])
def test_a_code_that_a_float_has_rounded_is_refused(
    use: str, container: Callable[[Values, Path], Any], tmp_path: Path
) -> None:
    data = container(KINDS["beyond 2^53 with a gap"], tmp_path)
    with pytest.raises(Misconfiguration, match="that was rounded: keep such codes"):
        read_records(data, recipe(use))


@pytest.mark.parametrize(
    ("code", "dtype"), [(123456789, np.float32), (2049, np.float16), (70001, np.float16)]
)
def test_a_code_that_few_bits_have_rounded_is_refused(code: int, dtype: Any) -> None:
    column = {"name": "v", "kind": "categorical", "levels": [str(code)]}
    section = DataSection.model_validate({"target": {"name": "o"}, "columns": [column]})
    with np.errstate(over="ignore"):
        table = {"v": np.array([code, 5], np.int64).astype(dtype), "o": [0.5, 1]}
    with pytest.raises(Misconfiguration, match="that was rounded"):
        read_records(table, section)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("use", ["number, filled", "level, filled"])
def test_a_number_that_means_a_gap_does_so_in_every_container(
    container: Callable[[Values, Path], Any], use: str, tmp_path: Path
) -> None:
    """-9 in a text file was filled, and in a frame it was a value."""
    section = recipe(use).model_copy(update={"missing": ("", "-9")})
    notes: list[ColumnNotes] = []
    read_records(container([1, -9, 2, 3], tmp_path), section, notes=notes)
    assert notes[0].filled == 1


@pytest.mark.parametrize(
    ("use", "cell"),
    [
        *(("number, filled", each) for each in ("-9", "-9,0", "-9,00", "-09", "-9e0")),
        ("level, filled", "-9,0"),
    ],
)
def test_a_number_that_means_a_gap_does_so_however_a_text_file_writes_it(
    use: str, cell: str, tmp_path: Path
) -> None:
    """-9,0 is the number -9: it was trained on, where a frame of floats has it as a gap."""
    section = recipe(use).model_copy(update={"missing": ("", "-9")})
    good = "A" if use.startswith("level") else "1,5"
    (tmp_path / "t.csv").write_text(f"v;o\n{good};1\n{cell};2\n", encoding="utf-8")
    notes: list[ColumnNotes] = []
    read_records(tmp_path / "t.csv", section, Columns(separator=";", decimal=","), notes)
    assert notes[0].filled == 1


def test_text_that_looks_like_a_large_number_is_a_level_like_any_other() -> None:
    column = {"name": "v", "kind": "categorical", "levels": ["7E22", "inf"], "fill_level": "inf"}
    section = DataSection.model_validate({"target": {"name": "o"}, "columns": [column]})
    x, _ = read_records({"v": ["7E22", "inf", "12e34"], "o": [0.5, 1, 2]}, section)
    assert x.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_a_decimal_comma_holds_for_levels_too(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("v;o\n1,5;1\nA;2\n", encoding="utf-8")
    columns = Columns(separator=";", decimal=",")
    x, _ = read_records(tmp_path / "t.csv", recipe("level"), columns)
    assert x.argmax(axis=1).tolist() == [LEVELS.index("1.5"), LEVELS.index("A")]


@pytest.mark.parametrize(
    ("kind", "use", "x"),
    [
        ("whole numbers with a gap", "number, filled", [0.0, 2.0, 2 / 3, 1 / 3]),
        ("truth values as text", "number", [0.25, -0.25, 0.25, 0.25]),
    ],
)
def test_numbers_are_what_they_say(kind: str, use: str, x: list[float], tmp_path: Path) -> None:
    found, _ = read_records(lists(KINDS[kind], tmp_path), recipe(use))
    assert found[:, 0] == pytest.approx(x)


@pytest.mark.parametrize(
    ("cell", "level"),
    [
        (True, "true"),
        ("TRUE ", "true"),
        (2, "2"),
        (2.0, "2"),
        ("2.0", "2"),
        ("-0.0", "0"),
        (-0.0, "0"),
        ("02", "02"),
        ("2.50", "2.5"),
        ("250", "250"),
        ("I10.50", "I10.50"),
        (Decimal("3.00"), "3"),
        (Decimal(30), "30"),
        (1e-05, "0.00001"),
        (1e22, "10000000000000000000000"),
        ("7E22", "7E22"),
        (f"caf{E_ACUTE}", "caf\u00e9"),
        ("ICU", "ICU"),
    ],
)
def test_a_level_is_compared_by_what_it_says(cell: Any, level: str) -> None:
    assert level_of(cell) == level


@pytest.mark.parametrize("levels", [["1", "1.0"], ["True", "true"], ["caf\u00e9", f"caf{E_ACUTE}"]])
def test_levels_that_are_read_alike_are_refused_in_the_task(levels: list[str]) -> None:
    column = {"name": "v", "kind": "categorical", "levels": levels}
    with pytest.raises(Misconfiguration, match="are read alike: list each level once"):
        DataSection.model_validate({"target": {"name": "o"}, "columns": [column]})


def test_a_columns_name_is_the_same_however_its_letters_are_composed() -> None:
    table = of_frame({f"caf{E_ACUTE} ": [1, 2]})
    assert list(table.cells("caf\u00e9")) == [1, 2]
    with pytest.raises(Misconfiguration, match="names a column twice"):
        of_frame({f"caf{E_ACUTE}": [1], "caf\u00e9": [2]})


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("abc", "an array or a list of cells"),
        (5, "an array or a list of cells"),
        ({"a": 1}, "an array or a list of cells"),
        (np.zeros((2, 2)), "one cell a record, not a matrix"),
        (sparse.csr_array(np.eye(2)), "an array or a list of cells|not a matrix"),
        (torch.ones(2).to_sparse(), "give a dense tensor"),
        ([1, 2j], r"record 1 = 'complex': must be a number"),
        (np.array(["2024-03-01"], "M8[ns]"), "record 0 = 'datetime64': is a date"),
        (np.array([5], "m8[ns]"), "record 0 = 'timedelta64': is a date"),
    ],
)
def test_what_is_no_column_is_refused_in_a_sentence(column: Any, said: str) -> None:
    with pytest.raises(Misconfiguration, match=f"data, column v.*{said}"):
        of_column(column, "v")


def test_tensors_are_columns_like_arrays() -> None:
    assert of_column(torch.tensor([1, 2]), "v").tolist() == [1, 2]  # type: ignore[union-attr]
    x, _ = read_records({"v": torch.tensor([0.1, 2]), "o": [0.5, 1]}, recipe("level"))
    assert x.argmax(axis=1).tolist() == [LEVELS.index("0.1"), LEVELS.index("2")]


def test_a_frame_that_is_not_computed_yet_is_refused() -> None:
    with pytest.raises(Misconfiguration, match=r"give \.collect\(\)"):
        read_records(pl.LazyFrame({"v": [1], "o": [1]}), recipe("number"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(1))),
            "items are batches.*give its .dataset",
        ),
        (
            (np.ma.masked_array([1.0, 2.0], mask=[False, True]), [0, 1]),
            "input of record 1 = 'masked'",
        ),
        (
            ([1.0, 2.0], np.ma.masked_array([1, 2], mask=[True, False])),
            "target of record 0 = 'masked'",
        ),
        ((torch.eye(2).to_sparse(), [0, 1]), r"give \.to_dense\(\)"),
        ((sparse.eye(2).tocsr(), [0, 1]), "must be an array of numbers"),
        (([[1, 2], [3]], [0, 1]), "must be an array of numbers"),
    ],
)
def test_arrays_that_are_not_whole_are_refused(data: Any, said: str) -> None:
    with pytest.raises(Misconfiguration, match=said):
        as_records(data)


def test_an_owner_is_told_what_was_filled_and_what_nobody_listed() -> None:
    levels = {"name": "unit", "kind": "categorical", "levels": ["ICU"], "fill_level": "ICU"}
    age = {"name": "age", "centre": 60.0, "scale": 20.0, "fill": 50.0}
    section = DataSection.model_validate({"target": {"name": "y"}, "columns": [age, levels]})
    table = {
        "unit": ["ICU", "Icu", "Icu", None, "icu"],
        "age": [61, 999, None, 40, 70],
        "y": [0.5, 1, 2, 3, 4],
    }
    notes: list[ColumnNotes] = []
    read_records(table, section, notes=notes)
    assert [note.sentence() for note in notes] == [
        (
            "column age: 1 of 5 cells are missing and were filled; "
            "999 lies 30 scales or more from the centre 60"
        ),
        (
            "column unit: 1 of 5 cells are missing and were filled; "
            "3 of 5 have a level that the task doesn't list ('Icu', 'icu')"
        ),
    ]
    assert [note.share for note in notes] == [0.2, 0.8]
    findings = look_at_columns(notes)
    assert [each.kind for each in findings] == [Kind.NOTE, Kind.NOTE]
    assert findings[0].text.startswith("column unit: ")
    assert all(each.text.endswith(": is that meant?") for each in findings)


def test_a_table_in_which_everything_is_listed_says_so_in_one_line() -> None:
    notes: list[ColumnNotes] = []
    read_records({"v": [1.0, 2.0], "o": [0, 1]}, recipe("number"), notes=notes)
    assert [each.text for each in look_at_columns(notes)] == [
        "no cell of 1 columns is missing or unlisted"
    ]


def test_a_wide_tables_columns_are_told_from_the_worst_on() -> None:
    column = {"kind": "categorical", "levels": ["a"], "fill_level": "a"}
    columns = [{"name": f"c{i}", **column} for i in range(30)]
    section = DataSection.model_validate({"target": {"name": "y"}, "columns": columns})
    table = {f"c{i}": ["a"] * (300 - i) + ["b"] * i for i in range(30)} | {"y": list(range(300))}
    notes: list[ColumnNotes] = []
    read_records(table, section, notes=notes)
    findings = look_at_columns(notes)
    assert findings[0].text.startswith("column c29: 29 of 300")
    assert findings[-1].text == "9 more columns have such cells"
    assert len(findings) == 21


# --- files that hold more than they look ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_a_file_that_unpacks_beyond_the_memory_is_refused_before(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundredth of its size on the disk: somebody's bomb, or the wrong file."""
    path, many = tmp_path / f"own.{kind}", 200_000
    if kind == "npz":
        np.savez_compressed(path, x=np.zeros((many, 2), np.float32), y=np.zeros(many, np.int64))
    else:
        zeros = np.zeros(many)
        parquet.write_table(pa.table({"a": zeros, "y": zeros}), path)
    columns = Columns(inputs=("a",), target="y")
    assert len(read_records(path, None, columns)[0]) == many
    monkeypatch.setattr(npy, "memory_bytes", lambda: 4_000_000)
    with pytest.raises(Misconfiguration, match=r"own\.\w+'?: unpacks to 0.0 GiB, and this machine"):
        read_records(path, None, columns)


def test_more_columns_than_a_task_may_have_are_refused_in_a_sentence() -> None:
    with pytest.raises(Misconfiguration, match=r"inputs = .*at most 10000 items"):
        Columns(inputs=tuple(f"c{at}" for at in range(25_000)), target="y")
