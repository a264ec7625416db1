"""One table in every container gives the same arrays, or the same refusal."""

import datetime as dt
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache, partial
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
from tests.rig.documents import Document
from tests.rig.refusals import refused

from precad.client.check_before_enrolling import Kind, look_at_columns
from precad.client.records.columns import ColumnNotes, Columns
from precad.client.records.containers import level_of, of_column
from precad.client.records.read_records import of_frame, read_records
from precad.common import errors, npy
from precad.common.task_schema import Column, DataSection

Values = Sequence[Any]
Contained = Any  # A frame or table of a library without types, a path, or columns
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
    "single precision with a gap": [
        np.float32(0.1),
        None,
        np.float32(2.0),
        np.float32(3.0),
    ],
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
LEVELS = [
    "1",
    "2",
    "3",
    "true",
    "false",
    "A",
    "B",
    "caf\u00e9",
    "1.5",
    "0.1",
    str(2**53 + 1),
]
USES: dict[str, tuple[str, Document]] = {
    "number, filled": ("columns", {"fill": 7.0, "centre": 1.0, "scale": 3.0}),
    "number": ("columns", {"centre": 0.5, "scale": 2.0}),
    "level, filled": (
        "columns",
        {"kind": "categorical", "levels": LEVELS, "fill_level": "A"},
    ),
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


def table(column: Contained) -> dict[str, object]:
    return {"v": column, "o": [float(each) for each in range(len(column))]}


def holds(can: bool) -> None:  # noqa: FBT001 -- reads as a sentence
    if not can:
        raise ValueError("it has no place for such values")


def has(values: Values, *kinds: type) -> bool:
    return any(isinstance(each, kinds) for each in values)


def of_numpy(values: Values) -> Contained:
    holds(None not in values and not has(values, list))
    return table(np.array(values))


def masked(values: Values) -> Contained:
    some = next((each for each in values if each is not None), None)
    holds(some is not None and not has(values, list))
    whole = np.array([some if each is None else each for each in values])
    return table(np.ma.masked_array(whole, mask=[each is None for each in values]))


def categories(values: Values) -> Contained:
    holds(not has(values, list, np.generic))
    return pd.DataFrame(table(pd.Series(list(values), dtype=object).astype("category")))


def polars(values: Values) -> Contained:
    typed = has(values, np.generic)
    return pl.DataFrame(
        table(pl.Series("v", column_of(values)) if typed else list(values))
    )


def column_of(values: Values) -> Contained:
    """Arrow's; in two pieces where the type is known."""
    kinds = {type(each) for each in values if isinstance(each, np.generic)}
    kind = pa.from_numpy_dtype(np.dtype(kinds.pop())) if kinds else None
    plain = [each.item() if isinstance(each, np.generic) else each for each in values]
    pieces = [plain] if kind is None else [plain[:2], plain[2:]]
    return pa.chunked_array([pa.array(piece, kind) for piece in pieces])


def dictionary(values: Values) -> Contained:
    holds(not has(values, list) and values[0] is not None)
    return pa.table(table(column_of(values).dictionary_encode()))


def objects(values: Values) -> Contained:
    return pd.DataFrame(table(pd.Series(list(values), dtype=object)))


MAKERS: dict[str, Callable[[Values], Contained]] = {
    "lists": lambda values: table(list(values)),
    "numpy": of_numpy,
    "masked": masked,
    "pandas": lambda values: pd.DataFrame(table(list(values))),
    "objects": objects,
    "nullable": lambda values: objects(values).convert_dtypes(),
    "categories": categories,
    "pandas on arrow": (
        lambda values: MAKERS["arrow"](values).to_pandas(types_mapper=pd.ArrowDtype)
    ),
    "polars": polars,
    "arrow": lambda values: pa.table(table(column_of(values))),
    "dictionary": dictionary,
}
WRITERS: dict[str, dict[str, Callable[[Contained, Path], object]]] = {
    "parquet": {
        **dict.fromkeys(("pandas", "categories"), pd.DataFrame.to_parquet),
        "polars": pl.DataFrame.write_parquet,
        "arrow": parquet.write_table,
    },
    "csv": {
        "objects": partial(pd.DataFrame.to_csv, index=False),
        "polars": pl.DataFrame.write_csv,
        "arrow": arrow_csv.write_csv,
    },
}
FILES = (f"{kind} of {maker}" for kind, makers in WRITERS.items() for maker in makers)
CONTAINERS = (*MAKERS, *FILES)


def contained(name: str, values: Values, folder: Path) -> Contained:
    kind, of, maker = name.rpartition(" of ")
    found, path = MAKERS[maker](values), folder / f"t.{kind}"
    if not of:
        return found
    WRITERS[kind][maker](found, path)
    return path


WIDENED = {
    "beyond 2^53 with a gap": {"pandas", "parquet of pandas", "nullable"},
    # Parquet keeps a category's whole numbers and forgets that they were durations; and
    # which digits a float had is gone where a container keeps doubles alone.
    "durations": {"parquet of categories"},
    "single precision with a gap": {"pandas", "parquet of pandas", "nullable"},
}
"""Containers that hold other values than they were given, before anybody reads them."""
_CANNOT_HOLD = (
    *(TypeError, ValueError, NotImplementedError, OverflowError),
    *(pa.ArrowException, pl.exceptions.PolarsError),
)
"""What the libraries say where a container has no place for such values."""


def made(kind: str, container: str, folder: Path) -> Contained:
    no_text = kind in NO_TEXT and container.startswith("csv")
    if no_text or container in WIDENED.get(kind, ()):
        return None
    folder.mkdir()
    try:
        return contained(container, KINDS[kind], folder)
    except _CANNOT_HOLD:
        return None


def outcome(data: Contained, use: str) -> tuple[object, ...]:
    try:
        x, y = read_records(data, recipe(use))
    except errors.Misconfiguration as error:
        return (
            "refused",
            "at its column" if "column v" in error.field else error.field,
        )
    return x.dtype.name, x.tolist(), y.dtype.name, y.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_means_the_same_in_every_container(kind: str, tmp_path: Path) -> None:
    tables = {name: made(kind, name, tmp_path / name) for name in CONTAINERS}
    held = {name: each for name, each in tables.items() if each is not None}
    assert len(held) >= 4, held.keys()
    for use in USES:
        outcomes = {name: outcome(each, use) for name, each in held.items()}
        assert len(set(map(repr, outcomes.values()))) == 1, (use, outcomes)


def by_levels(*levels: str, **more: object) -> DataSection:
    column = {"name": "v", "kind": "categorical", "levels": list(levels), **more}
    return DataSection.model_validate({"target": {"name": "o"}, "columns": [column]})


@pytest.mark.parametrize("use", ["level, filled", "level", "class"])
def test_a_code_that_a_float_rounded_is_refused(use: str, tmp_path: Path) -> None:
    rounded = [
        (contained(name, KINDS["beyond 2^53 with a gap"], tmp_path), recipe(use))
        for name in ("pandas", "parquet of pandas")
    ]
    # Few bits round small ones.
    for code, dtype in (
        (123456789, np.float32),
        (2049, np.float16),
        (70001, np.float16),
    ):
        with np.errstate(over="ignore"):
            codes = np.array([code, 5], np.int64).astype(dtype)
        rounded.append(({"v": codes, "o": [0.5, 1]}, by_levels(str(code))))
    for data, section in rounded:
        refused("that was rounded: keep such codes", read_records, data, section)


def notes_of(
    data: Contained, section: DataSection, columns: Columns | None = None
) -> list[ColumnNotes]:
    notes: list[ColumnNotes] = []
    read_records(data, section, columns, notes)
    return notes


def filled(data: Contained, use: str, columns: Columns | None = None) -> int:
    """How many cells are filled where -9 means a gap."""
    return notes_of(
        data, recipe(use).model_copy(update={"missing": ("", "-9")}), columns
    )[0].filled


COMMAS = Columns(separator=";", decimal=",")


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("use", ["number, filled", "level, filled"])
def test_a_number_that_means_a_gap_does_anywhere(
    container: str, use: str, tmp_path: Path
) -> None:
    """-9 in a text file was filled, and in a frame it was a value."""
    assert filled(contained(container, [1, -9, 2, 3], tmp_path), use) == 1


def test_a_number_that_means_a_gap_does_so_however_a_text_file_writes_it(
    tmp_path: Path,
) -> None:
    """-9,0 is the number -9: it was trained on, where a frame of floats has it as a
    gap."""
    for cell in ("-9", "-9,0", "-9,00", "-09", "-9e0"):
        (tmp_path / "t.csv").write_text(f"v;o\n1,5;1\n{cell};2\n", encoding="utf-8")
        assert filled(tmp_path / "t.csv", "number, filled", COMMAS) == 1, cell
    (tmp_path / "t.csv").write_text("v;o\nA;1\n-9,0;2\n", encoding="utf-8")
    assert filled(tmp_path / "t.csv", "level, filled", COMMAS) == 1
    # A decimal comma holds for levels, and tensors are columns too.
    (tmp_path / "t.csv").write_text("v;o\n1,5;1\nA;2\n", encoding="utf-8")
    numbers = {"v": torch.tensor([0.1, 2]), "o": [0.5, 1]}
    for data, levels in ((tmp_path / "t.csv", ["1.5", "A"]), (numbers, ["0.1", "2"])):
        x, _ = read_records(data, recipe("level"), None if data is numbers else COMMAS)
        assert [LEVELS[at] for at in x.argmax(axis=1)] == levels


def test_values_are_what_they_say() -> None:
    for values, section, x in (
        (
            KINDS["whole numbers with a gap"],
            recipe("number, filled"),
            [0.0, 2.0, 2 / 3, 1 / 3],
        ),
        (KINDS["truth values as text"], recipe("number"), [0.25, -0.25, 0.25, 0.25]),
        # Text that looks like a large number is a level like any other.
        (
            ["7E22", "inf", "12e34"],
            by_levels("7E22", "inf", fill_level="inf"),
            [1, 0, 0],
        ),
    ):
        found, _ = read_records(table(list(values)), section)
        assert found[:, 0] == pytest.approx(x)
    # A level is compared by what it says.
    for cell, level in (
        *((cell, "true") for cell in (True, "TRUE ")),
        *((cell, "2") for cell in (2, 2.0, "2.0")),
        *((cell, "0") for cell in (-0.0, "-0.0")),
        *((cell, cell) for cell in ("02", "250", "I10.50", "7E22", "ICU")),
        *(("2.50", "2.5"), (Decimal("3.00"), "3"), (Decimal(30), "30")),
        *((1e-05, "0.00001"), (1e22, "10000000000000000000000")),
        (f"caf{E_ACUTE}", "caf\u00e9"),
    ):
        assert level_of(cell) == level
    # Those that are read alike are refused.
    for levels in (["1", "1.0"], ["True", "true"], ["caf\u00e9", f"caf{E_ACUTE}"]):
        refused("are read alike: list each level once", by_levels, *levels)
    # However a name's letters are composed.
    assert list(of_frame({f"caf{E_ACUTE} ": [1, 2]}).cells("caf\u00e9")) == [1, 2]
    refused("names a column twice", of_frame, {f"caf{E_ACUTE}": [1], "caf\u00e9": [2]})


def test_what_is_no_column_is_refused_in_a_sentence() -> None:
    for column, said in (
        *((each, "an array or a list of cells") for each in ("abc", 5, {"a": 1})),
        (np.zeros((2, 2)), "one cell a record, not a matrix"),
        (sparse.csr_array(np.eye(2)), "an array or a list of cells|not a matrix"),
        (torch.ones(2).to_sparse(), "give a dense tensor"),
        ([1, 2j], r"record 1 = 'complex': must be a number"),
        (np.array(["2024-03-01"], "M8[ns]"), "record 0 = 'datetime64': is a date"),
        (np.array([5], "m8[ns]"), "record 0 = 'timedelta64': is a date"),
    ):
        refused(f"data, column v.*{said}", of_column, column, "v")
    # Nor is a frame one that isn't computed yet.
    lazy = pl.LazyFrame({"v": [1], "o": [1]})
    refused(r"give \.collect\(\)", read_records, lazy, recipe("number"))


def test_an_owner_is_told_what_was_filled_and_what_nobody_listed() -> None:
    levels = {
        "name": "unit",
        "kind": "categorical",
        "levels": ["ICU"],
        "fill_level": "ICU",
    }
    age = {"name": "age", "centre": 60.0, "scale": 20.0, "fill": 50.0}
    section = DataSection.model_validate(
        {"target": {"name": "y"}, "columns": [age, levels]}
    )
    units, ages = ["ICU", "Icu", "Icu", None, "icu"], [61, 999, None, 40, 70]
    notes = notes_of({"unit": units, "age": ages, "y": [0.5, 1, 2, 3, 4]}, section)
    of_age = (
        "column age: 1 of 5 cells are missing; "
        "999 lies 30 scales or more from the centre 60"
    )
    of_unit = (
        "column unit: 1 of 5 cells are missing; "
        "3 of 5 have none of the task's levels (ICU) but 'Icu', 'icu'"
    )
    assert [(note.sentence(), note.share) for note in notes] == [
        (of_age, 0.2),
        (of_unit, 0.8),
    ]
    found = [(each.kind, each.text) for each in look_at_columns(notes)]
    assert found == [
        (Kind.NOTE, f"{each}: is that meant?") for each in (of_unit, of_age)
    ]
    # Where everything is listed a line says so.
    (said,) = look_at_columns(notes_of(table([1.0, 2.0]), recipe("number")))
    assert said.text == "no cell of 1 columns is missing or unlisted"


def test_a_column_in_another_unit_is_asked_about_with_its_numbers() -> None:
    """Albumin in g/dl, where centre and scale are of g/l: no cell is 30 scales off."""
    column = {"name": "albumin", "centre": 40.0, "scale": 5.0, "fill": 40.0}
    rng = np.random.default_rng(3)
    grams: list[float | None] = list(rng.normal(40, 6, 99))
    other = [cell and cell / 10 for cell in grams]
    for as_target in (False, True):
        use = {"target": {"name": "y"}, "columns": [column]}
        if as_target:
            bare = {key: value for key, value in column.items() if key != "fill"}
            use = {"target": bare, "columns": [{"name": "y"}]}
        section = DataSection.model_validate(use)

        def told(
            cells: list[float | None], section: DataSection = section
        ) -> list[str]:
            table: Contained = {"albumin": cells, "y": [1.0] * len(cells)}
            notes = notes_of(table, section)
            return [
                each.text for each in look_at_columns(notes) if each.kind is Kind.NOTE
            ]

        assert told(grams) == []
        (asked,) = told(other)
        said = r"column albumin: perhaps another unit: the median (3\.9|4\.)\d* lies 5"
        assert re.match(said + " scales or more from the centre 40: is that", asked)
        # Of three, half says nothing.
        assert told(other[:3]) == []
    # Missing ones count as the fill, and don't hide it; nor does a long tail show it.
    section = recipe("number").model_copy(
        update={"columns": (Column.model_validate(column),)}
    )
    table: Contained = {"albumin": [*other, *[None] * 150], "o": [1.0] * 249}
    assert "another unit" in notes_of(table, section)[0].sentence()
    skewed = {"albumin": 35 + 5 * rng.lognormal(0, 1.5, 999), "o": [1.0] * 999}
    assert "unit" not in notes_of(skewed, section)[0].sentence()
    nothing: Contained = {"albumin": [None, None], "o": [1.0, 2.0]}
    assert notes_of(nothing, section)[0].sentence().endswith("are missing")


def test_a_column_that_hardly_varies_beside_its_scale_is_asked_about() -> None:
    """Incomes in thousands lie only two scales from the centre."""
    column = {"name": "income", "centre": 3000.0, "scale": 1500.0}
    section = DataSection.model_validate({"target": {"name": "y"}, "columns": [column]})

    def told(incomes: Sequence[float]) -> list[str]:
        notes = notes_of({"income": list(incomes), "y": [1.0] * len(incomes)}, section)
        found = look_at_columns(notes)
        return [each.text for each in found if each.kind is Kind.NOTE]

    euros = np.random.default_rng(3).lognormal(8, 0.5, 99).tolist()
    assert told(euros) == []
    thousands = [each / 1000 for each in euros]
    (asked,) = told(thousands)
    assert re.search(
        r"perhaps another unit: 90 % lie within \d.\d+ of one another", asked
    )
    # A sentinel hides none of it; a column of one value has no unit that shows.
    assert "another unit" in told([*thousands, 99999.0])[0]
    assert told([0.0] * 99) == []


def test_a_wide_tables_columns_are_told_from_the_worst_on_or_too_many() -> None:
    column = {"kind": "categorical", "levels": ["a"], "fill_level": "a"}
    columns = [{"name": f"c{i}", **column} for i in range(30)]
    section = DataSection.model_validate({"target": {"name": "y"}, "columns": columns})
    data = {f"c{i}": ["a"] * (300 - i) + ["b"] * i for i in range(30)} | {
        "y": list(range(300))
    }
    findings = look_at_columns(notes_of(data, section))
    assert findings[0].text.startswith("column c29: 29 of 300")
    assert (len(findings), findings[-1].text) == (21, "9 more columns have such cells")
    many = tuple(f"c{at}" for at in range(25_000))
    refused(r"inputs = .*at most 10000 items", Columns, inputs=many, target="y")


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_a_zip_bomb_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundredth of its size on the disk: somebody's bomb, or the wrong file."""
    path, zeros = tmp_path / f"own.{kind}", np.zeros(200_000)
    if kind == "npz":
        np.savez_compressed(
            path, x=zeros[:, None].astype(np.float32), y=zeros.astype(np.int64)
        )
    else:
        parquet.write_table(pa.table({"a": zeros, "y": zeros}), path)
    columns = Columns(inputs=("a",), target="y")
    assert len(read_records(path, None, columns)[0]) == len(zeros)
    monkeypatch.setattr(npy, "memory_bytes", lambda: 2_000_000)
    said = r"own\.\w+'?: unpacks to 0.0 GiB, and this machine"
    refused(said, read_records, path, None, columns)
