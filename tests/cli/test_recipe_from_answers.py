"""A recipe's constants from released answers; what it says itself stays."""

import json
from pathlib import Path

import pytest
from tests.rig.pages import ROOT

from precad.cli.recipe_from_answers import answers_by_column, counts_of, recipe_of
from precad.client.results import Answered
from precad.common.errors import Misconfiguration
from precad.common.task_schema import Column, DataSection

SITE = Column(name="site", kind="categorical", levels=("a", "b", "c"))
OUTCOME = Column(name="outcome", kind="categorical", levels=("no", "yes"))
QUERIES = [
    {"name": "age", "kind": "mean", "column": "age", "lower": 0, "upper": 110},
    {"name": "dose", "kind": "quantiles", "column": "dose"},
    {"name": "sites", "kind": "shares", "column": "site"},
    {"name": "outcomes", "kind": "shares", "column": "outcome"},
    {
        "name": "of women",
        "kind": "mean",
        "column": "weight",
        "lower": 0,
        "upper": 200,
        "where": {"sex": "f"},
    },
]
ANSWERS = [
    ("age", "missing", "count", 12.0, -5.0),
    ("age", "mean", "value", 61.23456, 60.0),
    ("age", "standard deviation", "value", 14.2, 13.0),
    ("dose", "quantile 0.25", "value", 2000.0, 1900.0),
    ("dose", "quantile 0.5", "value", 3000.0, 2900.0),
    ("dose", "quantile 0.75", "value", 4698.0, 4500.0),
    ("sites", "a", "count", 70.0, 50.0),
    ("sites", "b", "count", 9.0, -11.0),
    ("sites", "c", "count", 170.0, 150.0),
    ("sites", "c", "share", 0.6, 0.5),
    ("outcomes", "no", "count", 930.2, 900.0),
    ("outcomes", "yes", "count", -3.0, -20.0),
    ("of women", "mean", "value", 66.0, 60.0),
    ("of women", "standard deviation", "value", 12.0, 11.0),
]


def document(**changes: tuple[str, float]) -> dict[str, object]:
    answers = []
    for query, of, measure, value, low in ANSWERS:
        given, least = value, low
        if changes.get(query, ("",))[0] == of:
            given = least = changes[query][1]
        answers.append(
            {
                "query": query,
                "group": "",
                "of": of,
                "measure": measure,
                "value": given,
                "low": least,
                "high": given + 20.0,
                "low_together": least,
                "high_together": given + 40.0,
                "moved_by_record": None,
            }
        )
    return {"task": "0" * 64, "counted": {}, "queries": QUERIES, "answers": answers}


def written(*columns: Column) -> DataSection:
    return DataSection(target=OUTCOME, columns=columns)


def said(tmp_path: Path, **changes: tuple[str, float]) -> Path:
    path = tmp_path / "answers.json"
    path.write_text(json.dumps(document(**changes)), encoding="utf-8")
    return path


def test_the_schema_that_is_documented_is_the_answers() -> None:
    kept = json.loads((ROOT / "docs/answers.schema.json").read_text("utf-8"))
    assert kept == Answered.model_json_schema(mode="serialization"), (
        "run docs/generate.py"
    )


def test_columns_take_what_was_answered(tmp_path: Path) -> None:
    found = answers_by_column(said(tmp_path))
    recipe = written(Column(name="age"), Column(name="dose"), SITE)
    age, dose, site = recipe_of(recipe, found).columns
    assert (age.centre, age.scale, age.fill) == (61.23, 14.2, 61.23)
    assert (dose.centre, dose.fill) == (3000.0, 3000.0)
    assert dose.scale == pytest.approx(2000.0)
    # b may be noise, so its records go to the input of all others.
    assert (site.levels, site.fill_level) == (("a", "c"), "c")
    assert counts_of(OUTCOME, found) == "no=930,yes=1"


def test_what_the_recipe_says_stays(tmp_path: Path) -> None:
    age = Column(name="age", centre=50.0, scale=10.0, fill=40.0)
    weight, untold = Column(name="weight"), Column(name="height")
    recipe = written(age, weight, untold)
    assert recipe_of(recipe, answers_by_column(said(tmp_path))) == recipe


@pytest.mark.parametrize(
    ("column", "changes"),
    [
        (Column(name="age"), {"age": ("standard deviation", 0.0)}),
        (Column(name="dose"), {"dose": ("quantile 0.75", 2000.0)}),
        (
            Column(name="site", kind="categorical", levels=("b", "d")),
            {"sites": ("b", 0.0)},
        ),
    ],
)
def test_what_noise_hides_is_refused(
    column: Column, changes: dict[str, tuple[str, float]], tmp_path: Path
) -> None:
    found = answers_by_column(said(tmp_path, **changes))
    with pytest.raises(Misconfiguration, match="ask again with a larger ε") as error:
        recipe_of(written(column), found)
    assert column.name in error.value.field


def test_answers_to_what_the_file_doesnt_ask_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_text(json.dumps(document() | {"queries": QUERIES[:1]}), encoding="utf-8")
    assert answers_by_column(path).keys() == {"age"}


@pytest.mark.parametrize("text", ["", "{}", '{"answers": [1]}'])
def test_another_file_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Misconfiguration, match="precad ask answer --json"):
        answers_by_column(path)
    with pytest.raises(Misconfiguration, match="precad ask answer --json"):
        answers_by_column(tmp_path / "no.json")
